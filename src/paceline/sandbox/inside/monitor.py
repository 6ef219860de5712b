"""The process that the trainer starts: makes new namespaces, forks the zygote into them, ends it with the trainer.

The zygote could ask the kernel to be killed with its parent, but the kernel means the *thread* that started it; a
worker thread of the trainer may end at any time. So this process, which has one thread, waits for both instead.
"""

import contextlib
import os
import select
import signal
import socket
import tempfile
from typing import Any

from paceline.sandbox.inside.channel import BrokenChannelError, receive_message, send_message
from paceline.sandbox.inside.confining import separate
from paceline.sandbox.inside.scratch import make_empty
from paceline.sandbox.inside.serving import end_children, serve


def main() -> None:
    """Serve whoever holds the other end of standard input, until one of the two ends."""
    control = _take_over_stdin()
    try:
        setup = receive_message(control)
    except BrokenChannelError:
        return
    parent = os.pidfd_open(os.getppid())
    if os.getppid() != setup["parent"]:  # it ended in the meantime
        return
    scratch = None
    try:
        if setup["level"] != "namespaces":  # which has a file system of its own for it
            scratch = tempfile.mkdtemp(prefix="paceline-scratch-", dir=setup["directory"])
        _run(control, parent, setup, scratch or "")
    except OSError as error:
        _say_failure(control, error)
    finally:
        if scratch is not None:
            make_empty(scratch)
            os.rmdir(scratch)


def _take_over_stdin() -> socket.socket:
    """The control channel, moved away from descriptor 0."""
    control = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    return control


def _run(control: socket.socket, parent: int, setup: dict[str, Any], scratch: str) -> None:
    """Fork the zygote, and wait until it or the trainer ends."""
    identity = separate(setup["level"])
    own = os.pidfd_open(os.getpid())
    pid = os.fork()
    if pid == 0:
        os.close(parent)
        status = 1
        try:
            serve(control, setup["level"], scratch, identity, own)
            status = 0
        except OSError as error:
            _say_failure(control, error)
        finally:
            os._exit(status)
    control.close()
    try:
        signal.signal(signal.SIGTERM, _raise_termination)
        select.select([parent, os.pidfd_open(pid)], [], [])
    except TerminationError:
        pass
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    end_children()


class TerminationError(Exception):
    """The trainer wants an end, with what lies about taken away."""


def _raise_termination(*_: object) -> None:
    raise TerminationError


def _say_failure(control: socket.socket, error: OSError) -> None:
    with contextlib.suppress(OSError):
        place = f": {error.filename}" if error.filename else ""
        send_message(control, {"failed": f"{error.strerror or error}{place}"})
