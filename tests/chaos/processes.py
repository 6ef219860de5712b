"""A run as a process of its own, started in a directory and harmed; and the processes below another."""

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.chaos.sabotage import Trap, lay
from tests.support.forked import Program


def start(
    folder: Path,
    argv: Sequence[object],
    *,
    traps: Sequence[Trap] = (),
    umask: int | None = None,
    closed_output: bool = False,
) -> Program:
    """Start `paceline` with these words in `folder`; where that has a directory `tmp`, temporary files lie there."""
    return Program(_run, folder, [str(word) for word in argv], tuple(traps), umask, closed_output).start()


def _run(folder: Path, argv: list[str], traps: tuple[Trap, ...], umask: int | None, closed_output: bool) -> None:
    os.chdir(folder)
    if (folder / "tmp").is_dir():
        os.environ["TMPDIR"], tempfile.tempdir = str(folder / "tmp"), None
    if umask is not None:
        os.umask(umask)
    if closed_output:
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)
    from paceline.cli.main import main

    for trap in traps:
        lay(trap)
    raise SystemExit(main(argv))


def descendants(pid: int) -> dict[int, str]:
    """The processes below one, each with its title."""
    parents, titles = dict[int, int](), dict[int, str]()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            status = Path("/proc", entry, "status").read_text()
            parents[int(entry)] = int(status.split("PPid:")[1].split()[0])
            titles[int(entry)] = Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    below, last = set[int](), {pid}
    while last:
        last = {child for child, parent in parents.items() if parent in last}
        below |= last
    return {child: titles[child] for child in below if child in titles}
