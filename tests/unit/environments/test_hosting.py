"""Environments that behave badly end their own episode, in the time that they have, and nothing else."""

import asyncio
import contextlib
import os
import queue
import random
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy
import pytest

from paceline.environments import AgentTurn, EnvironmentSpec, Observation, ToolCall
from paceline.environments.hosting import CLOSE_SECONDS, Hosts
from paceline.environments.hosting.results import MOST_BYTES, WrongResult, checked
from paceline.errors import ConfigError
from tests.support import environments_for_tests as scripted
from tests.support.environments_for_tests import said

PLACES = ("instant", "here", "own process")
KEPT = ("here", "own process")
"""Places that have deadlines."""
MODULE = "tests.support.environments_for_tests"
ROOT = Path(__file__).parents[3]
SOON = 30.0
"""Seconds within which everything here must have happened, however busy the machine is."""


def spec_of(kind, place="here", **arguments):
    return EnvironmentSpec(
        name=kind.__name__.lower(),
        make=partial(kind, **arguments),
        address=f"{MODULE}:{kind.__name__}",
        arguments=arguments,
        is_instant=place == "instant",
        own_process=place == "own process",
    )


def turn(text="", number=0):
    return AgentTurn(number=number, text=text, content=text, finish_reason="stop", is_last=False)


class Asked:
    """A call under way."""

    def __init__(self, hosted, method, *given):
        self.outcomes = queue.SimpleQueue()
        hosted.call(method, *given, then=self.outcomes.put)

    def outcome(self):
        return self.outcomes.get(timeout=SOON)


def ask(hosted, method, *given):
    return Asked(hosted, method, *given).outcome()


def begun(hosts, spec, task=None, seed=0):
    """An environment that has begun."""
    hosted = hosts.open(spec)
    outcome = ask(hosted, "begin", task or {}, seed)
    assert outcome.failure is None
    return hosted


def observe(hosted, text=""):
    return ask(hosted, "observe", turn(text))


def content(outcome):
    assert outcome.failure is None
    return outcome.value.messages[0]["content"]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Hosts that many tests use: what went wrong in one must not show in another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("shared")))
        with Hosts(step_seconds=20) as opened:
            yield opened


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A directory of this test's own for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def fresh(temporary):
    """Hosts of this test's own."""
    with Hosts(step_seconds=20) as opened:
        yield opened


@pytest.fixture
def strict(temporary):
    """Hosts of this test's own that soon lose patience."""
    with Hosts(step_seconds=1) as opened:
        yield opened


def descendants(pid=None):
    """Processes below one, this one unless it is named, zombies included."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    found, level = set(), {pid or os.getpid()}
    while level:
        level = {child for child, parent in parents.items() if parent in level}
        found |= level
    return found


def has_ended(descriptor):
    """Wait for the end of a process by its descriptor."""
    ready = select.select([descriptor], [], [], SOON)[0]
    os.close(descriptor)
    return bool(ready)


# --- what is the same everywhere


@pytest.mark.parametrize("place", PLACES)
def test_an_episode_is_the_same_in_every_place(hosts, place):
    hosted = hosts.open(spec_of(scripted.Counter, place, start=1))
    assert ask(hosted, "begin", {}, 7).value == "seed 7"
    assert observe(hosted).value == said("2", reward=1.0)
    last = observe(hosted)
    assert last.value == said("3", reward=1.0, done=True)
    assert last.seconds < SOON
    assert ask(hosted, "close").value == 3.0


@pytest.mark.parametrize("place", PLACES)
def test_task_and_turn_arrive_whole(hosts, place):
    task = {"question": "1 + 1 \u00fc", "answer": None, "levels": [1, {"a": 0.5}], "messages": [{"role": "user"}]}
    hosted = hosts.open(spec_of(scripted.Mirror, place))
    assert ask(hosted, "begin", task, 7).value[0]["content"] == repr(task)
    given = AgentTurn(
        number=2,
        text="a",
        content="b",
        calls=(ToolCall(name="add", arguments={"x": 1}),),
        malformed="no JSON",
        finish_reason="length",
        is_last=True,
    )
    assert content(ask(hosted, "observe", given)) == repr(given)


@pytest.mark.parametrize("place", PLACES)
def test_what_one_episode_does_to_its_row_reaches_no_other(hosts, place):
    spec, task = spec_of(scripted.Greedy, place), {"list": []}
    assert [ask(hosts.open(spec), "begin", task, 0).value for _ in range(2)] == ["1", "1"]
    assert task == {"list": []}


@pytest.mark.parametrize("place", PLACES)
def test_an_exception_is_a_failure_with_its_first_line(fresh, place, temporary):
    closed = temporary / "closed"
    hosted = begun(fresh, spec_of(scripted.Raising, place), {"closed": str(closed)})
    assert content(observe(hosted, "fine")) == "fine"
    failed = observe(hosted, "raise")
    assert (failed.failure, failed.timed_out, failed.value) == ("ValueError: the board is full", False, None)
    # it is gone, and was closed without being asked
    assert observe(hosted, "fine").failure == "it has ended before"
    after = ask(hosted, "close")
    assert (after.failure, after.value) == (None, None)
    fresh.close()
    assert closed.read_text() == "closed\n"


@pytest.mark.parametrize("place", PLACES)
def test_leaving_the_program_is_a_failure_like_any_other(hosts, place):
    assert observe(begun(hosts, spec_of(scripted.Dying, place)), "exit").failure == "SystemExit: 3"


@pytest.mark.parametrize("place", PLACES)
def test_a_flood_is_refused(hosts, place):
    spec = spec_of(scripted.Flooding, place)
    assert len(content(observe(begun(hosts, spec), "1000000"))) == 1_000_000
    failure = observe(begun(hosts, spec), str(MOST_BYTES)).failure
    assert failure == "flooding.observe returned 1048609 bytes, at most 1048576 are allowed; shorten what it says"


@pytest.mark.parametrize("place", PLACES)
def test_a_wrong_type_is_refused_by_environment_and_method(hosts, place):
    spec = spec_of(scripted.Wrong, place)
    said_of_text = observe(begun(hosts, spec), "text").failure
    assert said_of_text.startswith("wrong.observe returned a value of type str, but must return an Observation")
    assert content(observe(begun(hosts, spec), "dict")) == "text"
    assert "wrong.close returned a reward of type str" in ask(begun(hosts, spec), "close").failure
    opened = ask(hosts.open(spec), "begin", {"opening": 3}, 0)
    assert opened.failure.startswith("wrong.begin returned a value of type int, but must return text")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("none", "returned a value of type NoneType"),
        ("nan", "the reward nan, but it must be finite"),
        ("set", "cannot be written as JSON (it holds a value of type set); make its parts text"),
        ("no role", "must be a dict with `role` and `content`"),
        ("no content", "must be a dict with `role` and `content`"),
        ("null", "must be a dict with `role` and `content`"),
        ("image", "a message with a part of type 'image_url', but only text can be read"),
        ("one message", "`messages` of type dict"),
        ("unknown field", "a dict with the unknown field 'message'"),
        ("surrogate", "text that is no Unicode"),
    ],
)
def test_a_wrong_value_is_told_with_its_remedy(name, sentence):
    with pytest.raises(WrongResult, match=re.escape(sentence)):
        checked("odd", "observe", scripted.VALUES[name])


@pytest.mark.parametrize("method", ["begin", "observe"])
def test_the_parts_of_a_message_become_its_text(method):
    messages = [{"role": "user", "content": [{"type": "text", "text": "one, "}, {"type": "text", "text": "two"}]}]
    found = checked("odd", method, messages if method == "begin" else {"messages": messages})
    assert (found if method == "begin" else found.messages) == ({"role": "user", "content": "one, two"},)


def test_results_are_plain_copies():
    message = {"role": "user", "content": "text"}
    found = checked("plain", "observe", Observation(messages=[message], reward=numpy.float32(0.5), done=numpy.True_))
    message["content"] = "changed later"
    assert found == Observation(messages=({"role": "user", "content": "text"},), reward=0.5, done=True)
    assert (type(found.reward), type(found.done)) == (float, bool)
    assert checked("plain", "close", True) == 1.0
    assert checked("plain", "begin", [message]) == (message,)


# --- instant ones


def test_an_instant_environment_answers_before_the_call_returns(hosts):
    outcomes = []
    hosts.open(spec_of(scripted.Counter, "instant")).call("begin", {}, 1, then=outcomes.append)
    assert [one.value for one in outcomes] == ["seed 1"]


def test_an_instant_environment_must_not_be_async(hosts):
    outcome = ask(hosts.open(spec_of(scripted.Async, "instant")), "begin", {}, 1)
    assert outcome.failure == "async.begin is async, but is to be called at once; leave `is_instant` out"


def test_ctrl_c_during_an_instant_call_is_not_its_failure(hosts):
    class Interrupted(scripted.Silent):
        def begin(self, task, seed):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask(hosts.open(spec_of(Interrupted, "instant")), "begin", {}, 1)


# --- deadlines


@pytest.mark.long
def test_a_late_call_in_a_thread_is_left_behind(strict):
    hosted = begun(strict, spec_of(scripted.Slow))
    late = observe(hosted, "60")
    assert (late.failure, late.timed_out) == ("it took more than 1 seconds", True)
    assert 1 <= late.seconds < SOON
    assert observe(hosted, "0").failure == "it has ended before"
    assert (strict.left, strict.alive) == (1, 0)


@pytest.mark.long
def test_code_that_swallows_every_exception_is_late_all_the_same(strict):
    hosted = begun(strict, spec_of(scripted.Stubborn))
    assert observe(hosted, "2").timed_out


@pytest.mark.long
def test_a_thread_that_computes_is_freed(strict):
    class Endless(scripted.Silent):
        def observe(self, turn):
            try:
                while True:
                    pass
            finally:
                freed.set()

    freed = threading.Event()
    assert observe(begun(strict, spec_of(Endless))).timed_out
    assert freed.wait(SOON)


@pytest.mark.long
def test_threads_that_cannot_be_ended_are_told_with_the_failure(strict):
    waiting = [Asked(begun(strict, spec_of(scripted.Slow)), "observe", turn("5")) for _ in range(5)]
    failures = [one.outcome().failure for one in waiting]
    assert all(one.startswith("it took more than 1 seconds") for one in failures)
    assert "late calls of environments still hold their threads and memory" in failures[4]


@pytest.mark.long
def test_a_late_reply_is_never_taken_for_another(temporary):
    with Hosts(step_seconds=4) as hosts:
        for place in KEPT:
            spec = spec_of(scripted.Slow, place)
            late = Asked(begun(hosts, spec), "observe", turn("5.6"))
            assert late.outcome().timed_out
            hosted = begun(hosts, spec)
            assert content(observe(hosted, "2.4")) == "observation 1"  # meanwhile the late one would have come
            assert content(observe(hosted, "0")) == "observation 2"
            assert late.outcomes.empty()


@pytest.mark.long
def test_a_hung_process_is_killed_with_all_that_it_started(temporary):
    with Hosts(step_seconds=5) as hosts:  # in which it starts three processes, on busy cores too
        sibling = begun(hosts, spec_of(scripted.Counter, "own process"))
        hosted = hosts.open(spec_of(scripted.Leaving, "own process"))
        *numbers, file = ask(hosted, "begin", {}, 0).value.split()
        processes = [os.pidfd_open(int(one)) for one in numbers]
        late = observe(hosted, "hang")
        assert (late.failure, late.timed_out) == ("it took more than 5 seconds", True)
        assert len(select.select(processes, [], [], 0)[0]) == 3  # before the outcome was told
        assert all(has_ended(one) for one in processes)
        assert not Path(file).exists()
        assert [content(observe(sibling)) for _ in range(3)] == ["1", "2", "3"]


def test_what_an_episode_started_ends_with_it(fresh):
    hosted = fresh.open(spec_of(scripted.Leaving, "own process"))
    *numbers, file = ask(hosted, "begin", {}, 0).value.split()
    processes = [os.pidfd_open(int(one)) for one in numbers]
    assert content(observe(hosted)) == "here"
    assert ask(hosted, "close").failure is None
    assert all(has_ended(one) for one in processes)
    fresh.close()
    assert not Path(file).exists()


# --- async ones


def test_an_async_environment_is_awaited_on_one_loop(hosts):
    hosted = begun(hosts, spec_of(scripted.Async))
    assert content(observe(hosted, "0.01")) == "0.01"
    assert ask(hosted, "close").value == 1.0


def test_an_async_environment_runs_in_a_process_too(hosts):
    hosted = begun(hosts, spec_of(scripted.Async, "own process"))
    assert content(observe(hosted, "0.01")) == "0.01"
    assert ask(hosted, "close").value == 1.0


@pytest.mark.long
@pytest.mark.parametrize("kind", [scripted.Async, scripted.AsyncDeaf])
def test_a_late_async_call_is_cancelled(strict, kind):
    late = observe(begun(strict, spec_of(kind)), "60")
    assert (late.failure, late.timed_out) == ("it took more than 1 seconds", True)


@pytest.mark.long
def test_a_coroutine_that_computes_is_interrupted_and_named(strict):
    sibling = begun(strict, spec_of(scripted.Async))
    spinning = Asked(begun(strict, spec_of(scripted.Spinning)), "observe", turn())
    waiting = Asked(sibling, "observe", turn("0"))
    named = "it took more than 1 seconds: environment 'spinning' blocked the event loop"
    assert waiting.outcome().failure.startswith(named)
    assert spinning.outcome().failure.startswith(named)
    assert content(observe(begun(strict, spec_of(scripted.Async)), "0")) == "0"  # on the same loop


@pytest.mark.long
def test_a_coroutine_that_blocks_for_good_loses_its_loop_alone(strict):
    sibling = begun(strict, spec_of(scripted.Async))
    assert "'blocking' blocked the event loop" in observe(begun(strict, spec_of(scripted.Blocking)), "5").failure
    assert "blocked for good" in observe(sibling, "0").failure
    assert content(observe(begun(strict, spec_of(scripted.Async)), "0")) == "0"  # on another loop


# --- many at once


def test_sixty_four_threads_wait_at_the_same_time(hosts):
    class Meeting(scripted.Silent):
        def observe(self, turn):
            everybody.wait(SOON)
            return said("met")

    everybody = threading.Barrier(64)
    spec = spec_of(Meeting)
    waiting = [Asked(begun(hosts, spec), "observe", turn()) for _ in range(64)]
    assert {content(one.outcome()) for one in waiting} == {"met"}


def test_sixty_four_coroutines_wait_at_the_same_time(hosts):
    class Meeting(scripted.Silent):
        async def observe(self, turn):
            await everybody.wait()
            return said("met")

    everybody = asyncio.Barrier(64)
    spec = spec_of(Meeting)
    waiting = [Asked(begun(hosts, spec), "observe", turn()) for _ in range(64)]
    assert {content(one.outcome()) for one in waiting} == {"met"}


@pytest.mark.parametrize("place", KEPT)
def test_one_that_sleeps_holds_up_no_other(fresh, place):
    sleeping = Asked(begun(fresh, spec_of(scripted.Slow, place)), "observe", turn("60"))
    others = [begun(fresh, spec_of(scripted.Counter, place)) for _ in range(8)]
    assert [content(observe(one)) for one in others] == ["1"] * 8
    assert sleeping.outcomes.empty()
    fresh.close()
    assert sleeping.outcome().failure == "it was closed before it returned"


def test_processes_are_bounded_and_the_others_wait_outside_their_deadline(temporary):
    spec = spec_of(scripted.Counter, "own process")
    with Hosts(step_seconds=5, most_processes=2) as hosts:
        living = [begun(hosts, spec) for _ in range(2)]
        waiting = [Asked(hosts.open(spec), "begin", {}, 0) for _ in range(2)]
        assert not select.select([], [], [], 0.2)[0]
        assert all(one.outcomes.empty() for one in waiting)
        for one in living:
            ask(one, "close")
        assert [one.outcome().value for one in waiting] == ["seed 0"] * 2
        assert hosts.alive == 2


@pytest.mark.long
def test_more_episodes_begin_at_once_than_their_orders_fit_into_a_socket(fresh):
    spec, before = spec_of(scripted.Silent, "own process"), descendants()
    begun(fresh, spec)
    (zygote,) = (one for one in descendants() - before if len(descendants(one)) == 1)
    os.kill(zygote, signal.SIGSTOP)
    asked = [Asked(fresh.open(spec), "begin", {}, 0) for _ in range(350)]  # Linux holds 278 by default
    begun(fresh, spec_of(scripted.Silent))  # behind them: what has room is sent
    os.kill(zygote, signal.SIGCONT)
    assert {one.outcome().failure for one in asked} == {None}


def test_the_wait_for_a_process_is_bounded(temporary):
    spec = spec_of(scripted.Counter, "own process")
    with Hosts(step_seconds=5, most_processes=1, wait_seconds=0.2) as hosts:
        begun(hosts, spec)
        refused = ask(hosts.open(spec), "begin", {}, 0)
        assert refused.failure == "none of 1 processes was free for it within 0.2 seconds"
        assert refused.seconds < 5


def listening():
    """Numbers of the sockets of this machine that wait for connections."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {line[9] for line in lines if line[3] == "0A"}


@pytest.mark.long
def test_a_thousand_episodes_with_crashes_leave_nothing(temporary):
    """One in twenty crashes, in every place at once: no process, port, temporary file, open file or thread is left."""

    def there():
        return set(os.listdir("/proc/self/fd")), threading.active_count(), set(temporary.iterdir())

    def every_64th(first):
        for number in range(first, 1000, 64):
            place = ("own process", "own process", "here", "instant")[number // 20 % 4]
            hosted = hosts.open(spec_of(scripted.Littering, place))
            ports.append(ask(hosted, "begin", {"forks": place == "own process"}, 0).value)
            crash = ("_exit" if place == "own process" else "raise") if number % 20 == 19 else ""
            failures[observe(hosted, crash).failure] += 1
            ask(hosted, "close")

    processes, before, ports, failures = descendants(), there(), list[str](), Counter[str | None]()
    with Hosts(step_seconds=20, most_processes=16) as hosts:
        with ThreadPoolExecutor(64) as pool:
            list(pool.map(every_64th, range(64)))
        assert hosts.alive == 0
    assert len(set(ports)) == 1000
    assert failures == {None: 950, "its process ended with exit status 7": 26, "ValueError: the board is full": 24}
    assert not listening() & set(ports)
    (files, threads, left), (files_before, threads_before, left_before) = there(), before
    # what an earlier test has left may end meanwhile
    assert (files - files_before, left - left_before, descendants() - processes) == (set(), set(), set())
    assert threads <= threads_before


# --- processes of their own


@pytest.mark.parametrize(
    ("way", "failure"),
    [
        ("_exit", "its process ended with exit status 7"),
        ("kill", "its process died (signal 9, SIGKILL)"),
        ("fork", None),  # the fork's exception is not the episode's observation
    ],
)
def test_the_death_of_a_process_is_told_with_its_cause(hosts, way, failure):
    hosted = begun(hosts, spec_of(scripted.Dying, "own process"))
    assert observe(hosted, way).failure == failure
    assert observe(hosted).failure == ("it has ended before" if failure else None)


def test_the_global_generator_is_each_episodes_own(hosts):
    spec = spec_of(scripted.Dice, "own process")
    alone = begun(hosts, spec, seed=3)
    game = [content(observe(alone)) for _ in range(3)]
    four = [begun(hosts, spec, seed=seed) for seed in (3, 4, 5, 3)]
    turns = [[content(observe(one)) for one in four] for _ in range(3)]
    first, second, _, last = zip(*turns, strict=True)
    assert list(first) == list(last) == game
    assert list(second) != game


def test_nothing_that_an_environment_changes_is_changed_outside(hosts, capfd):
    hosts_before = (os.getcwd(), random.getstate(), dict(os.environ), list(sys.path))
    hosted, sibling = (begun(hosts, spec_of(kind, "own process")) for kind in (scripted.Messy, scripted.Counter))
    assert observe(hosted).failure == "SystemExit: bye"
    assert content(observe(sibling)) == "1"
    assert (os.getcwd(), random.getstate(), dict(os.environ), list(sys.path)) == hosts_before
    assert capfd.readouterr() == ("", "")


def test_a_column_that_json_cannot_hold_is_named(hosts):
    outcome = ask(hosts.open(spec_of(scripted.Silent, "own process")), "begin", {"text": "", "image": b"png"}, 0)
    assert outcome.failure == (
        "'image' among what it is given cannot be written as JSON for its process (it holds a value of type bytes); "
        "remove it, or make it text"
    )


def test_an_environment_is_loaded_from_a_file(hosts, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(f"from {MODULE} import Counter\nclass Outer:\n    class Inner(Counter):\n        pass\n")
    spec = EnvironmentSpec(
        name="mine", make=scripted.Counter, address=f"{file}:Outer.Inner", arguments={"start": 4}, own_process=True
    )
    assert content(observe(begun(hosts, spec))) == "5"


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("class Mine: pass", "{file}:Missing: there is no 'Missing' in it"),
        ("raise SystemExit(1)", "{file}:Missing: the file cannot be loaded (SystemExit: 1); correct it first"),
        ("1 / 0", "{file}:Missing: the file cannot be loaded (ZeroDivisionError: division by zero); correct it first"),
    ],
)
def test_a_module_that_cannot_be_loaded_is_told(hosts, tmp_path, text, failure):
    file = tmp_path / "mine.py"
    file.write_text(text)
    spec = EnvironmentSpec(name="mine", make=scripted.Silent, address=f"{file}:Missing", own_process=True)
    outcome = ask(hosts.open(spec), "begin", {}, 0)
    assert outcome.failure == failure.format(file=file)


def test_a_lost_zygote_is_replaced_and_its_files_are_removed(fresh, temporary):
    before = descendants()
    hosted = begun(fresh, spec_of(scripted.Counter, "own process"))
    ours = descendants() - before
    (monitor,) = (one for one in ours if descendants(one) == ours - {one})
    processes = [os.pidfd_open(one) for one in ours]
    os.kill(monitor, signal.SIGKILL)
    assert all(has_ended(one) for one in processes)
    assert observe(hosted).failure == "its process died with the one that it was forked from"
    assert content(observe(begun(fresh, spec_of(scripted.Counter, "own process")))) == "1"
    assert len(list(temporary.iterdir())) == 1
    fresh.close()
    assert not list(temporary.iterdir())


def test_what_all_episodes_share_is_prepared_once(hosts):
    spec = EnvironmentSpec(
        name="shared", make=scripted.Silent, address=f"{MODULE}:shared", arguments={"size": 3}, own_process=True
    )
    first, second = (content(observe(begun(hosts, spec))) for _ in range(2))
    assert first == second
    assert first.split()[0] == "3"
    assert int(first.split()[1]) != os.getpid()


def test_no_episode_pays_for_heavy_libraries(hosts):
    assert content(observe(begun(hosts, spec_of(scripted.Loaded, "own process")))) == ""


def test_a_process_of_its_own_needs_an_address():
    with pytest.raises(ConfigError, match="environment 'x' is to have a process of its own, but has no address"):
        EnvironmentSpec(name="x", make=scripted.Silent, own_process=True)


# --- ends


@pytest.mark.parametrize("place", KEPT)
def test_closing_during_an_observation_ends_both(hosts, place):
    hosted = begun(hosts, spec_of(scripted.Slow, place))
    observing = Asked(hosted, "observe", turn("60"))
    closed = ask(hosted, "close")
    assert (closed.failure, closed.value) == (None, None)
    assert observing.outcome().failure == "it was closed before it returned"


@pytest.mark.long
def test_everything_ends_within_bounds_whatever_hangs(temporary, monkeypatch):
    monkeypatch.setattr(scripted.Stubborn, "over", threading.Event())
    kinds = (scripted.Slow, scripted.Stubborn, scripted.Async, scripted.AsyncDeaf, scripted.Spinning)
    specs = [*map(spec_of, kinds), *(spec_of(kind, "own process") for kind in kinds)]
    before = descendants()
    with Hosts(step_seconds=600) as hosts:
        all_begun = [begun(hosts, spec) for spec in specs]  # before any computes without end in this process
        waiting = [Asked(hosted, "observe", turn("600")) for hosted in all_begun]
        started = time.monotonic()
    taken = time.monotonic() - started
    scripted.Stubborn.over.set()  # its thread computes on, and would slow down what comes after
    assert taken < CLOSE_SECONDS
    assert [one.outcome().failure for one in waiting] == ["it was closed before it returned"] * len(specs)
    assert all(one.outcomes.empty() for one in waiting)
    assert descendants() - before == set()  # one of an earlier test may end meanwhile
    assert observe(hosts.open(specs[0])).failure == "the run ended before it returned"


def test_those_that_live_are_closed_at_the_end(temporary):
    with Hosts(step_seconds=20) as hosts:
        for place in KEPT:
            begun(hosts, spec_of(scripted.Raising, place), {"closed": str(temporary / place)})
    assert [(temporary / place).read_text() for place in KEPT] == ["closed\n"] * 2


@pytest.mark.parametrize("place", KEPT)
def test_a_close_under_way_is_not_cut_short_by_the_end(temporary, place):
    with Hosts(step_seconds=20) as hosts:
        files = [temporary / f"{number}" for number in range(10)]
        opened = [begun(hosts, spec_of(scripted.Raising, place), {"closed": str(file)}) for file in files]
        asked = [Asked(one, "close") for one in opened]
    assert [one.outcome().failure for one in asked] == [None] * len(files)
    assert [file.read_text() for file in files] == ["closed\n"] * len(files)


OWNER = """
import signal, sys, threading
from dataclasses import replace
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has what it starts in the background ignore it
from paceline.environments.hosting import Hosts
from paceline.environments import ToolCall
from paceline.environments.resolving import specs
from tests.unit.environments.test_hosting import Asked, ask, begun, scripted, spec_of, turn
from tests.unit.sandbox.sandboxes import strongest
with Hosts(step_seconds=600) as hosts:
    hosted = hosts.open(spec_of(scripted.Leaving, "own process"))
    said = ask(hosted, "begin", {}, 0).value
    Asked(hosted, "observe", turn("hang"))
    Asked(begun(hosts, spec_of(scripted.Slow)), "observe", turn("600"))
    interpreter = begun(hosts, specs([f"python:{strongest()}"])["python"])
    one, endless = (
        replace(turn(), calls=(ToolCall(name="python", arguments={"code": code}),)) for code in ("1", "while True: 1")
    )
    ask(interpreter, "observe", one)
    Asked(interpreter, "observe", endless)
    print(said, flush=True)
    threading.Event().wait()
"""


@contextlib.contextmanager
def owner(folder):
    """A trainer in the middle of calls, which writes its temporary files there; yields it and all of its processes."""
    command, environment = [sys.executable, "-c", OWNER], {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, cwd=ROOT
    ) as process:
        try:
            said_of = process.stdout.readline().split()
            everything = descendants(process.pid)
            assert {int(one) for one in said_of[:-1]} <= everything
            yield process, everything
        finally:
            process.kill()  # else a failure above would wait for it without end


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_the_trainer(tmp_path, number):
    with owner(tmp_path) as (process, everything):
        processes = [os.pidfd_open(one) for one in everything]
        process.send_signal(number)
        assert all(has_ended(one) for one in processes)
        assert process.wait(SOON) == -number
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_what_nobody_could_remove_is_removed_by_the_next_attempt(tmp_path):
    """All processes are stopped before any is killed, so none cleans up after another: scratch directories stay."""
    with owner(tmp_path) as (process, everything):
        processes = [os.pidfd_open(one) for one in everything]
        for sent in (signal.SIGSTOP, signal.SIGKILL):
            for one in processes:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(one, sent)
            process.send_signal(sent)
        assert all(has_ended(one) for one in processes)
    left = {one.name for one in tmp_path.iterdir()}
    assert left
    with owner(tmp_path) as (process, _):
        assert not left & {one.name for one in tmp_path.iterdir()}
        process.send_signal(signal.SIGINT)
        assert process.wait(SOON) == -signal.SIGINT
    assert not list(tmp_path.iterdir())


def test_a_reply_to_nobody_is_harmless(fresh):
    """A trainer that has closed everything is told nothing by what comes later."""
    waiting = Asked(begun(fresh, spec_of(scripted.Slow)), "observe", turn("0.5"))
    fresh.close()
    assert waiting.outcome().failure == "it was closed before it returned"
    assert threading.Event().wait(0.7) is False
    assert waiting.outcomes.empty()
