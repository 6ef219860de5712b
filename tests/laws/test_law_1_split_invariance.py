"""Law 1: the gradient of a step does not depend on how the step is cut, ordered, packed or padded."""

import random

import pytest
import torch

from paceline.batching import Sample, cut, pack, token_weights
from paceline.config import LossConfig, OptimConfig
from paceline.learner import Learner
from paceline.models import Loaded, PolicyForward, choose_forward
from paceline.types import Completion, Rollout, RolloutGroup, Task
from tests.tiny import tiny_model, with_exact_norms

PACKED, PADDED = PolicyForward(kind="packed", reason=""), PolicyForward(kind="padded", reason="")
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


def random_samples(seed: int, *, groups: int = 4) -> list[Sample]:
    """Groups of unequal size; prompts of 1 to 9 tokens, completions of 1 to 12."""
    chance = random.Random(seed)
    samples = []
    for group in range(groups):
        prompt = tuple(chance.randrange(256) for _ in range(chance.randint(1, 9)))
        for _ in range(chance.randint(1, 4)):
            completion = tuple(chance.randrange(256) for _ in range(chance.randint(1, 12)))
            samples.append(
                Sample(
                    group=group,
                    prompt_ids=prompt,
                    completion_ids=completion,
                    rollout_logprobs=tuple(chance.uniform(-6, -4) for _ in completion),
                    advantage=chance.gauss(0, 1),
                )
            )
    return samples


def gradient(model, samples, cuts, *, average="token", forward=PACKED) -> torch.Tensor:
    """The step's whole gradient, with a reference and ratios away from 1 so that every term of the loss counts."""
    learner = Learner(
        Loaded(model=model, compute_dtype=model.dtype, eos_token_ids=frozenset()),
        forward,
        reference=None,
        loss=LossConfig(average=average),
        optim=OptimConfig(),
        temperature=0.7,
        max_completion_length=12,
    )
    weights = token_weights(samples, average=average, max_completion_length=12)
    model.zero_grad()
    for indices in cuts:
        batch = pack(samples, weights, indices, dtype=model.dtype)
        logprobs, _ = learner.logprobs(learner.policy, batch)
        ratio = torch.exp(logprobs - batch.rollout_logprobs / 5)
        (batch.weights * (-ratio * batch.advantages + 0.1 * logprobs.square())).sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("average", ["token", "sequence", "constant", "prompt"])
def test_the_gradient_is_the_same_however_a_step_is_cut_and_ordered(average, dtype):
    model = with_exact_norms(tiny_model("qwen2", dtype=dtype)).train()
    choose_forward(model)
    for seed in range(8):
        samples = random_samples(seed)
        whole = gradient(model, samples, [range(len(samples))], average=average)
        order = list(range(len(samples)))
        random.Random(seed).shuffle(order)
        size = 1 + seed % 5
        cuts = [order[start : start + size] for start in range(0, len(order), size)]
        assert relative(gradient(model, samples, cuts, average=average), whole) <= TOLERANCE[dtype]


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_packed_rows_with_shared_prompts_and_padded_rows_have_the_same_gradient(kind):
    model = with_exact_norms(tiny_model(kind, dtype=torch.float64)).train()
    assert choose_forward(model) == PACKED
    samples = random_samples(7)
    rows = [range(len(samples))]
    packed, padded = gradient(model, samples, rows), gradient(model, samples, rows, forward=PADDED)
    assert relative(packed, padded) <= 1e-10


@pytest.mark.parametrize("budget", [1, 20, 33, 60, 10_000])
def test_cutting_keeps_every_trained_sample_once_and_within_the_budget_where_one_fits(budget):
    samples = random_samples(3, groups=9)
    trained = [index for index in range(len(samples)) if index % 4 != 1]
    cuts = cut(samples, trained=trained, micro_batch_tokens=budget)
    assert sorted(index for indices in cuts for index in indices) == trained
    for indices in cuts:
        prompts = {samples[index].group: len(samples[index].prompt_ids) for index in indices}
        tokens = sum(prompts.values()) + sum(len(samples[index].completion_ids) - 1 for index in indices)
        assert tokens <= budget or len(indices) == 1


def groups_of(samples: list[Sample]) -> list[RolloutGroup]:
    """The samples as the producer half gives them."""
    names = sorted({sample.group for sample in samples})
    return [
        RolloutGroup(
            task=Task(
                task_id=str(name),
                prompt="",
                prompt_ids=next(sample.prompt_ids for sample in samples if sample.group == name),
                answer=None,
            ),
            rollouts=tuple(
                Rollout(
                    completion=Completion(
                        token_ids=sample.completion_ids,
                        logprobs=sample.rollout_logprobs,
                        finish_reason="stop",
                        text="",
                        policy_version=0,
                    ),
                    rewards={"accuracy": 1.0},
                    reward=1.0,
                    advantage=sample.advantage,
                )
                for sample in samples
                if sample.group == name
            ),
        )
        for name in names
    ]


@pytest.mark.parametrize(("beta", "num_iterations"), [(0.0, 1), (0.0, 3), (0.1, 2)])
def test_a_learners_step_ends_in_the_same_weights_for_any_micro_batch_budget(beta, num_iterations):
    samples = random_samples(11)
    ends = []
    for budget in (1, 25, 10_000):
        policy, reference = (
            Loaded(
                model=with_exact_norms(tiny_model("qwen2", dtype=torch.float64, seed=seed)).train(),
                compute_dtype=torch.float64,
                eos_token_ids=frozenset(),
            )
            for seed in (0, 1)
        )
        choose_forward(reference.model)
        learner = Learner(
            policy,
            choose_forward(policy.model),
            reference=reference if beta else None,
            loss=LossConfig(beta=beta),
            optim=OptimConfig(num_iterations=num_iterations, micro_batch_tokens=budget, adam_eps=1e-3),
            temperature=1.0,
            max_completion_length=12,
        )
        stats = learner.step(groups_of(samples), learning_rate=1e-2)
        assert stats.updates == num_iterations
        ends.append(torch.cat([parameter.detach().flatten() for parameter in policy.model.parameters()]))
    for end in ends[1:]:
        assert relative(end, ends[0]) <= 1e-10
