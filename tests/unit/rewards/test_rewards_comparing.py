"""Outputs and returned values are compared by content, with bounds that no output can exceed."""

import json
import tracemalloc

import pytest

from paceline.rewards.programs.cases import parse_value, same_output, same_value


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("3\n", "3"),
        ("3", "3\n\n\n"),
        ("1 2\n3\n", "1  2 \r\n\t3\t\n"),
        ("", "\n \n"),
        ("a\n\nb", "a\nb\n"),
        ("a", "\n \na"),
        ("1 2", "1\n2"),
        ("0.5", "0.50000001"),
        ("0.5", ".5"),
        ("5e-1", "0.5"),
        ("3.0", "3"),
        ("1000000.0", "1000000.9"),  # 1e-6 of the value is 1
        ("0.0", "0.0000009"),
        ("-0.25", "-.25"),
        ("é ✓", "é ✓"),
        ("nan", "nan"),  # text as any other
        ("1e999", "1e999"),
    ],
)
def test_output_is_right_whatever_the_space_at_ends_and_within_the_tolerance_of_a_float(expected, printed):
    assert same_output(expected, printed)


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("1 2", "2 1"),
        ("1\n2", "2\n1"),
        ("1 2", "12"),
        ("1 2", "1 2 3"),
        ("1 2 3", "1 2"),
        ("1 1 2", "1 2 2"),  # the same set
        ("ab", "a b"),
        ("3", "3.0"),
        ("3", "3.0000001"),
        ("3", "03"),
        ("3", "+3"),
        ("Yes", "YES"),
        ("0.5", "0.500002"),
        ("1000000.0", "1000001.2"),
        ("0.5", "nan"),
        ("0.5", "0_0.5"),
        ("0.5", "\u0660.\u0665"),
        ("0.5", "0.5x"),
        ("1e999", "1e998"),  # both infinite as float64
        ("a b", "a\u00a0b"),  # no ASCII space
        ("1", ""),
        ("", "0"),
    ],
)
def test_output_that_is_not_the_same_is_wrong(expected, printed):
    assert not same_output(expected, printed)


@pytest.mark.parametrize("flood", ["\n", "x ", "1\n\n"])
def test_a_flood_of_output_takes_no_more_memory_than_its_text(flood):
    printed = flood * ((1 << 20) // len(flood))
    tracemalloc.start()
    assert not same_output("1 2\n3", printed)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 3 << 20


@pytest.mark.parametrize(
    ("expected", "returned"),
    [
        (3, 3),
        (0.5, 0.5000001),
        (2.0, 2),
        ("a", "a"),
        (None, None),
        (True, True),
        ([1, [2.0, "x"]], [1, [2.0000001, "x"]]),
        ({"1": [1]}, {"1": [1]}),
        (10**400, 10**400),
    ],
)
def test_values_are_right_by_kind_and_content(expected, returned):
    assert same_value(expected, returned)


@pytest.mark.parametrize(
    ("expected", "returned"),
    [
        (3, 3.0),
        (1, True),
        (True, 1),
        (1.0, True),
        (0, False),
        (0.5, "0.5"),
        ("3", 3),
        (None, False),
        ([1, 2], [2, 1]),
        ([1], [1, 1]),
        ([1], 1),
        ([], None),
        ({"1": 1}, {"1": 1, "2": 2}),
        ({"1": 1}, {"2": 1}),
        (float("nan"), float("nan")),
        (float("inf"), float("inf")),
        (0.5, float("nan")),
        (0.5, 10**400),
    ],
)
def test_values_of_another_kind_or_order_are_wrong(expected, returned):
    assert not same_value(expected, returned)


def test_values_nested_beyond_the_bound_are_equal_to_nothing_and_raise_nothing():
    deep = json.loads("[" * 500 + "]" * 500)
    assert not same_value(deep, deep)
    shallow = json.loads("[" * 50 + "]" * 50)
    assert same_value(shallow, shallow)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "9" * 5000])
def test_a_returned_text_that_cannot_be_read_is_no_value(text):
    assert parse_value(text) == (False, None)
