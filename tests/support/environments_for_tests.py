"""Environments of a few lines, each with one way to behave; their modules need nothing else of the tests."""

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from paceline.environments import Observation


def said(text, **fields):
    return Observation(messages=({"role": "user", "content": text},), **fields)


class Counter:
    """Counts the turns and adds up one point for each; is done with the third."""

    def __init__(self, start=0):
        self.count = start

    def begin(self, task, seed):
        return f"seed {seed}"

    def observe(self, turn):
        self.count += 1
        return said(str(self.count), reward=1.0, done=self.count == 3)

    def close(self):
        return float(self.count)


class Silent:
    """Has nothing to say; a base for those that do one thing."""

    def begin(self, task, seed):
        return None

    def observe(self, turn):
        return said(turn.text)

    def close(self):
        return None


class Mirror(Silent):
    """Repeats what it was given, to see that it arrives."""

    def begin(self, task, seed):
        self.task = task
        return ({"role": "user", "content": repr(task)},)

    def observe(self, turn):
        return said(repr(turn))


class Async:
    """Echoes like a server that takes its time."""

    async def begin(self, task, seed):
        self.loop = asyncio.get_running_loop()
        return None

    async def observe(self, turn):
        await asyncio.sleep(float(turn.text))
        assert asyncio.get_running_loop() is self.loop
        return said(turn.text)

    async def close(self):
        return 1.0


class AsyncDeaf(Async):
    """Swallows that it is cancelled."""

    async def observe(self, turn):
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue


class Blocking(Async):
    """Is async, but does not await."""

    async def observe(self, turn):
        time.sleep(float(turn.text))
        return said("slept")


class Spinning(Async):
    """Is async, but computes without end."""

    async def observe(self, turn):
        while True:
            pass


class Stubborn(Silent):
    """Computes until its class is told that it is over, and swallows every exception."""

    over = threading.Event()

    def observe(self, turn):
        over, until = self.over, time.monotonic() + float(turn.text)
        while time.monotonic() < until and not over.is_set():
            try:
                while time.monotonic() < until and not over.is_set():
                    pass
            except:  # noqa: E722
                pass
        return said("at last")


class Raising(Silent):
    """Raises in the turn whose text says so; writes to a file when it is closed."""

    def begin(self, task, seed):
        self.closed = task.get("closed")

    def observe(self, turn):
        if turn.text == "raise":
            raise ValueError("the board is full\nand more")
        return said(turn.text)

    def close(self):
        if self.closed is not None:
            with open(self.closed, "a") as file:
                file.write("closed\n")


class Dying(Silent):
    """Ends its process in the way that the turn says."""

    def observe(self, turn):
        if turn.text == "exit":
            sys.exit(3)
        if turn.text == "_exit":
            os._exit(7)
        if turn.text == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if turn.text == "fork" and os.fork() == 0:
            raise RuntimeError("in the fork")
        return said("alive")


class Flooding(Silent):
    """Says as many letters as the turn says."""

    def observe(self, turn):
        return said("x" * int(turn.text))


class Wrong(Silent):
    """Returns what the turn's text names."""

    def begin(self, task, seed):
        return task.get("opening")

    def observe(self, turn):
        return VALUES[turn.text]

    def close(self):
        return "a text"


VALUES = {
    "text": "a text",
    "nan": Observation(reward=float("nan")),
    "set": Observation(messages=({"role": "user", "content": {1}},)),
    "no role": Observation(messages=({"content": "text"},)),
    "no content": Observation(messages=({"role": "user"},)),
    "null": Observation(messages=({"role": "user", "content": None},)),
    "image": Observation(messages=({"role": "user", "content": [{"type": "image_url", "image_url": "x"}]},)),
    "one message": Observation(messages={"role": "user", "content": "text"}),
    "unknown field": {"message": "text"},
    "surrogate": said("\ud800"),
    "none": None,
    "dict": {"messages": [{"role": "user", "content": "text"}], "reward": 2},
}


class Greedy(Silent):
    """Changes the row that it is given."""

    def begin(self, task, seed):
        task["list"].append(1)
        return str(len(task["list"]))


class Dice(Silent):
    """Draws from the global generator that everybody shares."""

    def observe(self, turn):
        return said(str(random.random()))


class Loaded(Silent):
    """Tells which of the libraries that take seconds have been imported."""

    def observe(self, turn):
        return said(" ".join({"torch", "transformers", "numpy", "datasets"} & sys.modules.keys()))


class Messy(Silent):
    """Changes everything that a process shares."""

    def observe(self, turn):
        print("to the protocol?", flush=True)
        os.write(1, b"to the protocol?")
        os.write(2, b"to the protocol?")
        os.chdir("/")
        random.seed(0)
        os.environ["PACELINE_MESS"] = "yes"
        sys.path.clear()
        sys.exit("bye")


class Leaving(Silent):
    """Starts processes, one of them in a session of its own, and writes a temporary file."""

    def begin(self, task, seed):
        command = [sys.executable, "-S", "-c", "import threading; threading.Event().wait()"]
        started = [subprocess.Popen(command), subprocess.Popen(command, start_new_session=True)]
        with tempfile.NamedTemporaryFile(delete=False) as file:
            return " ".join([str(os.getpid()), *(str(one.pid) for one in started), file.name])

    def observe(self, turn):
        if turn.text == "hang":
            threading.Event().wait()
        return said("here")


class Slow(Silent):
    """Answers after so many seconds as the turn says, and numbers its observations."""

    def __init__(self):
        self.count = 0

    def observe(self, turn):
        self.count += 1
        time.sleep(float(turn.text))
        return said(f"observation {self.count}")


class Hanging(Silent):
    """Never comes back from one of its methods; a thread that is told to end can leave it."""

    def __init__(self, method):
        setattr(self, method, self.hang)

    def hang(self, *given):
        while True:
            threading.Event().wait(0.1)


class Littering(Silent):
    """Opens a port and a file, and starts a process; a turn says how it ends."""

    def begin(self, task, seed):
        self.port = socket.create_server(("127.0.0.1", 0))
        descriptor, self.file = tempfile.mkstemp()
        self.file_held = os.fdopen(descriptor, "wb")
        self.child = os.fork() if task.get("forks") else 0
        if task.get("forks") and self.child == 0:
            signal.pause()
        return f"{os.fstat(self.port.fileno()).st_ino}"

    def observe(self, turn):
        if turn.text == "_exit":
            os._exit(7)
        if turn.text == "raise":
            raise ValueError("the board is full")
        return said("here")

    def close(self):
        self.port.close()
        self.file_held.close()
        os.unlink(self.file)


class Shared:
    """Makes environments that tell what was prepared for all of them: its size, and the process that did it."""

    def prepare(self, size):
        self.prepared = f"{size} {os.getpid()}"

    def __call__(self, size):
        made = Silent()
        made.observe = lambda turn: said(self.prepared)
        return made


shared = Shared()
