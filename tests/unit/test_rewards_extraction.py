import pytest

from paceline.rewards.extraction import (
    final_answer,
    last_answer_tag,
    last_boxed,
    last_hashes,
    prefills_think,
    unboxed,
    visible_text,
)


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("no tags", "no tags"),
        ("<think>a</think>b", "b"),
        ("a<think>b</think>c<think>d</think>e", "ace"),
        ("a</think>b", "b"),  # the thought began before the text
        ("a<think>b", "a"),  # the thought never ends
        ("<think>a<think>b</think>c</think>d", "d"),
    ],
)
def test_only_what_is_outside_the_thinking_is_visible(text, visible):
    assert visible_text(text) == visible


def test_after_a_prompt_that_opens_the_thinking_the_text_starts_as_a_thought():
    assert prefills_think("Question\n<think>\n")
    assert not prefills_think("Question\n<think></think>\n")
    assert visible_text("a</think>b", prefilled=True) == "b"
    assert visible_text("<answer>1</answer>", prefilled=True) == ""


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> 42 </answer>", "42"),
        ("<answer>1</answer><answer>2</answer>", "2"),
        ("<answer>1</answer><answer>2", "1"),
        ("<answer>1</answer> stray </answer>", "1"),
        ("<answer>1<answer>2</answer>", "2"),
        ("<answer></answer>", ""),
        ("<answer>1", None),
        ("1</answer>", None),
        ("<ANSWER>1</ANSWER>", None),
    ],
)
def test_the_last_complete_answer_tag_counts(text, answer):
    assert last_answer_tag(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{1} and \boxed{42}", "42"),
        (r"\boxed{42} and \boxed{", "42"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\boxed{42}}", "42"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{x\right.}", r"\left\{x\right."),
        (r"\boxed{1 \boxed{2}", "2"),
        (r"\boxed{}", ""),
        (r"\boxed 42", None),
        (r"\fbox{42}", None),
    ],
)
def test_the_last_box_whose_braces_close_counts(text, answer):
    assert last_boxed(text) == answer


def test_hashes_give_the_line_after_the_last_of_them():
    assert last_hashes("#### 1\nno\n#### 42\nDone.") == "42"
    assert last_hashes("#### ") is None
    assert last_hashes("42") is None


def test_the_tag_goes_before_the_box_and_the_box_before_the_hashes():
    assert final_answer(r"\boxed{1} <answer>2</answer> #### 3") == "2"
    assert final_answer(r"#### 3 \boxed{1}") == "1"
    assert final_answer("#### 3") == "3"
    assert final_answer("3") is None
    assert final_answer(r"<answer></answer>\boxed{1}") == ""


def test_an_answer_that_is_one_box_is_opened_and_two_boxes_stay_as_they_are():
    assert unboxed(r"$\boxed{42}$") == "42"
    assert unboxed(r"\boxed{1} \boxed{42}") == r"\boxed{1} \boxed{42}"


@pytest.mark.parametrize("part", ["<answer>", "</answer>", r"\boxed{", "<think>", "{", "####", "}", "\\"])
def test_a_huge_completion_of_nothing_but_markers_is_read_and_holds_no_answer(part):
    assert not final_answer(visible_text(part * 100_000))
