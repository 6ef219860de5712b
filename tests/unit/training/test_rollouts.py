"""Sampling again for filtered groups, length penalty, masks, and rewards normalised one by one."""

from dataclasses import replace

import pytest

from paceline.config.objective import AdvantageConfig
from paceline.errors import TrainingError
from paceline.rewards.function import BuiltIn, Grade
from paceline.rewards.resolving import resolve
from paceline.training.learner.samples import samples_of
from paceline.training.rollouts.records import rollout_metrics, rollout_records, staleness_metrics
from paceline.training.rollouts.sampler import Sampler
from paceline.types import WeightChange
from tests.support.scripted import completion, scripted_sampler, taking, task

WORTH = {"right": 1.0, "wrong": 0.0}


def right(completions: list[str], **columns: object) -> list[float]:
    return [WORTH[text] for text in completions]


def brief(completion_ids: list[list[int]], **columns: object) -> list[float]:
    return [-10.0 * len(ids) for ids in completion_ids]


def group_of(*texts: str, finish_reason: str = "stop"):
    return [completion(text, finish_reason=finish_reason) for text in texts]


def sampler(script, *, functions=None, weights=None, max_completion_length=100, **advantage) -> Sampler:
    functions = functions or {"right": right}
    return scripted_sampler(
        script,
        functions,
        weights or dict.fromkeys(functions, 1.0),
        AdvantageConfig(**advantage),
        max_completion_length=max_completion_length,
    )


MIXED, ALL_RIGHT, ALL_WRONG = group_of("right", "wrong"), group_of("right", "right"), group_of("wrong", "wrong")
TASKS = [task(str(number)) for number in range(6)]


def test_filtered_groups_are_replaced_by_the_next_tasks_until_the_step_is_full():
    script = [MIXED, ALL_RIGHT, ALL_WRONG, MIXED, ALL_RIGHT, MIXED]  # rounds of 3, 2 and 1 prompts
    batch = sampler(script, filter_range=(0.0, 1.0), max_refills=3).sample(taking(TASKS), 3)
    assert [group.task.task_id for group in batch.groups] == ["0", "1", "2", "3", "4", "5"]
    assert [group.dropped for group in batch.groups] == [None, "filtered", "filtered", None, "filtered", None]
    assert (batch.refills, batch.missing) == (2, 0)
    metrics = rollout_metrics(batch)
    assert (metrics["prompts"], metrics["groups_filtered"], metrics["groups_missing"]) == (6, 3, 0)


def test_after_the_last_round_the_step_runs_on_what_there_is_and_counts_what_is_missing():
    batch = sampler([ALL_RIGHT] * 4 + [MIXED], filter_range=(0.0, 1.0), max_refills=1).sample(taking(TASKS), 2)
    assert (batch.refills, batch.missing) == (1, 2)
    assert samples_of(batch.groups) == []


def test_oversampled_rounds_fill_a_step_in_the_order_of_its_tasks_and_leave_the_rest_out():
    script = [ALL_RIGHT, MIXED, MIXED, MIXED]  # one round of twice as many as the step needs
    batch = sampler(script, filter_range=(0.0, 1.0), max_refills=3, oversampling=2.0).sample(taking(TASKS), 2)
    assert [group.dropped for group in batch.groups] == ["filtered", None, None, "surplus"]
    assert {sample.group for sample in samples_of(batch.groups)} == {1, 2}
    assert (batch.refills, batch.missing) == (0, 0)
    metrics = rollout_metrics(batch)
    assert (metrics["prompts"], metrics["groups_filtered"], metrics["groups_surplus"]) == (4, 1, 1)
    assert metrics["groups_missing"] == 0


def test_a_round_that_was_oversampled_in_vain_is_followed_by_one_for_what_is_missing():
    script = [ALL_RIGHT, ALL_WRONG, MIXED, MIXED, MIXED]  # 3 for 2, then 2 for 1: halves are rounded up
    batch = sampler(script, filter_range=(0.0, 1.0), max_refills=3, oversampling=1.5).sample(taking(TASKS), 2)
    assert [group.dropped for group in batch.groups] == ["filtered", "filtered", None, None, "surplus"]
    assert (batch.refills, batch.missing) == (1, 0)


def test_without_refills_filtered_groups_are_left_out_of_the_steps_averages():
    batch = sampler([MIXED, ALL_RIGHT], filter_range=(0.0, 1.0)).sample(taking(TASKS), 2)
    assert (batch.refills, batch.missing) == (0, 1)
    assert {sample.group for sample in samples_of(batch.groups)} == {0}
    unfiltered = sampler([MIXED, ALL_RIGHT]).sample(taking(TASKS), 2)
    assert {sample.group for sample in samples_of(unfiltered.groups)} == {0, 1}


def test_the_filter_looks_at_accuracy_and_not_at_a_reward_beside_it():
    functions = {"brief": brief, "right": right}
    script = [group_of("right", "right"), MIXED]
    batch = sampler(script, functions=functions, filter_range=(0.0, 1.0), filter_func="right").sample(taking(TASKS), 2)
    assert [group.dropped for group in batch.groups] == ["filtered", None]


def test_batch_stds_are_of_the_groups_that_are_kept():
    script = [MIXED, ALL_RIGHT, ALL_WRONG]
    kept = sampler(script, filter_range=(0.0, 1.0), advantage="group_mean_batch_std").sample(taking(TASKS), 3)
    # +-0.5 over the sample standard deviation of (0.5, -0.5), 0.7071, and 1e-4
    assert kept.groups[0].rollouts[0].advantage == pytest.approx(0.5 / (0.5**0.5 + 1e-4))


@pytest.mark.parametrize("text", ["right", "wrong"])
def test_length_is_penalised_the_same_for_right_and_wrong_answers_and_once(text):
    script = [group_of("right", "wrong")]
    made = sampler(script, max_completion_length=8, overlong_share=0.5).sample(taking(TASKS), 1)
    (rollouts,) = [group.rollouts for group in made.groups]
    punished = {rollout.trajectory.text: rollout for rollout in rollouts}[text]
    assert punished.rewards["overlong"] == pytest.approx(-0.25)  # 5 tokens, 1 of 4 beyond 4
    assert punished.reward == pytest.approx(WORTH[text] - 0.25)


def test_masked_completions_stay_in_their_groups_baseline():
    cut = group_of("wrong", finish_reason="length")
    batch = sampler([[*group_of("right"), *cut]], mask_truncated=True, advantage="none").sample(taking(TASKS), 1)
    (group,) = batch.groups
    assert [rollout.dropped for rollout in group.rollouts] == [None, "truncated"]
    assert [rollout.advantage for rollout in group.rollouts] == [0.5, 0.0]
    assert len(samples_of(batch.groups)) == 1
    assert rollout_metrics(batch)["rollouts_masked"] == 1
    assert [record["dropped"] for record in rollout_records(batch.groups)] == [None, "truncated"]


def test_a_truncated_completion_without_a_reward_is_a_masked_one():
    functions = {"some": lambda completions, **_: [1.0 if text == "right" else None for text in completions]}
    cut = group_of("wrong", finish_reason="length")
    script = [[*group_of("right"), *cut]]
    batch = sampler(script, functions=functions, mask_truncated=True).sample(taking(TASKS), 1)
    assert [rollout.dropped for rollout in batch.groups[0].rollouts] == [None, "truncated"]
    assert [sample.masked for sample in samples_of(batch.groups, over="all")] == [False, True]
    metrics = rollout_metrics(batch)
    assert (metrics["rollouts_masked"], metrics["rollouts_without_reward"]) == (1, 1)


def test_rewards_normalised_one_by_one_weigh_the_same_whatever_their_scale():
    functions, script = {"right": right, "brief": brief}, [group_of("right", "wrong")]
    summed = sampler(script, functions=functions, advantage="none").sample(taking(TASKS), 1)
    assert [r.advantage for r in summed.groups[0].rollouts] == [0.5, -0.5]  # both are five letters long
    script = [[completion("right"), completion("wrong"), completion("right")]]
    unlike = {"right": right, "large": lambda completion_ids, **_: [0.0, 500.0, 0.0]}
    both = scripted_sampler(
        script,
        unlike,
        {"right": 1.0, "large": 1.0},
        AdvantageConfig(reward_aggregation="normalize_then_sum", advantage="none"),
        num_generations=3,
    ).sample(taking(TASKS), 1)
    # the two rewards say the opposite; each has unit deviation, so they cancel but for the floor of 1e-4
    assert [r.advantage for r in both.groups[0].rollouts] == pytest.approx([0, 0, 0], abs=1e-3)
    assert both.groups[0].rollouts[1].reward == 500.0


@pytest.mark.parametrize(
    "advantage", ["group", "batch", "group_mean_batch_std", "group_mean_reward_std", "leave_one_out", "none"]
)
def test_rewards_that_differ_by_the_rounding_of_their_sum_are_equal_and_have_no_gradient(advantage):
    functions = {
        name: lambda completions, at=at, **_: [
            [(1.0, 1.0, 0.0), (0.0, 0.0, 1.0)][text == "right"][at] for text in completions
        ]
        for at, name in enumerate(("a", "b", "c"))
    }
    weights = {"a": 0.1, "b": 0.2, "c": 0.3}  # 0.1 + 0.2 is 0.30000000000000004
    (group,) = (
        batch := sampler([MIXED], functions=functions, weights=weights, advantage=advantage).sample(taking(TASKS), 1)
    ).groups
    assert [rollout.reward for rollout in group.rollouts] == [0.3, 0.1 + 0.2]
    assert [rollout.advantage for rollout in group.rollouts] == [0.0, 0.0]
    assert group.dropped == "zero_deviation"
    assert rollout_metrics(batch)["groups_zero_deviation"] == 1


def test_a_group_whose_signal_is_all_masked_is_not_one_of_equal_rewards():
    cut = [completion("right", finish_reason="length"), completion("wrong", finish_reason="length")]
    batch = sampler([cut], mask_truncated=True).sample(taking(TASKS), 1)
    assert batch.groups[0].dropped == "truncated"
    assert [record["dropped"] for record in rollout_records(batch.groups)] == ["truncated", "truncated"]
    assert rollout_metrics(batch)["groups_zero_deviation"] == 0


def test_a_completion_on_which_one_function_failed_is_in_no_loss_and_no_baseline():
    def fragile(completions, **columns):
        return [RuntimeError("judge is down") if text == "odd" else WORTH[text] for text in completions]

    script = [group_of("right", "wrong", "odd")]
    functions = {"fragile": fragile, "one": lambda completions, **_: [1.0] * len(completions)}
    weights = dict.fromkeys(functions, 1.0)
    made = scripted_sampler(script, functions, weights, AdvantageConfig(), num_generations=3, max_failure_rate=1.0)
    batch = made.sample(taking(TASKS), 1)
    sound, wrong, failed = batch.groups[0].rollouts
    # mean and deviation of 2 and 1, as if the third had not been sampled: (2 - 1.5) / 0.7071
    assert (sound.advantage, wrong.advantage) == (pytest.approx(0.7071, abs=1e-3), pytest.approx(-0.7071, abs=1e-3))
    assert (failed.reward, failed.advantage, failed.dropped) == (None, 0.0, "reward_failed")
    assert failed.rewards == {"fragile": None, "one": 1.0}
    assert failed.notes == {"fragile": "failed: 'fragile' failed on row 0: judge is down"}
    assert rollout_metrics(batch)["rewards"]["fragile"]["failures"] == 1
    assert rollout_metrics(batch)["rewards"]["fragile"]["count"] == 2
    assert rollout_records(batch.groups)[2]["notes"] == dict(failed.notes)
    assert len(samples_of(batch.groups)) == 2


def test_what_a_function_says_of_its_score_is_written_beside_the_rollout():
    def judge(completions, **columns):
        return [Grade(value=1.0, note="passed 3 of 3"), Grade(value=0.0, note="wrong on test 2")]

    batch = sampler([MIXED], functions={"judge": judge}).sample(taking(TASKS), 1)
    assert [rollout.reward for rollout in batch.groups[0].rollouts] == [1.0, 0.0]
    assert [record["notes"] for record in rollout_records(batch.groups)] == [
        {"judge": "passed 3 of 3"},
        {"judge": "wrong on test 2"},
    ]


def test_built_in_functions_start_on_a_completion_when_it_ends_and_are_asked_for_all_of_them_later():
    begun = []

    def begin(completions, answer, **columns):
        begun.append((completions, answer))

    early = BuiltIn(name="early", call=right, gold=None, begin=begin)
    functions = {"early": early, "plain": right}
    tasks = [
        replace(TASKS[0], columns={"reward_funcs": ["early", "plain"]}),
        replace(TASKS[1], columns={"reward_funcs": ["plain"]}),
    ]
    batch = sampler([MIXED, MIXED], functions=functions).sample(taking(tasks), 2)
    assert begun == [(["right"], ["2"]), (["wrong"], ["2"])]  # the second task is not for it
    assert [r.rewards for r in batch.groups[0].rollouts] == [{"early": 1.0, "plain": 1.0}, {"early": 0.0, "plain": 0.0}]


def test_failures_count_against_all_completions_of_the_step_not_against_those_of_a_refill():
    def fragile(completions, **columns):
        return [RuntimeError("no answer") if text == "odd" else WORTH[text] for text in completions]

    script = [MIXED, MIXED, MIXED, ALL_RIGHT, group_of("right", "odd")]  # the refill: 1 failure of 2 completions
    options = {"filter_range": (0.0, 1.0), "max_refills": 1}
    made = replace(sampler(script, functions={"fragile": fragile}, **options), max_failure_rate=0.1)
    assert made.sample(taking(TASKS), 4).scores.failed == {"fragile": (9,)}
    made = replace(sampler(script, functions={"fragile": fragile}, **options), max_failure_rate=0.09)
    with pytest.raises(TrainingError, match="'fragile' failed on 1 of 10 completions"):
        made.sample(taking(TASKS), 4)


def test_a_step_without_any_reward_ends_the_run_and_names_the_functions():
    nothing = {"right": lambda completions, **_: [None] * len(completions)}
    with pytest.raises(TrainingError, match="right"):
        sampler([MIXED], functions=nothing).sample(taking(TASKS), 1)


def test_the_age_of_a_steps_tokens_counts_each_by_the_weights_that_drew_it():
    changed = replace(completion("right"), policy_version=3, weight_changes=(WeightChange(token=2, policy_version=5),))
    groups = sampler([[changed, completion("wrong")]]).sample(taking([task("a")]), 1).groups
    # of "right" two tokens are of version 3 and three of 5, the five of "wrong" are of 0
    assert staleness_metrics(groups, policy_version=6) == {
        "staleness_mean": (2 * 3 + 3 * 1 + 5 * 6) / 10,
        "staleness_max": 6,
    }
    assert [record["weight_changes"] for record in rollout_records(groups)] == [[{"token": 2, "policy_version": 5}], []]


def test_what_enters_the_loss_its_mean_advantage_and_the_std_within_groups():
    cut = [completion("right", finish_reason="length"), completion("wrong")]
    script = [group_of("right", "wrong"), group_of("right", "right"), cut]
    found = sampler(script, advantage="none", filter_range=(0.0, 1.0), mask_truncated=True)
    batch = found.sample(taking([task("a"), task("b"), task("c")]), 3)
    metrics = rollout_metrics(batch)
    assert metrics["sample_utilization"] == len(samples_of(batch.groups)) / 6 == 0.5
    assert metrics["advantage_mean"] == pytest.approx((0.5 - 0.5 - 0.5) / 3)
    assert metrics["reward_std_within"] == pytest.approx((0.5**0.5 + 0.0 + 0.5**0.5) / 3)
    assert metrics["reward_std"] == pytest.approx((4 / 15) ** 0.5)  # of all six: 1 0 1 1 1 0
    assert "format_accuracy" not in metrics


def test_completions_in_the_format_that_a_reward_asks_for_are_counted():
    script = [group_of("<think>so</think><answer>3</answer>", "<answer>2</answer>")]
    found = sampler(script, functions={"think_answer_tags": resolve("think_answer_tags"), "accuracy": right_or_not})
    assert rollout_metrics(found.sample(taking([task("a")]), 1))["format_accuracy"] == 0.5


def right_or_not(completions: list[str], **columns: object) -> list[float]:
    return [float("2" in text) for text in completions]


def test_an_advantage_of_ones_own_gets_the_rewards_of_each_group():
    def first_is_best(rewards):
        return [float(place == 0) for place in range(len(rewards))]

    own = replace(sampler([MIXED, ALL_RIGHT], advantage="mine.py:first_is_best"), own_advantage=first_is_best)
    groups = own.sample(taking(TASKS), 2).groups
    # equal rewards carry signal where the function says so
    assert [[rollout.advantage for rollout in group.rollouts] for group in groups] == [[1.0, 0.0], [1.0, 0.0]]
    assert [group.dropped for group in groups] == [None, None]


def test_a_step_without_any_reward_ends_a_run_unless_none_is_needed():
    silent = sampler([MIXED], functions={"silent": lambda completions, **columns: [None] * len(completions)})
    with pytest.raises(TrainingError, match="no completion of the step got a reward"):
        silent.sample(taking(TASKS), 1)
    again = sampler([MIXED], functions={"silent": lambda completions, **columns: [None] * len(completions)})
    (group,) = replace(again, needs_reward=False).sample(taking(TASKS), 1).groups
    assert (group.dropped, [one.dropped for one in group.rollouts]) == ("no_reward", ["no_reward"] * 2)
