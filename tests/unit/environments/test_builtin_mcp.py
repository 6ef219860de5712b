"""Tools of a server: in memory, and as a program that keeps its state for an episode and goes with it."""

import os
import select
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("mcp")

from mcp import Client

from paceline.base_directory import held_base
from paceline.environments import EnvironmentSpec, Observation
from paceline.environments.builtin import mcp as ours
from paceline.environments.builtin.mcp import McpTools, by_command, check_command, listed_tool, listed_tools, words_of
from paceline.environments.hosting import Hosts
from paceline.environments.tools import ToolEnvironment
from paceline.errors import ConfigError, EnvironmentFailure
from tests.unit.environments.mcp_server import made
from tests.unit.environments.test_hosting import ask, begun, has_ended
from tests.unit.environments.test_tools import contents, turn

pytestmark = pytest.mark.long

SERVER = Path(__file__).parent / "mcp_server.py"
COMMAND = shlex.join([sys.executable, str(SERVER)])


def in_memory() -> ToolEnvironment:
    return ToolEnvironment([McpTools(lambda seed, said: Client(made()), "memory")])


def as_program(command: str = COMMAND) -> ToolEnvironment:
    return ToolEnvironment([McpTools(by_command(command), "program")])


@pytest.fixture(params=[in_memory, as_program])
def environment(request) -> Iterator[ToolEnvironment]:
    environment = request.param()
    environment.begin({}, 5)
    yield environment
    environment.close()


def asked(environment: ToolEnvironment, *calls: tuple[str, dict]) -> Observation:
    observation = environment.observe(turn(*calls))
    assert isinstance(observation, Observation)
    return observation


def test_calls_of_an_episode_share_the_servers_state(environment):
    assert contents(asked(environment, ("count", {}), ("count", {"step": 3}))) == ["1", "4"]
    assert contents(asked(environment, ("count", {}))) == ["5"]


def test_data_comes_as_text_and_an_error_in_the_servers_words(environment):
    observation = asked(environment, ("record", {}), ("refuse", {}))
    record, refusal = map(str, contents(observation))
    assert "".join(record.split()) == '{"é":[0.1,null]}'
    assert "the shop is closed" in refusal
    assert (observation.calls, observation.failed_calls) == (2, 1)


def test_wrong_arguments_are_answered_by_us_or_by_the_server(environment):
    observation = asked(environment, ("seed", {}), ("count", {"step": "x"}), ("subtract", {}))
    missing, wrong, unknown = map(str, contents(observation))
    assert missing == "Error: seed needs the argument 'prefix'"
    assert "valid integer" in wrong
    assert unknown.startswith("Error: there is no tool 'subtract'; the tools are count, seed, record, ")
    assert observation.failed_calls == 3


def test_an_image_is_refused(environment):
    with pytest.raises(EnvironmentFailure, match="tool picture: its result has image content, but only text"):
        asked(environment, ("picture", {}))


# --- as a program


def children() -> dict[int, str]:
    """Command lines of this process's own children."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(path.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found[int(path.parent.name)] = (path.parent / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def servers() -> list[int]:
    return [pid for pid, command in children().items() if str(SERVER) in command]


def test_each_episode_has_a_server_with_its_seed_from_its_first_call_to_its_end():
    schemas = listed_tools(COMMAND)
    assert schemas[0]["function"]["name"] == "count"
    assert schemas[0]["function"]["parameters"]["properties"]["step"]["type"] == "integer"
    assert servers() == []
    both = [ToolEnvironment([McpTools(by_command(COMMAND), "program", schemas)]) for _ in range(2)]
    for seed, environment in enumerate(both, 7):
        environment.begin({}, seed)
    assert servers() == []
    assert [contents(asked(one, ("seed", {"prefix": "s"}), ("count", {}))) for one in both] == [
        ["s7", "1"],
        ["s8", "1"],
    ]
    assert len(servers()) == 2
    for environment in both:
        environment.close()
        environment.close()
    assert servers() == []


def test_a_server_that_ends_is_a_failure_with_its_last_words():
    environment = as_program()
    environment.begin({}, 0)
    with pytest.raises(EnvironmentFailure, match=r"MCP server program failed in leave: .*\(.*out of order\)"):
        asked(environment, ("leave", {}))
    with pytest.raises(EnvironmentFailure, match="MCP server program failed in count"):
        asked(environment, ("count", {}))
    environment.close()


def test_a_server_that_hangs_is_a_failure_in_time(monkeypatch):
    monkeypatch.setattr(ours, "CALL_SECONDS", 0.5)
    environment = as_program()
    environment.begin({}, 0)
    with pytest.raises(EnvironmentFailure, match="MCP server program failed in wait: "):
        asked(environment, ("wait", {}))
    environment.close()
    assert servers() == []


def test_a_late_call_ends_its_server():
    """Its thread waits on, but nothing else of the episode does."""
    spec = EnvironmentSpec(name="mcp", make=as_program)
    with Hosts(step_seconds=20) as hosts:
        hosted = begun(hosts, spec)
        (server,) = map(os.pidfd_open, servers())
        hosts.seconds = 0.5
        outcome = ask(hosted, "observe", turn(("wait", {})))
        assert outcome.failure == "it took more than 0.5 seconds"
        assert has_ended(server)


def test_a_call_whose_reply_was_lost_is_not_repeated(tmp_path):
    """It may have been carried out: here it was."""
    file, spec = tmp_path / "sold", EnvironmentSpec(name="mcp", make=as_program)
    with Hosts(step_seconds=20) as hosts:
        hosted = begun(hosts, spec)
        failure = ask(hosted, "observe", turn(("sell", {"file": str(file)}))).failure
        assert failure.startswith("MCP server program failed in sell: ")
        assert ask(hosted, "observe", turn(("sell", {"file": str(file)}))).failure == "it has ended before"
    assert file.read_text() == "sold\n"


def test_closing_ends_a_call_that_waits():
    environment = as_program()
    environment.begin({}, 0)
    asked(environment, ("count", {}))
    began = threading.Event()

    def call() -> Observation:
        began.set()
        return asked(environment, ("wait", {}))

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(call)
        assert began.wait(30)
        environment.close()
        with pytest.raises(EnvironmentFailure, match="failed in wait"):
            waiting.result(60)
    assert servers() == []


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "there is no program ''; check PATH"),
        ("no-such-program --x", "there is no program 'no-such-program'; check PATH, or give the program's whole path"),
        ("python 'a", "the command cannot be read"),
    ],
)
def test_a_command_that_cannot_be_started_is_refused(command, message):
    with pytest.raises(ConfigError, match=f"--environment mcp:{command}: {message}"):
        check_command(command)
    check_command(COMMAND)


def test_a_program_that_is_no_server_is_refused_in_a_sentence(monkeypatch):
    program = shlex.join([sys.executable, "-c", "import sys; sys.exit('I am none')"])
    with pytest.raises(ConfigError, match=r"did not start: .*\(I am none\); try the command in a shell"):
        listed_tools(program)
    monkeypatch.setattr(ours, "START_SECONDS", 0.5)
    with pytest.raises(ConfigError, match="did not start: no response in time"):
        listed_tools(shlex.join([sys.executable, "-c", "import threading; threading.Event().wait()"]))
    assert len(children()) == len([pid for pid, line in children().items() if "Event().wait()" not in line])


TRAINER = """
import sys
from paceline.environments.builtin.mcp import McpTools, by_command
tools = McpTools(by_command(sys.argv[1]), "program")
tools.begin(0)
print("running", flush=True)
tools.tools[-1].call()
"""


def test_a_server_that_hangs_dies_with_a_trainer_that_is_killed():
    """At the end of its input it would go too, but it does not look."""
    with subprocess.Popen([sys.executable, "-c", TRAINER, COMMAND], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "running\n"
        (server,) = [
            int(pid)
            for task in Path(f"/proc/{trainer.pid}/task").iterdir()
            for pid in (task / "children").read_text().split()
        ]
        descriptor = os.pidfd_open(server)
        trainer.kill()
        assert select.select([descriptor], [], [], 30)[0]
        os.close(descriptor)


def test_a_program_with_a_slash_is_looked_for_where_the_server_is_started(tmp_path, monkeypatch):
    (tmp_path / "base").mkdir()
    server = tmp_path / "base" / "server"
    server.write_text("#!/bin/sh\n")
    server.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    with held_base(tmp_path / "base"):
        assert words_of("./server --quick", address="mcp:./server --quick") == ["./server", "--quick"]
    with held_base(tmp_path), pytest.raises(ConfigError, match=r"there is no program '\./server'"):
        words_of("./server", address="mcp:./server")


@pytest.mark.parametrize(
    ("parameters", "arguments", "required"),
    [
        ({"required": None}, None, ()),
        ({"required": 5}, None, ()),
        ({"required": "step"}, None, ()),
        ({"required": ["a", {}], "properties": {"a": {}}, "additionalProperties": False}, ("a",), ("a",)),
        ({"properties": None, "additionalProperties": False}, (), ()),
        ({"properties": 5, "additionalProperties": False}, (), ()),
        (None, None, ()),
    ],
)
def test_what_is_no_schema_of_a_tool_is_left_to_its_server(parameters, arguments, required):
    tool = listed_tool({"name": "f", "parameters": parameters}, print)

    assert (tool.arguments, tool.required) == (arguments, required)
