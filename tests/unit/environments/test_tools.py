"""Calls of a turn are carried out in order, and whatever goes wrong has a line of its own that the model reads."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest

from paceline.chat.tools import tool_schema
from paceline.environments import AgentTurn, Observation, ToolCall
from paceline.environments.objects import ObjectEnvironment, tool_methods
from paceline.environments.tools import CallError, Functions, Tool, ToolEnvironment, problem, result_text, tool
from paceline.errors import ConfigError, SandboxError


def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def echo(text: str, times: int | None = None) -> str:
    """Return a text.

    Args:
        text: What to return.
        times: How often.
    """
    return text * (times or 1)


def turn(*calls: tuple[str, dict[str, Any]], malformed: str | None = None, is_last: bool = False) -> AgentTurn:
    return AgentTurn(
        number=0,
        text="",
        content="",
        calls=tuple(ToolCall(name=name, arguments=arguments) for name, arguments in calls),
        malformed=malformed,
        finish_reason="stop",
        is_last=is_last,
    )


def answered(functions: Sequence[Callable[..., Any]], *calls: tuple[str, dict[str, Any]]) -> Observation:
    """What an environment of these functions answers, in this thread, or in an event loop where it has to."""
    environment = ToolEnvironment([Functions(functions)])
    environment.begin({}, 0)
    observation = environment.observe(turn(*calls))
    if inspect.isawaitable(observation):

        async def wait() -> Observation:
            return await observation

        return asyncio.run(wait())
    return observation


def contents(observation: Observation) -> list[object]:
    return [message["content"] for message in observation.messages]


# --- one line for each thing that can happen


def test_each_call_is_answered_by_a_message_in_order():
    observation = answered([add, echo], ("echo", {"text": "é"}), ("add", {"a": 1, "b": 2}), ("add", {"a": 5}))
    assert observation.messages == (
        {"role": "tool", "name": "echo", "tool_call_id": "call00000", "content": "é"},
        {"role": "tool", "name": "add", "tool_call_id": "call00001", "content": "3"},
        {"role": "tool", "name": "add", "tool_call_id": "call00002", "content": "6"},
    )
    assert (observation.done, observation.reward, observation.calls, observation.failed_calls) == (False, None, 3, 0)


def raising(error: BaseException) -> Callable[..., Any]:
    def broken(n: int = 0) -> None:
        raise error

    return broken


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (("sub", {}), "Error: there is no tool 'sub'; the tools are add, echo"),
        (("add", {}), "Error: add needs the argument 'a'"),
        (("add", {"a": 1, "c": 2}), "Error: add has no argument 'c'; its arguments are a, b"),
        (("add", {"a": "3"}), "Error: add needs 'a' to be of type integer, got \"3\""),
        (("add", {"a": True}), "Error: add needs 'a' to be of type integer, got true"),
        (("add", {"a": 3.0}), "Error: add needs 'a' to be of type integer, got 3.0"),
        (("echo", {"text": "a", "times": "2"}), "Error: echo needs 'times' to be of type integer or null, got \"2\""),
        (("echo", {"text": ["é"]}), "Error: echo needs 'text' to be of type string, got [\"é\"]"),
    ],
)
def test_a_call_that_cannot_be_carried_out_says_why(call, line):
    observation = answered([add, echo], call)
    assert contents(observation) == [line]
    assert (observation.calls, observation.failed_calls) == (1, 1)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("n must be odd\nsecond line"), "Error: broken failed: ValueError: n must be odd"),
        (KeyError(), "Error: broken failed: KeyError"),
        (FileNotFoundError(2, "No such file", "a.txt"), "Error: broken failed: FileNotFoundError: "
         "[Errno 2] No such file: 'a.txt'"),
        (TypeError("<object object at 0x7f3a5c0e1d50> is none"), "Error: broken failed: TypeError: "
         "<object object> is none"),
        (ValueError("x" * 999), f"Error: broken failed: ValueError: {'x' * 300}"),
        (CallError("as it is\nin two lines"), "as it is\nin two lines"),
    ],
)  # fmt: skip
def test_what_a_tool_raises_is_told_to_the_model(error, line):
    observation = answered([raising(error)], ("broken", {}))
    assert contents(observation) == [line]
    assert observation.failed_calls == 1


@pytest.mark.parametrize("error", [SandboxError("gone"), ConnectionResetError(), TimeoutError(), MemoryError()])
def test_a_failure_that_is_not_the_models_doing_is_no_answer(error):
    with pytest.raises(type(error)):
        answered([raising(error)], ("broken", {}))


def test_failures_are_counted_among_the_calls():
    observation = answered([add], ("add", {"a": 1}), ("sub", {}), ("add", {}))
    assert (observation.calls, observation.failed_calls) == (3, 2)


def test_of_a_turn_with_a_call_that_cannot_be_read_nothing_is_carried_out():
    calls = list[int]()
    environment = ToolEnvironment([Functions([calls.append])])
    observation = environment.observe(turn(("append", {"object": 1}), malformed="it is no JSON"))
    assert observation == Observation(
        messages=(
            {
                "role": "tool",
                "name": "unknown",
                "tool_call_id": "call00000",
                "content": "Error: the tool call cannot be read: it is no JSON",
            },
        ),
        calls=1,
        failed_calls=1,
    )
    assert calls == []


def test_a_turn_without_calls_ends_the_episode():
    assert ToolEnvironment([Functions([add])]).observe(turn()) == Observation(done=True)
    assert ToolEnvironment([Functions([add])]).observe(turn(is_last=True)) == Observation(done=True)


def test_in_the_last_turn_no_tool_runs():
    calls = list[int]()

    def note(n: int) -> None:
        calls.append(n)

    environment = ToolEnvironment([Functions([note])])
    assert environment.observe(turn(("note", {"n": 1}), is_last=True)) == Observation(done=False)
    assert environment.observe(turn(malformed="it is no JSON", is_last=True)) == Observation(done=False)
    assert calls == []


# --- results


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", ""),
        (None, "null"),
        (True, "true"),
        (0.1 + 0.2, "0.30000000000000004"),
        ((1, "ü"), '[1, "ü"]'),
        ({"b": 1, "a": {"c": 1e-07}}, '{"b": 1, "a": {"c": 1e-07}}'),
        ("a <function f at 0x7f3a5c0e1d50> b", "a <function f> b"),
        ("at 0x7f3a5c0e1d50 it stays", "at 0x7f3a5c0e1d50 it stays"),
    ],
)
def test_a_result_has_one_text(value, text):
    assert result_text(value) == text


def test_a_result_that_has_no_certain_text_is_the_tools_failure():
    def letters(text: str) -> set[str]:
        return set(text)

    with pytest.raises(TypeError, match="set is not JSON serializable"):
        answered([letters], ("letters", {"text": "ab"}))


# --- tools that wait


def test_tools_that_wait_run_together_and_are_answered_in_the_order_of_the_calls():
    arrived = list[str]()

    def scripted() -> Sequence[Callable[..., Any]]:
        is_second_here = asyncio.Event()

        async def first() -> str:
            await is_second_here.wait()
            arrived.append("first")
            return "1"

        async def second() -> str:
            is_second_here.set()
            arrived.append("second")
            return "2"

        return [first, second, add]

    observation = answered(scripted(), ("first", {}), ("second", {}), ("add", {"a": 2}), ("missing", {}))
    assert contents(observation)[:3] == ["1", "2", "3"]
    assert arrived == ["second", "first"]
    assert (observation.calls, observation.failed_calls) == (4, 1)


def test_a_plain_tool_waits_for_those_before_it():
    done = list[str]()

    async def slow() -> str:
        await asyncio.sleep(0)
        done.append("slow")
        return ""

    def plain() -> str:
        done.append("plain")
        return ""

    answered([slow, plain], ("slow", {}), ("plain", {}), ("slow", {}))
    assert done == ["slow", "plain", "slow"]


def test_what_a_tool_that_waits_raises_is_told_or_is_a_failure():
    async def broken(kind: str) -> None:
        raise {"value": ValueError("no"), "connection": ConnectionError("lost")}[kind]

    assert contents(answered([broken], ("broken", {"kind": "value"}))) == ["Error: broken failed: ValueError: no"]
    with pytest.raises(ConnectionError, match="lost"):
        answered([broken], ("broken", {"kind": "connection"}))


# --- what tools share


class Counter:
    """Toolset that counts its calls."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name
        self.tools = [Tool(name=name, call=lambda: 1)]

    def begin(self, seed: int) -> None:
        self.log.append(f"{self.name} begins with {seed}")

    def close(self) -> None:
        self.log.append(f"{self.name} closes")
        if self.name == "b":
            raise OSError("b fails")


def test_every_toolset_is_closed_also_if_one_fails():
    log = list[str]()
    environment = ToolEnvironment([Counter(log, "a"), Counter(log, "b")])
    environment.begin({}, 7)
    with pytest.raises(OSError, match="b fails"):
        environment.close()
    assert log == ["a begins with 7", "b begins with 7", "b closes", "a closes"]


def test_arguments_of_a_tool_that_checks_them_itself_are_handed_on():
    own = Tool(name="own", call=print, required=("x",))
    assert problem(own, {"x": 1, "y": object()}) is None
    assert problem(own, {"y": 1}) == "Error: own needs the argument 'x'"


# --- schemas


def test_a_schema_is_what_transformers_makes():
    assert tool_schema(add) == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "description": "The first."},
                    "b": {"type": "integer", "description": "The second."},
                },
                "required": ["a"],
            },
            "return": {"type": "integer"},
        },
    }


def untyped(a, b: int):
    """Add.

    Args:
        a: The first.
        b: The second.
    """


def undescribed(a: int):
    """Add."""


def silent(a: int): ...


def several(*numbers: int):
    """Add."""


def odd(lock: threading.Event):
    """Wait.

    Args:
        lock: For this.
    """


def chosen(size: Literal["s", "l"], names: list[str] | None = None):
    """Choose.

    Args:
        size: One of two.
        names: Of those.
    """


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (untyped, "tool untyped: argument 'a' has no type; a tool has a type for each argument"),
        (undescribed, "tool undescribed: its docstring does not describe argument 'a'; a tool"),
        (silent, "tool silent: it has no docstring, but the model has to know what it does"),
        (several, r"tool several: argument '\*numbers: int' cannot be given by name"),
        (odd, "tool odd: the type of argument 'lock' has no counterpart in JSON"),
        (lambda a: a, "tool '<lambda>': it has no name of its own; give it as a function"),
    ],
)
def test_a_function_that_is_no_tool_is_refused_by_its_name_and_argument(function, message):
    with pytest.raises(ConfigError, match=message):
        tool_schema(function)


def test_a_choice_is_not_checked_by_its_type_and_lists_are():
    made = tool(chosen)
    assert made.kinds == {"names": ("array", "null")}
    assert tool_schema(chosen)["function"]["parameters"]["properties"]["size"]["enum"] == ["s", "l"]


# --- TRL's contract


class Shop:
    """Environment as TRL's trainer takes it."""

    def reset(self, prompt: object, seed: int, **columns: Any) -> str:
        self.bought, self.columns = list[str](), columns
        return f" You have 3 coins, and it is day {seed}."

    def sell(self, item: str) -> str:
        """Sell an item.

        Args:
            item: What to sell.
        """
        self.bought.remove(item)
        return f"sold {item}"

    def buy(self, item: str) -> str:
        """Buy an item.

        Args:
            item: What to buy.
        """
        self.bought.append(item)
        return f"bought {item}"

    def _secret(self) -> None: ...

    def get_reward(self) -> float:
        return len(self.bought) / 2


def test_an_objects_methods_are_tools_but_for_the_contracts_own_and_private_ones():
    assert [method.__name__ for method in tool_methods(Shop)] == ["buy", "sell"]
    assert tool_schema(Shop.buy)["function"]["parameters"]["required"] == ["item"]


def test_an_object_gives_its_opening_its_answers_and_its_reward():
    inner = Shop()
    environment = ObjectEnvironment(inner)
    opening = environment.begin({"prompt": "p", "city": "Bern"}, 4)
    assert opening == " You have 3 coins, and it is day 4."
    observation = environment.observe(turn(("buy", {"item": "tea"}), ("sell", {"item": "milk"}), ("reset", {})))
    assert isinstance(observation, Observation)
    assert contents(observation) == [
        "bought tea",
        "Error: sell failed: ValueError: list.remove(x): x not in list",
        "Error: there is no tool 'reset'; the tools are buy, sell",
    ]
    assert environment.close() == 0.5
    assert inner.columns == {"city": "Bern"}


def test_calls_and_failures_are_those_of_trls_own_test():
    """Of three completions two call a tool, one of them in vain: frequencies of 2/3 and 1/2."""
    turns = [turn(("buy", {"item": "tea"})), turn(("sell", {"item": "milk"})), turn()]
    observations = []
    for one in turns:
        environment = ObjectEnvironment(Shop())
        environment.begin({"prompt": "p"}, 0)
        observations.append(environment.observe(one))
    calls, failed = sum(one.calls for one in observations), sum(one.failed_calls for one in observations)
    assert (calls / 3, failed / calls) == (2 / 3, 1 / 2)


class Named:
    """Environment whose `reset` takes two columns only, and which has no reward."""

    def reset(self, answer: str, opening: object) -> object:
        self.answer_given = answer
        return opening


@pytest.mark.parametrize(
    ("opening", "begun"),
    [
        (None, None),
        ("text", "text"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ([{"role": "user", "content": "a"}], [{"role": "user", "content": "a"}]),
    ],
)
def test_an_opening_is_text_messages_or_nothing(opening, begun):
    inner = Named()
    environment = ObjectEnvironment(inner)
    assert environment.begin({"answer": "7", "opening": opening, "other": 1}, 0) == begun
    assert inner.answer_given == "7"
    assert environment.close() is None


@pytest.mark.parametrize("opening", [7, ["a"], [{"type": "image", "image": "x"}]])
def test_an_opening_that_is_neither_is_a_failure(opening):
    with pytest.raises(TypeError, match="reset "):
        ObjectEnvironment(Named()).begin({"answer": "7", "opening": opening}, 0)


def test_an_object_may_be_waited_for():
    class Waiting:
        async def reset(self, **row: Any) -> str:
            return "begun"

        async def look(self) -> str:
            """Look."""
            return "seen"

        async def get_reward(self) -> float:
            return 1.0

    async def played() -> tuple[object, object, object]:
        environment = ObjectEnvironment(Waiting())
        begun = await environment.begin({}, 0)
        awaitable = environment.observe(turn(("look", {})))
        assert inspect.isawaitable(awaitable)
        observation, reward = await awaitable, environment.close()
        assert inspect.isawaitable(reward)
        return begun, contents(observation), await reward

    assert asyncio.run(played()) == ("begun", ["seen"], 1.0)
