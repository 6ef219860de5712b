"""One step of tokens and logprobs, given to TRL's own loss and to Paceline's learner.

TRL is imported when its trainer is made, so that whoever asks for it has skipped itself before where it is missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import pytest
import torch
from torch import Tensor

from paceline.config.objective import LossConfig, OptimConfig
from paceline.models.forward import choose_forward
from paceline.models.loaded import Loaded
from paceline.objective.micro_batches import Sample, pack, token_weights
from paceline.training.learner.learner import Learner
from paceline.training.learner.samples import samples_of
from paceline.types import Rollout, RolloutGroup, Span, Task, Trajectory
from tests.support.episodes import sample as make_sample
from tests.support.tiny import tiny_model, tiny_tokenizer

TEMPERATURE, MAX_LENGTH = 0.8, 8
PROMPTS = (b"one", b"one", b"one", b"another", b"another", b"another")
COMPLETIONS = (b"abc", b"defghijk", b"l", b"mn", b"opqrs", b"tuvwxy")
ADVANTAGES = (1.2, -0.7, -0.5, 0.9, -1.4, 0.5)
ROWS = tuple(range(6))


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A loss and the gradient of all parameters."""

    loss: float
    gradient: Tensor


def trainer_of(tmp_path, rewards=lambda completions, **_: [0.0] * len(completions), **settings):
    """TRL's trainer around the tiny model; `beta` is set afterwards, so that it looks for no reference on the Hub."""
    import datasets
    import trl

    beta = settings.pop("beta", 0.0)
    arguments = {
        "output_dir": str(tmp_path),
        "use_cpu": True,
        "bf16": False,
        "per_device_train_batch_size": 6,
        "num_generations": 3,
        "max_completion_length": MAX_LENGTH,
        "temperature": TEMPERATURE,
        "report_to": "none",
    }
    trainer = trl.GRPOTrainer(
        model=tiny_model("qwen2"),
        reward_funcs=rewards,
        args=trl.GRPOConfig(**arguments | settings),
        train_dataset=datasets.Dataset.from_list([{"prompt": "x"}] * 4),
        processing_class=tiny_tokenizer(),
    )
    trainer.beta, trainer.current_gradient_accumulation_steps = beta, 1
    trainer.model.train()
    return trainer


def loss_of_fields(**fields_of_trl) -> LossConfig:
    """What a script's `GRPOConfig` with these fields becomes."""
    from paceline import GRPOConfig
    from paceline.compat.trl.translation import field_options

    options = field_options(GRPOConfig(output_dir="run", use_cpu=True, bf16=False, **fields_of_trl))
    names = {field.name for field in fields(LossConfig)}
    return LossConfig(**{name: value for name, value in options.items() if name in names})


def trl_inputs(rows, tables: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Prompts padded on the left, completions on the right; the tables [6, MAX_LENGTH] cut to the rows."""
    width = max(len(PROMPTS[row]) for row in rows)
    prompts = [[256] * (width - len(PROMPTS[row])) + list(PROMPTS[row]) for row in rows]
    completions = [list(COMPLETIONS[row]) + [256] * (MAX_LENGTH - len(COMPLETIONS[row])) for row in rows]
    prompt_ids, completion_ids = torch.tensor(prompts), torch.tensor(completions)
    mask = tables.get("completion_mask")  # TRL counts the tokens of a step once some are masked
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": (prompt_ids != 256).long(),
        "completion_ids": completion_ids,
        "completion_mask": (completion_ids != 256).long(),
        "advantages": torch.tensor([ADVANTAGES[row] for row in rows]),
        "num_items_in_batch": torch.tensor(sum(map(len, COMPLETIONS))) if mask is None else mask.sum(),
        **{name: table[list(rows)] for name, table in tables.items()},
    }


def trl_outcome(trainer, tables: Mapping[str, Tensor], parts=(ROWS,)) -> Outcome:
    trainer.model.zero_grad()
    losses = []
    for rows in parts:
        losses.append(trainer._compute_loss(trainer.model, trl_inputs(rows, tables)))
        losses[-1].backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in trainer.model.parameters()])
    return Outcome(loss=sum(loss.item() for loss in losses), gradient=gradient)


def our_learner(loss: LossConfig) -> Learner:
    model = tiny_model("qwen2").train()
    return Learner(
        Loaded(model=model, compute_dtype=torch.float32),
        choose_forward(model),
        reference=None,
        loss=loss,
        optim=OptimConfig(),
        temperature=TEMPERATURE,
        max_completion_length=MAX_LENGTH,
    )


def our_samples(tables: Mapping[str, Tensor]) -> list[Sample]:
    rollout = tables.get("sampling_per_token_logps", torch.zeros(6, MAX_LENGTH))
    return [
        make_sample(
            group=row // 3,
            prompt_ids=tuple(PROMPTS[row]),
            completion_ids=tuple(COMPLETIONS[row]),
            logprobs=tuple(rollout[row, : len(COMPLETIONS[row])].tolist()),
            advantage=ADVANTAGES[row],
        )
        for row in ROWS
    ]


def our_outcome(loss: LossConfig, tables: Mapping[str, Tensor], parts=(ROWS,), counted=ROWS) -> Outcome:
    """`counted` are the rows of the update, whose tokens make its denominators."""
    half, samples = our_learner(loss), our_samples(tables)
    of_counted = token_weights(
        [samples[row] for row in counted], average=loss.average, max_completion_length=MAX_LENGTH
    )
    weights = [dict(zip(counted, of_counted, strict=True)).get(row, 0.0) for row in ROWS]
    total = 0.0
    for rows in parts:
        batch = pack(samples, weights, rows, dtype=torch.float32)
        old, reference = (
            torch.cat([tables[name][row, : len(COMPLETIONS[row])] for row in rows]) if name in tables else None
            for name in ("old_per_token_logps", "ref_per_token_logps")
        )
        whole = [replace(batch, old_logprobs=old, ref_logprobs=reference)]
        threshold = None
        if loss.top_entropy_quantile < 1:
            threshold = half.entropy_threshold(whole, half.runner.values(half.policy, [batch]))
        _, (sums,) = half.backward(whole, first=False, threshold=threshold)
        total += sums["loss"].item()
    gradient = torch.cat([parameter.grad.flatten() for parameter in half.policy.model.parameters()])
    return Outcome(loss=total, gradient=gradient)


def our_outcome_without(dropped: Mapping[int, str], loss: LossConfig, tables: Mapping[str, Tensor]) -> Outcome:
    """With these rows masked (`truncated`) or ungraded (`no_reward`), from the groups that hold them."""
    found = our_samples(tables)
    groups = [
        RolloutGroup(
            task=Task(task_id=str(first), prompt="", prompt_ids=found[first].prompt_ids, answer=None),
            rollouts=tuple(_rollout(found[row], dropped.get(row)) for row in range(first, first + 3)),
        )
        for first in (0, 3)
    ]
    samples = samples_of(groups, over=loss.average_over)
    rows = [row for row in ROWS if loss.average_over == "all" or row not in dropped]
    weights = token_weights(samples, average=loss.average, max_completion_length=MAX_LENGTH)
    inside = [at for at, sample in enumerate(samples) if not sample.masked]
    batch, half = pack(samples, weights, inside, dtype=torch.float32), our_learner(loss)
    old, reference = (
        torch.cat([tables[name][rows[at], : len(COMPLETIONS[rows[at]])] for at in inside]) if name in tables else None
        for name in ("old_per_token_logps", "ref_per_token_logps")
    )
    _, (sums,) = half.backward([replace(batch, old_logprobs=old, ref_logprobs=reference)], first=False)
    gradient = torch.cat([parameter.grad.flatten() for parameter in half.policy.model.parameters()])
    return Outcome(loss=sums["loss"].item(), gradient=gradient)


def _rollout(sample: Sample, dropped: str | None) -> Rollout:
    trajectory = Trajectory(
        spans=(Span(by="prompt", tokens=sample.prompt_ids), *sample.spans),
        finish_reason="stop",
        text="",
        policy_version=0,
    )
    return Rollout(
        trajectory=trajectory,
        rewards={},
        reward=None,
        advantage=0.0 if dropped else sample.advantages[0],
        dropped=dropped,
    )


def own_logprobs() -> Tensor:
    """[6, MAX_LENGTH] logprobs of the policy, 0.0 in the padding."""
    half, table = our_learner(LossConfig()), torch.zeros(6, MAX_LENGTH)
    for row in ROWS:
        batch = pack(our_samples({}), [1.0] * 6, [row], dtype=torch.float32)
        with torch.no_grad():
            table[row, : len(COMPLETIONS[row])] = half.runner.values(half.policy, [batch])[0][0]
    return table


def near_tables() -> dict[str, Tensor]:
    """Old, sampled and reference logprobs some tenths of nats from the policy's: bounds hold some tokens."""
    own, generator = own_logprobs(), torch.Generator().manual_seed(2)
    names = ("old_per_token_logps", "sampling_per_token_logps", "ref_per_token_logps")
    return {name: own + 0.4 * torch.randn(own.shape, generator=generator) for name in names}


def without(tables: Mapping[str, Tensor], *names: str) -> dict[str, Tensor]:
    return {name: table for name, table in tables.items() if name not in names}


def assert_same(got: Outcome, wanted: Outcome) -> None:
    assert got.loss == pytest.approx(wanted.loss, rel=1e-5, abs=1e-6)
    assert float((got.gradient - wanted.gradient).norm() / wanted.gradient.norm()) <= 1e-5


CLIP = {"clip_eps_low": 0.2, "clip_eps_high": 0.2}
"""TRL's default bounds."""
