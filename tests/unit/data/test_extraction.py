"""The answer or program is found in a completion in each format, or not at all."""

import tracemalloc

import pytest

from paceline.chat.thinking import prefill, prefills_think, visible_text
from paceline.data.answers import (
    closing_hashes,
    final_answer,
    last_answer_tag,
    last_boxed,
    last_hashes,
    plain_answer,
    stand_once_in_order,
    unboxed,
)
from paceline.rewards.builtin.code import last_code_block


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("no tags", "no tags"),
        ("<think>a</think>b", "b"),
        ("a<think>b</think>c<think>d</think>e", "ace"),
        ("a</think>b", "b"),  # the thought began before the text
        ("a<think>b", "a"),  # the thought never ends
        ("<think>a<think>b</think>c</think>d", "d"),
        ("<reasoning>a</reasoning>b", "b"),
        ("a</reasoning>b", "b"),
        ("<think>a</reasoning>b</think>c", "c"),  # each thought ends with its own tag
        ("<think>a<reasoning>b</think>c", "c"),
        ("<think>a</think><reasoning>b</reasoning>c", "c"),
        ("<thinking>a</thinking>b", "<thinking>a</thinking>b"),
    ],
)
def test_only_what_is_outside_the_thinking_is_visible(text, visible):
    assert visible_text(text) == visible
    assert visible_text(visible_text(text)) == visible


def test_one_kind_of_thinking_can_be_left_in():
    assert visible_text("<think>a</think><reasoning>b</reasoning>", tags=("think",)) == "<reasoning>b</reasoning>"


@pytest.mark.parametrize("tag", ["think", "reasoning"])
def test_after_a_prompt_that_opens_the_thinking_the_text_starts_as_a_thought(tag):
    assert prefills_think(f"Question\n<{tag}>")
    assert prefills_think(f"Question\n<{tag}>\n \n")
    assert not prefills_think(f"Question\n<{tag}></{tag}>\n")
    assert prefill(f"Question\n<{tag}>\n") == f"<{tag}>\n"
    assert prefill("Question") == ""
    assert visible_text(f"a</{tag}>b", prefilled=True) == "b"
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
        ('<answer type="int">1</answer>', None),
    ],
)
def test_the_last_complete_answer_tag_counts(text, answer):
    assert last_answer_tag(text) == answer


def test_marks_stand_in_order_only_where_each_stands_once():
    assert stand_once_in_order("a1b2", "12")
    assert not stand_once_in_order("a2b1", "12")
    assert not stand_once_in_order("a1b2b2", "12")
    assert not stand_once_in_order("a1", "12")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{1} and \boxed{42}", "42"),
        (r"\boxed{42} and \boxed{", "42"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\boxed{42}}", "42"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\{}", r"\{"),
        (r"\boxed {7}", "7"),
        (r"\boxed{\left\{x\right.}", r"\left\{x\right."),
        (r"\boxed{1 \boxed{2}", "2"),
        (r"\boxed{}", ""),
        (r"\boxed 42", None),
        (r"\fbox{42}", None),
        ("no box", None),
    ],
)
def test_the_last_box_whose_braces_close_counts(text, answer):
    assert last_boxed(text) == answer


def test_boxes_in_boxes_take_memory_by_the_length_of_the_text():
    text = r"\boxed{" * 2000 + "42" + "}" * 2000
    tracemalloc.start()
    assert last_boxed(text) == "42"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60 * len(text)  # contents of every level together: 800 times


def test_an_answer_that_is_one_box_is_opened_and_two_boxes_stay_as_they_are():
    assert unboxed(r"$\boxed{42}$") == "42"
    assert unboxed(r"\boxed{1} \boxed{42}") == r"\boxed{1} \boxed{42}"


def test_hashes_give_the_line_after_the_last_of_them():
    assert last_hashes("#### 1\nno\n#### 42\nDone.") == "42"
    assert last_hashes("so #### 5") == "5"
    assert last_hashes("#### ") is None
    assert last_hashes("42") is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [("x\n#### 72", "72"), ("#### -1,234\n", "-1,234"), ("#### 5\nx", None), ("x #### 5", None), ("####", None)],
)
def test_a_gold_answer_stands_after_hashes_that_start_the_last_line(text, answer):
    assert closing_hashes(text) == answer


def test_boxes_in_one_list_are_one_answer():
    assert final_answer(r"So $x=\boxed{5}$ or $x=\boxed{6}$.") == "5, 6"
    assert final_answer(r"\boxed{5}, \(\boxed{6}\), and \boxed{7}") == "5, 6, 7"
    assert final_answer(r"\boxed{5} and then \boxed{6}") == "6"
    assert final_answer(r"\boxed{5}" + " " * 100_000 + r"or \boxed{6}") == "6"


def test_the_tag_goes_before_the_box_and_the_box_before_the_hashes():
    assert final_answer(r"\boxed{1} <answer>2</answer> #### 3") == "2"
    assert final_answer(r"#### 3 \boxed{1}") == "1"
    assert final_answer("#### 3") == "3"
    assert final_answer("3") is None
    assert final_answer(r"<answer></answer>\boxed{1}") == ""


def test_the_last_line_is_the_answer_only_where_it_is_asked_for_and_nothing_is_marked():
    assert final_answer("So it is 42.", plain=True) == "42"
    assert final_answer("#### 3\nSo it is 42.", plain=True) == "3"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 42.", "42"),
        ("First 41.\n\nThe answer is **42**.\n", "42"),
        ("6 * 7 = 42", "42"),
        ("Answer: 1,000 dollars", "1,000 dollars"),
        ("It costs $18.", "$18"),
        ("It is -3 degrees", "-3 degrees"),
        ("that leaves 1/2 of it", "1/2"),
        ("50% of them", "50%"),
        ("The answer is B.", "B."),
        ("The answer is (1, 2)", "(1, 2)"),
        ("blue", "blue"),
        (r"so x = \frac{1}{2}", r"\frac{1}{2}"),
        ("It is 41 or 42", "It is 41 or 42"),  # no guess among several
        ("x + 2", "x + 2"),  # no number out of a calculation
        ("the answer is 2x", "2x"),
        ("x^2", "x^2"),
        ("10-3", "10-3"),
        ("4,2", "4,2"),
        ("the answer is", "the answer is"),
        ("", None),
        (" \n ", None),
    ],
)
def test_the_last_line_states_one_number_or_itself(text, answer):
    assert plain_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\na\nb\n```", "a\nb\n"),
        ("Text:\n```py\na\n```\nmore", "a\n"),
        ("```Python3 title=x\na\n```", "a\n"),
        ("```\na\n```", "a\n"),
        ("```python\na\n```\n```python\nb\n```", "b\n"),
        ("```python\na\n```\nIt prints:\n```\n1\n```", "a\n"),  # a bare fence may hold the output
        ("```python\na\n```\n```python\nb\n", "a\n"),  # an unclosed fence is none
        ("```python\na\n```python\nb\n```", "b\n"),
        ("````python\n```\na\n````", "```\na\n"),
        ("  ```python\n  if a:\n    b\n  ```", "if a:\n  b\n"),
        ("```python\n```", ""),
        ("```cpp\na\n```", None),
        ("```python\na", None),
        ("`python a`", None),
        ("print(1)", None),
        ("<think>\n```python\na\n```\n</think>", None),
        ("<think>\n```python\na\n```\n</think>\n```python\nb\n```", "b\n"),
        ("<answer>\n```python\na\n```\n</answer>", "a\n"),
        ("```python\r\na\r\n```\r\n", "a\r\n"),
        ("```python3.12\na\n```", "a\n"),
        ("```py3\na\n```", "a\n"),
        ("```python2\na\n```", None),
        ("<answer>```python\na\n```</answer>", "a\n"),
        ("<answer> ```\na\n``` </answer>", "a\n"),
        ("```python\na\n<answer>```python\nb\n```</answer>", "b\n"),
        ("~~~python\na\n```\n~~~", "a\n```\n"),
        ("```python\na\n~~~\n```", "a\n~~~\n"),
        ("~~~~\na\n~~~\n~~~~", "a\n~~~\n"),
        ("</think>```python\na\n```", "a\n"),
    ],
)
def test_the_program_is_the_last_complete_fence_of_python(text, program):
    assert last_code_block(text) == program


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\nprint('</think>')\n```", "print('</think>')\n"),
        ("```python\nprint('<think>')\n```\nDone.", "print('<think>')\n"),
        ("<think>a</think>\n```python\nx = '<reasoning>'\n```", "x = '<reasoning>'\n"),
        ("```python\na\n```\n</think>\n```python\nb\n```", "b\n"),  # what began with the text was a thought
        ("```python\na\n```\n</think>\n", None),
        ("```python\n</think>\n```python\nb\n```", "b\n"),  # an unclosed fence is no program
        ("```python\n<think>\n```python\nb\n```", None),
        ("```python\na\n```\n```python\n</think>", None),
    ],
)
def test_tags_of_thinking_inside_a_complete_fence_are_part_of_the_program(text, program):
    assert last_code_block(text) == program


def test_a_prompt_that_opens_the_thinking_hides_fences_until_it_ends():
    assert last_code_block("```python\na\n```", prefilled=True) is None
    assert last_code_block("```python\na\n```\n</think>\n```python\n'<think>'\n```", prefilled=True) == "'<think>'\n"


MARKERS = [
    "<answer>",
    "</answer>",
    r"\boxed{",
    "<think>",
    "</reasoning>",
    "{",
    "####",
    "}",
    "\\",
    "```\n",
    "```python\n",
    "~~~",
    "`",
]
MARKERS += ["answer", "1", "1,", "-", "= ", "1 "]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("part", MARKERS)
def test_a_huge_completion_of_nothing_but_markers_is_read_and_holds_no_answer(part):
    text = part * 100_000
    assert not final_answer(visible_text(text))
    assert not (last_code_block(text) or "").strip("`\n")
    plain_answer(text)
