"""Environments in processes of their own, as the trainer sees them: a zygote for each environment, a fork per episode.

Everything here is called from the loop of `Hosts`. A reply belongs to the request with its number; after a late one the
process is killed and its socket closed, so no reply can be taken for another's.
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
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from paceline.base_directory import base_directory, import_path
from paceline.environments import EnvironmentSpec
from paceline.environments.hosting.inside import MOST_ORDER
from paceline.environments.hosting.printed import printed_lines
from paceline.environments.hosting.results import (
    MOST_BYTES,
    HostFailure,
    Method,
    Result,
    TooLate,
    attempt,
    checked,
    plain,
)
from paceline.sandbox.inside.channel import PREFIX

START_SECONDS = 300.0
"""Seconds in which a zygote must have loaded its environment: libraries, an index of documents."""
ORDER_SECONDS = 60.0
"""Seconds in which a zygote must have forked or killed a process; later ones count as stuck. On two busy cores hundreds
of orders that come at once took more than ten."""
END_SECONDS = 10.0
MOST_REPLY = MOST_BYTES + (1 << 14)  # Bytes of a reply, at most: an answer, its reward and its frame
START = (
    "import json, sys; setup = json.load(sys.stdin); sys.path[:] = setup['path']; "
    "from paceline.environments.hosting.inside import main; main(setup)"
)
DEFAULTS = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8:backslashreplace"}
"""Variables that an environment's processes get where they are not set: the order of sets is the same in each run,
many episodes do not fight for the processors, and whatever they print can be written."""


class ProcessEnd(NamedTuple):
    """End of an episode's process."""

    how: str
    printed: tuple[str, ...]
    """Last lines that it has printed."""


class EnvironmentZygote:
    """The process that has loaded an environment, and forks one for each episode."""

    def __init__(self, identity: str) -> None:
        """Start it, for the environment with this name, address and arguments, as JSON.

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
        """Orders that the socket has no room for, as the zygote has not read those before: it forks one by one."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        name, address, arguments = json.loads(identity)
        setup = {
            "control": theirs.fileno(),
            "parent": os.getpid(),
            "path": import_path(sys.path),
            "directory": tempfile.gettempdir(),
            "name": name,
            "address": address,
            "arguments": arguments,
        }
        try:
            with theirs, tempfile.TemporaryFile() as file:
                file.write(json.dumps(setup).encode())
                file.seek(0)
                self._process = subprocess.Popen(
                    [sys.executable, "-u", "-P", "-c", START],
                    stdin=file,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=DEFAULTS | os.environ,
                    cwd=base_directory(),
                    start_new_session=True,
                    pass_fds=[theirs.fileno()],
                )
        except OSError as error:
            self._control.close()
            raise HostFailure(f"its process cannot be started: {error}") from error
        self._loop.add_reader(self._control.fileno(), self._read)

    async def fork(self) -> "Child":
        """Fork a process for an episode.

        Raises:
            HostFailure: the environment cannot be loaded, or no process can be started.
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
        return Child(self, number, reader, writer, ended)

    def kill(self, number: int) -> None:
        """Kill a process with all that it has started."""
        if number in self._children:
            self._order({"kill": number})

    def _order(self, order: dict[str, int], channel: socket.socket | None = None) -> None:
        """Send an order, with a socket that is the zygote's from then on, as soon as there is room for it."""
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

    def _fail_start(self, said: str) -> None:
        if not self._ready.done():
            self._ready.set_exception(HostFailure(said))
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


class Child:
    """The process of one episode."""

    def __init__(
        self,
        zygote: EnvironmentZygote,
        number: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        ended: "asyncio.Future[ProcessEnd]",
    ) -> None:
        self._zygote, self._number, self._reader, self._writer = zygote, number, reader, writer
        self._count = 0
        self._ended = ended
        ended.add_done_callback(lambda _: writer.close())

    async def call(self, method: Method, given: str) -> Result:
        """Call a method with arguments in JSON; returns its result and None, or None and a sentence of what it raised.

        Raises:
            HostFailure: the process died, or says more than it may.
        """
        self._count += 1
        data = f'{{"id": {self._count}, "method": "{method}", "given": {given}}}'.encode()
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

    async def end(self) -> "ProcessEnd":
        """Kill the process if it lives, wait until all that it has started is gone too, and say how it ended."""
        self._zygote.kill(self._number)
        try:
            async with asyncio.timeout(ORDER_SECONDS):
                return await asyncio.shield(self._ended)
        except TimeoutError:
            self._zygote.end()
            return ProcessEnd("its process could not be ended, and neither could the one that it was forked from", ())


def _ended(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit status {code}"
    name = ""
    with contextlib.suppress(ValueError):
        name = f", {signal.Signals(-code).name}"
    return f"its process died (signal {-code}{name})"


class Processes:
    """The zygotes of a run, and the places of the processes that they fork; see `Threads`."""

    def __init__(self, most: int, wait: float) -> None:
        self._most, self._wait = most, wait
        self._free = asyncio.Semaphore(most)
        self._zygotes: dict[str, list[EnvironmentZygote]] = {}

    async def fork(self, identity: str) -> Child:
        """Wait for a free place and fork a process for an episode; raises HostFailure."""
        try:
            async with asyncio.timeout(self._wait):
                await self._free.acquire()
        except TimeoutError:
            raise HostFailure(f"none of {self._most} processes was free for it within {self._wait:g} seconds") from None
        try:
            return await self._zygote(identity).fork()
        except BaseException:
            self._free.release()
            raise

    async def end(self, child: Child) -> ProcessEnd:
        """End a process, and give its place to the next."""
        try:
            return await child.end()
        finally:
            self._free.release()

    def _zygote(self, identity: str) -> EnvironmentZygote:
        known = self._zygotes.setdefault(identity, [])
        if not known or known[-1].is_lost:
            known.append(EnvironmentZygote(identity))
        return known[-1]

    def close(self) -> None:
        """End all processes, within `END_SECONDS` unless the machine is stuck."""
        zygotes = [one for known in self._zygotes.values() for one in known]
        for one in zygotes:
            one.end()
        until = time.monotonic() + END_SECONDS
        for one in zygotes:
            one.wait(max(0.0, until - time.monotonic()))


class ProcessHost:
    """One environment in a process of its own."""

    def __init__(self, spec: EnvironmentSpec, processes: Processes) -> None:
        self.started = time.perf_counter()
        self._spec, self._processes = spec, processes
        self._child: Child | None = None
        self.printed: tuple[str, ...] = ()

    async def call(self, method: Method, given: tuple[Any, ...], seconds: float) -> Result:
        """Call a method in its process, which `begin` forks; see `Host`."""
        data = _request(given)
        if method == "begin":
            identity = _request((self._spec.name, self._spec.address, self._spec.arguments))
            self._child = await self._processes.fork(identity)
        assert self._child is not None  # the keeper asks nothing of one that is gone
        self.started = time.perf_counter()
        try:
            async with asyncio.timeout(seconds):
                value, failure = await self._child.call(method, data)
        except TimeoutError:
            await self.end(seconds=0)
            raise TooLate from None
        return (None, failure) if failure is not None else attempt(partial(checked, self._spec.name, method, value))

    async def end(self, *, seconds: float) -> None:
        """Kill it, after so many seconds at most in which it may close itself."""
        child, self._child = self._child, None
        if child is None:
            return
        try:
            if seconds > 0:
                with contextlib.suppress(TimeoutError, HostFailure):
                    async with asyncio.timeout(seconds):
                        await child.call("close", "[]")
        finally:
            self.printed = (await self._processes.end(child)).printed


def _request(given: tuple[Any, ...]) -> str:
    try:
        return json.dumps(given, default=plain)
    except (TypeError, ValueError, RecursionError) as error:
        columns = [
            name for one in given if isinstance(one, Mapping) for name, value in one.items() if not _is_json(value)
        ]
        what = f"{columns[0]!r} among what it is given" if columns else "what it is given"
        raise HostFailure(
            f"{what} cannot be written as JSON for its process ({error}); remove it, or make it text"
        ) from error


def _is_json(value: Any) -> bool:
    return attempt(partial(json.dumps, value, default=plain))[1] is None
