"""Programs in odd styles whose output is right: every one must count as such."""

from tests.sandbox.right import functions, language, running, streams

PROGRAMS = (*streams.PROGRAMS, *running.PROGRAMS, *language.PROGRAMS, *functions.PROGRAMS)
