"""Addresses lead to environments: built-in ones, files and modules; a mistake is named with the nearest right one."""

import importlib
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline.chat.tools import tool_schema
from paceline.environments import Environment, EnvironmentSpec, Observation
from paceline.environments.builtin import calculator, python, search
from paceline.environments.resolving import EnvironmentMaker, specs
from paceline.errors import ConfigError
from tests.unit.environments.test_tools import contents, turn

OWN = '''
import os
from paceline.environments import AgentTurn, Environment, Observation

print_at_import = os.getpid()


def double(n: int) -> int:
    """Double a number.

    Args:
        n: The number.
    """
    return 2 * n


def shout(text: str) -> str:
    """Say it louder.

    Args:
        text: What to say.
    """
    return text.upper()


def untyped(n):
    """Do nothing.

    Args:
        n: A number.
    """


class Door:
    """An environment with a tool of its own, and rewards of its turns."""

    tools = [double]

    def __init__(self, knocks: int = 2) -> None:
        self.knocks = knocks

    def begin(self, task, seed):
        return f"Knock {self.knocks} times."

    def observe(self, turn):
        return Observation(reward=1.0, done=True)

    def close(self):
        return None


class Quiet(Door):
    has_reward = False
    tools = ()


class Shop:
    """TRL's contract."""

    def reset(self, **row):
        return f"Welcome to {row['city']}."

    def buy(self, item: str) -> str:
        """Buy an item.

        Args:
            item: What to buy.
        """
        return f"bought {item}"

    def get_reward(self) -> float:
        return 0.5


class Rewardless:
    def reset(self, **row):
        return None

    def answer(self, text: str) -> str:
        """Answer.

        Args:
            text: The answer.
        """
        return text


class Needy(Door):
    def __init__(self, knocks):
        self.knocks = knocks


class Half:
    def begin(self, task, seed): ...


class Answering(Half):
    def answer(self, turn): ...

    def close(self): ...


def needy() -> Needy:
    return Needy(3)


def shop() -> "Shop":
    return Shop()


def any_door() -> Environment:
    return Door()


three = 3
'''


@pytest.fixture
def own(tmp_path, monkeypatch) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "own.py"


def only(*addresses: str) -> EnvironmentSpec:
    (spec,) = specs(addresses).values()
    return spec


def begun(made: Environment, task: Mapping[str, Any] | None = None, seed: int = 0) -> object:
    return made.begin({"messages": None, "city": "Bern", **(task or {})}, seed)


def said(spec: EnvironmentSpec, *calls: tuple[str, dict]) -> list[object]:
    made = spec.make()
    begun(made)
    observation = made.observe(turn(*calls))
    assert isinstance(observation, Observation)
    made.close()
    return contents(observation)


def names(spec: EnvironmentSpec) -> list[str]:
    return [schema["function"]["name"] for schema in spec.tools]


# --- built in


def test_a_tool_is_an_environment_of_its_name():
    spec = only("calculator")
    assert (spec.name, names(spec)) == ("calculator", ["calculator"])
    assert (spec.is_instant, spec.own_process, spec.has_reward, spec.address) == (True, False, False, "")
    assert said(spec, ("calculator", {"expression": "6 * 7"})) == ["42"]


def test_several_tools_are_put_together(tmp_path):
    (tmp_path / "a.md").write_text("Bern lies on the Aare.")
    spec = only("calculator", f"search:{tmp_path}")
    assert (spec.name, names(spec), spec.is_instant) == ("tools", ["calculator", "search"], False)
    assert said(spec, ("search", {"query": "Aare"}), ("calculator", {"expression": "1 + 1"})) == [
        "[1] a.md\nBern lies on the Aare.",
        "2",
    ]
    assert spec.settings == {"tools": "calculator, search", "search": f"1 document in {tmp_path}"}


def test_documents_that_cannot_be_read_are_found_before_a_run(tmp_path):
    (tmp_path / "towns.jsonl").write_text('{"town": "Thun"}\n')
    spec = only(f"search:{tmp_path}")
    with pytest.raises(ConfigError, match=r"towns\.jsonl:1: the row has no text; name its column text"):
        spec.check()


@pytest.mark.parametrize(
    ("address", "name", "opening"),
    [
        ("guess", "guess", "Guess a number from 1 to 20."),
        ("guess:5", "guess", "Guess a number from 1 to 5."),
        ("game=guess:5", "game", "Guess a number from 1 to 5."),
        ("nim:5", "nim", "5 stones. Take 1 to 3; the last one wins."),
    ],
)
def test_a_game_is_an_environment_with_a_reward(address, name, opening):
    spec = only(address)
    assert (spec.name, spec.tools, spec.is_instant, spec.has_reward) == (name, (), True, True)
    assert begun(spec.make()) == opening


def test_python_runs_at_the_level_of_the_sandbox_option_or_its_own():
    assert (
        specs(["python"], sandbox="landlock")["python"]
        .settings["python"]
        .startswith(
            f"Python 3.{sys.version_info.minor}, sandbox landlock, 5 s of processor time and 512 MiB per call, "
        )
    )
    assert "sandbox none" in specs(["python:none"], sandbox="http://judge:80")["python"].settings["python"]
    with pytest.raises(ConfigError, match="--environment python: the service at --sandbox runs whole programs"):
        specs(["python"], sandbox="http://judge:80")


@pytest.mark.parametrize(
    ("schema", "function"),
    [
        (calculator.SCHEMA, calculator.calculator),
        (python.SCHEMA, python.PythonTool.python),
        (search.SCHEMA, search.SearchTool.search),
    ],
)
def test_a_built_in_tools_schema_is_that_of_its_function(schema, function):
    assert schema == tool_schema(function)


def test_built_in_names_are_resolved_without_the_libraries_of_models():
    code = (
        "import sys; from paceline.environments.resolving import specs; specs(['calculator', 'python', 'guess']);"
        "print({'torch', 'transformers', 'mcp'} & sys.modules.keys())"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.long
def test_a_server_is_asked_for_its_tools():
    pytest.importorskip("mcp")
    server = Path(__file__).parent / "mcp_server.py"
    spec = only(f"counter=mcp:{shlex.join([sys.executable, str(server)])}")
    assert (spec.name, names(spec)[:2], spec.is_instant) == ("counter", ["count", "seed"], False)
    assert said(spec, ("count", {"step": 4}), ("count", {})) == ["4", "5"]


# --- several environments


def test_environments_and_tools_have_names_of_their_own(own):
    found = specs(["guess", "calculator", "small=guess:3", "a=own.py:double", "a=own.py:shout", "python"])
    assert {name: names(spec) for name, spec in found.items()} == {
        "guess": [],
        "tools": ["calculator", "python"],
        "small": [],
        "a": ["double", "shout"],
    }
    assert {name: spec.name for name, spec in found.items()} == {name: name for name in found}


@pytest.mark.parametrize(
    ("addresses", "message"),
    [
        (["guess", "guess:5"], "--environment: two environments are called 'guess'; give several environments"),
        (["guess", "guess=nim"], "two environments are called 'guess'"),
        (["a=guess", "a=calculator"], "'a' names an environment and something else; give several"),
        (["calculator", "calculator"], "environment 'tools' has two tools called 'calculator'; give several"),
    ],
)
def test_names_that_meet_are_refused(addresses, message):
    with pytest.raises(ConfigError, match=message):
        specs(addresses)


# --- code of the user's own


def test_a_function_is_a_tool_in_a_process_of_its_own(own):
    spec = only("own.py:double")
    assert (spec.name, names(spec), spec.own_process, spec.is_instant) == ("double", ["double"], True, False)
    assert spec.address == "paceline.environments.resolving:environment"
    assert dict(spec.arguments) == {"addresses": ["own.py:double"], "sandbox": "auto"}
    assert said(spec, ("double", {"n": 4}), ("double", {"n": "4"})) == [
        "8",
        "Error: double needs 'n' to be of type integer, got \"4\"",
    ]


def test_another_process_makes_the_same_by_address_and_arguments(own):
    spec = specs(["own.py:double", "calculator", "python"], sandbox="none")["tools"]
    where, _, attribute = spec.address.rpartition(":")
    maker = getattr(importlib.import_module(where), attribute)
    arguments = json.loads(json.dumps(dict(spec.arguments)))
    assert arguments == {"addresses": ["own.py:double", "calculator", "python:none"], "sandbox": "none"}
    maker.prepare(**arguments)
    made = maker(**arguments)
    made.begin({}, 0)
    calls = [("double", {"n": 1}), ("calculator", {"expression": "1/4"}), ("python", {"code": "2 ** 3"})]
    assert contents(made.observe(turn(*calls))) == ["2", "0.25", "8"]
    made.close()


@pytest.mark.parametrize(
    ("address", "name", "opening", "tools", "has_reward"),
    [
        ("own.py:Door", "Door", "Knock 2 times.", ["double"], True),
        ("own.py:Quiet", "Quiet", "Knock 2 times.", [], False),
        ("own.py:needy", "needy", "Knock 3 times.", ["double"], True),
        ("own.py:any_door", "any_door", "Knock 2 times.", [], True),
        ("own.py:Shop", "Shop", "Welcome to Bern.", ["buy"], True),
        ("own.py:shop", "shop", "Welcome to Bern.", ["buy"], True),
        ("town=own.py:Shop", "town", "Welcome to Bern.", ["buy"], True),
        ("own.py:Rewardless", "Rewardless", None, ["answer"], False),
    ],
)
def test_a_class_or_what_makes_one_is_an_environment(own, address, name, opening, tools, has_reward):
    spec = only(address)
    assert (spec.name, names(spec), spec.has_reward, spec.own_process) == (name, tools, has_reward, True)
    assert begun(spec.make()) == opening
    assert begun(EnvironmentMaker()(**spec.arguments)) == opening


def test_code_of_another_process_stays_as_it_was_prepared(own):
    maker, arguments = EnvironmentMaker(), only("own.py:Shop").arguments
    maker.prepare(**arguments)
    own.write_text(OWN.replace("Welcome to", "Leave"))
    assert begun(maker(**arguments)) == "Welcome to Bern."
    assert begun(EnvironmentMaker()(**arguments)) == "Leave Bern."


def test_a_module_is_found_by_its_name(own, monkeypatch):
    monkeypatch.syspath_prepend(own.parent)
    assert only("own:Door").name == "Door"
    del sys.modules["own"]


def test_a_built_in_name_goes_before_a_module_of_that_name():
    with pytest.raises(ConfigError, match="--environment search:fn: there is no such folder"):
        specs(["search:fn"])


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("calculater", "there is no such environment; did you mean 'calculator'\\?; choose from calculator, python, "),
        ("gues:5", "there is no such environment; did you mean 'guess'\\?; choose from"),
        ("serch:docs", "there is no such environment; did you mean 'search'\\?; choose from"),
        ("gues.py:f", "the file cannot be read"),
        ("guesses_of_nobody:f", "the module cannot be imported"),
        ("own.py", r"there is no such environment; .*or give your own as file\.py:NAME or module:NAME"),
        ("calculator:3", "calculator takes nothing behind a colon; write calculator"),
        ("guess:x", r"the number must lie in \[2, 1000000\]; write guess:20"),
        ("guess:1", r"the number must lie in \[2, 1000000\]; write guess:20"),
        ("nim:4", r"the number must lie in \[5, 1000000\]; write nim:15"),
        ("guess:99999999", r"the number must lie in \[2, 1000000\]"),
        ("search:", "it needs a folder of documents: search:FOLDER"),
        ("search:nowhere", "there is no such folder; check the path"),
        ("mcp", "it needs the command of a server: mcp:COMMAND"),
        ("mcp:no-such-program", "there is no program 'no-such-program'"),
        ("other.py:double", "the file cannot be read"),
        ("no_such_module:double", "the module cannot be imported"),
        ("own.py:doubel", "there is no 'doubel' in it; did you mean 'double'"),
        ("own.py:three", "'three' is of type int, but must be a function"),
        ("own.py:Needy", r"it cannot be made without knocks; name a function .*: def make\(\) -> Needy"),
        ("own.py:Half", "the class Half has no observe, close; an environment has begin, observe and close"),
        ("own.py:Answering", "the class Answering has no observe; rename its method answer to observe, an environment"),
    ],
)
def test_an_address_that_leads_nowhere_is_refused(own, address, message):
    with pytest.raises(ConfigError, match=message) as caught:
        specs([address])
    assert str(caught.value).startswith(f"--environment {address}: ")


def test_a_tool_that_says_too_little_is_refused_by_its_name(own):
    with pytest.raises(ConfigError, match="tool untyped: argument 'n' has no type"):
        specs(["own.py:untyped"])


# --- identity


def test_a_digest_is_of_what_decides_the_observations(own, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("a")
    given = ["guess", "search:docs", "own.py:double"]

    def digests() -> list[str]:
        return [only(one).digest for one in given]

    before = digests()
    assert digests() == before
    assert only("guess:20").digest == before[0]
    assert only("guess:21").digest != before[0]
    (tmp_path / "docs" / "a.txt").write_text("b")
    own.write_text(OWN + "# changed\n")
    assert [old == new for old, new in zip(before, digests(), strict=True)] == [True, False, False]
