"""How much of a gain is form: answers that were right before, but not stated as the grader wants them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from paceline.data.extraction.final import final_answer
from paceline.data.extraction.thinking import prefills_think, visible_text
from paceline.metrics.definitions import Record
from paceline.reports.page.outcome import correct

_NUMBER = re.compile(r"[-+]?[0-9]{1,100}(?:\.[0-9]{1,100}|/0*[1-9][0-9]{0,99})?")
"""What `Fraction` reads, and no more digits than an answer has: those of a text without end take it long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """Shares of the completions that were graded both times and have a gold answer, before and after."""

    num_completions: int
    right: tuple[float, float]
    """As the grader said."""
    right_leniently: tuple[float, float]
    """Those, and the ones that state the gold answer in any form."""
    marked: tuple[float, float]
    """With an answer in a tag, a box or after `####`, right or wrong."""

    @property
    def gain(self) -> float:
        """Return the gain among answers that the grader called right."""
        return self.right[1] - self.right[0]

    @property
    def gain_by_form(self) -> float:
        """The part of `gain` that a lenient grader would not have seen."""
        return self.gain - (self.right_leniently[1] - self.right_leniently[0])


def form_of(both: Sequence[tuple[Record, Record]]) -> Form | None:
    """From the same tasks' completions before and after; None where no task has a gold answer, as of programs."""
    graded = [
        pair for pair in both if all(correct(one) is not None and isinstance(one.get("answer"), str) for one in pair)
    ]
    if not graded:
        return None

    def shares(of: list[list[bool]]) -> tuple[float, float]:
        before, after = (sum(column) / len(graded) for column in zip(*of, strict=True))
        return before, after

    return Form(
        num_completions=len(graded),
        right=shares([[correct(one) is True for one in pair] for pair in graded]),
        right_leniently=shares([[is_right_leniently(one) for one in pair] for pair in graded]),
        marked=shares([[final_answer(_said(one)) is not None for one in pair] for pair in graded]),
    )


def is_right_leniently(record: Record) -> bool:
    """Graded right, or what it says ends on the gold answer, whatever it is marked with; nothing that it thinks counts.

    Answers are the same where their texts or their numbers are. A grader with more mathematics may call more right, and
    what it calls right is right here.
    """
    if correct(record) is True:
        return True
    found = final_answer(_said(record), plain=True)
    return found is not None and _normal(found) == _normal(str(record["answer"]))


def _said(record: Record) -> str:
    prompt = str(record["prompt"]) if "prompt" in record else ""
    completion = str(record["completion"]) if "completion" in record else ""
    return visible_text(completion, prefilled=prefills_think(prompt))


def _normal(answer: str) -> str | Fraction:
    """A number as its value, `1,200` as `1200`; any other text without case and without spaces around."""
    text = " ".join(answer.split()).rstrip(".").casefold()
    number = text.replace("\N{MINUS SIGN}", "-").replace(",", "").removeprefix("$")
    return Fraction(number) if _NUMBER.fullmatch(number) else text
