"""Durations of a run's phases, read from its files: the input of a forecast."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.checkpoints.run_directory import RunDir
from paceline.config.sections import Config
from paceline.errors import ConfigError
from paceline.workers.ray.scaling import Lengths
from paceline.workers.ray.simulation import StepSeconds

LEAST_STEPS = 5
"""Fewer steps do not show how steps differ."""
MOST_STEPS = 100
"""Number of newest steps to read: completions change their length while a model learns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredStep:
    """Duration of a step's phases in seconds, and what was sampled in it."""

    generate: float
    """Sampling, by the slowest producer."""
    reward: float
    """Scoring, by the slowest producer."""
    hand_over: float
    """Rest of the sampling side: weights out, completions back, advantages."""
    update: float
    record: float
    lengths: Lengths
    tokens_forwarded: int
    """Tokens that the update read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRun:
    """Steps of a run, and its layout."""

    steps: tuple[MeasuredStep, ...]
    is_cluster: bool
    num_producers: int
    """1 in one process, as is `num_consumers`."""
    num_consumers: int
    slots: int
    """Completions that an engine samples at a time."""


def step_seconds(record: Mapping[str, Any]) -> StepSeconds:
    """Phases of a step from its line in `metrics.jsonl`."""
    clock = record["clock"]
    return StepSeconds(
        produce=clock["produce"],
        update=clock["update"],
        record=max(0.0, clock["total"] - clock["wait"] - clock["update"]),
    )


def read_measured(run: RunDir, config: Config) -> MeasuredRun:
    """Newest steps of a run of `config`, without its first step, in which caches fill.

    Raises:
        ConfigError: too few steps, or they were written by a version that did not measure what is needed.
        CheckpointError: its files are damaged.
    """
    records = run.metrics()[1:]
    if len(records) < LEAST_STEPS:
        raise ConfigError(
            f"--timings {run.path} must have at least {LEAST_STEPS + 1} steps, got {len(run.metrics())}; "
            "let it run longer, 20 steps are plenty"
        )
    old = [record["step"] for record in records if not {"produce", "wait"} <= record["clock"].keys()]
    if old:
        raise ConfigError(
            f"--timings {run.path} must have `produce` and `wait` in the clock of every step, which step {old[0]} "
            "lacks; run again with this version"
        )
    return MeasuredRun(
        steps=tuple(_measured_step(record, _lengths(run, record["step"])) for record in records[-MOST_STEPS:]),
        is_cluster=config.cluster.cluster,
        num_producers=config.cluster.num_producers,
        num_consumers=config.cluster.num_consumers,
        slots=config.engine.concurrent_sequences,
    )


def _measured_step(record: Mapping[str, Any], lengths: Lengths) -> MeasuredStep:
    seconds, clock = step_seconds(record), record["clock"]
    return MeasuredStep(
        generate=clock["generate"],
        reward=clock["reward"],
        hand_over=max(0.0, seconds.produce - clock["generate"] - clock["reward"]),
        update=seconds.update,
        record=seconds.record,
        lengths=lengths,
        tokens_forwarded=record["tokens_forwarded"],
    )


def _lengths(run: RunDir, step: int) -> Lengths:
    """Completion tokens group by group. Samples of a group count from 0, and a task may come twice in a step."""
    rows, groups = run.rollouts(step), list[list[int]]()
    for row in rows:
        if row["sample"] == 0:
            groups.append([])
        groups[-1].append(row["completion_tokens"])
    return groups
