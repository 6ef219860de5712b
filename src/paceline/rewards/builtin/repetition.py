"""A penalty of saying the same again: repetition."""

import unicodedata
from functools import lru_cache
from itertools import pairwise

from paceline.errors import RewardError
from paceline.rewards.function import BuiltIn, RewardContext

_UNSPACED = ("CJK ", "HIRAGANA ", "KATAKANA ", "BOPOMOFO ", "YI ", "THAI ", "LAO ", "KHMER ", "MYANMAR ", "TIBETAN ")
"""How the Unicode names begin of letters that are written without spaces between words."""


def repetition(context: RewardContext, *, ngram: int = 3, max_penalty: float = -1.0) -> BuiltIn:
    """`max_penalty` times the share of n-grams that have stood before; 0.0 at most.

    | completion (`ngram=3`)                 | n-grams   | score |
    |----------------------------------------|-----------|-------|
    | empty, or fewer words than `ngram`     | none      | 0.0   |
    | `a b c d e`                            | 3 of 3    | 0.0   |
    | `a b a b a b`                          | 2 of 4    | -0.5  |
    | `no no no no no no`                    | 1 of 4    | -0.75 |

    The whole completion counts, its thinking too. A word is what stands between spaces, in any case; in scripts that
    are written without spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan) each character is one.
    Source: Yeo et al., arXiv:2502.03373, whose words are those between spaces in any script.

    Raises:
        RewardError: `ngram` below 1, or `max_penalty` above 0.
    """
    if ngram < 1 or max_penalty > 0:
        raise RewardError(
            f"--reward-funcs repetition: ngram must be at least 1 and max_penalty at most 0, got {ngram} and "
            f"{max_penalty:g}; the default is repetition(ngram=3, max_penalty=-1)"
        )

    def call(*, completions: list[str], **columns: object) -> list[float]:
        return [max_penalty * repeated_share(completion, ngram) for completion in completions]

    return BuiltIn(name="repetition", call=call, gold=None, maximum=0.0)


def repeated_share(text: str, n: int) -> float:
    """Return the share of a text's n-grams of words that are repeated.

    >>> repeated_share("a b a b a b", 2)
    0.6
    """
    tokens = words(text)
    total = len(tokens) - n + 1
    if total < 1:
        return 0.0
    return 1 - len(set(zip(*(tokens[start:] for start in range(n)), strict=False))) / total


def words(text: str) -> list[str]:
    """The words in lower case; characters of scripts without spaces stand for themselves, with their marks.

    >>> words("Say it: 你好 ที่")
    ['say', 'it:', '你', '好', 'ที่']
    """
    return [word for chunk in text.lower().split() for word in ([chunk] if chunk.isascii() else _pieces(chunk))]


def _pieces(chunk: str) -> list[str]:
    """What stands between two spaces, cut before and after each character of a script without spaces."""
    starts, after_unspaced = [0], False
    for place, character in enumerate(chunk):
        if unicodedata.category(character).startswith("M"):
            continue
        is_unspaced = _is_unspaced(character)
        if place and (is_unspaced or after_unspaced):
            starts.append(place)
        after_unspaced = is_unspaced
    return [chunk[start:end] for start, end in pairwise([*starts, len(chunk)])]


@lru_cache(maxsize=65536)
def _is_unspaced(character: str) -> bool:
    return unicodedata.name(character, "").startswith(_UNSPACED)
