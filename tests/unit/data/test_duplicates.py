"""Rows with the prompt of another are counted and named, within a dataset and across what is held out."""

import pytest

from paceline.config.building import build_config
from paceline.data.duplicates import also_trained_on, held_apart, refuse_overlap, repeated_prompts
from paceline.data.rows import WHOLE, Row
from paceline.errors import DataError
from tests.support.scripted import task


def test_a_repeated_row_is_counted_and_named_with_the_one_that_it_repeats():
    rows = [task("a:1", prompt="1 + 1"), task("a:2", prompt="2 + 2", answer="4"), task("a:3", prompt="1 + 1")]
    assert repeated_prompts(rows) == [
        "1 of 3 rows repeat the prompt and the answer of an earlier one (a:3 those of a:1) and count as often; remove "
        "them where that is not meant"
    ]


def test_one_prompt_with_two_answers_is_named_with_both():
    rows = [task("a:1", answer="2"), task("a:2", answer="3"), task("a:3", answer="2")]
    assert [sentence.partition(";")[0] for sentence in repeated_prompts(rows)] == [
        "1 of 3 rows repeat the prompt and the answer of an earlier one (a:3 those of a:1) and count as often",
        "1 of 3 rows have an earlier one's prompt and another answer (a:1 has '2', a:2 has '3')",
    ]


def test_rows_that_a_dataset_with_a_number_takes_again_are_meant():
    assert repeated_prompts([task("a:1"), task("a:1#2"), task("b:1", prompt="2 + 2 =")]) == []


def test_held_out_prompts_that_are_trained_on_are_counted_with_both_rows():
    training = [task("a:1", prompt="x"), task("a:2", prompt="y")]
    held_out = [task("b:1", prompt="z"), task("b:2", prompt="y"), task("b:3", prompt="x")]
    assert [sentence.partition(":")[0] for sentence in also_trained_on(held_out[:1], training)] == []
    (sentence,) = also_trained_on(held_out, training)
    assert sentence.startswith("2 of 3 prompts are trained on too (b:2 is a:2)")


def test_a_held_out_set_that_is_trained_on_is_refused_with_three_ways_out():
    with pytest.raises(
        DataError,
        match=r"^held-out set b: 1 of 1 prompts are trained on too \(b:1 is a:1\): .* memorised; keep these rows out "
        r"of one of the two, give --eval-share 0\.1 in the place of a held-out set, or give --allow-overlap if it is "
        r"meant$",
    ):
        refuse_overlap("b", [task("b:1")], [task("a:1")])
    refuse_overlap("b", [task("b:1", prompt="x")], [task("a:1")])


def rows(*prompts: str) -> list[Row]:
    return [Row(row_id=f"a:{number}", columns={"prompt": one, "answer": "1"}) for number, one in enumerate(prompts, 1)]


def share(value: float, **more: object):
    return build_config({"model": "m", "dataset": "a", "eval_share": value, **more}).data


def test_a_share_of_the_prompts_is_held_out_and_rows_of_one_prompt_stay_together():
    given = rows(*(str(number % 10) for number in range(30)))
    training, apart = held_apart(given, share(0.2), seed=1)
    assert sorted([*training, *apart], key=given.index) == given
    prompts, others = ({row.columns["prompt"] for row in some} for some in (apart, training))
    assert (len(prompts), len(others), prompts & others, len(apart)) == (2, 8, set(), 6)
    assert (training, apart) == held_apart(given, share(0.2), seed=1)
    assert any(held_apart(given, share(0.2), seed=seed)[1] != apart for seed in range(2, 9))


@pytest.mark.parametrize(
    ("count", "value", "sentence"),
    [
        (3, 0.1, "--eval-share 0.1 of 3 different prompts leaves none to hold out"),
        (3, 0.9, "--eval-share 0.9 of 3 different prompts leaves none to train on"),
        (WHOLE + 1, 0.1, "--eval-share 0.1 is of at most 20,000 rows, which are read whole, and there are 20,001"),
    ],
)
def test_a_share_that_leaves_nothing_or_of_too_many_rows_is_refused(count, value, sentence):
    with pytest.raises(DataError, match=sentence):
        held_apart(rows(*map(str, range(count))), share(value), seed=0)


def test_a_row_that_cannot_be_used_stays_where_it_is_counted():
    bad = Row(row_id="a:9", columns={"prompt": "", "answer": "1"})
    training, apart = held_apart([*rows("1", "2"), bad], share(0.5, on_bad_row="skip"), seed=0)
    assert (len(training), len(apart), bad in training) == (2, 1, True)
