"""The repetition penalty is the share of repeated n-grams, in any script."""

import pytest

from paceline.errors import RewardError
from paceline.rewards.builtin.length import words
from paceline.rewards.resolving import resolve


def grade(completion, name="repetition"):
    (value,) = resolve(name)(completions=[completion])
    return value


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        ("", 0.0),
        ("two words", 0.0),
        ("a b c d e", 0.0),
        ("a b a b a b", -0.5),  # aba bab aba bab: 2 of 4 are new
        ("no no no no no no", -0.75),  # 1 of 4
        ("No no NO nO no no", -0.75),
        ("我我我我我我", -0.75),
        ("我们我们我们", -0.5),
        ("好好好 好好好", -0.75),
        ("今天天气很好", 0.0),
        ("あいあいあい", -0.5),
        ("ที่ที่ที่ที่", -0.5),  # four of one character with its marks: 1 of 2
        ("하나 둘 셋 하나 둘 셋", -0.25),  # Korean puts spaces between words: 3 of 4
        ("hahahahahaha", 0.0),  # one word
    ],
)
def test_the_share_of_repeated_trigrams_is_penalised_in_any_script(completion, score):
    assert grade(completion) == pytest.approx(score)


def test_length_of_the_ngrams_and_penalty_are_parameters():
    assert grade("a b a b a b", "repetition(ngram=2, max_penalty=-2)") == pytest.approx(-2 * 0.6)
    assert grade("a a a a", "repetition(ngram=1)") == pytest.approx(-0.75)
    assert grade("a a a", "repetition(ngram=4)") == 0.0


def test_characters_of_unspaced_scripts_stand_alone_and_keep_their_marks():
    assert words("GPT写了code。") == ["gpt", "写", "了", "code。"]
    assert words("é e\u0301a") == ["é", "e\u0301a"]
    assert words("ที่นี่") == ["ที่", "นี่"]


def test_a_huge_completion_is_read():
    assert grade("é" * 300_000) == 0.0
    assert grade("字" * 300_000) == pytest.approx(-1.0, abs=1e-4)


@pytest.mark.parametrize("name", ["repetition(ngram=0)", "repetition(max_penalty=0.5)"])
def test_a_reward_for_repetition_is_refused(name):
    with pytest.raises(RewardError, match=r"ngram must be at least 1 and max_penalty at most 0"):
        resolve(name)
