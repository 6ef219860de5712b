"""Programs that try to break out: a level counts as available only after it has held against them."""

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from paceline.sandbox.programs import Job, Limits, Sandbox

LIMITS = Limits(seconds=10.0)

PLAIN = "name = input()\nprint(sum(range(10)), name)\n"

HOSTILE = '''
import ctypes, os, socket

def attempts(places):
    """The names of what succeeded of all that must fail."""
    found = []

    def attempt(name, action):
        try:
            action()
        except Exception:
            return
        found.append(name)

    def reach(family, kind, address):
        with socket.socket(family, kind) as one:
            one.connect(address)
            one.send(b"x")

    def fork():
        if os.fork() == 0:
            os._exit(0)

    def replace():
        try:
            os.execv("/no/such/program", ["program"])
        except FileNotFoundError:  # so it was looked for
            pass

    def trace():
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.ptrace(0x4206, places["pid"], 0, 0) < 0:  # PTRACE_SEIZE, which does not stop it
            raise PermissionError

    attempt("a file outside can be read", lambda: open(places["canary"]).read())
    attempt("a file outside can be written", lambda: open(places["canary"], "w").close())
    attempt("a file can be made outside", lambda: open(places["beside"], "w").close())
    attempt("directories outside can be listed", lambda: os.listdir(os.path.dirname(places["canary"])))
    attempt("processes can be listed", lambda: os.listdir("/proc"))
    attempt("TCP connects", lambda: reach(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", places["tcp"])))
    attempt("UDP sends", lambda: reach(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", places["udp"])))
    attempt("IPv6 connects", lambda: reach(socket.AF_INET6, socket.SOCK_STREAM, ("::1", places["tcp6"])))
    attempt("abstract sockets connect", lambda: reach(socket.AF_UNIX, socket.SOCK_STREAM, "\\0" + places["unix"]))
    attempt("sockets can be made", lambda: socket.socket())
    attempt("a process can be forked", fork)
    attempt("a program can be started", lambda: os.posix_spawn("/bin/true", ["true"], {}))
    attempt("a program can take this one's place", replace)
    if places["pid"] != os.getpid():  # in a container both may have the same small number
        attempt("another process can be seen", lambda: os.kill(places["pid"], 0))
    attempt("the parent can be stopped", lambda: os.kill(os.getppid(), 0))
    attempt("everybody can be signalled", lambda: os.kill(-1, 0))
    attempt("another process can be traced", trace)
    with open("own", "w") as file:
        file.write("scratch")
    return found
'''


CROWD = """
import threading
threading.stack_size(65536)
for _ in range(400):
    threading.Thread(target=threading.Event().wait, args=(2,), daemon=True).start()
threading.Event().wait(2)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bait:
    """Targets that a program must not reach."""

    canary: Path
    beside: Path
    ports: dict[str, int]
    abstract: str

    def places(self) -> str:
        """Encode the targets as the argument of `attempts`."""
        return json.dumps(
            [
                {
                    "canary": str(self.canary),
                    "beside": str(self.beside),
                    **self.ports,
                    "unix": self.abstract,
                    "pid": os.getpid(),
                }
            ]
        )


def breaches(sandbox: Sandbox, *, isolating: bool) -> list[str]:
    """List the breaches of a level, empty if all is well; `isolating`: also try to break out.

    Raises:
        SandboxError: the sandbox failed.
    """
    plain = sandbox.execute(Job(source=PLAIN, stdin="pace\n", limits=LIMITS))
    if plain.status != "finished" or plain.output != "45 pace\n":
        return [f"a plain program does not run: {plain.status} {plain.error[-300:]}"]
    if not isolating:
        return []
    with _bait() as bait:
        job = Job(source=HOSTILE, function="attempts", arguments=bait.places(), limits=LIMITS)
        hostile = sandbox.execute(job)
        untouched = bait.canary.read_text() == "canary" and not bait.beside.exists()
    if hostile.status != "finished":
        return [f"the probes do not run: {hostile.status} {hostile.error[-300:]}"]
    crowded = sandbox.execute(Job(source=CROWD, limits=LIMITS)).status == "finished"
    return [
        *json.loads(hostile.output),
        *([] if untouched else ["files outside were changed"]),
        *(["threads are without limit"] if crowded else []),
    ]


@contextmanager
def _bait() -> Iterator[Bait]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-probe-")))
        directory.chmod(0o777)
        canary = directory / "canary"
        canary.write_text("canary")
        canary.chmod(0o666)
        abstract = f"paceline-probe-{os.urandom(8).hex()}"
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind(f"\0{abstract}")
        unix.listen()
        ports = {
            "tcp": _port(stack, socket.AF_INET, socket.SOCK_STREAM),
            "udp": _port(stack, socket.AF_INET, socket.SOCK_DGRAM),
            "tcp6": _port(stack, socket.AF_INET6, socket.SOCK_STREAM),
        }
        yield Bait(canary=canary, beside=directory / "beside", ports=ports, abstract=abstract)


def _port(stack: ExitStack, family: socket.AddressFamily, kind: socket.SocketKind) -> int:
    """Open a port of this machine that answers; 9 if it does not have the address family."""
    try:
        opened = stack.enter_context(socket.socket(family, kind))
        opened.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
    except OSError:
        return 9
    if kind == socket.SOCK_STREAM:
        opened.listen()
    return int(opened.getsockname()[1])
