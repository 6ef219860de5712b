"""Levels of isolation, and the test of which one holds on this machine."""

import json
import os
import socket
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paceline.errors import SandboxError
from paceline.sandbox.local import LocalSandbox
from paceline.sandbox.programs import Job, Limits, Sandbox

LIMITS = Limits(seconds=10.0)

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


def breaches(sandbox: Sandbox, *, isolating: bool) -> list[str]:
    """List the breaches of a level, empty if all is well; `isolating`: also try to break out. Raises SandboxError."""
    source = "name = input()\nprint(sum(range(10)), name)\n"
    plain = sandbox.execute(Job(source=source, stdin="pace\n", limits=LIMITS))
    if plain.status != "finished" or plain.output != "45 pace\n":
        return [f"a plain program does not run: {plain.status} {plain.error[-300:]}"]
    if not isolating:
        return []
    with tempfile.TemporaryDirectory(prefix="paceline-probe-") as name, ExitStack() as stack:
        # Files, a process and open sockets that the program must not reach.
        directory, canary, beside = Path(name), Path(name, "canary"), Path(name, "beside")
        directory.chmod(0o777)
        canary.write_text("canary")
        canary.chmod(0o666)
        abstract = f"paceline-probe-{os.urandom(8).hex()}"
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind(f"\0{abstract}")
        unix.listen()
        places = {
            "canary": str(canary),
            "beside": str(beside),
            "pid": os.getpid(),
            "unix": abstract,
            "tcp": _port(stack, socket.AF_INET, socket.SOCK_STREAM),
            "udp": _port(stack, socket.AF_INET, socket.SOCK_DGRAM),
            "tcp6": _port(stack, socket.AF_INET6, socket.SOCK_STREAM),
        }
        job = Job(source=HOSTILE, function="attempts", arguments=json.dumps([places]), limits=LIMITS)
        hostile = sandbox.execute(job)
        untouched = canary.read_text() == "canary" and not beside.exists()
    if hostile.status != "finished":
        return [f"the probes do not run: {hostile.status} {hostile.error[-300:]}"]
    crowded = sandbox.execute(Job(source=CROWD, limits=LIMITS)).status == "finished"
    return [
        *json.loads(hostile.output),
        *([] if untouched else ["files outside were changed"]),
        *(["threads are without limit"] if crowded else []),
    ]


def _port(stack: ExitStack, family: socket.AddressFamily, kind: socket.SocketKind) -> int:
    """Open a port of this machine that responds; 9 if it does not have the address family."""
    try:
        opened = stack.enter_context(socket.socket(family, kind))
        opened.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
    except OSError:
        return 9
    if kind == socket.SOCK_STREAM:
        opened.listen()
    return int(opened.getsockname()[1])


Level = Literal["auto", "namespaces", "landlock", "none"]

ISOLATING = ("namespaces", "landlock")  # Isolating levels, strongest first; `auto` takes the first that holds

REMEDIES = (
    "give --sandbox the address of a judge service, run as an unprivileged user where namespaces are allowed "
    "(Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0; Docker: --security-opt seccomp=unconfined), "
    "or run programs without isolation by --sandbox none"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelReport:
    """Result of the test of one level on this machine."""

    level: str
    available: bool
    reason: str
    """Isolation in force, or the reason why it is not available."""


def open_sandbox(level: Level = "auto", *, url: str | None = None, slots: int | None = None) -> Sandbox:
    """Open the sandbox of that level, after hostile programs have run in it; `url`: the judge service there instead.

    Raises:
        SandboxError: the level does not hold here; for `auto`, none of those that isolate; a silent service.
    """
    if url is not None:
        from paceline.sandbox.remote import RemoteSandbox

        remote = RemoteSandbox(url)
        remote.check()
        return remote
    wanted = ISOLATING if level == "auto" else (level,)
    refused = []
    for name in wanted:
        sandbox, reason = _opened(name, slots or os.cpu_count() or 1)
        if sandbox is not None:
            return sandbox
        refused.append(f"{name}: {reason}")
    raise SandboxError(f"--sandbox {level} cannot be had on this machine ({'; '.join(refused)}); {REMEDIES}")


def probe_levels() -> tuple[LevelReport, ...]:
    """Test each level, the strongest first."""
    reports = []
    for level in (*ISOLATING, "none"):
        sandbox, reason = _opened(level, 1)
        if sandbox is not None:
            reason = sandbox.description
            sandbox.close()
        reports.append(LevelReport(level=level, available=sandbox is not None, reason=reason))
    return tuple(reports)


def _opened(level: str, slots: int) -> tuple[LocalSandbox | None, str]:
    if sys.platform != "linux":
        return None, "local sandboxes need Linux"
    sandbox = LocalSandbox(level, slots)
    try:
        reasons = breaches(sandbox, isolating=level in ISOLATING)
    except (SandboxError, OSError) as error:
        reasons = [str(error)]
    if not reasons:
        return sandbox, ""
    sandbox.close()
    return None, ", ".join(reasons).removeprefix(f"level {level} is not available: ")
