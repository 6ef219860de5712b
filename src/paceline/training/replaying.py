"""What another objective would have made of a step of a run: the same rollouts, the same weights before them.

Weights come from the run's checkpoints. Where none is of the step before, those in between are made again from the one
before them: the steps' rollouts are on disk, so that takes their updates and no sampling.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.checkpoints.finding import Checkpoint, TrainingState, checkpoints_before
from paceline.checkpoints.run_directory import RunDir
from paceline.config.sections import Config
from paceline.errors import CheckpointError
from paceline.models.pretrained import load_tokenizer
from paceline.training.learner.forward_backward import TokenValues
from paceline.training.learner.stats import UpdateStats
from paceline.training.learner.tokens import token_values
from paceline.training.plan.batches import batch_plan
from paceline.training.rollouts.lines import packed_floats
from paceline.training.rollouts.records import rollout_metrics
from paceline.training.rollouts.regrouping import regrouped
from paceline.training.rollouts.restoring import restored_batch, restored_groups
from paceline.training.rollouts.sampler import RolloutBatch
from paceline.training.setup.run_inputs import RunSize
from paceline.training.trainer import Trainer, make_trainer


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """A step under its run's objective and under another one."""

    step: int
    weights: str
    """Which weights they were computed with, for a person."""
    is_exact: bool
    """Whether those are what the run had before the step; on other hardware, or of several processes, to rounding."""
    recorded: Mapping[str, Any] | None
    """The step's numbers when it was made; None: the run ended before they were written."""
    own: Mapping[str, Any]
    other: Mapping[str, Any] | None
    """None: there is no other objective."""
    tokens: tuple[Mapping[str, Any], ...] | None
    """Of every rollout, packed, what the policy said of its tokens before (`before`, `entropy`) and after (`after`) the
    step under its own objective; None: not asked for."""


def replay(
    run_dir: RunDir, config: Config, other: Config | None, step: int, *, nearest: bool, with_tokens: bool = False
) -> Replay:
    """Replay a step of a run that `config` made; `nearest`: with the nearest checkpoint's weights as they are.

    `with_tokens` takes two passes more over the rollouts, and keeps what they say of each token.

    Raises:
        CheckpointError: the step's rollouts are not there, or its weights cannot be made.
    """
    entry = run_dir.committed(step)
    batch = restored_batch(entry, restored_groups(run_dir.rollouts(step)))
    records = {record["step"]: record for record in run_dir.metrics()}
    run_size = _run_size(config, records, run_dir.journal(), batch)
    start = next(iter(checkpoints_before(run_dir.path / "checkpoints", step)), None)
    first = 0 if start is None else start.state.step
    between = [] if nearest else list(range(first + 1, step))
    groups = {number: run_dir.committed(number) for number in between}  # refused before weights are read
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        half = _half(config, run_size, start)
        for number in groups:
            half.update(number, restored_groups(run_dir.rollouts(number)))
        if other is not None and between:
            state = TrainingState(step=step - 1, position=0, policy_version=half.policy_version)
            half.save(Path(folder), state, ())
            start = half.saved(wait=True)
        before = token_values(half.learner, batch.groups) if with_tokens else None
        own = _numbers(half, config, step, batch)
        tokens = None if before is None else _token_records(before, token_values(half.learner, batch.groups))
        del half
        changed = None if other is None else _numbers(_half(other, run_size, start), other, step, batch)
    return Replay(
        step=step,
        weights=_weights(first, between, step) + _other_options(run_dir, first),
        is_exact=first + len(between) == step - 1 and not _other_options(run_dir, first),
        recorded=records.get(step),
        own=own,
        other=changed,
        tokens=tokens,
    )


def _half(config: Config, run_size: RunSize, start: Checkpoint | None) -> Trainer:
    return make_trainer(config, load_tokenizer(config.model), run_size, checkpoint=start)


def _numbers(half: Trainer, config: Config, step: int, batch: RolloutBatch) -> dict[str, Any]:
    made = regrouped(
        batch,
        config.advantage,
        weights=config.rewards.weights,
        max_completion_length=config.sampling.max_completion_length,
    )
    stats, _ = half.update(step, made.groups)
    return {**rollout_metrics(made), **{name: getattr(stats, name) for name in UpdateStats.__slots__}}


def _token_records(before: Sequence[TokenValues], after: Sequence[TokenValues]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {
            "before": packed_floats(first.logprobs.tolist()),
            "entropy": packed_floats(first.entropy.tolist()),
            "after": packed_floats(last.logprobs.tolist()),
        }
        for first, last in zip(before, after, strict=True)
    )


def _run_size(
    config: Config,
    records: Mapping[int, Mapping[str, Any]],
    journal: Mapping[int, Mapping[str, Any]],
    batch: RolloutBatch,
) -> RunSize:
    """The length of the run, on which its learning rates hang, without its dataset: a line tells how large that is."""
    sizes = [
        round(journal[number]["position"] / record["epoch"]) for number, record in records.items() if number in journal
    ]
    steps = batch_plan(config, sizes[-1] if sizes else None).steps
    if steps is None:
        raise CheckpointError(
            "no step of the run was finished, so the number of its steps is not known; --resume it for a step first"
        )
    return RunSize(total_steps=steps, longest_prompt=max(len(group.task.prompt_ids) for group in batch.groups))


def _other_options(run_dir: RunDir, first: int) -> str:
    """What to say where steps after `first` were made under other options than the run has now."""
    changes = (run_dir.identity() or {"changes": []})["changes"]
    last = max((one["after_step"] for one in changes), default=0)
    return f"; under the run's options of today, which were others up to step {last}" if last > first else ""


def _weights(first: int, between: list[int], step: int) -> str:
    origin = "the model that the run began with" if first == 0 else f"checkpoint step-{first:06d}"
    if between:
        return f"those before step {step}: {origin}, and {len(between)} steps trained again on their rollouts"
    if first == step - 1:
        return f"those before step {step}: {origin}"
    return f"{origin}, {step - 1 - first} steps older than those that step {step} had"
