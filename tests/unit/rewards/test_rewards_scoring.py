"""Every reward function gets its own copy of each row, and its failures are counted and never score zero."""

import asyncio
import functools
import math
import threading
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from PIL import Image

from paceline.data.pictures import PictureStore
from paceline.errors import RewardError, TrainingError
from paceline.rewards.function import compares_group, needs_group
from paceline.rewards.resolving import resolve
from paceline.rewards.scoring.grading import Tally
from paceline.rewards.scoring.scores import check_any_reward, check_failure_rate, combine, merge_scores, score
from paceline.rewards.startup import self_test
from paceline.types import Completion, Media, Task, completed


def task(index, answer="1", prompt="p", **columns):
    return Task(task_id=f"d.jsonl:{index}", prompt=prompt, prompt_ids=(1,), answer=answer, columns=columns)


def trajectory(text):
    ids = tuple(text.encode())
    one = Completion(token_ids=ids, logprobs=(0.0,) * len(ids), finish_reason="stop", text=text, policy_version=0)
    return completed((1,), one)


def grade(function, texts, tasks=None):
    tasks = tasks or [task(index) for index in range(len(texts))]
    return score({"f": function}, tasks, [trajectory(text) for text in texts], timeout=60.0)


def test_images_are_given_as_pil_has_them_and_a_change_reaches_no_other_call():
    red = PictureStore().add(Image.new("RGB", (4, 3), (255, 0, 0)))
    part = {"type": "text", "text": "how many?"}
    shown = replace(
        task(0, image=red, more=[{"image": red}]),
        media=(Media(sha256=red.sha256, start=0, length=1),),
        messages=({"role": "user", "content": [{"type": "image"}, part]},),
    )
    seen = []

    def f(image, more, prompt_messages, **columns):
        seen.extend([image[0], more[0][0]["image"], prompt_messages[0][0]["content"][0]["image"]])
        image[0].putpixel((0, 0), (0, 0, 0))
        assert prompt_messages[0][0]["content"][1] == part
        assert prompt_messages[1] is None
        assert image[1] is None
        return [1.0, 1.0]

    for _ in range(2):
        del seen[:]
        before = red.pixels()
        assert grade(f, ["x", "y"], [shown, task(1)]).values == {"f": (1.0, 1.0)}
        assert all(isinstance(image, Image.Image) and image.size == (4, 3) for image in seen)
        assert seen[0].getpixel((3, 2)) == (255, 0, 0)
        assert red.pixels().tobytes() == before.tobytes()


def test_every_column_the_gold_answer_and_the_tokens_are_given_as_lists():
    seen = {}

    def f(**arguments):
        seen.update(arguments)
        return [0, True, None]

    tasks = [task(0, level=3, answer="a"), task(1, answer=None), task(2, level=5, prompts="shadowed")]
    tasks[1] = replace(tasks[1], messages=({"role": "user", "content": "q"},))
    scores = grade(f, ["x", "yz", ""], tasks)
    assert scores.values == {"f": (0.0, 1.0, None)}
    assert scores.failed == {"f": ()}
    assert scores.culprit is None
    assert seen == {
        "prompts": ["p", "p", "p"],
        "prompt_messages": [None, [{"role": "user", "content": "q"}], None],
        "completions": ["x", "yz", ""],
        "completion_ids": [[120], [121, 122], []],
        "finish_reasons": ["stop", "stop", "stop"],
        "completion_messages": [[{"role": "assistant", "content": text}] for text in ("x", "yz", "")],
        "episode_ids": [[120], [121, 122], []],
        "environments": [None, None, None],
        "answer": ["a", None, "1"],
        "level": [3, None, 5],
    }


def test_a_function_without_keywords_gets_what_its_signature_names():
    assert grade(lambda completions, level=7: [len(completions), level], ["a", "b"]).values["f"] == (2.0, 7.0)


def test_a_missing_argument_is_named_before_any_call():
    with pytest.raises(RewardError, match=r"'f' asks for the argument 'tests', which .* it can have level, answer"):
        grade(lambda completions, tests: [0.0], ["a"], [task(0, level=1)])


def test_one_function_cannot_change_the_lists_of_another():
    def spoil(completions):
        completions.clear()
        return [0.0]

    def count(completions):
        return [len(completions)]

    assert score({"a": spoil, "b": count}, [task(0)], [trajectory("x")], timeout=60.0).values["b"] == (1.0,)


def test_an_async_function_is_awaited_also_where_an_event_loop_is_running():
    async def f(completions):
        await asyncio.sleep(0)
        return [len(text) for text in completions]

    async def notebook():
        return grade(f, ["abc"])

    assert grade(f, ["abc"]).values["f"] == asyncio.run(notebook()).values["f"] == (3.0,)


def test_async_functions_wait_at_the_same_time_after_the_others_have_run():
    events = []

    async def ping(completions):
        events.append("ping begins")
        await asyncio.sleep(0)
        events.append("ping ends")
        return [1.0]

    async def pong(completions):
        events.append("pong begins")
        return [2.0]

    def plain(completions):
        events.append("plain")
        return [3.0]

    scores = score({"ping": ping, "pong": pong, "plain": plain}, [task(0)], [trajectory("x")], timeout=60.0)
    assert scores.values == {"ping": (1.0,), "pong": (2.0,), "plain": (3.0,)}
    assert events == ["plain", "ping begins", "pong begins", "ping ends"]


def test_every_batch_waits_on_the_same_event_loop_so_that_an_open_client_lives_on():
    loops = []

    async def f(completions):
        loops.append(asyncio.get_running_loop())
        return [1.0]

    grade(f, ["a"])
    grade(f, ["a"])
    assert loops[0] is loops[1]


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(0), asyncio.CancelledError()], ids=repr)
def test_an_async_function_that_fails_takes_no_other_with_it(error):
    async def broken(completions):
        raise error

    async def leaves(completions):
        async def inner():
            raise error

        return await asyncio.create_task(inner())

    async def sound(completions):
        return [1.0]

    for failing in (broken, leaves):
        scores = score({"failing": failing, "sound": sound}, [task(0)], [trajectory("x")], timeout=60.0)
        assert scores.values == {"failing": (None,), "sound": (1.0,)}
        assert scores.failed == {"failing": (0,), "sound": ()}


def test_only_the_rows_that_fail_are_lost_and_the_first_is_the_culprit():
    def f(completions):
        return [1 / int(text) for text in completions]

    scores = grade(f, ["1", "0", "2", "x"])
    assert scores.values["f"] == (1.0, None, 0.5, None)
    assert scores.failed["f"] == (1, 3)
    assert scores.culprit.startswith("'f' raised ZeroDivisionError on row d.jsonl:1: division by zero\nTraceback")
    assert "in f\n" in scores.culprit


def test_a_function_that_leaves_the_program_only_fails():
    def f(completions):
        raise SystemExit(0)

    assert grade(f, ["a"]).failed["f"] == (0,)


def test_a_number_that_is_not_finite_is_a_failure_and_not_a_reward():
    scores = grade(lambda completions: [1.0, math.nan, -math.inf, np.float32(0.5)], ["a", "b", "c", "d"])
    assert scores.values["f"] == (1.0, None, None, 0.5)
    assert scores.failed["f"] == (1, 2)
    assert scores.culprit == "'f' returned nan on row d.jsonl:1, which is not finite"


@pytest.mark.parametrize(
    "result",
    [
        [1, 0.5],
        (True, Fraction(1, 2)),
        np.array([1.0, 0.5]),
        np.array([1.0, 0.5], dtype=object),
        torch.tensor([1.0, 0.5], requires_grad=True),
        torch.tensor([1.0, 0.5], dtype=torch.bfloat16),
        [torch.tensor(1), np.float16(0.5)],
        [np.bool_(True), torch.tensor(0.5, requires_grad=True)],
    ],
    ids=repr,
)
def test_numbers_are_taken_in_whatever_a_library_wraps_them(result):
    scores = grade(lambda completions: result, ["a", "b"])
    assert scores.values["f"] == (1.0, 0.5)
    assert {type(value) for value in scores.values["f"]} == {float}


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (1.0, r"returned 1\.0 of type float, expected a list of 2 numbers or None, one per completion; return one num"),
        (np.float64(1.0), r"of type float64, expected a list of 2 .*; return one number for each completion, not one"),
        (torch.tensor(1.0), r"of type Tensor, expected a list of 2"),
        ({"a": 1.0, "b": 2.0}, r"of type dict, expected a list of 2 .*; return its values as a list in the order"),
        ({1.0, 2.0}, r"of type set, expected a list of 2 .*; a set has no order"),
        ("10", r"'10' of type str, expected a list of 2 .*; return numbers, not text"),
        ({1.0: 1, 2.0: 2}.keys(), r"of type dict_keys, expected a list of 2 .*; wrap it in list\(\.\.\.\)"),
        (object, r"of type type, expected a list of 2 .*; build a list"),
        (None, r"returned None of type NoneType, expected .*; let it end with a return statement"),
        ([1.0], r"returned 1 items, expected a list of 2 .*; return one for each completion, None where it has none"),
        (np.zeros(3), r"returned 3 items, expected a list of 2"),
        (
            [1.0, "0.5"],
            r"returned '0\.5' of type str at 1, expected .*; return a number, such as float\(text\), or None",
        ),
        ([[1.0], [0.0]], r"returned \[1\.0\] of type list at 0, expected .*; .* not a list for each"),
        (torch.zeros(2, 1), r"returned \[0\.0\] of type list at 0, expected .*; .* not a list for each"),
        ([1.0, {"reward": 1.0}], r"of type dict at 1, expected .*; return a number or None"),
        ([1.0, 1j], r"returned 1j of type complex at 1, expected .*; return its real part"),
        ([1.0, Decimal(1)], r"of type Decimal at 1, expected .*; return a number or None"),
    ],
)
def test_a_result_of_the_wrong_shape_ends_the_run_and_names_function_got_expected_and_remedy(result, message):
    with pytest.raises(RewardError, match=message) as refusal:
        grade(lambda completions: result, ["a", "b"])
    assert str(refusal.value).startswith("reward function 'f' returned ")
    assert "\n" not in str(refusal.value)


def test_a_number_too_large_for_a_float_is_a_failure():
    scores = grade(lambda completions: [10**400, -(10**400), Fraction(10**400)], ["a", "b", "c"])
    assert scores.failed["f"] == (0, 1, 2)
    assert scores.culprit == "'f' returned inf on row d.jsonl:0, which is not finite"


def test_a_number_that_float32_cannot_hold_is_a_failure():
    scores = grade(lambda completions: [1e200, -1e39, 3e38], ["a", "b", "c"])
    assert scores.values["f"] == (None, None, 3e38)
    assert scores.culprit == "'f' returned 1e+200 on row d.jsonl:0, which is not finite in float32"


def test_an_exception_in_the_place_of_a_number_is_the_failure_of_that_completion_alone():
    async def one(text):
        return 1 / int(text)

    async def f(completions):
        return await asyncio.gather(*map(one, completions), return_exceptions=True)

    scores = grade(f, ["1", "0", "2"])
    assert scores.values["f"] == (1.0, None, 0.5)
    assert scores.culprit.startswith("'f' raised ZeroDivisionError on row d.jsonl:1: division by zero\nTraceback")


def test_an_empty_batch_scores_nothing_and_unequal_lengths_are_refused():
    assert score({"f": lambda completions: [1 / 0]}, [], [], timeout=60.0).values == {"f": ()}
    with pytest.raises(ValueError, match="got 1 tasks, 2 completions"):
        grade(lambda completions: [], ["a", "b"], [task(0)])


def test_the_weighted_sum_leaves_out_what_is_none():
    assert combine({"a": 1.0, "b": None, "c": -0.5}, {"a": 2.0, "b": 100.0, "c": 1.0}) == 1.5
    assert combine({"a": None}, {"a": 1.0}) is None
    assert combine({"a": 0.0}, {"a": 1.0}) == 0.0


def test_the_run_stops_above_the_failure_rate_and_names_the_culprit():
    scores = grade(lambda completions: [1 / int(text) for text in completions], ["1", "1", "1", "0"])
    check_failure_rate(scores, limit=0.25)
    with pytest.raises(TrainingError, match=r"'f' failed on 1 of 4 completions \(25\.0%\), above .* 0\.24") as stop:
        check_failure_rate(scores, limit=0.24)
    assert "ZeroDivisionError on row d.jsonl:3" in str(stop.value)
    assert stop.value.exit_status == 1


def test_the_function_that_failed_most_is_named_with_its_own_failure():
    functions = {"a": lambda completions: [math.nan, 1.0, 1.0], "b": lambda completions: [1.0, math.inf, math.inf]}
    scores = score(functions, [task(0)] * 3, [trajectory("x")] * 3, timeout=60.0)
    with pytest.raises(TrainingError, match=r"'b' failed on 2 of 3 .*the first failure: 'b' returned inf"):
        check_failure_rate(scores, limit=0.1)


def test_merged_batches_name_the_function_that_failed_most_over_all_of_them():
    functions = {
        "a": lambda completions: [math.nan if text == "nan" else 1.0 for text in completions],
        "b": lambda completions: [math.inf if text == "inf" else 1.0 for text in completions],
    }
    batches = [["nan", "x"], ["inf", "inf"]]
    merged = merge_scores(
        [score(functions, [task(0), task(1)], [*map(trajectory, batch)], timeout=60.0) for batch in batches]
    )
    assert merged.failed == {"a": (0,), "b": (2, 3)}
    with pytest.raises(TrainingError, match=r"'b' failed on 2 of 4 .*the first failure: 'b' returned inf"):
        check_failure_rate(merged, limit=0.1)


def test_a_step_without_any_reward_stops_and_one_reward_is_enough():
    def barren(completions):
        return [None] * len(completions)

    def failing(completions):
        return [math.nan, None]

    def grades(**functions):
        return score(functions, [task(0), task(1)], [trajectory("x")] * 2, timeout=60.0)

    message = (
        r"of 2 completions reward function 'a' failed on 0, reward function 'b' failed on 1, and the rest got None; "
        r"correct the reward functions, .*numbers .*the first failure: 'b' returned nan on row d\.jsonl:0"
    )
    with pytest.raises(TrainingError, match=message) as stop:
        check_any_reward(grades(a=barren, b=failing))
    assert stop.value.exit_status == 1
    check_any_reward(grades(a=barren, b=lambda completions: [None, 0.0]))
    check_any_reward(score({"a": barren}, [], [], timeout=60.0))


def test_a_function_without_a_signature_is_refused_with_a_way_out():
    with pytest.raises(RewardError, match=r"'f' has no signature that can be read .*; wrap it in a function of Python"):
        grade(max, ["a"])


def test_a_function_cannot_change_the_messages_that_another_one_reads():
    def spoil(prompt_messages):
        prompt_messages[0].append("mine")
        prompt_messages[0][0]["content"] = "changed"
        return [0.0]

    def read(prompt_messages):
        return [float(prompt_messages[0] == [{"role": "user", "content": "q"}])]

    asked = replace(task(0), messages=({"role": "user", "content": "q"},))
    for _ in range(2):
        assert score({"a": spoil, "b": read}, [asked], [trajectory("x")], timeout=60.0).values["b"] == (1.0,)


def test_what_a_function_is_given_is_its_own_for_each_row_and_call():
    seen = []

    def pops(prompt_messages, tests, **columns):
        for messages, cases in zip(prompt_messages, tests, strict=True):
            messages[0]["content"].append("mine")
            cases["inputs"].pop()
        return [0.0] * len(tests)

    def reads(prompt_messages, tests, **columns):
        pairs = zip(prompt_messages, tests, strict=True)
        seen.append([(len(messages[0]["content"]), len(cases["inputs"])) for messages, cases in pairs])
        return [0.0] * len(tests)

    row = replace(task(0, tests={"inputs": ["1", "2"]}), messages=({"role": "user", "content": ["q"]},))
    for _ in range(2):
        score({"a": pops, "b": pops, "c": reads}, [row] * 2, [trajectory("x")] * 2, timeout=60.0)
    assert seen == [[(1, 2)] * 2] * 2
    assert row.columns == {"tests": {"inputs": ["1", "2"]}}


def test_text_and_what_cannot_be_copied_are_given_as_they_are():
    text, lock, array = "x" * 100, threading.Lock(), np.zeros(2)
    of_graph = torch.zeros(2, requires_grad=True) * 2
    seen = {}

    def f(completions, level, **columns):
        seen.update(columns, level=level)
        return [0.0]

    grade(f, ["a"], [task(0, level=text, client={"lock": lock}, array=array, tensor=of_graph)])
    assert seen["level"][0] is text
    assert seen["client"][0]["lock"] is lock
    assert seen["array"][0] is not array
    assert seen["tensor"][0] is of_graph


def test_a_call_that_raised_is_made_again_whole_and_counted():
    sizes = []

    def f(completions):
        sizes.append(len(completions))
        if len(sizes) == 1:
            raise ConnectionError("transient")
        return [1.0, 2.0, 3.0]

    scores = grade(f, ["a", "b", "c"])
    assert (sizes, scores.values["f"], scores.failed["f"]) == ([3, 3], (1.0, 2.0, 3.0), ())
    assert scores.tallies["f"] == Tally(failed_calls=1)
    check_failure_rate(scores, limit=0.0)  # a whole call has made it good
    assert scores.culprit.startswith("'f' raised ConnectionError on the whole batch: transient")


def test_a_function_that_needs_whole_groups_is_never_called_on_less():
    sizes = []

    @needs_group
    def f(completions):
        sizes.append(len(completions))
        raise ConnectionError("down")

    scores = grade(f, ["a", "b", "c"])
    assert (sizes, scores.values["f"], scores.failed["f"]) == ([3, 3], (None,) * 3, (0, 1, 2))
    assert scores.tallies["f"] == Tally(failed_calls=2)
    with pytest.raises(TrainingError, match=r"'f' failed on 3 of 3 completions"):
        check_failure_rate(scores, limit=0.9)


def test_a_function_that_raises_on_batches_only_is_stopped_by_the_failure_rate():
    def rank(completions):
        if len(completions) > 1:
            raise ConnectionError("transient")
        return [0.0]

    scores = grade(rank, ["a", "b", "c"])
    assert (scores.values["f"], scores.failed["f"]) == ((0.0,) * 3, ())
    assert scores.tallies["f"] == Tally(failed_calls=2, doubtful=3)
    with pytest.raises(TrainingError, match=r"'f' raised twice on 3 completions together and on none .*needs_group"):
        check_failure_rate(scores, limit=0.05)
    check_failure_rate(scores, limit=1.0)


def test_rows_that_fail_alone_explain_why_the_batch_raised():
    scores = grade(lambda completions: [1 / int(text) for text in completions], ["1", "0", "2"])
    assert scores.tallies["f"] == Tally(failed_calls=3)
    assert scores.failed["f"] == (1,)


def test_a_call_that_took_too_long_is_counted_and_not_made_again():
    calls = []

    def waits(completions):
        calls.append(len(completions))
        threading.Event().wait()

    scores = score({"f": waits}, [task(0)] * 2, [trajectory("x")] * 2, timeout=0.05)
    assert (calls, scores.tallies["f"]) == ([2], Tally(failed_calls=1))


@pytest.mark.parametrize("wrap", [lambda f: f, functools.partial, lambda f: type("Judge", (), {"rank": f})().rank])
def test_the_mark_of_a_function_that_needs_groups_is_seen_through_wrappers(wrap):
    def f(self=None, **columns):
        return []

    assert not compares_group(wrap(f))
    assert compares_group(wrap(needs_group(f)))


def test_merged_batches_add_up_their_tallies():
    one = replace(grade(lambda completions: [1.0], ["a"]), tallies={"f": Tally(failed_calls=1, doubtful=2, nans=3)})
    assert merge_scores([one, one]).tallies == {"f": Tally(failed_calls=2, doubtful=4, nans=6)}


@pytest.mark.parametrize("prompt", ["Question", "Question\n<think>\n"])
def test_the_self_test_passes_on_sound_answers_and_skips_functions_of_the_user(prompt):
    tasks = [task(index, answer, prompt) for index, answer in enumerate(["42", r"\frac{1}{2}", "(1,2)", "blue", None])]
    names = ("accuracy", "format", "think_answer_tags", "boxed", "random")
    functions = {name: resolve(name) for name in names} | {"mine": lambda **columns: 1 / 0}
    assert self_test(functions, tasks) == ()
    assert self_test({"accuracy": lambda **columns: 1 / 0}, tasks) == ()


def test_the_self_test_reports_one_bad_answer_in_a_hundred_and_refuses_two():
    tasks = [task(index, str(index)) for index in range(100)]
    tasks[7] = task(7, "</answer>")
    assert self_test({"accuracy": resolve("accuracy")}, tasks) == ("d.jsonl:7",)
    tasks[7], tasks[8] = task(7, "}"), task(8, "1} and {2")
    message = r"'boxed' .* gold answer of 2 of 100 sampled tasks \(d\.jsonl:7, d\.jsonl:8\)"
    with pytest.raises(RewardError, match=message):
        self_test({"boxed": resolve("boxed")}, tasks)


def test_a_function_that_needs_gold_answers_refuses_a_dataset_without_any():
    tasks = [task(number, answer=None) for number in range(3)]
    with pytest.raises(RewardError, match=r"'accuracy' compares with gold answers and none of the 3 tasks has one"):
        self_test({"accuracy": resolve("accuracy")}, tasks)
    assert self_test({"format": resolve("format")}, tasks) == ()


def test_the_self_test_names_an_argument_that_no_column_gives():
    with pytest.raises(RewardError, match=r"'mine' asks for the argument 'tests', .* it can have level, answer"):
        self_test({"mine": lambda completions, tests: [0.0]}, [task(0, level=1)])
