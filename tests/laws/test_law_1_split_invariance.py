"""Law 1: the gradient of a step does not depend on how the step is cut, ordered, packed or padded."""

import random
from collections.abc import Sequence

import pytest
import torch

from paceline.config.objective import LossConfig
from paceline.objective.cutting import cut
from paceline.objective.micro_batches import Sample, pack, padded_rows
from paceline.objective.own_loss import check_policy_loss
from paceline.objective.policy_loss import each_token, sequence_means
from paceline.types import Rollout, RolloutGroup, Span, Task, Trajectory
from tests.laws.splitting import (
    DTYPES,
    FORWARDS,
    TOLERANCE,
    Splitter,
    losses,
    random_cut,
    random_samples,
    relative,
    trained,
)

CUTS = 16


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", losses())
def test_every_objective_has_one_gradient_however_a_step_is_cut_ordered_and_laid_out(name, dtype):
    for seed in (0, 1):
        splitter = Splitter(random_samples(seed), losses()[name], dtype)
        whole, chance = splitter.whole(), random.Random(seed)
        assert whole.norm() > 1e-6
        for _ in range(CUTS // 2):
            cuts = random_cut(chance, range(len(splitter.samples)))
            got = splitter.gradient(cuts, choose=lambda c=chance: c.choice(FORWARDS))
            assert relative(got, whole) <= TOLERANCE[dtype]


def test_a_policy_loss_of_ones_own_has_one_gradient_however_a_step_is_cut():
    def own(tokens):
        drift = sequence_means(tokens.logprobs - tokens.rollout_logprobs, tokens.lengths).exp()
        ratio = each_token(drift, tokens.lengths, num_tokens=len(tokens.logprobs))
        return -ratio * tokens.advantages - 0.1 * tokens.entropy * tokens.ratio

    check_policy_loss(own, "own")
    splitter = Splitter(random_samples(3), LossConfig(bound="mine.py:own"), torch.float64, policy_loss=own)
    whole, chance = splitter.whole(), random.Random(3)
    assert relative(Splitter(random_samples(3), LossConfig(), torch.float64).whole(), whole) > 1e-2
    for _ in range(CUTS // 2):
        cuts = random_cut(chance, range(len(splitter.samples)))
        got = splitter.gradient(cuts, choose=lambda: chance.choice(FORWARDS))
        assert relative(got, whole) <= TOLERANCE[torch.float64]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("average", ["token", "sequence", "constant", "prompt", "sequence_sum"])
def test_every_average_has_one_gradient_for_the_learners_own_cuts_under_any_budget(average):
    splitter = Splitter(random_samples(5), LossConfig(average=average), torch.float64)
    whole, rows = splitter.whole(), range(len(splitter.samples))
    for budget in (1, 9, 17, 30, 70):
        for forward in FORWARDS:
            cuts = cut(splitter.samples, trained=rows, micro_batch_tokens=budget, layout=forward.kind)
            got = splitter.gradient(cuts, choose=lambda chosen=forward: chosen)
            assert relative(got, whole) <= TOLERANCE[torch.float64]


def test_weights_of_the_micro_batch_alone_would_break_the_law():
    # what a mean over each micro-batch's own tokens does: the law's test must see it
    splitter = Splitter(random_samples(0), LossConfig(), torch.float64)
    rows = list(range(len(splitter.samples)))
    whole, parts = splitter.whole(), [rows[:2], rows[2:]]
    tokens = [sum(splitter.samples[row].length for row in part) for part in parts]
    for part, count in zip(parts, tokens, strict=True):
        for row in part:
            splitter.weights[row] = 1 / count / 2
    assert relative(splitter.gradient(parts), whole) > 1e-2


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_packed_rows_with_shared_prompts_and_padded_rows_have_the_same_gradient(kind):
    splitter = Splitter(random_samples(7), losses()["grpo"], torch.float64, kind=kind)
    rows = [range(len(splitter.samples))]
    packed, padded = (splitter.gradient(rows, choose=lambda f=forward: f) for forward in FORWARDS)
    assert relative(packed, padded) <= 1e-10


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("budget", [1, 20, 33, 60, 10_000])
def test_cutting_keeps_every_trained_sample_once_and_within_the_budget_where_one_fits(budget, layout):
    samples = random_samples(3, groups=9)
    trained = [index for index in range(len(samples)) if index % 4 != 1]
    cuts = cut(samples, trained=trained, micro_batch_tokens=budget, layout=layout)
    assert sorted(index for indices in cuts for index in indices) == trained
    for indices in cuts:
        batch = pack(samples, [1.0] * len(samples), indices, dtype=torch.float32)
        tokens = len(batch.input_ids) if layout == "packed" else padded_rows(batch).index.numel()
        assert tokens <= budget or len(indices) == 1


def groups_of(samples: list[Sample], reasons: Sequence[str | None] = ()) -> list[RolloutGroup]:
    """The samples as the sampler gives them; `reasons`: why each is not trained on, where that is so."""
    reasons = reasons or [None] * len(samples)
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
                    trajectory=Trajectory(
                        spans=(Span(by="prompt", tokens=sample.prompt_ids), *sample.spans),
                        finish_reason="stop",
                        text="",
                        policy_version=0,
                    ),
                    rewards={"accuracy": 1.0},
                    reward=1.0,
                    advantage=0.0 if dropped else sample.advantages[0],
                    dropped=dropped,
                )
                for sample, dropped in zip(samples, reasons, strict=True)
                if sample.group == name
            ),
        )
        for name in names
    ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("loss", "num_iterations"),
    [
        (LossConfig(), 1),
        (LossConfig(), 3),
        (LossConfig(beta=0.1), 2),
        (LossConfig(top_entropy_quantile=0.3), 2),
        (LossConfig(entropy_coef=0.02, entropy_target=(4.0, 0.0, 0.05, 0.02), top_entropy_quantile=0.5), 3),
        (LossConfig(beta=0.1, kl="k3_ratio", average="sequence", average_over="all"), 2),
        (LossConfig(beta=0.1, kl="k3", average="prompt", average_over="all", ratio_level="sequence"), 2),
    ],
)
def test_a_learners_step_ends_in_the_same_weights_for_any_micro_batch_budget(loss, num_iterations):
    samples = random_samples(11)
    reasons = [(None, None, "truncated", "no_reward")[at % 4] for at in range(len(samples))]
    groups, ends = groups_of(samples, reasons), []
    for budget in (1, 25, 10_000):
        end, stats = trained(groups, loss, temperature=1.0, num_iterations=num_iterations, micro_batch_tokens=budget)
        assert stats.updates == num_iterations
        ends.append(end)
    for end in ends[1:]:
        assert relative(end, ends[0]) <= 1e-10
