"""Exit statuses without an error class; the others are in `errors`."""

DONE = 0
FAILED = 1
"""The answer is negative: a cheat scores, or the machine cannot train."""
INTERRUPTED = 130
"""128 + SIGINT, as in shells; the run can be resumed."""
