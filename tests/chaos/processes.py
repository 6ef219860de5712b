"""A run as a process of its own: started in a directory, killed at a moment, its words read when it has ended."""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.chaos.sabotage import Trap, lay
from tests.support.forked import SERVER, heed_signals

LONGEST_SECONDS = 300.0
"""A short run takes one, on a cluster half a minute, on a busy machine several times as long: after this it hangs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a process ended."""

    status: int
    """The exit status, or the negative number of the signal that ended it."""
    said: str
    """Standard output and error as they came, lines joined."""
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """A process of a run."""

    process: ForkServerProcess
    words: Path
    started: float

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self.process.pid is not None
        return self.process.pid

    def ends_within(self, seconds: float) -> bool:
        """Whether it has ended by then."""
        self.process.join(seconds)
        return self.process.exitcode is not None

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, unless it is gone."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def end(self, *, within: float = LONGEST_SECONDS) -> Ended:
        """Wait until it has ended.

        Raises:
            AssertionError: it hangs; it is killed.
        """
        if not self.ends_within(within):
            self.send(signal.SIGKILL)
            self.process.join()
            raise AssertionError(f"did not end within {within:g} s, and said: {self._said()[-400:]}")
        status = self.process.exitcode
        assert status is not None
        return Ended(status=status, said=self._said(), seconds=time.perf_counter() - self.started)

    def _said(self) -> str:
        return " ".join(self.words.read_text(errors="replace").split()) if self.words.exists() else ""


def start(
    folder: Path,
    argv: Sequence[object],
    *,
    traps: Sequence[Trap] = (),
    umask: int | None = None,
    closed_output: bool = False,
) -> Running:
    """Start `paceline` with these words in `folder`; what it says goes to a file beside.

    Where `folder` has a directory `tmp`, temporary files lie there.
    """
    words = folder / f"words-{len(list(folder.glob('words-*')))}"
    arguments = (folder, [str(word) for word in argv], words, tuple(traps), umask, closed_output)
    process = SERVER.Process(target=_begin, args=arguments)
    started = time.perf_counter()
    process.start()
    return Running(process=process, words=words, started=started)


def _begin(
    folder: Path, argv: list[str], words: Path, traps: tuple[Trap, ...], umask: int | None, closed_output: bool
) -> None:
    os.setsid()
    heed_signals()
    os.chdir(folder)
    if (folder / "tmp").is_dir():
        os.environ["TMPDIR"], tempfile.tempdir = str(folder / "tmp"), None
    if umask is not None:
        os.umask(umask)
    said = os.open(words, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(said, stream)
    if closed_output:
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)
    from paceline.cli.main import main

    for trap in traps:
        lay(trap)
    sys.exit(main(argv))


def descendants(pid: int) -> dict[int, str]:
    """The processes below one, each with its title."""
    parents, titles = dict[int, int](), dict[int, str]()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            status = Path("/proc", entry, "status").read_text()
            parents[int(entry)] = int(status.split("PPid:")[1].split()[0])
            titles[int(entry)] = Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    found, last = set[int](), {pid}
    while last:
        last = {one for one, parent in parents.items() if parent in last}
        found |= last
    return {one: titles[one] for one in found if one in titles}
