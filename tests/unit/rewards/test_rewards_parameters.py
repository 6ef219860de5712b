"""Parameters of reward functions are read by type, and wrong ones are refused with the valid names."""

from typing import Literal

import pytest

from paceline.config.reading import base_name
from paceline.errors import RewardError
from paceline.rewards.function import annotations, parameters_of
from paceline.rewards.resolving import BUILT_IN


def maker(context, *, size: int | None = None, share: float = 0.5, is_on: bool = False, kind: Literal["a", "b"] = "a"):
    return context


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("maker", {}),
        ("maker()", {}),
        ("maker(size=3)", {"size": 3}),
        ("maker( size = 3 , share=-.5 )", {"size": 3, "share": -0.5}),
        ("maker(share=1e-3, is_on=True, kind=b)", {"share": 0.001, "is_on": True, "kind": "b"}),
        ("maker(is_on=false)", {"is_on": False}),
    ],
)
def test_parameters_are_read_as_what_they_are(name, values):
    read = parameters_of(name, maker)
    assert read == values
    assert [type(value) for value in read.values()] == [type(value) for value in values.values()]
    assert base_name(name) == "maker"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("maker(size=3.5)", r"size must be a whole number, got '3\.5'"),
        ("maker(size=)", r"'size=' is no parameter; write parameter=value"),
        ("maker(3)", r"'3' is no parameter"),
        ("maker(share=half)", "share must be a number, got 'half'"),
        ("maker(share=nan)", "share must be a number, got 'nan'"),
        ("maker(share=inf)", "share must be a number, got 'inf'"),
        ("maker(is_on=1)", "is_on must be true or false, got '1'"),
        ("maker(kind=c)", "kind must be one of a, b, got 'c'"),
        ("maker(sise=3)", r"'maker' has no parameter 'sise'; did you mean size\? it takes size, share, is_on, kind"),
        ("maker(zzz=3)", r"'maker' has no parameter 'zzz'; it takes size"),
        ("maker(size=3, size=4)", "size is given twice"),
        ("maker(size=3", "the bracket is not closed"),
        ("maker(size=__import__)", "size must be a whole number"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_there_is(name, message):
    with pytest.raises(RewardError, match=message):
        parameters_of(name, maker)


def test_a_function_without_parameters_says_so():
    with pytest.raises(RewardError, match=r"boxed\(x=1\): 'boxed' takes no parameters, got 'x'; write boxed"):
        parameters_of("boxed(x=1)", BUILT_IN["boxed"])


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_parameter_of_a_built_in_function_can_be_read_and_has_a_default(name):
    for parameter in annotations(BUILT_IN[name]):
        with pytest.raises(RewardError, match=f"{parameter} must be"):
            parameters_of(f"{name}({parameter}=?)", BUILT_IN[name])
