"""Which reward functions a row is for, by its column `reward_funcs`."""

from dataclasses import replace

import pytest

from paceline.errors import DataError
from paceline.rewards.function import check_selections
from paceline.rewards.scoring.scores import score
from tests.support.scripted import task, trajectory


def row(task_id, **columns):
    return replace(task(task_id), columns=columns)


def test_a_function_is_called_on_the_rows_that_are_for_it_and_gives_none_elsewhere():
    seen = {}

    def grader(name):
        def grade(completions, **columns):
            seen[name] = completions
            return [float(len(text)) for text in completions]

        return grade

    tasks = [row("a", reward_funcs=["maths"]), row("b", reward_funcs="code, maths"), row("c", reward_funcs=None)]
    functions = {"maths": grader("maths"), "code": grader("code")}
    scores = score(functions, tasks, [trajectory(text) for text in ("x", "yy", "zzz")], timeout=60.0)
    assert scores.values == {"maths": (1.0, 2.0, 3.0), "code": (None, 2.0, 3.0)}
    assert seen == {"maths": ["x", "yy", "zzz"], "code": ["yy", "zzz"]}


def test_a_failure_keeps_its_place_among_all_rows():
    def broken(completions, **columns):
        raise ValueError("broken")

    tasks = [row("a", reward_funcs=["sound"]), row("b", reward_funcs=["broken"]), row("c", reward_funcs=["broken"])]
    functions = {"broken": broken, "sound": lambda completions, **_: [1.0] * len(completions)}
    scores = score(functions, tasks, [trajectory("x")] * 3, timeout=60.0)
    assert scores.failed == {"broken": (1, 2), "sound": ()}
    assert scores.values == {"broken": (None, None, None), "sound": (1.0, None, None)}
    assert "row b" in scores.first_failures["broken"]


def test_a_function_that_no_row_is_for_is_not_called():
    def never(**columns):
        raise AssertionError

    scores = score({"never": never}, [row("a", reward_funcs=["other"])], [trajectory("x")], timeout=60.0)
    assert (scores.values, scores.failed) == ({"never": (None,)}, {"never": ()})


def test_a_name_with_parameters_is_also_known_without_them():
    functions = {"cosine(max_length=9)": lambda completions, **_: [1.0] * len(completions)}
    tasks = [row("a", reward_funcs=["cosine"]), row("b", reward_funcs=["cosine(max_length=9)"])]
    check_selections(functions, tasks)
    assert score(functions, tasks, [trajectory("x")] * 2, timeout=60.0).values == {"cosine(max_length=9)": (1.0, 1.0)}


@pytest.mark.parametrize(
    ("value", "shown"), [(["acuracy"], "got 'acuracy'"), ([], "got 'none'"), (7, "got '7'"), ("", "got 'none'")]
)
def test_a_row_that_names_no_function_of_the_run_is_refused_with_its_name(value, shown):
    with pytest.raises(DataError, match=rf"^row d:3: .*must name functions of --reward-funcs \(accuracy\), {shown}"):
        check_selections(["accuracy"], [row("d:1"), row("d:3", reward_funcs=value)])
