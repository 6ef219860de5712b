"""Things on the host that hostile programs are told of, and a look at them afterwards."""

import contextlib
import ctypes
import json
import os
import resource
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from tests.sandbox.corpus import NUMBERS

PLACES = ("/", "/dev/shm", "/etc", "/home", "/opt", "/root", "/run", "/tmp", "/usr", "/var/tmp", ".", "..")
_PR_SET_CHILD_SUBREAPER = 36
_REPOSITORY = Path(__file__).resolve().parents[2]


class Host:
    """A directory with files, listeners, a bystander and secrets, all of them within an attacker's reach by permission.

    While it lasts, orphans become children of this process, so that no process of a sandbox is lost from sight.
    """

    def __init__(self) -> None:
        self.key = secrets.token_hex(12)
        """Part of every secret; no program is told it."""
        self.secret = f"secret-answer-{self.key}"
        self.mark = f"paceline-escape-{secrets.token_hex(6)}"
        self.ipc_key = 0x50610000 | secrets.randbits(16)
        self.heard: list[str] = []
        self.shared = _open_directory("paceline-host-")
        self.scratch = _open_directory("paceline-scratch-")
        """Where temporary files of this process go: what a sandbox leaves on the disk is found here."""
        _subreaper(True)
        self._make_files()
        self._leave_traps()
        self._listen()
        self.bystander = subprocess.Popen(["sleep", "3600"], start_new_session=True)
        self._before = self._look()

    def facts(self, name: str, token: str) -> str:
        """What the program `name` is told, as JSON."""
        return json.dumps(
            {
                "name": name,
                "token": token,
                "mark": self.mark,
                "key": self.ipc_key,
                "canary": str(self.shared / "canary"),
                "victim": str(self.shared / "victim"),
                "shared": str(self.shared),
                "repository": str(_REPOSITORY),
                "harness": os.getpid(),
                "bystander": self.bystander.pid,
                **self._ports,
            }
        )

    def changes(self) -> list[str]:
        """What differs from when it was set up, in sentences."""
        after = self._look()
        found = [
            f"{name} was {self._before[name]}, is {after[name]}" for name in after if after[name] != self._before[name]
        ]
        return [*found, *(f"a listener heard {text}" for text in self.heard)]

    def close(self) -> None:
        """Take everything away again."""
        self._stop.set()
        self._thread.join()
        self.bystander.kill()
        self.bystander.wait()
        for fd in self._traps:
            os.close(fd)
        for name, value in self._environment.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        tempfile.tempdir = None
        _subreaper(False)
        shutil.rmtree(self.shared)
        shutil.rmtree(self.scratch)

    def _make_files(self) -> None:
        (self.shared / "canary").write_text(f"secret-file-{self.key}\n")
        (self.shared / "victim").write_text("as it was\n")
        (self.shared / "inner").mkdir()
        with suppress(OSError):  # where the file system has no such attributes
            os.setxattr(self.shared / "victim", b"user.kept", b"1")
        for name, mode in (("canary", 0o644), ("victim", 0o666), ("inner", 0o777)):
            os.chmod(self.shared / name, mode)

    def _leave_traps(self) -> None:
        """Secrets in the environment and in descriptors that a careless start of a child would hand down."""
        new = {"PACELINE_CANARY": f"secret-environment-{self.key}", "TMPDIR": str(self.scratch)}
        self._environment = {name: os.environ.get(name) for name in new}
        os.environ.update(new)
        tempfile.tempdir = str(self.scratch)
        self._traps = [os.open(self.shared / "canary", os.O_RDONLY), os.open(self.shared, os.O_RDONLY)]
        for fd in self._traps:
            os.set_inheritable(fd, True)

    def _listen(self) -> None:
        names = {"unix": str(self.shared / "unix"), "abstract": f"paceline-{self.mark}"}
        sockets = {
            "tcp": _bound(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "udp": _bound(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            "unix": _bound(socket.AF_UNIX, socket.SOCK_STREAM, names["unix"]),
            "unix datagram": _bound(socket.AF_UNIX, socket.SOCK_DGRAM, names["unix"] + ".dgram"),
            "abstract": _bound(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + names["abstract"]),
        }
        try:
            sockets["tcp6"] = _bound(socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0))
        except OSError:
            names["tcp6"] = "9"  # this host has no IPv6: a port where nobody listens
        for path in (names["unix"], names["unix"] + ".dgram"):
            os.chmod(path, 0o777)
        ports = {name: sockets[name].getsockname()[1] for name in ("tcp", "udp", "tcp6") if name in sockets}
        self._ports: dict[str, object] = {"tcp6": 9, **ports, "unix": names["unix"], "abstract": names["abstract"]}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._hear, args=(sockets,), daemon=True)
        self._thread.start()

    def _hear(self, sockets: dict[str, socket.socket]) -> None:
        with selectors.DefaultSelector() as selector:
            for name, own in sockets.items():
                selector.register(own, selectors.EVENT_READ, name)
            while not self._stop.is_set():
                for key, _ in selector.select(0.1):
                    self.heard.append(f"{key.data}: {_taken(sockets[key.data])!r}")
        for own in sockets.values():
            own.close()

    def _look(self) -> dict[str, object]:
        looks: dict[str, Callable[[], object]] = {
            "the shared directory": lambda: sorted(_tree(self.shared)),
            "the bystander": lambda: (self.bystander.poll(), *_standing(self.bystander.pid)),
            "this process": lambda: (*_standing(os.getpid()), _umask(), os.getcwd(), _handlers()),
            "the places for anybody": lambda: [place for place in PLACES if _names_with(place, "paceline-escape-")],
            "left-over names": lambda: [place for place in PLACES if _names_with(place, "paceline-left-behind")],
            "core files": lambda: [place for place in (".", "/", str(self.shared)) if _names_with(place, "core.")],
            "the interpreter's library": lambda: hash(frozenset(_library())),
            "the host's name": socket.gethostname,
            "mounts": lambda: Path("/proc/self/mountinfo").read_text(),
            "System V objects": lambda: [
                n for n in ("shm", "sem", "msg") if str(self.ipc_key) in _text(f"/proc/sysvipc/{n}")
            ],
            "the message queue": lambda: _queue_exists(self.mark),
            "keys": lambda: self.mark in _text("/proc/keys"),
            "abstract sockets": lambda: "-of-a-program" in _text("/proc/net/unix"),
        }
        return {name: look() for name, look in looks.items()}


def descendants() -> set[int]:
    """Every living process below this one, without zombies."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            state = _text(f"/proc/{entry}/stat").rpartition(")")[2].split()
            if len(state) > 1 and state[0] not in "ZX":
                parents[int(entry)] = int(state[1])
    found, wave = set(), {os.getpid()}
    while wave:
        wave = {child for child, parent in parents.items() if parent in wave} - found
        found |= wave
    return found


def _open_directory(prefix: str) -> Path:
    path = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    os.chmod(path, 0o777)
    return path


def _subreaper(on: bool) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def _bound(family: int, kind: int, address: object) -> socket.socket:
    own = socket.socket(family, kind)
    own.bind(address)
    if kind == socket.SOCK_STREAM:
        own.listen(64)
    own.setblocking(False)
    return own


def _taken(own: socket.socket) -> bytes:
    if own.type == socket.SOCK_DGRAM:
        return own.recv(100)
    peer, _ = own.accept()
    with peer:
        peer.settimeout(1)
        try:
            return peer.recv(100)
        except OSError:
            return b"(nothing)"


def _tree(directory: Path) -> Iterator[tuple[object, ...]]:
    for path in (directory, *directory.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # it went while one looked: what is removed is not left
            yield _described(path)


def _described(path: Path) -> tuple[object, ...]:
    facts = path.lstat()
    content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
    attributes = tuple(os.listxattr(path, follow_symlinks=False))
    return str(path), facts.st_mode, facts.st_uid, facts.st_nlink, facts.st_mtime_ns, content, attributes


def _library() -> Iterator[tuple[object, ...]]:
    for root, directories, files in os.walk(os.path.dirname(os.__file__)):
        directories[:] = [name for name in directories if name not in ("site-packages", "dist-packages", "__pycache__")]
        for name in files:
            facts = os.lstat(os.path.join(root, name))
            yield root, name, facts.st_size, facts.st_mode, facts.st_mtime_ns
    for place in sys.path:
        if os.path.isdir(place):
            yield (
                place,
                tuple(sorted(name for name in os.listdir(place) if name.endswith(("customize.py", "planted.pth")))),
            )


def _standing(pid: int) -> tuple[object, ...]:
    """What the kernel grants to a process, and whom it belongs to."""
    try:
        return (
            os.getpriority(os.PRIO_PROCESS, pid),
            sorted(os.sched_getaffinity(pid)),
            os.sched_getscheduler(pid),
            os.getpgid(pid),
            [resource.prlimit(pid, limit) for limit in range(16)],
        )
    except ProcessLookupError:
        return ("gone",)


def _umask() -> int:
    mask = os.umask(0o22)
    os.umask(mask)
    return mask


def _handlers() -> list[str]:
    return [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())]


def _names_with(place: str, text: str) -> list[str]:
    try:
        return [name for name in os.listdir(place) if name.startswith(text)]
    except PermissionError:
        return []


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _queue_exists(name: str) -> bool:
    call = ctypes.CDLL(None).syscall
    fd = call(ctypes.c_long(NUMBERS["mq_open"]), name.encode(), ctypes.c_long(0), ctypes.c_long(0), ctypes.c_long(0))
    if fd >= 0:
        os.close(fd)
    return bool(fd >= 0)
