"""All errors that Paceline raises on purpose.

    PacelineError
    ├── ConfigError       a wrong option, flag or configuration file    exit status 2
    ├── DataError         a row, file or prompt that cannot be used     exit status 2
    ├── ModelError        a model or tokenizer that cannot be used      exit status 2
    ├── RewardError       a reward function that cannot be trusted      exit status 1 (2 before the first step)
    ├── SandboxError      untrusted programs cannot be run              exit status 2; a failed grader within a run
    ├── EnvironmentFailure  an environment or tool has failed           a failed episode within a run
    ├── CheckpointError   a checkpoint or run directory that is damaged exit status 2
    ├── EngineError       the sampling engine has failed                exit status 1; a cluster replaces it
    └── TrainingError     the run itself went wrong                     exit status 1
        ├── StorageError  a checkpoint or record cannot be written: the run can resume from the one before
        └── ProcessLost   one of its processes is gone or hangs: the run can resume from its last checkpoint

The first four are wrong input, and therefore ValueErrors too, as callers of a Python library expect.
Every message is one sentence: the option or row, the value, the rule, the remedy.
"""

import re
from collections.abc import Callable, Sequence
from typing import Self

# Exit statuses without an error class.
DONE = 0
FAILED = 1
"""The answer is negative: a cheat scores, or the machine cannot train."""
INTERRUPTED = 130
"""128 + SIGINT, as in shells; the run can be resumed."""


class PacelineError(Exception):
    """Base of all errors raised on purpose; the command line prints its sentence without a traceback.

    Every part of the message writes an option as `--its-flag`. So other entry points can name options in their own
    vocabulary, and leave out or replace a remedy by an option that they do not have.
    """

    exit_status = 1

    def __init__(self, message: str = "", *, remedies: Sequence[str] = (), then: str = "") -> None:
        """Keep the parts of the sentence.

        Args:
            message: what is wrong.
            remedies: alternatives, one of which is enough.
            then: what to do after one of them.
        """
        self.message, self.remedies, self.then = message, tuple(remedies), then
        self.option: str | None = None
        """Name of the refused option; None if no option is refused."""
        self.value: object = None
        """Value of the refused option."""
        self.rule = ""
        """Rule that the value breaks, such as `be at least 1`."""
        self.kept: object = None
        """Completions made before the error, for the run directory: groups of a step, or an evaluation's result."""
        super().__init__(sentence(message, remedies, then))

    def reworded(self, say: Callable[[str], str], *, advise: Callable[[str], str] | None = None) -> Self:
        """Return the same error in an entry point's vocabulary; a remedy that `say` turns into "" is left out.

        `advise` rewords remedies and the step after them, where these differ from the command line's.
        """
        advise = advise or say
        remedies = [said for remedy in self.remedies if (said := advise(remedy))]
        error = type(self).__new__(type(self))  # a subclass may be made of other arguments
        error.__dict__.update(self.__dict__)
        PacelineError.__init__(error, say(self.message), remedies=remedies, then=advise(self.then))
        error.option, error.value, error.rule, error.kept = self.option, self.value, self.rule, self.kept
        return error


def sentence(message: str, remedies: Sequence[str] = (), then: str = "") -> str:
    """Join the parts of an error.

    >>> sentence("row 3 is empty", ["fill the row", "remove it"], "start again")
    'row 3 is empty; fill the row, or remove it, then start again'
    """
    alternatives = ", or ".join(part for part in (", ".join(remedies[:-1]), *remedies[-1:]) if part)
    after = f"then {then}" if then else ""
    advice = ", ".join(part for part in (alternatives, after) if part)
    return f"{message}; {advice}" if advice else message


class ConfigError(PacelineError, ValueError):
    """Wrong option, flag or configuration file."""

    exit_status = 2


class DataError(PacelineError, ValueError):
    """Dataset, row or prompt that cannot be used."""

    exit_status = 2


class ModelError(PacelineError, ValueError):
    """Model or tokenizer that cannot be used."""

    exit_status = 2


class CheckpointError(PacelineError):
    """Run directory or checkpoint that is missing, damaged or belongs to another run."""

    exit_status = 2


class RewardError(PacelineError, ValueError):
    """Reward function that cannot be found, has the wrong shape, or failed too often."""

    exit_status = 2


class EngineError(PacelineError):
    """Permanent failure of an engine; a new one in another process may succeed."""


class TrainingError(PacelineError):
    """Failure of the run itself, for example a loss that is not finite."""


class StorageError(TrainingError):
    """Checkpoint or record that cannot be written; earlier files are whole."""


class ProcessLost(TrainingError):
    """Loss of a process that the run needs; the run can resume from its last checkpoint."""


class EnvironmentFailure(PacelineError):
    """Failure of an environment or tool that the model did not cause, so the episode's reward is unknown.

    Tools written by users may raise it too.
    """


class SandboxError(PacelineError):
    """Program that cannot be run in isolation: the host does not offer it, or the sandbox failed."""

    exit_status = 2


PRINTED = "what it printed at last:"
"""Line before the printed lines of an environment in an error."""
APPENDED = re.compile(rf"\n(?= *(?:Traceback \(most recent call last\):|{PRINTED}))")
"""Start of a traceback in user code, or of what an environment has printed: parts of an error that keep their lines."""


def with_printed(sentence: str, printed: Sequence[str]) -> str:
    """Append the last lines that an environment has printed to a sentence on its failure."""
    return "\n    ".join([sentence, *([PRINTED, *printed] if printed else [])])


def exit_status_of(error: BaseException) -> int:
    """Exit status of the command that this error ends.

    >>> exit_status_of(KeyboardInterrupt()), exit_status_of(ZeroDivisionError())
    (130, 1)
    """
    if isinstance(error, PacelineError):
        return error.exit_status
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error message, or its type's name if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


ERRORS = {
    kind.__name__: kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, PacelineError)
}
"""Classes of errors by name, for errors that another process reports."""
