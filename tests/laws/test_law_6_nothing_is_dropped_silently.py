"""Law 6: filtered groups, truncated completions and failed rewards are counted; None is not 0."""

from collections import Counter

import pytest

from paceline.config.objective import AdvantageConfig
from paceline.errors import TrainingError
from paceline.training.learner.samples import samples_of
from paceline.training.rollouts.records import rollout_metrics, rollout_records
from paceline.training.rollouts.sampler import Sampler
from tests.support.scripted import completion, scripted_sampler, taking, task


def grade(completions: list[str], **columns: object) -> list[float | None]:
    """1 for right, 0 for wrong, None for what is not its task; breaks on `boom`."""
    if "boom" in completions:
        raise ZeroDivisionError("a grader's own mistake")
    return [{"right": 1.0, "wrong": 0.0, "skip": None}[text] for text in completions]


def sampler(script, *, limit: float = 0.5) -> Sampler:
    options = AdvantageConfig(advantage="none")
    return scripted_sampler(script, {"grade": grade}, {"grade": 2.0}, options, max_failure_rate=limit)


SCRIPT = [
    [completion("right"), completion("wrong", finish_reason="length")],  # carries signal
    [completion("right"), completion("right")],  # equal rewards
    [completion("skip"), completion("skip")],  # no reward at all
    [completion("right"), completion("boom")],  # a failed grader
]
TASKS = [task(str(number)) for number in range(4)]


@pytest.fixture
def batch():
    return sampler(SCRIPT).sample(taking(TASKS), 4)


def test_every_completion_comes_out_again_with_its_reward_or_none(batch):
    assert [[rollout.reward for rollout in group.rollouts] for group in batch.groups] == [
        [2.0, 0.0],
        [2.0, 2.0],
        [None, None],
        [2.0, None],
    ]
    assert [group.dropped for group in batch.groups] == [None, "zero_deviation", "no_reward", "zero_deviation"]


def test_the_metrics_count_all_that_does_not_train(batch):
    metrics = rollout_metrics(batch)
    assert (metrics["rollouts"], metrics["rollouts_without_reward"]) == (8, 3)
    assert (metrics["groups_zero_deviation"], metrics["groups_no_reward"]) == (2, 1)
    assert metrics["truncated_fraction"] == 1 / 8
    assert metrics["rewards"]["grade"]["failures"] == 1
    assert metrics["rewards"]["grade"]["mean"] == 4 / 5
    assert metrics["reward_mean"] == 8 / 5


def test_a_missing_reward_takes_no_part_in_the_loss_and_a_zero_advantage_counts_in_its_average(batch):
    assert [(sample.group, sample.advantages[0]) for sample in samples_of(batch.groups)] == [
        (0, 1.0),
        (0, -1.0),
        (1, 0.0),
        (1, 0.0),
        (3, 0.0),
    ]


def test_the_run_directory_gets_every_rollout_with_the_reason_it_was_dropped_for(batch):
    reasons = Counter(record["dropped"] for record in rollout_records(batch.groups))
    assert reasons == {None: 2, "zero_deviation": 3, "no_reward": 2, "reward_failed": 1}


def test_too_many_failures_stop_the_run_and_name_the_culprit():
    with pytest.raises(TrainingError, match=r"grade.*ZeroDivisionError"):
        sampler(SCRIPT, limit=0.1).sample(taking(TASKS), 4)


def test_a_step_in_which_no_completion_gets_a_reward_stops_the_run():
    sentence = r"of 4 completions reward function 'grade' failed on 0, and the rest got None; correct the reward"
    with pytest.raises(TrainingError, match=sentence):
        sampler([SCRIPT[2]] * 2).sample(taking(TASKS), 2)


def test_a_task_that_comes_again_draws_other_completions():
    half = sampler(SCRIPT)
    half.sample(lambda count: [(TASKS[0], 0)], 1)
    half.sample(lambda count: [(TASKS[0], 1)], 1)
    first, second = half.rounds.engine.requests
    assert first.prompt_ids == second.prompt_ids
    assert not set(first.keys) & set(second.keys)
