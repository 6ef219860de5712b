"""Exit statuses that are no error's own; those are in `errors`."""

DONE = 0
INTERRUPTED = 130
"""128 + SIGINT, as shells have it; the run can be resumed."""
