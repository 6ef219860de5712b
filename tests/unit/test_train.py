"""What lies around the loop: which tasks a step takes, who may ask for what, at which rate."""

import pytest
import torch

from paceline.config import LoopConfig
from paceline.train.feed import Feed, prompts_of_step
from paceline.train.observing import Timetable, Wishes
from paceline.train.rates import SteppedRate
from tests.scripted import task

TASKS = tuple(task(str(number)) for number in range(3))


def test_a_feed_goes_on_where_it_stood_and_counts_how_often_a_task_came():
    feed = Feed(tasks=TASKS, seed=0, shuffle=False, position=1)
    assert [(one.task_id, times) for one, times in feed.take(4)] == [("1", 0), ("2", 0), ("0", 1), ("1", 1)]
    assert feed.position == 5


def test_the_last_step_of_a_run_in_epochs_takes_what_is_left_however_many_refills_there_were():
    loop = LoopConfig(prompts_per_step=4, num_epochs=1.0)
    assert [prompts_of_step(number, loop, num_tasks=10) for number in (1, 2, 3)] == [4, 4, 2]
    assert prompts_of_step(3, LoopConfig(prompts_per_step=4, max_steps=3), num_tasks=10) == 4


def test_wishes_of_several_moments_are_granted_together():
    assert Wishes(save=True) | Wishes(stop=True) == Wishes(save=True, stop=True)


def test_the_timetable_evaluates_at_the_start_every_so_often_and_at_the_end():
    timetable = Timetable(eval_steps=2, save_steps=3, total_steps=5)
    assert timetable.at_start(0) == Wishes(evaluate=True)
    assert timetable.at_start(2) == Wishes()
    wishes = [timetable.after(number) for number in (1, 2, 3, 4, 5)]
    assert [one.evaluate for one in wishes] == [False, True, False, True, True]
    assert [one.save for one in wishes] == [False, False, True, False, False]


@pytest.mark.parametrize("kind", ["closed form", "step by step"])
def test_a_stepped_rate_can_be_set_to_any_number_of_updates(kind):
    def make() -> SteppedRate:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.8)
        schedulers = torch.optim.lr_scheduler
        by_kind = {
            "closed form": lambda: schedulers.LambdaLR(optimizer, lambda updates: 1 / (1 + updates)),
            "step by step": lambda: schedulers.ExponentialLR(optimizer, 0.5),
        }
        return SteppedRate(optimizer, by_kind[kind]())

    went = make()
    rates = []
    for _ in range(5):
        rates.append(went.current)
        went.advance(1)
    for updates in (3, 0, 4):
        went.go_to(updates)
        assert went.current == rates[updates]
