"""A run on disk for a program or a notebook: its records as attributes, and a few lines of HTML for a cell's output."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from paceline.base_directory import named_path, working_directory
from paceline.checkpoints.run_directory import RunDir
from paceline.errors import CheckpointError
from paceline.models.places import FINAL

WIDTH, HEIGHT = 360, 80
"""Size of the reward's curve in a notebook, in pixels."""


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
    """Absolute path of the run directory."""

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
        return [RunLine(record) for record in self._files.metrics()]

    @property
    def evals(self) -> list[RunLine]:
        """One record per evaluation of a held-out set, in order: `set`, `step`, `n`, `accuracy`, `ci_low`, ..."""
        return [RunLine(record) for record in self._files.evals()]

    @property
    def summary(self) -> RunLine:
        """Results of the run: before, after, the paired difference, seconds per phase; empty until its end."""
        return RunLine(self._files.summary())

    @property
    def final_dir(self) -> Path:
        """The trained model, as transformers or peft loads it."""
        return self.path / FINAL

    def rollouts(self, step: int) -> list[RunLine]:
        """Return the completions of a step as they were sampled: prompt, rewards and advantage."""
        return [RunLine(record) for record in self._files.rollouts(step)]

    def _repr_html_(self) -> str:
        """Show the reward's curve and the held-out accuracies in a notebook."""
        return run_html(self.path)

    def report(self) -> Path:
        """Draw the run's page and return its path."""
        from paceline.reports.page.html import write_report

        return write_report(self.path)


def run_html(path: Path) -> str:
    """Return the directory, a curve of the reward, and the first and last accuracy of every held-out set."""
    run = RunDir(path)
    rewards = [float(record["reward_mean"]) for record in run.metrics() if record["reward_mean"] is not None]
    lines = [f"<b>{escape(str(path))}</b>"]
    if len(rewards) > 1:
        lines.append(f"reward, {rewards[0]:.3g} to {rewards[-1]:.3g} in {len(rewards)} steps<br>{_curve(rewards)}")
    sets: dict[str, list[float]] = {}
    for record in run.evals():
        if "accuracy" in record:
            sets.setdefault(str(record["set"]), []).append(float(record["accuracy"]))
    lines += [
        f"{escape(name)}: {100 * seen[0]:.1f} % before, {100 * seen[-1]:.1f} % now" for name, seen in sets.items()
    ]
    return "<div>" + "<br>".join(lines) + "</div>"


def _curve(values: Sequence[float]) -> str:
    """Return values over their positions as a line of SVG, from the lowest to the highest."""
    low, span = min(values), (max(values) - min(values)) or 1.0
    step = WIDTH / (len(values) - 1)
    points = " ".join(f"{at * step:.1f},{HEIGHT * (1 - (value - low) / span):.1f}" for at, value in enumerate(values))
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 -2 {WIDTH} {HEIGHT + 4}" role="img" aria-label="reward">'
        f'<polyline points="{points}" fill="none" stroke="#4051b5" stroke-width="1.5"/></svg>'
    )
