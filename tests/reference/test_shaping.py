"""From what reward functions said to advantages: several rewards, soft length penalty, masked completions."""

from collections.abc import Sequence
from itertools import chain

import pytest

from paceline.config.objective import AdvantageConfig
from paceline.training.learner.samples import samples_of
from paceline.training.rollouts.grouping import make_groups
from paceline.types import Rollout, RolloutGroup, Span, Task, Trajectory

One = tuple[int, str, dict[str, float | None]]
"""Tokens, finish reason, rewards."""


def groups_of(
    *groups: Sequence[One], weights: dict[str, float], options: AdvantageConfig, longest: int = 10
) -> tuple[RolloutGroup, ...]:
    scored = [
        RolloutGroup(
            task=Task(task_id=str(number), prompt="", prompt_ids=(1,), answer=None),
            rollouts=tuple(
                Rollout(
                    trajectory=Trajectory(
                        spans=(
                            Span(by="prompt", tokens=(1,)),
                            Span(by="policy", tokens=(7,) * tokens, logprobs=(0.0,) * tokens),
                        ),
                        finish_reason=finish_reason,
                        text="",
                        policy_version=0,
                    ),
                    rewards=rewards,
                    reward=None,
                    advantage=0.0,
                )
                for tokens, finish_reason, rewards in group
            ),
        )
        for number, group in enumerate(groups)
    ]
    return make_groups(scored, options, weights=weights, max_completion_length=longest)


def advantages_of(groups: Sequence[RolloutGroup]) -> list[list[float]]:
    return [[rollout.advantage for rollout in group.rollouts] for group in groups]


def test_gdpo_normalises_each_reward_in_its_group_then_sums_then_whitens_the_batch():
    # arXiv:2601.05242; differs: 1e-4 added to each standard deviation
    # group 1: a 0 2 gives -z z (std sqrt 2), b 4 0 gives y -y (sqrt 8); group 2: b 0 6 gives -x x (sqrt 18)
    z, y, x = 1 / (2**0.5 + 1e-4), 2 / (8**0.5 + 1e-4), 3 / (18**0.5 + 1e-4)
    sums = [-z + 3 * y, z - 3 * y, -3 * x, 3 * x]
    std = ((2 * (3 * y - z) ** 2 + 2 * (3 * x) ** 2) / 3) ** 0.5
    got = groups_of(
        [(1, "stop", {"a": 0.0, "b": 4.0}), (1, "stop", {"a": 2.0, "b": 0.0})],
        [(1, "stop", {"a": 1.0, "b": 0.0}), (1, "stop", {"a": 1.0, "b": 6.0})],
        weights={"a": 1.0, "b": 3.0},
        options=AdvantageConfig(advantage="batch", reward_aggregation="normalize_then_sum"),
    )
    assert [*chain(*advantages_of(got))] == pytest.approx([value / (std + 1e-4) for value in sums])


def test_gdpo_tells_two_rewards_earned_from_one_where_the_normalised_sum_does_not():
    def group(b: float) -> list[One]:
        return [(1, "stop", {"a": 0.0, "b": 0.0}), (1, "stop", {"a": 1.0, "b": b})]

    def got(**options) -> list[list[float]]:
        return advantages_of(
            groups_of(group(0.0), group(1.0), weights={"a": 1.0, "b": 1.0}, options=AdvantageConfig(**options))
        )

    one, two = got(advantage="group")
    assert two == pytest.approx(one, abs=1e-3)
    one, two = got(advantage="batch", reward_aggregation="normalize_then_sum")
    assert two == pytest.approx([2 * value for value in one], abs=1e-12)


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_the_penalty_of_length_is_the_same_for_right_and_wrong(reward):
    lengths = (5, 8, 9, 10, 12)
    (group,) = groups_of(
        [(tokens, "stop", {"accuracy": reward}) for tokens in lengths],
        weights={"accuracy": 1.0},
        options=AdvantageConfig(overlong_share=0.2),
    )
    assert [rollout.reward for rollout in group.rollouts] == [reward + p for p in (0, 0, -0.5, -1, -1)]
    assert [rollout.rewards["overlong"] for rollout in group.rollouts] == [0, 0, -0.5, -1, -1]


def test_a_completion_without_a_reward_is_not_penalised_for_its_length_either():
    (group,) = groups_of(
        [(10, "length", {"accuracy": None}), (1, "stop", {"accuracy": 1.0}), (1, "stop", {"accuracy": 0.0})],
        weights={"accuracy": 1.0},
        options=AdvantageConfig(overlong_share=0.2),
    )
    assert [rollout.reward for rollout in group.rollouts] == [None, 1.0, 0.0]
    assert [rollout.dropped for rollout in group.rollouts] == ["no_reward", None, None]


@pytest.mark.parametrize("mask", [False, True])
def test_a_masked_completion_stays_in_the_baseline_and_leaves_gradient_and_averages(mask):
    groups = groups_of(
        [(10, "length", {"accuracy": 0.0}), (2, "stop", {"accuracy": 1.0}), (3, "stop", {"accuracy": 1.0})],
        weights={"accuracy": 1.0},
        options=AdvantageConfig(advantage="none", mask_truncated=mask),
    )
    (got,) = advantages_of(groups)
    assert got == pytest.approx([0.0 if mask else -2 / 3, 1 / 3, 1 / 3])  # without the first they would be 0
    assert [len(sample.completion_ids) for sample in samples_of(groups)] == ([2, 3] if mask else [10, 2, 3])


def test_a_group_that_is_masked_whole_carries_no_signal_though_its_rewards_differ():
    (group,) = groups_of(
        [(10, "length", {"accuracy": 0.0}), (10, "length", {"accuracy": 1.0})],
        weights={"accuracy": 1.0},
        options=AdvantageConfig(mask_truncated=True),
    )
    assert group.dropped == "truncated"
    assert samples_of([group]) == []
