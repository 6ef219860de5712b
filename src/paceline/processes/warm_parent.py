"""A warm parent and its forks, as the process that uses them sees them: on an event loop, each wait with a deadline.

A reply belongs to the request with its number. After a late one the fork is killed and its socket closed, so no reply
can be taken for another's.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from typing import NamedTuple

from paceline.base_directory import import_path
from paceline.processes.children import PREFIX
from paceline.processes.forking import MOST_ORDER, Result, printed_lines
from paceline.processes.starting import HostFailure, start_python

START_SECONDS = 300.0
"""Seconds in which a parent must have loaded its code: libraries, an index of documents."""
ORDER_SECONDS = 60.0
"""Seconds in which a parent must have forked or killed a process; later ones count as stuck. On two busy cores hundreds
of orders that come at once took more than ten."""
END_SECONDS = 10.0
MOST_REPLY = (1 << 20) + (1 << 14)  # Bytes of a reply, at most: an observation, its reward and its frame
START = (
    "import json, sys; setup = json.load(sys.stdin); sys.path[:] = setup['path']; "
    "from paceline.processes.forking import main; main(setup)"
)
DEFAULTS = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8:backslashreplace"}
"""Variables that forks get where they are not set: the order of sets is the same in each run, many processes do not
fight for the processors, and whatever they print can be written."""


class ProcessEnd(NamedTuple):
    """End of a fork."""

    how: str
    printed: tuple[str, ...]
    """Last lines that it has printed."""


class WarmParent:
    """The process that has loaded some code, and forks."""

    def __init__(self, load: str, code: str) -> None:
        """Start it: `load` is a `forking.LoadCode` as `module:function`, `code` what it gets, as JSON.

        Raises:
            HostFailure: it cannot be started.
        """
        if sys.platform != "linux":
            raise HostFailure("processes of its own need Linux; let it run in this process")
        self.is_lost = False
        """True once it is gone or stuck: it must not be asked for anything."""
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._children = dict[int, asyncio.Future[ProcessEnd]]()
        self._count = 0
        self._unsent = deque[tuple[bytes, socket.socket | None]]()
        """Orders that the socket has no room for, as the parent has not read those before: it forks one by one."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        setup = {
            "control": theirs.fileno(),
            "user": os.getpid(),
            "path": import_path(sys.path),
            "directory": tempfile.gettempdir(),
            "load": load,
            "code": json.loads(code),
        }
        try:
            with theirs, tempfile.TemporaryFile() as file:
                file.write(json.dumps(setup).encode())
                file.seek(0)
                self._process = start_python(
                    *("-u", "-P", "-c", START),
                    stdin=file,
                    stdout=subprocess.DEVNULL,
                    variables={name: value for name, value in DEFAULTS.items() if name not in os.environ},
                    pass_fds=[theirs.fileno()],
                )
        except OSError as error:
            self._control.close()
            raise HostFailure(f"its process cannot be started: {error}") from error
        self._loop.add_reader(self._control.fileno(), self._read)

    async def fork(self) -> "Fork":
        """Fork a process.

        Raises:
            HostFailure: the code cannot be loaded, or no process can be started.
        """
        try:
            async with asyncio.timeout(START_SECONDS):
                await asyncio.shield(self._ready)
        except TimeoutError:
            self.end()
            raise HostFailure(f"it was not loaded within {START_SECONDS:g} seconds") from None
        self._count += 1
        number, ours, theirs = self._count, *socket.socketpair()
        ended = self._children[number] = self._loop.create_future()
        self._order({"fork": number}, theirs)
        ours.setblocking(False)
        try:
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            self.kill(number)
            raise
        return Fork(self, number, reader, writer, ended)

    def kill(self, number: int) -> None:
        """Kill a process with all that it has started."""
        if number in self._children:
            self._order({"kill": number})

    def _order(self, order: dict[str, int], channel: socket.socket | None = None) -> None:
        """Send an order, with a socket that is the parent's from then on, as soon as there is room for it."""
        self._unsent.append((json.dumps(order).encode(), channel))
        if len(self._unsent) == 1:
            self._send()

    def _send(self) -> None:
        while self._unsent:
            data, channel = self._unsent[0]
            try:
                socket.send_fds(self._control, [data], [] if channel is None else [channel.fileno()])
            except BlockingIOError:
                self._loop.add_writer(self._control.fileno(), self._send)
                return
            except OSError:  # it is gone
                self.end()
                return
            self._unsent.popleft()
            if channel is not None:
                channel.close()
        self._loop.remove_writer(self._control.fileno())

    def _read(self) -> None:
        try:
            data = self._control.recv(MOST_ORDER)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.end()
            return
        message = json.loads(data)
        if "ended" in message:
            code = message.get("code")
            how = _ended(code) if code is not None else f"its process could not be started ({message['failed']})"
            ended = ProcessEnd(how, printed_lines(message.get("printed", "")))
            self._children.pop(message["ended"]).set_result(ended)
        elif self._ready.done():
            self.end()
        elif "failed" in message:
            self._fail_start(message["failed"])
        else:
            self._ready.set_result(None)

    def _fail_start(self, reason: str) -> None:
        if not self._ready.done():
            self._ready.set_exception(HostFailure(reason))
            self._ready.exception()  # nobody may be waiting for it

    def end(self) -> None:
        """End it with all its processes, which takes some time; see `wait`."""
        for _, channel in self._unsent:
            if channel is not None:
                channel.close()
        self._unsent.clear()
        if self.is_lost:
            return
        self.is_lost = True
        self._loop.remove_reader(self._control.fileno())
        self._loop.remove_writer(self._control.fileno())
        self._control.close()
        self._process.terminate()
        self._fail_start("the process that was to load it has ended")
        for ended in self._children.values():
            ended.set_result(ProcessEnd("its process died with the one that it was forked from", ()))
        self._children.clear()

    def wait(self, seconds: float) -> None:
        """Wait until it has ended, and insist after so many seconds."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Fork:
    """A process that answers requests."""

    def __init__(
        self,
        parent: WarmParent,
        number: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        ended: "asyncio.Future[ProcessEnd]",
    ) -> None:
        self._parent, self._number, self._reader, self._writer = parent, number, reader, writer
        self._count = 0
        self._ended = ended
        ended.add_done_callback(lambda _: writer.close())

    async def call(self, method: str, arguments: str) -> Result:
        """Call a method with arguments in JSON; returns its result and None, or None and a sentence of what it raised.

        Raises:
            HostFailure: the process died, or says more than it may.
        """
        self._count += 1
        data = f'{{"id": {self._count}, "method": "{method}", "arguments": {arguments}}}'.encode()
        self._writer.write(PREFIX.pack(len(data)) + data)
        try:
            (length,) = PREFIX.unpack(await self._reader.readexactly(PREFIX.size))
            if length > MOST_REPLY:
                raise HostFailure(f"its process sent {length} bytes, at most {MOST_REPLY} are allowed")
            reply = json.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            raise HostFailure((await self.end()).how) from None
        if reply["id"] != self._count:
            raise HostFailure(f"its process answered request {reply['id']} instead of {self._count}")
        return reply["value"], reply["failure"]

    async def end(self) -> ProcessEnd:
        """Kill the process if it lives, wait until all that it has started is gone too, and say how it ended."""
        self._parent.kill(self._number)
        try:
            async with asyncio.timeout(ORDER_SECONDS):
                return await asyncio.shield(self._ended)
        except TimeoutError:
            self._parent.end()
            return ProcessEnd("its process could not be ended, and neither could the one that it was forked from", ())


def _ended(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit status {code}"
    name = ""
    with contextlib.suppress(ValueError):
        name = f", {signal.Signals(-code).name}"
    return f"its process died (signal {-code}{name})"


class WarmParents:
    """Warm parents by the code that they have loaded, and a bound on their forks."""

    def __init__(self, load: str, most: int, wait: float) -> None:
        """`most` forks live at a time; others wait for at most `wait` seconds until one has ended."""
        self._load, self._most, self._wait = load, most, wait
        self._free = asyncio.Semaphore(most)
        self._parents: dict[str, list[WarmParent]] = {}

    async def fork(self, code: str) -> Fork:
        """Wait until there may be another fork, and fork a process that has loaded some code; raises HostFailure."""
        try:
            async with asyncio.timeout(self._wait):
                await self._free.acquire()
        except TimeoutError:
            raise HostFailure(f"none of {self._most} processes was free for it within {self._wait:g} seconds") from None
        try:
            parents = self._parents.setdefault(code, [])
            if not parents or parents[-1].is_lost:
                parents.append(WarmParent(self._load, code))
            return await parents[-1].fork()
        except BaseException:
            self._free.release()
            raise

    async def end(self, fork: Fork) -> ProcessEnd:
        """End a process, and let another be forked."""
        try:
            return await fork.end()
        finally:
            self._free.release()

    def close(self) -> None:
        """End all processes, within `END_SECONDS` unless the machine is stuck."""
        all_parents = [parent for parents in self._parents.values() for parent in parents]
        for parent in all_parents:
            parent.end()
        until = time.monotonic() + END_SECONDS
        for parent in all_parents:
            parent.wait(max(0.0, until - time.monotonic()))
