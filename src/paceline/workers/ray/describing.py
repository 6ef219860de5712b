"""A forecast as text: what was measured, a table of splits, and a recommendation."""

import math
from statistics import fmean

from paceline.workers.ray.forecast import WORTH, ClusterSplit, Forecast
from paceline.workers.ray.timings import MeasuredRun

PHASES = {
    "generate": "sampling",
    "reward": "rewards",
    "hand_over": "handing over",
    "update": "update",
    "record": "records",
}
"""Names of the fields of `MeasuredStep` for the user."""


def describe_forecast(forecast: Forecast, measured: MeasuredRun) -> str:
    """Times, table, recommendation and limits."""
    return "\n".join(
        [
            _times(measured),
            "",
            *_table(forecast, measured),
            "",
            _advice(forecast, measured),
            _limits(forecast, measured),
        ]
    )


def _times(measured: MeasuredRun) -> str:
    steps = measured.steps
    phases = ", ".join(f"{said} {fmean(getattr(step, phase) for step in steps):.3f}" for phase, said in PHASES.items())
    layout = "one process"
    if measured.is_cluster:
        layout = f"{_counted(measured.num_producers, 'producer')} and {_counted(measured.num_consumers, 'consumer')}"
    tokens = sorted(length for step in steps for group in step.lengths for length in group)
    usual = tokens[math.ceil(0.95 * len(tokens)) - 1]
    return (
        f"Measured over {len(steps)} steps of {layout}, seconds per step: {phases}.\nCompletions have "
        f"{fmean(tokens):.0f} tokens on average, 95 % have at most {usual}, the longest {tokens[-1]}."
    )


def _table(forecast: Forecast, measured: MeasuredRun) -> list[str]:
    """One line per split; `~` marks process counts other than the measured run's."""
    completions = fmean(sum(map(len, step.lengths)) for step in measured.steps)
    alone = forecast.one_process
    lines = [
        "producers  consumers  --max-staleness  seconds/step  completions/s  speed-up  producers wait  consumers wait",
        f"{'one process, in turn':37}  {alone:12.3f}  {completions / alone:13,.1f}  {'1.00x':>8}",
    ]
    for split in forecast.splits:
        pace = split.pace
        mark = "~" if _is_estimate(split, measured) else " "
        lines.append(
            f"{split.num_producers:9}  {split.num_consumers:9}  {split.max_staleness:15}  {mark}{pace.seconds:11.3f}  "
            f"{completions / pace.seconds:13,.1f}  {alone / pace.seconds:7.2f}x  {pace.producers_wait:14.0%}  "
            f"{pace.consumers_wait:14.0%}"
        )
    return lines


def _is_estimate(split: ClusterSplit, measured: MeasuredRun) -> bool:
    return (split.num_producers, split.num_consumers) != (measured.num_producers, measured.num_consumers)


def _advice(forecast: Forecast, measured: MeasuredRun) -> str:
    produce = fmean(step.generate + step.reward for step in measured.steps)
    update = fmean(step.update for step in measured.steps)
    ratio = f"Sampling and scoring took {produce / update:.1f}x the update"
    best = forecast.advice
    if best is None:
        return f"{ratio}. A cluster does not pay: no split is more than {WORTH - 1:.0%} faster than one process."
    consumers = f" --num-consumers {best.num_consumers}" if best.num_consumers > 1 else ""
    taken = f"--cluster --num-producers {best.num_producers}{consumers} --max-staleness {best.max_staleness}"
    more = _gains_beyond(forecast, best)
    return (
        f"{ratio}. Take {taken}: {best.pace.seconds:.3f} s a step, {forecast.one_process / best.pace.seconds:.2f}x as "
        f"fast as one process{f'; {more}' if more else ''}."
    )


def _gains_beyond(forecast: Forecast, best: ClusterSplit) -> str:
    """Gain from staler weights or more processes than recommended, so that the reader sees why not."""
    layout = (best.num_producers, best.num_consumers)
    staler = [
        split
        for split in forecast.splits
        if (split.num_producers, split.num_consumers) == layout and split.max_staleness > best.max_staleness
    ]
    wider = [split for split in forecast.splits if split.effort[0] > best.effort[0]]
    return " and ".join(
        f"{what} gain {max(0.0, best.pace.seconds / min(split.pace.seconds for split in others) - 1):.0%}"
        for what, others in (("staler weights", staler), ("more processes", wider))
        if others
    )


def _limits(forecast: Forecast, measured: MeasuredRun) -> str:
    sentences = ["Every process is taken to have as much of a machine to itself as it had there."]
    if not measured.is_cluster:
        sentences.append(
            "The way of weights and completions between processes comes on top: it is measured by a run with --cluster."
        )
    if any(_is_estimate(split, measured) for split in forecast.splits):
        sentences.append("~: what so many processes would take is estimated from the tokens of each step.")
    if any(split.num_consumers > measured.num_consumers for split in forecast.splits):
        sentences.append("What consumers take to add up their gradients is not in it beyond what was measured.")
    return "\n".join(sentences)


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number > 1)}"
