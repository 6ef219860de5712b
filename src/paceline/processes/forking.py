"""What runs in a warm parent's processes: a monitor, the parent that has loaded some code, and its forks.

The monitor ends with the process that uses them and takes everything with it. The parent forks, kills and reaps; what
a fork has started ends with it. A fork answers one request at a time on a socket of its own, in JSON, with the
request's number. Standard library only, but for what is loaded.
"""

import contextlib
import dataclasses
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from paceline.processes.children import (
    PREFIX,
    BrokenChannelError,
    TerminationError,
    adopt_orphans,
    children_of_this,
    die_with_parent,
    end_children,
    guard,
    raise_termination,
    receive_bytes,
)
from paceline.processes.scratch import hold_new, make_empty, remove_left
from paceline.runtime.shown_text import hidden

MOST_ORDER = 1 << 16  # Bytes of one message between user and parent
MOST_FILES = 8192
BROKEN = 70  # Exit status of a fork that cannot answer
MOST_KEPT = 1 << 13
"""Bytes of what a process has printed that are kept: the last ones."""
MOST_LINES, MOST_LINE = 20, 500
"""Lines that are shown, and characters of each."""
PIPE_BYTES = 1 << 16
LAST = "close"
"""Method after which a fork ends."""

Result = tuple[Any, str | None]
"""What a call returned and None, or None and a sentence of what failed."""
Serve = Callable[[str, list[Any]], Result]
"""Carries out a method, with arguments in JSON, in a fork."""
LoadCode = Callable[[Any], tuple[Callable[[], Serve] | None, str | None]]
"""Loads code, by what was given for it: returns what makes a `Serve` in each fork, or why it cannot be loaded."""


def main(setup: dict[str, Any]) -> None:
    """Run as the monitor: fork the parent, and end it with its user or at its wish.

    `setup`: `control` (a descriptor), `user` (the user's process number), `directory` (for temporary files), `load` (a
    `LoadCode` as `module:function`) and `code` (what it gets).
    """
    signal.signal(signal.SIGTERM, raise_termination)
    control = socket.socket(fileno=setup["control"])
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    user, scratch = os.pidfd_open(os.getppid()), None
    if os.getppid() != setup["user"]:  # it ended in the meantime
        return
    try:
        remove_left(setup["directory"])
        scratch = hold_new(setup["directory"])
        _monitor(control, user, setup, scratch)
    except TerminationError:
        pass
    except OSError as error:
        with contextlib.suppress(OSError):
            _send(control, {"failed": _described(error)})
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if scratch is not None:
            _remove(scratch)


def _monitor(control: socket.socket, user: int, setup: dict[str, Any], scratch: str) -> None:
    monitor = os.pidfd_open(os.getpid())
    adopt_orphans()
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.close(user)
            die_with_parent()
            if not select.select([monitor], [], [], 0)[0]:  # the monitor may have ended before
                os.close(monitor)
                _WarmParent(control, setup, scratch).serve()
        except OSError as error:
            with contextlib.suppress(OSError):
                _send(control, {"failed": _described(error)})
        finally:
            os._exit(0)
    control.close()
    guard(user, pid)


def _described(error: OSError) -> str:
    return f"{type(error).__name__}: {error}"


def plain(value: Any) -> Any:
    """Return a record or a mapping as a dict, for `json.dumps`; raises TypeError for what JSON does not have."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"it holds a value of type {type(value).__name__}")


def _remove(directory: str) -> None:
    with contextlib.suppress(OSError):  # what a fork has made unremovable stays, as it would without us
        make_empty(directory)
        os.rmdir(directory)


def _send(control: socket.socket, message: dict[str, Any]) -> None:
    control.send(json.dumps(message).encode())


class Tail:
    """The end of what is written into a pipe, read as it comes: who writes never waits for long."""

    def __init__(self) -> None:
        self.reads, self.writes = os.pipe()
        """Descriptors of both ends."""
        os.set_blocking(self.reads, False)
        self._kept, self._is_cut = b"", False

    def read(self) -> bool:
        """Read what there is, at most what a pipe holds; returns False at its end."""
        try:
            data = os.read(self.reads, PIPE_BYTES)
        except BlockingIOError:
            return True
        whole = self._kept + data
        self._is_cut = self._is_cut or len(whole) > MOST_KEPT
        self._kept = whole[-MOST_KEPT:]
        return bool(data)

    def close(self) -> str:
        """Read the rest that is in the pipe, close it, and return the end of what was written, from a line's start."""
        while select.select([self.reads], [], [], 0)[0] and self.read():
            pass
        os.close(self.reads)
        kept = self._kept.partition(b"\n")[2] if self._is_cut and b"\n" in self._kept else self._kept
        return hidden(kept.decode(errors="backslashreplace"))


def printed_lines(text: str) -> tuple[str, ...]:
    r"""Return the last lines of a text, without secrets; of a line that was written over, what stood there at last.

    Control characters are written as their escapes: what is recorded is shown in terminals too.

    >>> printed_lines("10 %\r20 %\n\x1b[31mred\n\n")
    ('20 %', '\\x1b[31mred')
    """
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in hidden(text).split("\n")]
    shown = ["".join(map(_escaped, line.rstrip())) for line in lines if line.strip()]
    return tuple(line if len(line) <= MOST_LINE else f"{line[:MOST_LINE]}..." for line in shown[-MOST_LINES:])


def _escaped(character: str) -> str:
    if character.isprintable() or character == "\t":
        return character
    return character.encode("unicode_escape", "surrogatepass").decode()


class _WarmParent:
    """The process that has loaded the code, from which all others are forked."""

    def __init__(self, control: socket.socket, setup: dict[str, Any], scratch: str) -> None:
        self._control, self._setup, self._scratch = control, setup, scratch
        self._events = select.poll()
        self._children = dict[int, tuple[int, int]]()
        """By descriptor of a process, the number of the fork and that of the process."""
        self._printed = dict[int, Tail]()
        """By number of a fork, what it prints."""
        self._printing = dict[int, Tail]()
        """The same by the descriptor that is read, as long as somebody may write."""

    def serve(self) -> None:
        """Fork and kill at the user's orders until it has closed the other end."""
        adopt_orphans()
        module, _, name = self._setup["load"].partition(":")
        load: LoadCode = getattr(importlib.import_module(module), name)
        make, failure = load(self._setup["code"])
        if make is None:
            _send(self._control, {"failed": failure})
            return
        loaded = children_of_this()  # processes that serve all forks
        _allow_files()
        gc.collect()
        gc.freeze()  # forks share what has been loaded
        self._events.register(self._control, select.POLLIN)
        with contextlib.suppress(ConnectionError):  # the user is gone; the monitor ends what is left
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

    def _obey(self, make: Callable[[], Serve]) -> bool:
        """Carry out the user's next order; returns False where it has closed the other end."""
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

    def _fork(self, number: int, channel: int, make: Callable[[], Serve]) -> None:
        try:
            tail = Tail()
            pid = os.fork()
        except OSError as error:
            os.close(channel)
            _send(self._control, {"ended": number, "failed": _described(error)})
            return
        if pid == 0:
            self._control.close()
            for descriptor in (*self._children, *(other.reads for other in self._printed.values()), tail.reads):
                os.close(descriptor)
            for stream in (1, 2):
                os.dup2(tail.writes, stream)
            os.close(tail.writes)
            _live(socket.socket(fileno=channel), make, f"{self._scratch}/{number}")
        os.close(channel)
        os.close(tail.writes)
        self._printed[number] = self._printing[tail.reads] = tail
        self._events.register(tail.reads, select.POLLIN)
        descriptor = os.pidfd_open(pid)
        self._children[descriptor] = (number, pid)
        self._events.register(descriptor, select.POLLIN)

    def _reap(self, descriptor: int, loaded: list[int]) -> None:
        """Remove all that a fork which has ended has started or written."""
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
    """Raise this process's limit on descriptors: each fork has three here, and the usual limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, MOST_FILES) if hard > 0 else MOST_FILES  # without a limit it is -1
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def _kill(pid: int) -> None:
    """Kill a child that has not been reaped, and its process group; it has none before it has made one."""
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _live(channel: socket.socket, make: Callable[[], Serve], scratch: str) -> NoReturn:
    """Answer requests in a fork until its end."""
    pid = os.getpid()
    try:
        parent = os.getppid()
        os.setsid()
        die_with_parent()
        adopt_orphans()  # what it starts stays below it while it lives
        if os.getppid() != parent:
            os._exit(BROKEN)
        os.mkdir(scratch, 0o700)
        os.environ["TMPDIR"], tempfile.tempdir = scratch, None
        serve = make()
        while True:
            (length,) = PREFIX.unpack(receive_bytes(channel, PREFIX.size))
            request = json.loads(receive_bytes(channel, length))
            value, failure = serve(request["method"], request["arguments"])
            if os.getpid() != pid:  # a fork that the code has made itself came back from a method
                os._exit(BROKEN)
            reply = {"id": request["id"], "value": value, "failure": failure}
            data = json.dumps(reply, ensure_ascii=False, default=plain).encode()
            channel.sendall(PREFIX.pack(len(data)) + data)
            if request["method"] == LAST:
                os._exit(0)
    except BrokenChannelError:
        os._exit(0)
    finally:
        os._exit(BROKEN)
