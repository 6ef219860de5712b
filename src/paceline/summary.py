"""What a finished run achieved and what it cost, computed from its files alone, so that a resumed run says the same."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from paceline.console import percent, points, print_time_split
from paceline.intervals import Interval, paired_difference
from paceline.rundir import RunDir

PHASES = ("generate", "reward", "update", "other")


def summarise(
    run_dir: RunDir, *, checkpoint_seconds: float, foreseen_seconds: float | None, console: Console
) -> dict[str, Any]:
    """Write `summary.json` and print it: accuracy before and after, the gain, where the time went.

    `foreseen_seconds` is what all steps should have taken by their phases and the order of the work, None where one
    thing simply came after the other.
    """
    clock = time_split(run_dir, checkpoint_seconds=checkpoint_seconds)
    summary: dict[str, Any] = {"finished": True, "clock": clock}
    evals = [record for record in run_dir.evals() if "accuracy" in record]
    if len(evals) > 1:
        first, last = evals[0], evals[-1]
        before, after = (_accuracy(record) for record in (first, last))
        difference = gain(*(run_dir.eval_completions(e["set"], e["step"]) for e in (first, last)))
        summary |= {
            "before": _as_record(before) | {"n": first["n"]},
            "after": _as_record(after) | {"n": last["n"]},
            "difference": {"value": difference.value, "ci_low": difference.low, "ci_high": difference.high},
        }
        console.print(
            f"before      {percent(before)}   held-out accuracy on {first['set']}, n = {first['n']}, 95 % interval",
            soft_wrap=True,
        )
        console.print(f"after       {percent(after)}   step {last['step']}")
        console.print(f"difference  {points(difference)}   paired by task")
    if foreseen_seconds is not None:
        summary["step_seconds"] = paces = step_paces(run_dir, foreseen_seconds=foreseen_seconds)
        predicted, measured = paces["predicted"], paces["measured"]
        console.print(
            f"schedule    {predicted:.3f} s a step predicted from its phases, {measured:.3f} s measured "
            f"({measured / predicted - 1:+.1%})",
            soft_wrap=True,
        )
    run_dir.write_summary(summary)
    training = clock["total"] - clock["evaluate"]
    console.print(f"training {training:.1f} s, evaluation {clock['evaluate']:.1f} s:")
    print_time_split(console, clock)
    return summary


def time_split(run_dir: RunDir, *, checkpoint_seconds: float) -> dict[str, float]:
    """Seconds per phase over all steps and evaluations, and in all: less than the sum where phases ran side by side."""
    metrics = run_dir.metrics()
    between = {
        "evaluate": sum(record["clock"]["seconds"] for record in run_dir.evals()),
        "checkpoint": checkpoint_seconds,
    }
    phases = {phase: sum(record["clock"][phase] for record in metrics) for phase in PHASES}
    steps = sum(record["clock"]["total"] for record in metrics)
    return {**phases, **between, "total": steps + sum(between.values())}


def step_paces(run_dir: RunDir, *, foreseen_seconds: float) -> dict[str, float]:
    """Seconds per step, predicted and measured."""
    totals = [record["clock"]["total"] for record in run_dir.metrics()]
    return {"predicted": foreseen_seconds / len(totals), "measured": sum(totals) / len(totals)}


def gain(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> Interval:
    """Difference in accuracy between two measurements of one set, from their completion records, paired by task."""
    pairs = [(b["correct"], a["correct"]) for b, a in zip(before, after, strict=True)]
    graded = [(b, a) for b, a in pairs if b is not None and a is not None]
    return paired_difference([b for b, _ in graded], [a for _, a in graded])


def _accuracy(record: Mapping[str, Any]) -> Interval:
    return Interval(value=record["accuracy"], low=record["ci_low"], high=record["ci_high"])


def _as_record(interval: Interval) -> dict[str, float]:
    return {"accuracy": interval.value, "ci_low": interval.low, "ci_high": interval.high}
