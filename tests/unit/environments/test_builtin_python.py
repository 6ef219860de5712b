"""`python`: what an interpreter gives becomes a line for the model, and state is kept for one episode alone."""

import os
import queue
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paceline.environments import EnvironmentSpec, Observation
from paceline.environments.builtin import python as ours
from paceline.environments.builtin.python import PythonTool, check_level, python_tool
from paceline.environments.hosting import Hosts
from paceline.environments.resolving import specs
from paceline.environments.tools import ToolEnvironment
from paceline.errors import ConfigError, SandboxError
from paceline.sandbox.local import LocalSandbox
from paceline.sandbox.programs import CodeResult
from tests.unit.environments.scripted_interpreter import ScriptedInterpreter
from tests.unit.environments.test_hosting import Asked, ask, begun, has_ended
from tests.unit.environments.test_tools import contents, turn
from tests.unit.sandbox.sandboxes import strongest


def scripted(outcome: CodeResult | str | SandboxError) -> tuple[ToolEnvironment, list[ScriptedInterpreter]]:
    made = list[ScriptedInterpreter]()

    def opened(seed: int) -> ScriptedInterpreter:
        made.append(ScriptedInterpreter(seed, {"x": outcome}))
        return made[-1]

    environment = ToolEnvironment([PythonTool(opened)])
    environment.begin({}, 3)
    return environment, made


@pytest.mark.parametrize(
    ("outcome", "line", "failed"),
    [
        ("7\n", "7", 0),
        ("a\n\n", "a\n", 0),
        ("", "(no output)", 0),
        ("<function f at 0x7f3a5c0e1d50>\n", "<function f>", 0),
        (CodeResult(output="1\nValueError: no\n", failed=True, seconds=0.1), "1\nValueError: no", 1),
        (
            CodeResult(output="", ended="stopped after 5 s of processor time", seconds=5.0),
            "Error: stopped after 5 s of processor time; all variables are lost",
            1,
        ),
    ],
)
def test_what_code_comes_to_is_one_answer(outcome, line, failed):
    environment, _ = scripted(outcome)
    observation = environment.observe(turn(("python", {"code": "x"})))
    assert isinstance(observation, Observation)
    assert contents(observation) == [line]
    assert (observation.calls, observation.failed_calls) == (1, failed)


def test_a_sandbox_that_fails_is_no_answer():
    environment, _ = scripted(SandboxError("gone"))
    with pytest.raises(SandboxError, match="gone"):
        environment.observe(turn(("python", {"code": "x"})))


def test_an_interpreter_is_made_of_the_episodes_seed_and_closed_with_it():
    environment, made = scripted("")
    assert [one.seed for one in made] == [3]
    environment.close()
    assert made[0].is_closed


def test_code_that_is_too_long_is_refused_by_its_bytes():
    environment, _ = scripted("")
    observation = environment.observe(turn(("python", {"code": "é" * 32769})))
    assert contents(observation) == ["Error: the code is longer than 65536 bytes"]


def test_code_that_is_no_text_is_refused():
    environment, _ = scripted("")
    observation = environment.observe(turn(("python", {"code": 7})))
    assert contents(observation) == ["Error: python needs 'code' to be of type string, got 7"]


@pytest.mark.long
def test_waiting_for_a_slot_of_the_sandbox_does_not_count_against_an_answer(monkeypatch):
    """Many episodes on few processors: none fails only because others compute."""
    sandbox = LocalSandbox(strongest(), slots=1)
    monkeypatch.setitem(ours._SANDBOXES, "mine", sandbox)
    spec = EnvironmentSpec(name="python", make=lambda: ToolEnvironment([python_tool("mine")]))
    with Hosts(step_seconds=20) as hosts:
        first = begun(hosts, spec)
        assert ask(first, "observe", turn(("python", {"code": "1"}))).failure is None  # the interpreter is there
        hosts.seconds = 3
        with sandbox.slot():
            asked = Asked(first, "observe", turn(("python", {"code": "2"})))
            with pytest.raises(queue.Empty):
                asked.outcomes.get(timeout=9)  # three times what an answer may take
        outcome = asked.outcome()
        assert outcome.value.messages[0]["content"] == "2"
        assert outcome.seconds < 3
        hosts.seconds = 0.5
        late = ask(first, "observe", turn(("python", {"code": "while True: pass"})))
        assert (late.failure, late.timed_out) == ("it took more than 0.5 seconds", True)
    sandbox.close()


def test_an_exhausted_sandbox_is_a_failure_in_time_and_keeps_no_interpreter(monkeypatch):
    """Every slot is taken for longer than a call waits for one."""
    sandbox = LocalSandbox(strongest(), slots=1)
    monkeypatch.setitem(ours._SANDBOXES, "mine", sandbox)
    spec = EnvironmentSpec(name="python", make=lambda: ToolEnvironment([python_tool("mine")]))
    with Hosts(step_seconds=20, wait_seconds=0.5) as hosts:
        first = begun(hosts, spec)
        assert ask(first, "observe", turn(("python", {"code": "x = 1"}))).failure is None
        (interpreter,) = sandbox._busy
        process = os.pidfd_open(interpreter.pid)
        with sandbox.slot():
            outcome = ask(first, "observe", turn(("python", {"code": "x"})))
            assert (outcome.failure, outcome.timed_out) == ("what it waited for was not free within 0.5 seconds", False)
        second = begun(hosts, spec)
        assert ask(second, "observe", turn(("python", {"code": "2"}))).value.messages[0]["content"] == "2"
        assert ask(second, "close").failure is None
    assert not sandbox._busy
    sandbox.close()
    assert has_ended(process)


def test_a_sandbox_that_cannot_start_a_process_is_no_answer(monkeypatch):
    """The model has done nothing wrong: it must not read that there were too many open files."""
    sandbox = LocalSandbox(strongest(), slots=1)
    monkeypatch.setitem(ours._SANDBOXES, "mine", sandbox)
    environment = ToolEnvironment([python_tool("mine")])
    environment.begin({}, 0)
    used, (soft, hard) = max(map(int, os.listdir("/proc/self/fd"))), resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.dup(0) for number in range(used) if not Path(f"/proc/self/fd/{number}").exists()]
    resource.setrlimit(resource.RLIMIT_NOFILE, (used, hard))
    try:
        with pytest.raises(SandboxError, match=r"failed 3 times on the start of an interpreter: .*Too many open files"):
            environment.observe(turn(("python", {"code": "1"})))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)
        environment.close()
        sandbox.close()


def test_variables_stay_for_the_episode_and_for_it_alone():
    first, second = (ToolEnvironment([python_tool(strongest())]) for _ in range(2))
    for environment in (first, second):
        environment.begin({}, 5)
    calls = [("python", {"code": "x = [1]"}), ("python", {"code": "x.append(2)"}), ("python", {"code": "x"})]
    assert contents(first.observe(turn(*calls))) == ["(no output)", "(no output)", "[1, 2]"]
    observation = second.observe(turn(("python", {"code": "x"})))
    assert contents(observation)[0].endswith("NameError: name 'x' is not defined")
    assert observation.failed_calls == 1
    drawn = [one.observe(turn(("python", {"code": "import random\nrandom.random()"}))) for one in (first, second)]
    assert contents(drawn[0]) == contents(drawn[1])
    first.close()
    second.close()


def test_closing_an_environment_ends_its_call():
    environment = ToolEnvironment([python_tool(strongest())])
    environment.begin({}, 0)
    environment.observe(turn(("python", {"code": "1"})))
    began = threading.Event()

    def call() -> None:
        began.set()
        environment.observe(turn(("python", {"code": "while True: pass"})))

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(call)
        assert began.wait(30)
        environment.close()
        with pytest.raises(SandboxError):
            waiting.result()


@pytest.mark.parametrize(
    ("level", "message"),
    [
        ("http://judge:80", "the service at --sandbox runs whole programs, and keeps no variables; name a level"),
        ("best", "there is no level 'best' of the sandbox; choose from auto, namespaces, landlock, none"),
    ],
)
def test_a_sandbox_without_interpreters_is_refused(level, message):
    with pytest.raises(ConfigError, match=f"--environment python: {message}"):
        check_level(level, address="python")
    check_level("auto", address="python")


def test_a_wrong_level_is_refused_by_the_whole_address():
    with pytest.raises(ConfigError, match=r"^--environment python:none2: there is no level 'none2' of the sandbox"):
        specs(["python:none2"])
