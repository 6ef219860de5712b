"""Mathematical answers are equal or not as a table of known pairs says, and each verdict names its rule."""

import subprocess
import sys

import pytest

from paceline.rewards.maths.notation import normalise
from paceline.rewards.maths.quantities import parse_quantity
from paceline.rewards.maths.verdicts import (
    EqualityVerdict,
    begin_verdicts,
    math_equal,
    math_outcomes,
    math_verdicts,
    unverifiable,
)
from tests.support.math_cases import (
    ALGEBRA,
    COLLECTIONS,
    FRACTIONS,
    LOOK_ALIKES,
    MENDED,
    NAMES,
    NUMBERS,
    PAIRS,
    UNITS,
    WORDS,
    judged,
)

TOPICS = {
    "numbers": NUMBERS,
    "fractions": FRACTIONS,
    "units": UNITS,
    "look-alikes": LOOK_ALIKES,
    "names": NAMES,
    "words": WORDS,
    "collections": COLLECTIONS,
    "algebra": ALGEBRA,
    "mended": MENDED,
}


@pytest.fixture(scope="module", autouse=True)
def _all_at_once():
    begin_verdicts([row[:2] for row in judged()])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("topic", TOPICS)
def test_equality_is_the_verdict_of_the_table_in_both_directions(topic):
    rows = TOPICS[topic]
    verdicts = [(math_equal(first, second), math_equal(second, first)) for first, second, _ in rows]
    assert [row for row, verdict in zip(rows, verdicts, strict=True) if verdict != row[2]] == []


def test_the_table_holds_right_and_wrong_answers_in_like_numbers():
    rights = [right for _, _, right in judged()]
    assert len(PAIRS) >= 300
    assert 0.4 < sum(rights) / len(rights) < 0.6


def test_every_answer_equals_itself():
    texts = [text for pair in PAIRS for text in pair[:2] if text.strip()]
    assert [text for text in texts if not math_equal(text, text)] == []


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        ("x+1", " x+1\n", (True, "same text")),
        ("42", "", (False, "same text")),
        ("1000", "1,000", (True, "quantities")),
        ("B", "(C)", (False, "choice")),
        ("10:30", "10:30 pm", (True, "time")),
        ("5", "x=5", (True, "assignment")),
        ("(1,2)", "(2,1)", (False, "collection")),
        ("yes", "Yes", (True, "words")),
        ("42", "17+25", (False, "unfinished")),
        ("2(x+1)", "2x+2", (True, "symbolic")),
    ],
)
def test_a_verdict_names_the_rule_that_decided(gold, answer, verdict):
    assert math_verdicts([(gold, answer)]) == [EqualityVerdict(equal=verdict[0], rule=verdict[1])]


def test_outcomes_are_the_verdicts_in_the_order_of_the_pairs():
    pairs = [("2x+2", "2(x+1)"), ("42", "41"), ("42", "42.0"), ("2x+2", "2(x+2)")]
    assert math_outcomes(pairs) == math_verdicts(pairs)
    assert [verdict.equal for verdict in math_verdicts(pairs)] == [True, False, True, False]


def test_an_answer_beyond_the_limits_is_compared_as_text_only():
    nested = "(" * 600 + "1" + ",1)" * 600
    assert math_equal(nested, nested)
    assert not math_equal(nested, nested.replace(",", ", "))
    assert not math_equal("0", "0" * 5000)


def test_an_unknown_word_after_a_number_is_not_a_unit():
    assert parse_quantity("3 dozen") is None
    assert parse_quantity("3 hours") is not None


def test_a_space_between_groups_of_digits_is_read_where_it_can_only_be_that():
    assert (normalise(r"10\,000"), normalise(r"1,\,200"), normalise("10 000")) == ("10,000", "1, 200", "10000")


def test_golds_that_nobody_can_answer_in_their_own_words_are_found_by_their_positions():
    golds = [
        "42",
        "",
        r"\frac{1}{2}",
        r"\frac{1}{2",
        "See solution",
        r"2\sqrt{3}",
        "N/A",
        "x" * 5000,
        r"\text{even}",
        r"x = \frac{1}{",
        r"(1, \sqrt{2})",
        r"(1, \sqrt{)",
        "101_2",
        r"x \quad y",
        r"\begin{pmatrix} 1 \\ x^2 \end{pmatrix}",
        "10:30",
        r"\sqrt{2}\frac{}{}{}",
        "proof",
        "x^2 + 2x + 1",
        "-",
    ]
    assert unverifiable(golds) == [1, 3, 4, 6, 7, 9, 11, 13, 16, 17, 19]


@pytest.mark.parametrize("gold", [text for pair in PAIRS for text in pair[:2] if pair[2] == (True, True)])
def test_a_gold_that_can_be_answered_in_another_spelling_is_verifiable(gold):
    assert not unverifiable([gold])


def test_the_same_gold_is_checked_once_and_reported_at_every_position():
    assert unverifiable([r"\frac{1}{", "1", r"\frac{1}{"]) == [0, 2]


@pytest.mark.long
def test_importing_the_rewards_loads_no_algebra_and_grading_prints_nothing():
    code = (
        "import sys, threading, paceline.rewards.resolving\n"
        "from paceline.rewards.maths.verdicts import math_equal\n"
        "assert 'sympy' not in sys.modules\n"
        "def grade(): assert math_equal('2', r'\\sqrt[3]{8}') and not math_equal('x', r'\\frac{')\n"
        "thread = threading.Thread(target=grade); thread.start(); thread.join(); assert 'sympy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_worker_brings_neither_torch_nor_numpy_with_it():
    code = "import sys, paceline.rewards.maths.verdicts; print({'torch', 'numpy', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
