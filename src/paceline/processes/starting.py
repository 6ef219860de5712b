"""A fresh interpreter of this installation as a child process, with a session of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

from paceline.base_directory import base_directory, import_path


class HostFailure(Exception):
    """Failure of the place where code runs, in one sentence; nothing is known of the code."""


def start_python(
    *arguments: str,
    command: Sequence[str] = (sys.executable,),
    variables: Mapping[str, str] | None = None,
    stdin: int | IO[Any] = subprocess.PIPE,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
) -> "subprocess.Popen[bytes]":
    """Start `python arguments`, or another command with these; pipes are not buffered.

    Its own session keeps Ctrl-C at the terminal from it: this process decides when it ends. It has all environment
    variables of this process, besides those in `variables`; None: it imports from where this process does.

    Raises:
        OSError: it cannot be started.
    """
    return subprocess.Popen(
        [*command, *arguments],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        bufsize=0,
        env=os.environ | (import_variables() if variables is None else variables),
        cwd=base_directory(),
        start_new_session=True,
        pass_fds=pass_fds,
    )


def import_variables() -> dict[str, str]:
    """Return the environment variables by which another interpreter imports from where this process does."""
    return {"PYTHONPATH": os.pathsep.join(import_path(sys.path))}
