"""One step of rollouts as padded tables, and the loss that Paceline gives it.

B completions in rows of at most T tokens, V words. Everything is float64; padding holds NaN, which any reader of
padding would spread into the loss.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from paceline.config.objective import AdvantageConfig, LossConfig
from paceline.config.presets import PRESETS
from paceline.objective.micro_batches import pack, token_weights
from paceline.training.learner.objective import token_losses
from paceline.training.learner.samples import samples_of
from paceline.training.rollouts.grouping import make_groups
from paceline.types import Completion, Rollout, RolloutGroup, Task, completed

NAN = math.nan


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What a step knows before the policy is asked."""

    groups: tuple[tuple[int, ...], ...]
    """The rows of each group."""
    rewards: tuple[float, ...]
    """Per row, of the one reward function: 0 or 1."""
    lengths: tuple[int, ...]
    tokens: Tensor
    """[B, T] words."""
    old: Tensor
    """[B, T] logprobs of the policy before the step; likewise the next two."""
    rollout: Tensor
    reference: Tensor
    max_length: int

    def group_of(self, row: int) -> tuple[int, ...]:
        """The rows of a row's group, itself among them."""
        return next(group for group in self.groups if row in group)


def random_step(seed: int, *, vocabulary: int = 6, spread: float = 0.5) -> tuple[Step, Tensor]:
    """Three groups, one of them all right, and the policy's logits [B, T, V]; old logprobs lie `spread` nats away."""
    generator = torch.Generator().manual_seed(seed)
    groups, rewards = ((0, 1, 2), (3, 4, 5, 6), (7, 8)), (0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0)
    lengths = (3, 5, 1, 4, 2, 5, 3, 2, 4)
    logits = torch.randn(9, 5, vocabulary, generator=generator, dtype=torch.float64)
    tokens = torch.randint(vocabulary, (9, 5), generator=generator)
    padding = torch.arange(5) >= torch.tensor(lengths)[:, None]
    near = [token_logprobs(logits, tokens) for _ in range(3)]
    near = [one + spread * torch.randn(9, 5, generator=generator, dtype=torch.float64) for one in near]
    old, rollout, reference = (one.masked_fill(padding, NAN) for one in near)
    step = Step(
        groups=groups,
        rewards=rewards,
        lengths=lengths,
        tokens=tokens,
        old=old,
        rollout=rollout,
        reference=reference,
        max_length=5,
    )
    return step, logits.requires_grad_()


def token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """[B, T] logprobs of the tokens."""
    return torch.log_softmax(logits, -1).gather(-1, tokens[..., None])[..., 0]


def token_entropies(logits: Tensor) -> Tensor:
    """[B, T] entropies in nats."""
    log_softmax = torch.log_softmax(logits, -1)
    return -(log_softmax.exp() * log_softmax).sum(-1)


def options(values: Mapping[str, object]) -> tuple[AdvantageConfig, LossConfig]:
    """The two sections that a preset's values, or any others, fill in."""
    sections = (AdvantageConfig, LossConfig)
    known = [{field.name for field in fields(section)} for section in sections]
    assert set(values) <= known[0] | known[1]
    return tuple(
        section(**{name: value for name, value in values.items() if name in names})
        for section, names in zip(sections, known, strict=True)
    )


def preset_options(name: str) -> tuple[AdvantageConfig, LossConfig]:
    """What a preset makes of the two sections."""
    return options(PRESETS[name].values)


def paceline_loss(
    step: Step, logprobs: Tensor, entropies: Tensor, advantage: AdvantageConfig, loss: LossConfig
) -> Tensor:
    """From rewards to the step's loss, through every room between the reward functions and the optimiser."""
    samples = samples_of(_groups(step, advantage))
    rows = [sample.completion_ids[0] for sample in samples]
    weights = token_weights(samples, average=loss.average, max_completion_length=step.max_length)
    batch = pack(samples, weights, range(len(samples)), dtype=torch.float64)

    def flat(table: Tensor) -> Tensor:
        return torch.cat([table[row, : step.lengths[row]] for row in rows])

    reference = flat(step.reference) if loss.beta > 0 else None
    batch = replace(batch, old_logprobs=flat(step.old), ref_logprobs=reference)
    losses, _ = token_losses(batch, flat(logprobs), flat(entropies), loss)
    return (batch.weights * losses).sum()


def _groups(step: Step, advantage: AdvantageConfig):
    scored = [_scored(step, rows, advantage) for rows in step.groups]
    return make_groups(scored, advantage, weights={"accuracy": 1.0}, max_completion_length=step.max_length)


def _scored(step: Step, rows: Sequence[int], advantage: AdvantageConfig) -> RolloutGroup:
    """The completion of a row is its number, once per token, so that it is known again after packing."""
    mean = sum(step.rewards[row] for row in rows) / len(rows)
    low, high = advantage.filter_range or (-math.inf, math.inf)
    rollouts = tuple(
        Rollout(
            trajectory=completed(
                (1, rows[0]),
                Completion(
                    token_ids=(row,) * step.lengths[row],
                    logprobs=tuple(step.rollout[row, : step.lengths[row]].tolist()),
                    finish_reason="stop",
                    text="",
                    policy_version=0,
                ),
            ),
            rewards={"accuracy": step.rewards[row]},
            reward=None,
            advantage=0.0,
        )
        for row in rows
    )
    task = Task(task_id=str(rows), prompt="", prompt_ids=(1, rows[0]), answer=None)
    return RolloutGroup(task=task, rollouts=rollouts, dropped=None if low < mean < high else "filtered")
