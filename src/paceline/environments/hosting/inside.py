"""What runs in other processes: a monitor, the zygote that has loaded one environment, and its forks, one per episode.

The monitor ends with the trainer and takes everything with it. The zygote forks, kills and reaps; what an episode has
started ends with it. An episode answers one request at a time on a socket of its own, in JSON, with the request's
number. Standard library only, but for what the environment itself imports.
"""

import asyncio
import contextlib
import functools
import gc
import inspect
import json
import os
import random
import resource
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from paceline.environments import AgentTurn, Environment, ToolCall
from paceline.environments.hosting.printed import Tail
from paceline.environments.hosting.results import Method, attempt, awaited, checked, described, plain
from paceline.errors import ConfigError
from paceline.runtime.own_code import own_module
from paceline.sandbox.inside import kernel
from paceline.sandbox.inside.channel import PREFIX, BrokenChannelError, receive_bytes
from paceline.sandbox.inside.monitor import TerminationError
from paceline.sandbox.inside.scratch import hold_new, make_empty, remove_left
from paceline.sandbox.inside.serving import end_children, own_children

MOST_ORDER = 1 << 16  # Bytes of one message between the trainer and the zygote
MOST_FILES = 8192
BROKEN = 70  # Exit status of an episode's process that cannot answer


def main(setup: dict[str, Any]) -> None:
    """Run as the monitor: fork the zygote, and end it with the trainer or at its wish.

    `setup`: `control` (a descriptor), `parent` (the trainer's process number), `directory` (for temporary files),
    and the environment's `name`, `address` and `arguments`.
    """
    signal.signal(signal.SIGTERM, _terminate)
    control = socket.socket(fileno=setup["control"])
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    parent, scratch = os.pidfd_open(os.getppid()), None
    if os.getppid() != setup["parent"]:  # it ended in the meantime
        return
    try:
        remove_left(setup["directory"])
        scratch = hold_new(setup["directory"])
        _monitor(control, parent, setup, scratch)
    except TerminationError:
        pass
    except OSError as error:
        with contextlib.suppress(OSError):
            _send(control, {"failed": described(error)})
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if scratch is not None:
            _remove(scratch)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise TerminationError


def _monitor(control: socket.socket, parent: int, setup: dict[str, Any], scratch: str) -> None:
    own = os.pidfd_open(os.getpid())
    kernel.control_process(kernel.PR_SET_CHILD_SUBREAPER, 1)
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.close(parent)
            kernel.control_process(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
            if not select.select([own], [], [], 0)[0]:  # the monitor may have ended before
                os.close(own)
                _Zygote(control, setup, scratch).serve()
        except OSError as error:
            with contextlib.suppress(OSError):
                _send(control, {"failed": described(error)})
        finally:
            os._exit(0)
    control.close()
    try:
        select.select([parent, os.pidfd_open(pid)], [], [])
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        end_children()


def _remove(directory: str) -> None:
    with contextlib.suppress(OSError):  # what an episode has made unremovable stays, as it would without us
        make_empty(directory)
        os.rmdir(directory)


def _send(control: socket.socket, message: dict[str, Any]) -> None:
    control.send(json.dumps(message).encode())


def _loaded(address: str, arguments: dict[str, Any]) -> Callable[[], Environment]:
    """Return what makes the environment, and let it prepare what all episodes share."""
    where, _, attribute = address.rpartition(":")
    module = own_module(where, label=address, error=ConfigError)
    try:
        factory: Any = functools.reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        raise ConfigError(f"{address}: there is no {attribute!r} in it") from error
    if not isinstance(factory, type) and hasattr(factory, "prepare"):  # of a class it would be a method of its objects
        factory.prepare(**arguments)
    return functools.partial(factory, **arguments)


class _Zygote:
    """The process that has loaded the environment's module, for all episodes to fork from."""

    def __init__(self, control: socket.socket, setup: dict[str, Any], scratch: str) -> None:
        self._control, self._setup, self._scratch = control, setup, scratch
        self._events = select.poll()
        self._children = dict[int, tuple[int, int]]()
        """By descriptor of a process, the number of its episode and its own."""
        self._printed = dict[int, Tail]()
        """By number of an episode, what it prints."""
        self._printing = dict[int, Tail]()
        """The same by the descriptor that is read, as long as somebody may write."""

    def serve(self) -> None:
        """Fork and kill at the trainer's orders until it has closed the other end."""
        kernel.control_process(kernel.PR_SET_CHILD_SUBREAPER, 1)
        make, failure = attempt(functools.partial(_loaded, self._setup["address"], self._setup["arguments"]))
        if failure is not None:
            _send(self._control, {"failed": failure})
            return
        loaded = own_children()  # processes that serve all episodes
        _allow_files()
        gc.collect()
        gc.freeze()  # forks share what has been loaded
        self._events.register(self._control, select.POLLIN)
        with contextlib.suppress(ConnectionError):  # the trainer is gone; the monitor ends what is left
            _send(self._control, {"ready": True})
            while True:
                ready = [descriptor for descriptor, _ in self._events.poll()]
                # what is printed comes first, new processes last: they may get the numbers of closed descriptors
                for descriptor in self._printing.keys() & ready:
                    if not self._printing[descriptor].read():
                        self._read_no_more(descriptor)
                for descriptor in self._children.keys() & ready:
                    self._reap(descriptor, loaded)
                if self._control.fileno() in ready and not self._obey(make):
                    return

    def _obey(self, make: Callable[[], Environment]) -> bool:
        """Carry out the trainer's next order; returns False where it has closed the other end."""
        data, channels, _, _ = socket.recv_fds(self._control, MOST_ORDER, 1)
        if not data:
            return False
        order = json.loads(data)
        if "fork" in order:
            self._fork(order["fork"], channels[0], make)
        for number, pid in self._children.values():
            if order.get("kill") == number:
                _kill(pid)
        return True

    def _fork(self, number: int, channel: int, make: Callable[[], Environment]) -> None:
        try:
            tail = Tail()
            pid = os.fork()
        except OSError as error:
            os.close(channel)
            _send(self._control, {"ended": number, "failed": described(error)})
            return
        if pid == 0:
            self._control.close()
            for one in (*self._children, *(other.reads for other in self._printed.values()), tail.reads):
                os.close(one)
            for stream in (1, 2):
                os.dup2(tail.writes, stream)
            os.close(tail.writes)
            episode = _Episode(self._setup["name"], make)
            _live(socket.socket(fileno=channel), episode, f"{self._scratch}/{number}")
        os.close(channel)
        os.close(tail.writes)
        self._printed[number] = self._printing[tail.reads] = tail
        self._events.register(tail.reads, select.POLLIN)
        descriptor = os.pidfd_open(pid)
        self._children[descriptor] = (number, pid)
        self._events.register(descriptor, select.POLLIN)

    def _reap(self, descriptor: int, loaded: list[int]) -> None:
        """Take leave of an episode whose process has ended: nothing that it has started or written stays."""
        number, pid = self._children.pop(descriptor)
        self._events.unregister(descriptor)
        os.close(descriptor)
        _kill(pid)
        _, status = os.waitpid(pid, 0)
        end_children(besides={*loaded, *(other for _, other in self._children.values())})
        _remove(f"{self._scratch}/{number}")
        tail = self._printed.pop(number)
        if tail.reads in self._printing:
            self._read_no_more(tail.reads)
        _send(self._control, {"ended": number, "code": os.waitstatus_to_exitcode(status), "printed": tail.close()})

    def _read_no_more(self, descriptor: int) -> None:
        del self._printing[descriptor]
        self._events.unregister(descriptor)


def _allow_files() -> None:
    """Raise this process's limit on descriptors: each episode has three here, and the usual limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, MOST_FILES) if hard > 0 else MOST_FILES  # without a limit it is -1
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def _kill(pid: int) -> None:
    """Kill a child that has not been reaped, and its process group; it has none before it has made one."""
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _live(channel: socket.socket, episode: "_Episode", scratch: str) -> NoReturn:
    """Answer for one episode until its end."""
    own = os.getpid()
    try:
        zygote = os.getppid()
        os.setsid()
        kernel.control_process(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        kernel.control_process(kernel.PR_SET_CHILD_SUBREAPER, 1)  # what it starts stays below it while it lives
        if os.getppid() != zygote:
            os._exit(BROKEN)
        os.mkdir(scratch, 0o700)
        os.environ["TMPDIR"], tempfile.tempdir = scratch, None
        while True:
            (length,) = PREFIX.unpack(receive_bytes(channel, PREFIX.size))
            request = json.loads(receive_bytes(channel, length))
            value, failure = attempt(functools.partial(episode.carry_out, request["method"], request["given"]))
            if os.getpid() != own:  # a fork that the environment has made came back from its method
                os._exit(BROKEN)
            reply = {"id": request["id"], "value": value, "failure": failure}
            data = json.dumps(reply, ensure_ascii=False, default=plain).encode()
            channel.sendall(PREFIX.pack(len(data)) + data)
            if request["method"] == "close":
                os._exit(0)
    except BrokenChannelError:
        os._exit(0)
    finally:
        os._exit(BROKEN)


class _Episode:
    """An environment and the event loop of its async methods."""

    def __init__(self, name: str, make: Callable[[], Environment]) -> None:
        self._name, self._make, self._runner = name, make, asyncio.Runner()
        self._environment: Environment | None = None

    def carry_out(self, method: Method, given: list[Any]) -> Any:
        """Call a method, and return what it returned, checked."""
        if method == "begin":
            seed_generators(given[1])
            self._environment = self._make()
            seed_generators(given[1])  # of what has been imported by now
        elif method == "answer":
            told: dict[str, Any] = {
                name: tuple(one) if isinstance(one, list) else one for name, one in given[0].items()
            }
            told["calls"] = tuple(ToolCall(**one) for one in told["calls"])
            given = [AgentTurn(**told)]
        value = getattr(self._environment, method)(*given)
        if inspect.isawaitable(value):
            value = self._runner.run(awaited(value))
        return checked(self._name, method, value)


def seed_generators(seed: int) -> None:
    """Give global generators the episode's seed: what an environment draws from them must not depend on the zygote."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
