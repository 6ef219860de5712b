"""The log on screen, as transformers prints it, with the names that a TRL user looks for."""

from collections.abc import Mapping
from typing import Any

from transformers import PrinterCallback, ProgressCallback, TrainerControl, TrainerState, TrainingArguments

from paceline.compat.trl.history import OURS


class LogPrinter(PrinterCallback):  # type: ignore[misc]
    """One line per log, without a progress bar."""

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **parts: Any
    ) -> None:
        """Print the line."""
        super().on_log(args, state, control, logs=for_screen(logs), **parts)


class LogProgress(ProgressCallback):  # type: ignore[misc]
    """One line per log above a progress bar."""

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **parts: Any
    ) -> None:
        """Print the line."""
        super().on_log(args, state, control, logs=for_screen(logs), **parts)


def for_screen(logs: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the log without our own names, which stay in `log_history`, `metrics.jsonl` and the trackers.

    >>> for_screen({"reward": 1.0, "refills": 0, "clock/update": 0.5, "half": 0.5})
    {'reward': 1.0, 'half': 0.5}
    """
    return {name: value for name, value in logs.items() if name not in OURS and not name.startswith("clock/")}
