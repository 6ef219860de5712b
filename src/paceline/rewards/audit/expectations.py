"""Which built-in functions may give their full score to something that is no answer, and why."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """What counts as a cheat against a function."""

    counts: Literal["all", "without content", "none"]
    """Attacks that must not score full."""
    reason: str = ""
    """Why the others may, for a person."""


EVERYTHING = Expectation(counts="all")
_FORM = (
    "rewards the form, whatever the answer in it is; give it a small weight beside a function that judges the answer"
)

EXPECTATIONS: Mapping[str, Expectation] = {
    "format": Expectation(counts="without content", reason=_FORM),
    "react_format": Expectation(counts="without content", reason=_FORM),
    "repetition": Expectation(counts="none", reason="penalises repeated words only, and gives full to anything else"),
    "soft_overlong": Expectation(counts="none", reason="penalises length only, and gives full to anything short"),
    "random": Expectation(counts="none", reason="is the control that has nothing to do with quality"),
}
"""By the name of a built-in function; every attack counts against the others, and against functions of one's own."""

KNOWS_OUTPUTS = "program that knows the outputs"
"""The form of a right program where nobody has written one: it has the tests' outputs by heart."""
_ANY_FORM = ("box", "answer tags", "think and answer tags", "reasoning and answer tags", "hashes")

HONEST_FORMS: Mapping[str, tuple[str, ...]] = {
    "accuracy": _ANY_FORM,
    "cosine": _ANY_FORM,
    "boxed": ("box",),
    "think_answer_tags": ("think and answer tags",),
    "gsm8k": ("reasoning and answer tags",),
    "format": ("think and answer tags",),
    "code": (KNOWS_OUTPUTS,),
}
"""By the name of a built-in function, the forms in which it says that it finds the answer."""
