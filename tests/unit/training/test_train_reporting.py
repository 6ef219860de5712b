"""The report of a running run is rewritten regularly at a small share of its time."""

from pathlib import Path

import pytest

from paceline.errors import CheckpointError
from paceline.training.observing import RunningReport


class Scene:
    """A clock that stands until it is moved, and pages that take `cost` seconds of it."""

    def __init__(self, cost=0.0):
        self.now, self.cost, self.pages, self.told, self.fault = 100.0, cost, [], [], None
        self.report = RunningReport(Path("run"), notify=self.told.append, write=self._write, clock=lambda: self.now)

    def _write(self, directory):
        self.pages.append(self.now)
        self.now += self.cost
        if self.fault:
            raise self.fault
        return directory / "report.html"

    def refreshed_at(self, *times):
        for time in times:
            self.now = max(self.now, time)
            self.report.refresh()
        return self.pages


def test_a_page_is_there_after_the_first_step_and_then_every_half_minute():
    assert Scene().refreshed_at(100, 101, 129.9, 130, 131, 159, 170) == [100, 130, 170]


def test_a_page_that_takes_long_is_written_so_seldom_that_it_takes_a_hundredth_of_the_run():
    # 2 s each: the next is due 200 s after the end of the one before
    assert Scene(cost=2.0).refreshed_at(100, 140, 301.9, 302, 400, 504) == [100, 302, 504]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (CheckpointError("run/report.html cannot be written (...)"), "run/report.html cannot be written (...)"),
        (
            ValueError("math domain error"),
            "ValueError while drawing it: math domain error; `paceline report run` shows where",
        ),
    ],
)
def test_a_page_that_cannot_be_written_is_told_of_once_and_ends_no_run(fault, reason):
    scene = Scene()
    scene.fault = fault
    scene.refreshed_at(100, 130, 160)
    assert len(scene.pages) == 3
    assert scene.told == [f"the run goes on without its page: {reason}"]
