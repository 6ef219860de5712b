"""Rewards that depend on how long a completion is, in tokens: cosine, soft_overlong."""

import math
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from paceline.errors import RewardError
from paceline.objective.advantages import overlong_penalty
from paceline.rewards.builtin.answers import ANY_FORM, JUNK, find_answer, judging
from paceline.rewards.function import BuiltIn, RewardContext

CACHE_SHARE = 5  # DAPO penalises within the last 4096 of 20480 tokens, a fifth


def cosine(
    context: RewardContext,
    *,
    max_length: int | None = None,
    min_correct: float = 0.5,
    max_correct: float = 1.0,
    min_wrong: float = -0.5,
    max_wrong: float = 0.0,
) -> BuiltIn:
    """Right answers are worth more the shorter, wrong ones cost less the longer: half a cosine over the length.

    | length                          | right (as `accuracy` says) | wrong         |
    |---------------------------------|----------------------------|---------------|
    | 0                               | `max_correct`              | `min_wrong`   |
    | `max_length` / 2                | the mean of both           | the mean      |
    | `max_length` and longer         | `min_correct`              | `max_wrong`   |

    None without gold answer. `max_length` in tokens, `--max-completion-length` where it is not given.
    Source: Yeo et al., arXiv:2502.03373; the values are ms-swift's. Beyond `max_length` nothing rises again.

    Raises:
        RewardError: no length is known, or a least value lies above its greatest.
    """
    longest = _length("cosine", max_length, context)
    if min_correct > max_correct or min_wrong > max_wrong:
        raise RewardError(
            f"--reward-funcs cosine: min_correct must not lie above max_correct nor min_wrong above max_wrong, got "
            f"{min_correct:g} to {max_correct:g} and {min_wrong:g} to {max_wrong:g}; swap them"
        )

    def score(right: float, prompt: str, completion: str, gold: str, length: int) -> float:
        start, end = (max_correct, min_correct) if right else (min_wrong, max_wrong)
        return cosine_between(start, end, length / longest)

    return judging(
        "cosine",
        find_answer,
        score=score,
        gold=None,
        junk=lambda task: JUNK,
        maximum=max_correct,
        right=min_correct,
        honest_forms=ANY_FORM,
    )


def soft_overlong(context: RewardContext, *, max_length: int | None = None, cache: int | None = None) -> BuiltIn:
    """A length penalty for right and wrong answers alike, 0.0 at most and -1.0 at least.

    | length in tokens                  | score                                      |
    |-----------------------------------|--------------------------------------------|
    | up to `max_length - cache`        | 0.0                                        |
    | between                           | (`max_length - cache` - length) / `cache`  |
    | `max_length` and longer           | -1.0                                       |

    `max_length`: `--max-completion-length` where it is not given. `cache`: a fifth of it, as in the paper.
    Source: DAPO, arXiv:2503.14476, Eq. 13 (`advantages.overlong_penalty`). `--overlong-share` is the same as an option.

    Raises:
        RewardError: no length is known, or `cache` is not within it.
    """
    longest = _length("soft_overlong", max_length, context)
    buffer = max(1, longest // CACHE_SHARE) if cache is None else cache
    if not 1 <= buffer <= longest:
        raise RewardError(
            f"--reward-funcs soft_overlong: cache must lie between 1 and max_length ({longest}) tokens, got {buffer}; "
            "it is where the penalty starts, counted back from max_length"
        )

    def call(*, completion_ids: list[Sequence[int]], **columns: object) -> list[float]:
        return [overlong_penalty(len(ids), max_length=longest, buffer=buffer) for ids in completion_ids]

    exception = "penalises length only, and gives full to anything short"
    return BuiltIn(name="soft_overlong", call=call, gold=None, maximum=0.0, audit_exception=exception)


def cosine_between(start: float, end: float, progress: float) -> float:
    """Return the value of half a cosine from `start` at progress 0 to `end` at 1 and beyond.

    >>> [cosine_between(1.0, 0.5, progress) for progress in (0.0, 0.5, 1.0, 2.0)]
    [1.0, 0.75, 0.5, 0.5]
    """
    return end + (start - end) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2


def _length(name: str, max_length: int | None, context: RewardContext) -> int:
    length = context.max_completion_length if max_length is None else max_length
    if length is None or length < 1:
        raise RewardError(
            f"--reward-funcs {name}: max_length must be at least 1 token, got "
            f"{'none' if length is None else length}; write {name}(max_length=512), for example"
        )
    return length


_UNSPACED = ("CJK ", "HIRAGANA ", "KATAKANA ", "BOPOMOFO ", "YI ", "THAI ", "LAO ", "KHMER ", "MYANMAR ", "TIBETAN ")
"""Prefixes of the Unicode names of letters that are written without spaces between words."""


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

    exception = "penalises repeated words only, and gives full to anything else"
    return BuiltIn(name="repetition", call=call, gold=None, maximum=0.0, audit_exception=exception)


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
    """Split into words in lower case; in scripts without spaces each character with its marks is a word.

    >>> words("Say it: 你好 ที่")
    ['say', 'it:', '你', '好', 'ที่']
    """
    return [word for chunk in text.lower().split() for word in ([chunk] if chunk.isascii() else _pieces(chunk))]


def _pieces(chunk: str) -> list[str]:
    """Split a chunk between two spaces before and after each character of a script without spaces."""
    starts, after_unspaced = [0], False
    for index, character in enumerate(chunk):
        if unicodedata.category(character).startswith("M"):
            continue
        is_unspaced = _is_unspaced(character)
        if index and (is_unspaced or after_unspaced):
            starts.append(index)
        after_unspaced = is_unspaced
    return [chunk[start:end] for start, end in pairwise([*starts, len(chunk)])]


@lru_cache(maxsize=65536)
def _is_unspaced(character: str) -> bool:
    return unicodedata.name(character, "").startswith(_UNSPACED)
