"""The data order visits each task once per epoch, is uniform, and depends on seed and position alone."""

from collections import Counter

import numpy as np
import pytest

from paceline.data.prompts import length_histogram
from paceline.data.rows import task_index


def order(positions, *, size=7, seed=3, shuffle=True):
    return [task_index(position, size=size, seed=seed, shuffle=shuffle) for position in positions]


def test_every_epoch_takes_each_task_once():
    for epoch in range(5):
        assert sorted(order(range(7 * epoch, 7 * epoch + 7))) == list(range(7))


def test_epochs_and_seeds_have_orders_of_their_own():
    first = order(range(100), size=100)
    assert first != order(range(100, 200), size=100)
    assert first != order(range(100), size=100, seed=4)
    assert first != list(range(100))


def test_an_index_depends_on_its_position_alone():
    forward = order(range(50))
    assert order(reversed(range(50))) == forward[::-1]


def test_without_shuffle_the_rows_keep_their_order():
    assert order(range(5), size=3, shuffle=False) == [0, 1, 2, 0, 1]


def test_all_first_places_are_equally_likely():
    # 2,000 seeds over 4 tasks: 500 each, standard deviation 19.4; five standard deviations.
    counts = Counter(task_index(0, size=4, seed=seed, shuffle=True) for seed in range(2000))
    assert all(abs(counts[task] - 500) < 97 for task in range(4))


def test_the_order_is_the_same_in_every_release():
    # A resumed run must go on with the order that it started with.
    assert order(range(7)) == [6, 1, 5, 2, 4, 3, 0]


def test_the_largest_seed_works_and_a_plain_number_comes_back():
    assert type(task_index(0, size=1, seed=2**63 - 1, shuffle=True)) is int


def test_the_global_random_state_is_left_alone():
    np.random.seed(0)
    before = np.random.get_state()[1].tolist()
    order(range(7), seed=99)
    assert np.random.get_state()[1].tolist() == before


@pytest.mark.parametrize("wrong", [{"position": -1}, {"size": 0}, {"seed": -1}, {"seed": 2**63}])
def test_impossible_positions_sizes_and_seeds_are_refused(wrong):
    given = {"position": 0, "size": 1, "seed": 0, **wrong}
    with pytest.raises(ValueError, match="must hold"):
        task_index(given.pop("position"), **given, shuffle=True)


def test_the_histogram_says_how_long_prompts_are():
    # 100 lengths 1..100 in 8 ranges of 13: seven of 13 prompts and a last one of 9.
    lines = length_histogram(range(100, 0, -1)).splitlines()
    assert lines[0] == "prompt tokens: n 100, median 50, p95 95, max 100"
    assert lines[1] == f"    1-13 {'█' * 30} 13"
    assert lines[8] == f"  92-100 {'█' * 20}▉ 9"  # 9 / 13 of 240 eighths: 166.2, so 20 blocks and 7
    assert len(lines) == 9


def test_a_single_long_prompt_stays_visible_among_many():
    lines = length_histogram([1] * 10_000 + [80]).splitlines()
    assert lines[1].endswith("10,000")
    assert lines[-1] == "  71-80 ▏ 1"
    assert lines[2] == "  11-20  0"


def test_one_length_is_one_bar():
    assert length_histogram([5]).splitlines() == ["prompt tokens: n 1, median 5, p95 5, max 5", f"  5 {'█' * 30} 1"]
    with pytest.raises(ValueError, match="must not be empty"):
        length_histogram([])
