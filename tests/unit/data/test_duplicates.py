"""Rows with the prompt of another are counted and named, within a dataset and across what is held out."""

from paceline.data.duplicates import also_trained_on, repeated_prompts
from tests.scripted import task


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
