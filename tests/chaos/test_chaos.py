"""A sample of `make chaos`: a few kills, and the faults that take a second each; the page is of the kept results."""

import json
from pathlib import Path

import pytest

from tests.chaos.faults import FAULTS
from tests.chaos.kills import Kill, Life, draw, kill, live
from tests.chaos.results import LIST, PAGE, RESULTS, _names_of_areas, page, whole_list
from tests.chaos.runs import Outcome
from tests.chaos.scene import Impossible, Scene

LONG = {
    *(
        "killed_at_every_rename",
        "full_disk_at_any_write",
        "small_disk",
        "is_slow",
        "slow_disk",
        "stopped_and_continued",
    ),
    *(
        "sigterm_in_generation",
        "read_only_disk_in_save",
        "broken_disk_in_save",
        "flipped_optimiser",
        "killed_in_export",
    ),
    *("missing_progress", "emptied_manifest", "leaves_the_program", "dies_by_a_signal"),
    *("flooding_environments", "wrong_environments", "slow_environments", "trainer_killed_between_turns"),
    "sigterm_between_turns",
    *("changed_option", "edited_configuration", "changed_row", "changed_model"),
}
"""Runs several times, waits, or is the twin of one that is tried, here or in `test_resume_changed.py`."""


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("chaos")


@pytest.fixture(scope="module")
def life(root) -> Life:
    return live(root / "life")


@pytest.mark.parametrize("number", range(6))
def test_a_run_killed_at_a_random_moment_is_gone_on_with_to_the_same_end(root, life, number):
    moment = draw(life, 6, seed=1)[number]
    one = kill(root / f"kill-{number}", moment, life)
    assert one.is_kept, one


@pytest.mark.parametrize(
    "fault",
    [fault for fault in FAULTS if fault.needs == "one process" and fault.done.__name__ not in LONG],
    ids=lambda fault: fault.name,
)
def test_a_run_keeps_its_promise_under(fault, root, life):
    scene = Scene(root=root / fault.done.__name__, life=life, finished=root / "life-again")
    try:
        fault.done(scene)
    except Impossible as reason:
        pytest.skip(str(reason))


def test_moments_are_drawn_from_the_seed_and_spread_over_a_directorys_life():
    nothing = Outcome(weights="", metrics=(), evals=(), completions=(), texts=())
    life = Life(outcome=nothing, seconds=14.0, of_directory=10.0, writes={"os:fsync": 10})
    clocked, written = draw(life, 30, seed=3)[:20], draw(life, 30, seed=3)[20:]
    assert [int(moment * 2) for moment in clocked] == list(range(20))
    assert sorted(trap.first for trap in written) == list(range(1, 11))
    assert draw(life, 30, seed=4) != draw(life, 30, seed=3)


@pytest.mark.parametrize(
    ("change", "is_kept"), [({}, True), ({"is_same": False}, False), ({"generated_twice": 1}, False)]
)
def test_a_kill_is_survived_by_the_same_end_without_sampling_twice(change, is_kept):
    given = {"target": "driver", "moment": "", "found": "", "is_same": True, "generated_twice": 0, "committed": 64}
    assert Kill(**(given | change)).is_kept is is_kept


def test_the_list_has_every_fault_once_and_at_least_25():
    names = [fault.done for fault in FAULTS]
    assert len(set(names)) == len(names) >= 25


def test_the_pages_are_of_the_last_results():
    results = json.loads(RESULTS.read_text())
    assert PAGE.read_text() == page(results)
    assert LIST.read_text() == whole_list(results)


def test_every_fault_is_in_one_area_of_the_page():
    areas = _names_of_areas()
    assert sum(map(len, areas)) == len(FAULTS)
    assert set().union(*areas) == {fault.name for fault in FAULTS}
