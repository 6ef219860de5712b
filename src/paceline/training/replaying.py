"""Repeats the update of one step of a run under another objective, with the same rollouts and the same weights.

Weights come from the run's checkpoints. If the step before has no checkpoint, training is repeated from the latest
earlier one up to it. The rollouts of those steps are on disk, so nothing is sampled.

Logprobs and entropy of each token are computed here on demand, as recording them would slow down every run.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.checkpoints.finding import TrainingState, checkpoints_before
from paceline.checkpoints.run_directory import IMAGES, RunDir
from paceline.config.objective import AdvantageConfig
from paceline.config.sections import Config
from paceline.errors import CheckpointError
from paceline.models.pretrained import load_tokenizer
from paceline.models.rows import on_device
from paceline.objective.cutting import cut
from paceline.objective.micro_batches import pack
from paceline.training.learner.learner import Learner
from paceline.training.learner.samples import rows_of
from paceline.training.learner.stats import UpdateStats
from paceline.training.plan.batches import batch_plan
from paceline.training.rollouts.grouping import (
    FAILURES,
    OUT_OF_THE_STEP,
    OVERLONG,
    is_inside,
    make_groups,
    without_surplus,
)
from paceline.training.rollouts.records import rollout_metrics
from paceline.training.rollouts.restoring import packed_floats, restored_batch, restored_groups
from paceline.training.rollouts.rounds import RolloutBatch
from paceline.training.setup.checks import own_advantage
from paceline.training.setup.inputs import RunSize
from paceline.training.trainer import Trainer, make_trainer
from paceline.types import RolloutGroup


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """A step under its run's objective and under another one."""

    step: int
    weights: str
    """Origin of the weights, in a sentence."""
    is_exact: bool
    """True if the run had these weights before the step; to rounding on other hardware or with several processes."""
    recorded: Mapping[str, Any] | None
    """Metrics that the run recorded for the step; None: it ended before that."""
    unchanged: Mapping[str, Any]
    """Metrics of the step under the run's own objective."""
    other: Mapping[str, Any] | None
    """Metrics of the step under the other objective; None: none was given."""
    tokens: tuple[Mapping[str, Any], ...] | None
    """Packed logprobs of every rollout's sampled tokens before (`before`, with `entropy`) and after (`after`) the step
    under its own objective; None: not asked for."""


def replay(
    run_dir: RunDir, config: Config, other: Config | None, step: int, *, nearest: bool, with_tokens: bool = False
) -> Replay:
    """Replay a step of a run of `config`; `nearest`: with the weights of the nearest earlier checkpoint.

    `with_tokens` takes two more passes over the rollouts, and keeps logprobs and entropy of each token.

    Raises:
        CheckpointError: the step's rollouts are not on disk, or those that its weights need.
    """
    entry = run_dir.committed(step)
    batch = restored_batch(entry, restored_groups(run_dir.rollouts(step)))
    records = {record["step"]: record for record in run_dir.metrics()}
    run_size = _run_size(config, records, run_dir.journal(), batch)
    if any("images" in committed for committed in run_dir.journal().values()):
        run_size = replace(run_size, images=(run_dir.path / IMAGES).absolute())
    start = next(iter(checkpoints_before(run_dir.path / "checkpoints", step)), None)
    first = 0 if start is None else start.state.step
    between = [] if nearest else list(range(first + 1, step))
    groups = {number: run_dir.committed(number) for number in between}  # may refuse, so before weights are read
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        trainer = make_trainer(config, load_tokenizer(config.model), run_size, checkpoint=start)
        for number in groups:
            trainer.update(number, restored_groups(run_dir.rollouts(number)))
        if other is not None and between:
            state = TrainingState(step=step - 1, position=0, policy_version=trainer.policy_version)
            trainer.save(Path(folder), state, ())
            start = trainer.saved(wait=True)
        before = token_values(trainer.learner, batch.groups) if with_tokens else None
        numbers = _numbers(trainer, config, step, batch)
        tokens = None
        if before is not None:
            after = token_values(trainer.learner, batch.groups)
            tokens = tuple(
                {
                    "before": packed_floats(first.tolist()),
                    "entropy": packed_floats(entropy.tolist()),
                    "after": packed_floats(last.tolist()),
                }
                for (first, entropy), (last, _) in zip(before, after, strict=True)
            )
        del trainer
        changed = None
        if other is not None:
            trainer = make_trainer(other, load_tokenizer(other.model), run_size, checkpoint=start)
            changed = _numbers(trainer, other, step, batch)
    return Replay(
        step=step,
        weights=_weights(first, between, step) + _other_options(run_dir, first),
        is_exact=first + len(between) == step - 1 and not _other_options(run_dir, first),
        recorded=records.get(step),
        unchanged=numbers,
        other=changed,
        tokens=tokens,
    )


def _numbers(trainer: Trainer, config: Config, step: int, batch: RolloutBatch) -> dict[str, Any]:
    made = regrouped(
        batch,
        config.advantage,
        weights=config.rewards.weights,
        max_completion_length=config.sampling.max_completion_length,
        turn_credit=config.environment.turn_credit,
    )
    stats, _ = trainer.update(step, made.groups)
    return {**rollout_metrics(made), **{name: getattr(stats, name) for name in UpdateStats.__slots__}}


def _run_size(
    config: Config,
    records: Mapping[int, Mapping[str, Any]],
    journal: Mapping[int, Mapping[str, Any]],
    batch: RolloutBatch,
) -> RunSize:
    """Return the length of the run, which its learning rates depend on, without reading its dataset."""
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
    """Return a clause on steps after `first` for which the run had other options than now, or ""."""
    changes = (run_dir.identity() or {"changes": []})["changes"]
    last = max((change["after_step"] for change in changes), default=0)
    return f"; under the run's present options, which differed up to step {last}" if last > first else ""


def _weights(first: int, between: list[int], step: int) -> str:
    origin = "the model that the run began with" if first == 0 else f"checkpoint step-{first:06d}"
    if between:
        return f"those before step {step}: {origin}, and {len(between)} steps trained again on their rollouts"
    if first == step - 1:
        return f"those before step {step}: {origin}"
    return f"{origin}, {step - 1 - first} steps older than those that step {step} had"


def token_values(learner: Learner, groups: Sequence[RolloutGroup]) -> list[tuple[Tensor, Tensor]]:
    """Return logprobs and entropies of every rollout's sampled tokens in nats, in order. One process only."""
    rows = rows_of(groups, [group.rollouts for group in groups])
    samples = [sample for of_rollout in rows for sample in of_rollout]
    model, weights = learner.policy.model, [0.0] * len(samples)  # not used: no average is taken
    sampled = [row for row, sample in enumerate(samples) if sample.length]
    cuts = cut(samples, trained=sampled, micro_batch_tokens=learner.budget.tokens, layout=learner.runner.forward.kind)
    batches = [on_device(pack(samples, weights, indices, dtype=model.dtype), model.device) for indices in cuts]
    empty = torch.empty(0, dtype=model.dtype, device=model.device)
    by_row = [(empty, empty)] * len(samples)
    for batch, values in zip(batches, learner.runner.values(learner.policy, batches), strict=True):
        assert values is not None  # one process has the whole model
        logprobs, entropies = (column.split(batch.row_lengths) for column in values)
        for row, of_row, entropy in zip(batch.samples, logprobs, entropies, strict=True):
            by_row[row] = of_row, entropy
    of_rows, joined = iter(by_row), list[tuple[Tensor, Tensor]]()
    for of_rollout in rows:
        logprobs, entropies = zip(*islice(of_rows, len(of_rollout)), strict=True)
        joined.append((torch.cat(logprobs), torch.cat(entropies)))
    return joined


def regrouped(
    batch: RolloutBatch,
    options: AdvantageConfig,
    *,
    weights: Mapping[str, float],
    max_completion_length: int,
    turn_credit: float | None = None,
) -> RolloutBatch:
    """Compare the same scores again as the sampler would under these options; `weights` are by reward function.

    A group that these options filter is not replaced, as nothing is sampled: it counts as `missing`.
    """
    wanted = batch.missing + sum(group.dropped not in OUT_OF_THE_STEP for group in batch.groups)
    scored = without_surplus([_scored(group, options) for group in batch.groups], wanted)
    groups = make_groups(
        scored,
        options,
        weights=weights,
        max_completion_length=max_completion_length,
        group_advantage=own_advantage(options),
        turn_credit=turn_credit,
    )
    return replace(batch, groups=groups, missing=max(0, wanted - sum(group.dropped is None for group in scored)))


def _scored(group: RolloutGroup, options: AdvantageConfig) -> RolloutGroup:
    """Return a group as it was when it was scored and not yet compared."""
    rewards = [
        {name: value for name, value in rollout.rewards.items() if name != OVERLONG} for rollout in group.rollouts
    ]
    failed = [rollout.dropped in FAILURES for rollout in group.rollouts]
    columns = {name: [of_rollout[name] for of_rollout in rewards] for name in rewards[0]}
    rollouts = tuple(
        replace(rollout, rewards=of_rollout, dropped=rollout.dropped if has_failed else None)
        for rollout, of_rollout, has_failed in zip(group.rollouts, rewards, failed, strict=True)
    )
    return replace(group, rollouts=rollouts, dropped=None if is_inside(columns, failed, options) else "filtered")
