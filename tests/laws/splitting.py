"""A step's gradient from any cut of it, through the learner's own backward pass."""

import random
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from itertools import islice
from typing import get_args

import pytest
import torch
from torch import Tensor

from paceline.config.objective import LossConfig, OptimConfig
from paceline.config.presets import PRESETS
from paceline.models.forward import PolicyForward, choose_forward
from paceline.models.loaded import Loaded
from paceline.models.vision.placeholders import placeholders_of
from paceline.models.vision.tower import Vision
from paceline.objective.micro_batches import Sample, pack, token_weights
from paceline.objective.own_loss import PolicyLoss
from paceline.training.learner.learner import Learner
from paceline.training.learner.samples import samples_of
from paceline.training.learner.stats import UpdateStats
from paceline.types import Rollout, RolloutGroup, Task
from tests.support.episodes import random_conversation
from tests.support.episodes import sample as make_sample
from tests.support.families import family, make_model
from tests.support.seeing import SEEING, HeldPictures, picture, prompt_with, seeing_model, seeing_tokenizer
from tests.support.tiny import Kind, tiny_model, with_exact_norms

TEMPERATURE, MAX_LENGTH = 0.7, 12
IMAGES = (picture(1), picture(2, 32, 48))
PICTURES = HeldPictures(*IMAGES)
FORWARDS = (PolicyForward(kind="packed", reason=""), PolicyForward(kind="padded", reason=""))
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
DTYPES = (torch.float64, pytest.param(torch.float32, marks=pytest.mark.long))
"""Precisions that a law is tried in; rounding hides an error of the law in the second."""

EVERYTHING = LossConfig(
    ratio_level="sequence",
    bound_shape=(1.5,),
    average="prompt",
    beta=0.1,
    kl="forward",
    entropy_coef=0.05,
    rollout_correction="sequence_truncate",
    correction_bounds=(0.8, 1.1),
    off_policy_threshold=0.05,
    skip_threshold=1.4,
)
"""No preset has these, and each looks at more than one token of a completion."""

SOFT = {
    "sapo": LossConfig(bound="sapo", bound_shape=(2.0, 0.5), average="sequence"),
    "luspo": LossConfig(ratio_level="sequence", average="sequence_sum"),
    "vespo": LossConfig(bound="vespo", rollout_correction="token_truncate", correction_bounds=(0.9, 1.1)),
}


def losses() -> dict[str, LossConfig]:
    """The loss of every preset, `EVERYTHING`, and those of `SOFT`."""
    names = {field.name for field in fields(LossConfig)}
    presets = {
        name: LossConfig(**{option: value for option, value in preset.values.items() if option in names})
        for name, preset in PRESETS.items()
    }
    return presets | {"everything": EVERYTHING, **SOFT}


def random_samples(seed: int, *, groups: int = 4) -> list[Sample]:
    """Groups of unequal size; prompts of 1 to 9 tokens, completions of 1 to 12."""
    chance = random.Random(seed)
    samples = []
    for group in range(groups):
        prompt = tuple(chance.randrange(256) for _ in range(chance.randint(1, 9)))
        for _ in range(chance.randint(1, 4)):
            completion = tuple(chance.randrange(256) for _ in range(chance.randint(1, MAX_LENGTH)))
            samples.append(
                make_sample(
                    group=group,
                    prompt_ids=prompt,
                    completion_ids=completion,
                    logprobs=(-5.0,) * len(completion),
                    advantage=chance.gauss(0, 1),
                )
            )
    return samples


def samples_with_images(kind: str) -> list[Sample]:
    """Return the rows of `random_samples`; prompts have no image, one, two, and the same one again."""
    placeholders = placeholders_of(seeing_model(kind).config, SEEING[kind].processor, seeing_tokenizer(kind))
    texts = [("no image", ()), ("what {}?", IMAGES[:1]), ("{} or {}", IMAGES), ("again {}", IMAGES[:1])]
    samples = []
    for sample in random_samples(0, groups=len(texts)):
        ids, media = prompt_with(seeing_tokenizer(kind), placeholders, texts[sample.group][0], *texts[sample.group][1])
        samples.append(replace(sample, prompt_ids=tuple(ids), prompt_media=tuple(media)))
    return samples


def random_episodes(seed: int, *, groups: int = 4) -> list[Sample]:
    """Rows of conversations, branches among them, whose turns have advantages of their own."""
    chance = random.Random(seed)
    made = []
    for number in range(groups):
        prompt = tuple(chance.randrange(256) for _ in range(chance.randint(1, 9)))
        rollouts = list[Rollout]()
        for _ in range(chance.randint(1, 4)):
            one = random_conversation(chance, prompt=prompt)
            credit = tuple(chance.gauss(0, 1) for _ in one.turns)
            rollouts.append(Rollout(trajectory=one, rewards={}, reward=0.0, advantage=0.0, turn_advantages=credit))
        task = Task(task_id=str(number), prompt="", prompt_ids=prompt, answer=None)
        made.append(RolloutGroup(task=task, rollouts=tuple(rollouts)))
    return samples_of(made)


def random_cut(chance: random.Random, rows: Sequence[int]) -> list[list[int]]:
    """The rows in any order, in micro-batches of any sizes."""
    order = list(rows)
    chance.shuffle(order)
    cuts: list[list[int]] = []
    while order:
        size = chance.randint(1, len(order))
        cuts.append(order[:size])
        order = order[size:]
    return cuts


class Splitter:
    """One policy, one reference, one step; `gradient` gives the whole step's gradient from any cut of it."""

    def __init__(
        self,
        samples: Sequence[Sample],
        loss: LossConfig,
        dtype: torch.dtype,
        *,
        kind: str = "qwen2",
        policy_loss: PolicyLoss | None = None,
    ) -> None:
        policy, reference = _loaded(kind, dtype), _loaded(kind, dtype, noise=0.02)
        self.samples = list(samples)
        self.learner = Learner(
            policy,
            choose_forward(policy.model, vision=policy.vision),
            reference=reference if loss.beta > 0 else None,
            loss=loss,
            optim=OptimConfig(),
            temperature=TEMPERATURE,
            max_completion_length=MAX_LENGTH,
            policy_loss=policy_loss,
        )
        self.weights = token_weights(samples, average=loss.average, max_completion_length=MAX_LENGTH)
        self.old = self._old_logprobs(spread=0.4)
        self.samples = [self._as_engine_reported(row, spread=0.2) for row in range(len(samples))]

    def gradient(
        self, cuts: Sequence[Sequence[int]], *, choose: Callable[[], PolicyForward] = lambda: FORWARDS[0]
    ) -> Tensor:
        """Summed over the micro-batches of `cuts`; rows in none of them are another rank's. `choose`: for each one."""
        half, model = self.learner, self.learner.policy.model
        model.zero_grad()
        for rows in cuts:
            half.runner.forward = replace(half.runner.forward, kind=choose().kind, reason="")
            batch = pack(self.samples, self.weights, rows, dtype=model.dtype)
            reference = None
            if half.reference is not None:
                reference, _ = half.runner.values(half.reference, [batch])[0]
            old = torch.cat([self.old[row] for row in rows])
            half.backward([replace(batch, old_logprobs=old, ref_logprobs=reference)], first=False)
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])

    def whole(self) -> Tensor:
        """The gradient of the step in one packed micro-batch."""
        return self.gradient([range(len(self.samples))])

    def _old_logprobs(self, *, spread: float) -> list[Tensor]:
        """Per row, away from the policy's own by some tenths of nats, so that bounds hold some tokens."""
        half, generator = self.learner, torch.Generator(torch.get_default_device()).manual_seed(len(self.samples))
        rows = []
        for row in range(len(self.samples)):
            batch = pack(self.samples, self.weights, [row], dtype=half.policy.model.dtype)
            own, _ = half.runner.values(half.policy, [batch])[0]
            rows.append(own + spread * torch.randn(own.shape, generator=generator, dtype=own.dtype))
        return rows

    def _as_engine_reported(self, row: int, *, spread: float) -> Sample:
        """The sample with rollout logprobs near the old ones, so that corrections hold some of them."""
        chance = random.Random(row)
        values = iter([value + chance.gauss(0, spread) for value in self.old[row].tolist()])
        spans = tuple(
            replace(span, logprobs=tuple(islice(values, len(span.tokens)))) if span.by == "policy" else span
            for span in self.samples[row].spans
        )
        return replace(self.samples[row], spans=spans)


def trained(
    groups: Sequence[RolloutGroup],
    loss: LossConfig,
    *,
    temperature: float = TEMPERATURE,
    num_iterations: int = 2,
    **optim: float,
) -> tuple[Tensor, UpdateStats]:
    """Weights after a step of a new learner in float64, and its numbers."""
    policy, reference = (
        Loaded(
            model=with_exact_norms(tiny_model("qwen2", dtype=torch.float64, seed=seed)).train(),
            compute_dtype=torch.float64,
        )
        for seed in (0, 1)
    )
    choose_forward(reference.model)
    learner = Learner(
        policy,
        choose_forward(policy.model),
        reference=reference if loss.beta else None,
        loss=loss,
        optim=OptimConfig(num_iterations=num_iterations, adam_eps=1e-3, **optim),
        temperature=temperature,
        max_completion_length=MAX_LENGTH,
    )
    stats = learner.step(groups, learning_rate=1e-2)
    return torch.cat([parameter.detach().flatten() for parameter in policy.model.parameters()]), stats


def relative(got: Tensor, wanted: Tensor) -> float:
    """Distance over length."""
    return float((got - wanted).norm() / wanted.norm())


def _loaded(kind: str, dtype: torch.dtype, *, noise: float = 0.0) -> Loaded:
    """The tiny model of a kind, or of a family by its name; with `noise`, a relative of it: a reference as far away as
    training leads."""
    if kind in get_args(Kind):
        model = with_exact_norms(tiny_model(kind, dtype=dtype)).train()
    elif kind in SEEING:
        model = seeing_model(kind, dtype)
    else:
        model = make_model(family(kind)).to(dtype).train()
        model.config._experts_implementation = "eager"  # torch's grouped product refuses float64
    generator = torch.Generator(torch.get_default_device()).manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += noise * torch.randn(parameter.shape, generator=generator, dtype=dtype)
    if kind in SEEING:
        processor = SEEING[kind].processor
        vision = Vision(model=model, pictures=PICTURES, processor=processor, compute_dtype=dtype)
        return Loaded(model=model, compute_dtype=dtype, vision=vision)
    assert choose_forward(model).kind == "packed"
    return Loaded(model=model, compute_dtype=dtype)
