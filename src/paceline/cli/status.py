"""Exit statuses that are no error's own; those are in `errors`."""

DONE = 0
FAILED = 1
"""What a command looked for is not so: a cheat scores, or the machine cannot train."""
INTERRUPTED = 130
"""128 + SIGINT, as shells have it; the run can be resumed."""
