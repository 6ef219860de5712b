"""Everything that Paceline raises on purpose, and what of a library's error is told.

    PacelineError
    ├── ConfigError       a wrong option, flag or configuration file    exit status 2
    ├── DataError         a row, file or prompt that cannot be used     exit status 2
    ├── ModelError        a model or tokenizer that cannot be used      exit status 2
    ├── RewardError       a reward function that cannot be trusted      exit status 1 (2 before the first step)
    ├── SandboxError      untrusted programs cannot be run              exit status 2; a failed grader within a run
    ├── CheckpointError   a checkpoint or run directory that is damaged exit status 2
    ├── EngineError       what samples completions has failed           exit status 1; a cluster replaces it
    └── TrainingError     the run itself went wrong                     exit status 1
        ├── StorageError  a checkpoint or record cannot be written: it can go on from the one before
        └── ProcessLost   one of its processes is gone or hangs: it can go on from its last checkpoint

The first four are wrong input, and therefore ValueErrors too, as callers of a Python library expect.
Every message is one sentence: the option or row, the value, the rule, the remedy.
"""


class PacelineError(Exception):
    """Base of all errors raised on purpose; the command line prints its message without a traceback."""

    exit_status = 1


class ConfigError(PacelineError, ValueError):
    """An option, flag or configuration file is wrong."""

    exit_status = 2


class DataError(PacelineError, ValueError):
    """A dataset, row or prompt cannot be used."""

    exit_status = 2


class ModelError(PacelineError, ValueError):
    """A model or tokenizer cannot be used."""

    exit_status = 2


class CheckpointError(PacelineError):
    """A run directory or checkpoint is missing, damaged or belongs to another run."""

    exit_status = 2


class RewardError(PacelineError, ValueError):
    """A reward function cannot be found, has the wrong shape, or failed too often."""

    exit_status = 2


class EngineError(PacelineError):
    """An engine has failed for good: a new one, in another process, may do better."""


class TrainingError(PacelineError):
    """The run cannot go on: for example a loss that is not finite."""


class StorageError(TrainingError):
    """A checkpoint or a record cannot be written: the disk is full, or fails; what was written before is whole."""


class ProcessLost(TrainingError):
    """A process that a run cannot do without is gone or hangs; the run can go on from its last checkpoint."""


class SandboxError(PacelineError):
    """A program cannot be run in isolation: the host does not offer it, or the sandbox itself failed."""

    exit_status = 2


def first_line(error: BaseException) -> str:
    """The sentence of a library's error, without what it prints below; its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
