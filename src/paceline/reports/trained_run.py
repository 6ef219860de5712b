"""A run on disk for a program or a notebook: its records as attributes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.base_directory import named_path, working_directory
from paceline.checkpoints.run_directory import RunDir
from paceline.errors import CheckpointError
from paceline.models.places import FINAL


class RunLine(dict[str, Any]):
    """A line of a run's files; its keys are attributes too: `record.accuracy` is `record["accuracy"]`."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"the record has no {name}; it has {', '.join(self)}")
        return self[name]


@dataclass(frozen=True, slots=True, init=False)
class TrainedRun:
    """A run on disk, read anew at each access: `paceline.TrainedRun("runs/sums").evals`."""

    path: Path
    """The run directory, by its whole path."""

    def __init__(self, path: str | Path) -> None:
        """Open the run in a directory; a relative name stands in the working directory."""
        object.__setattr__(self, "path", working_directory() / named_path(path))

    @property
    def _files(self) -> RunDir:
        if not self.path.is_dir():
            raise CheckpointError(f"{self.path} is no directory; give that of a run")
        return RunDir(self.path)

    @property
    def metrics(self) -> list[RunLine]:
        """One record per step; docs/runs.md explains the names."""
        return [RunLine(one) for one in self._files.metrics()]

    @property
    def evals(self) -> list[RunLine]:
        """One record per evaluation of a held-out set, in order: `set`, `step`, `n`, `accuracy`, `ci_low`, ..."""
        return [RunLine(one) for one in self._files.evals()]

    @property
    def summary(self) -> RunLine:
        """What the run achieved: before, after, the paired difference, seconds per phase; empty until its end."""
        return RunLine(self._files.summary())

    @property
    def final_dir(self) -> Path:
        """The trained model, as transformers or peft loads it."""
        return self.path / FINAL

    def rollouts(self, step: int) -> list[RunLine]:
        """Return the completions of a step as they were sampled: prompt, rewards and advantage."""
        return [RunLine(one) for one in self._files.rollouts(step)]

    def _repr_html_(self) -> str:
        """Show the reward's curve and the held-out accuracies in a notebook."""
        from paceline.reports.notebook import run_html

        return run_html(self.path)

    def report(self) -> Path:
        """Draw the run's page and return its path."""
        from paceline.reports.page.html import write_report

        return write_report(self.path)
