"""benchmarks/stopwatch.py: a part's seconds are its own."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from stopwatch import Stopwatch


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Work:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def outer(self) -> str:
        self.clock.now += 1
        self.inner(seconds=10)
        self.clock.now += 2
        self.inner(seconds=20)
        return "done"

    def inner(self, *, seconds: float) -> None:
        self.clock.now += seconds
        if seconds < 0:
            raise ValueError("backwards")


def test_a_part_counts_without_the_parts_that_it_calls():
    clock, seen = Clock(), []
    watch, work = Stopwatch(clock=clock), Work(clock)
    watch.watch(work, "outer", "whole")
    watch.watch(work, "inner", "part", told=lambda *, seconds: seen.append(seconds))
    assert work.outer() == "done"
    clock.now += 1000  # between two calls nobody is charged
    with watch.phase("whole"):
        clock.now += 4
    assert watch.read() == ({"whole": 7.0, "part": 30.0}, {"whole": 2, "part": 2})
    assert watch.read() == ({}, {})
    assert seen == [10, 20]


def test_a_part_that_fails_is_counted_and_closed():
    clock = Clock()
    watch, work = Stopwatch(clock=clock), Work(clock)
    watch.watch(work, "inner", "part")
    with pytest.raises(ValueError, match="backwards"):
        work.inner(seconds=-5)
    clock.now += 7
    assert watch.read() == ({"part": -5.0}, {"part": 1})


def test_a_method_that_does_not_exist_is_named():
    with pytest.raises(AttributeError, match="prefil"):
        Stopwatch().watch(Work(Clock()), "prefil", "prefill")
