"""A finished run, from its files alone, so that a resumed run says the same.

`TrainedRun` has its records as attributes, for a program or a notebook. `summarise` says what it achieved and what it
cost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from paceline.base_directory import named_path, working_directory
from paceline.checkpoints.run_directory import RunDir
from paceline.errors import CheckpointError, DataError
from paceline.metrics.comparisons import Comparison, compare_records, level_of_best, probability
from paceline.metrics.learning import judge
from paceline.metrics.statistics import Interval
from paceline.models.places import FINAL
from paceline.reports.console import tell
from paceline.reports.format import percent_interval, points_interval, sample_size

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


INDENT = " " * len("learning    ")
"""Indent of the lines below a sentence's first, which puts them under its words."""
PHASES = ("generate", "reward", "update", "other")


def summarise(
    run_dir: RunDir,
    *,
    final_step: int,
    checkpoint_seconds: float,
    paces: Mapping[str, float] | None,
    console: Console,
) -> dict[str, Any]:
    """Write `summary.json` and print it: accuracy before and after, the gain, where the time went.

    `final_step` is that of the model that is exported. `paces` are those of `step_paces`, None where one thing simply
    came after the other.
    """
    # seconds per phase, and in all: less than the sum where phases ran side by side
    steps, evals = run_dir.metrics(), run_dir.evals()
    between = {"evaluate": sum(record["clock"]["seconds"] for record in evals), "checkpoint": checkpoint_seconds}
    clock = {phase: sum(record["clock"][phase] for record in steps) for phase in PHASES} | between
    clock["total"] = sum(record["clock"]["total"] for record in steps) + sum(between.values())
    summary: dict[str, Any] = {"finished": True, "final_step": final_step, "clock": clock}
    by_set: dict[str, list[Mapping[str, Any]]] = {}
    for record in evals:
        if "accuracy" in record:
            by_set.setdefault(record["set"], []).append(record)
    outcomes = {name: _outcome(run_dir, records) for name, records in by_set.items() if len(records) > 1}
    for name, outcome in outcomes.items():
        _print_outcome(console, name, outcome, last_step=by_set[name][-1]["step"])
    if outcomes:
        summary |= next(iter(outcomes.values()))  # of the first set, which the headline is about
    if len(outcomes) > 1:
        summary["sets"] = outcomes
    if paces is not None:
        summary["step_seconds"] = paces
        predicted, measured = paces["predicted"], paces["measured"]
        tell(
            console,
            f"schedule    {predicted:.3f} s a step predicted from its phases, {measured:.3f} s measured "
            f"({measured / predicted - 1:+.1%})",
            indent=INDENT,
        )
    learning = judge(steps, evals)
    summary["learning"] = {"word": learning.word, "because": learning.because, "but": list(learning.but)}
    tell(console, learning.describe().replace("learning: ", "learning    ", 1), indent=INDENT)
    run_dir.write_summary(summary)
    training = clock["total"] - clock["evaluate"]
    console.print(f"training {training:.1f} s, evaluation {clock['evaluate']:.1f} s:")
    table = Table(box=None, pad_edge=False, show_header=False)
    for phase, seconds in clock.items():
        if phase != "total":
            table.add_row(phase, f"{seconds:.1f} s", f"{100 * seconds / max(clock['total'], 1e-9):.0f} %")
    console.print(table)
    return summary


def _outcome(run_dir: RunDir, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One set before and after, and the difference, paired by task."""
    first, last = records[0], records[-1]
    comparison = gain(*(run_dir.eval_completions(record["set"], record["step"]) for record in (first, last)))
    # of equals the last: there is nothing to choose then
    best = max(reversed(records[1:]), key=lambda record: record["accuracy"])
    return {
        "before": _as_record(_accuracy(first)) | {"n": first["n"], "tasks": first["tasks"]},
        "after": _as_record(_accuracy(last)) | {"n": last["n"], "tasks": last["tasks"]},
        "difference": _as_record(comparison.difference, "value"),
        "test": as_record(comparison),
        "looks": {"evaluations": len(records) - 1, "best_step": best["step"], "best_accuracy": best["accuracy"]},
    }


def _print_outcome(console: Console, name: str, outcome: Mapping[str, Any], *, last_step: int) -> None:
    before, after = (_accuracy(outcome[side]) for side in ("before", "after"))
    sizes = {side: sample_size(outcome[side]["n"], outcome[side]["tasks"]) for side in ("before", "after")}
    tell(
        console,
        f"before      {percent_interval(before)}   held-out accuracy on {name}, {sizes['before']}, 95 % interval",
        indent=INDENT,
    )
    other = "" if sizes["after"] == sizes["before"] else f", {sizes['after']}"
    tell(console, f"after       {percent_interval(after)}   step {last_step}{other}")
    tell(console, f"difference  {points_interval(_accuracy(outcome['difference'], 'value'))}   paired by task")
    test, looks = outcome["test"], outcome["looks"]
    tell(console, f"test        {verdict(test)}", indent=INDENT)
    if looks["best_accuracy"] > outcome["after"]["accuracy"]:
        tell(
            console,
            f"looks       best of {looks['evaluations']} evaluations was step {looks['best_step']}, "
            f"{100 * looks['best_accuracy']:.1f} %; picking it needs p < {level_of_best(looks['evaluations']):.2g}",
            indent=INDENT,
        )


def as_record(comparison: Comparison) -> dict[str, Any]:
    """The test of a difference as a record of `summary.json`."""
    return {
        "gained": comparison.gained,
        "lost": comparison.lost,
        "mcnemar_p": comparison.p_value,
        "bootstrap": _as_record(comparison.bootstrap, "value"),
    }


def verdict(test: Mapping[str, Any]) -> str:
    """`as_record` as a sentence: tasks that changed sides, the p-value, and the other interval of the difference."""
    bootstrap = _accuracy(test["bootstrap"], "value")
    return (
        f"{test['gained']} tasks gained, {test['lost']} lost: exact McNemar {probability(test['mcnemar_p'])}; "
        f"bootstrap [{100 * bootstrap.low:+.1f}, {100 * bootstrap.high:+.1f}]"
    )


def unbroken_steps(run_dir: RunDir, *, save_steps: int) -> list[dict[str, Any]]:
    """Return the records of steps that came right after another step.

    What is sampled for a step while held-out tasks are measured, or a checkpoint is written, is in no step's clock.
    """
    broken = {record["step"] for record in run_dir.evals()}
    steps = run_dir.metrics()
    if save_steps:
        broken |= {record["step"] for record in steps if record["step"] % save_steps == 0}
    return [record for record in steps if record["step"] - 1 not in broken]


def step_paces(steps: Sequence[Mapping[str, Any]], *, predicted_seconds: float) -> dict[str, float]:
    """Seconds per step, predicted by the steps' phases and the order of the work, and measured."""
    totals = [record["clock"]["total"] for record in steps]
    return {"predicted": predicted_seconds / len(totals), "measured": sum(totals) / len(totals)}


def gain(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> Comparison:
    """Compare two measurements of one set by their completion records, paired by task.

    Raises:
        DataError: no task was graded both times.
    """
    comparison = compare_records(before, after)
    if comparison is None:
        raise DataError("no held-out task was graded before and after; look at `note` in the files of evals/")
    return comparison


def _accuracy(record: Mapping[str, Any], value: str = "accuracy") -> Interval:
    return Interval(value=record[value], low=record["ci_low"], high=record["ci_high"])


def _as_record(interval: Interval, value: str = "accuracy") -> dict[str, float]:
    return {value: interval.value, "ci_low": interval.low, "ci_high": interval.high}
