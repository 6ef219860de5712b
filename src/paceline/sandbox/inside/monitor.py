"""Monitor, the process that the trainer starts: makes namespaces, forks the zygote into them, ends with the trainer.

The zygote could ask the kernel to be killed with its parent, but the kernel means the *thread* that started it. A
worker thread of the trainer may end at any time. So this process, which has one thread, waits for both instead.
"""

import contextlib
import os
import signal
import socket
from typing import Any

from paceline.processes.children import BrokenChannelError, adopt_orphans, guard, receive_message, send_message
from paceline.processes.scratch import hold_new, make_empty, remove_left
from paceline.sandbox.inside.confining import OWNERS, OWNERS_OF_CONTAINERS, separate
from paceline.sandbox.inside.serving import serve


def main() -> None:
    """Serve the trainer at the other end of standard input, until it or the zygote ends."""
    control = socket.socket(fileno=os.dup(0))  # away from standard input
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
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
            remove_left(setup["directory"], (OWNERS, OWNERS_OF_CONTAINERS))
            scratch = hold_new(setup["directory"])
        _run(control, parent, setup, scratch or "")
    except OSError as error:
        # the trainer ends this process as soon as it hears of the failure: finish cleaning up first
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        say_failure(control, error)
    finally:
        if scratch is not None:
            make_empty(scratch)
            os.rmdir(scratch)


def _run(control: socket.socket, parent: int, setup: dict[str, Any], scratch: str) -> None:
    identity = separate(setup["level"])
    monitor = os.pidfd_open(os.getpid())
    adopt_orphans()  # a zygote that ends early leaves its program to this
    pid = os.fork()
    if pid == 0:
        os.close(parent)
        status = 1
        try:
            serve(control, setup["level"], scratch, identity, monitor)
            status = 0
        except (OSError, ImportError) as error:
            say_failure(control, error)
        finally:
            os._exit(status)
    control.close()
    guard(parent, pid)


def say_failure(control: socket.socket, error: OSError | ImportError) -> None:
    """Send the trainer the reason why the zygote does not run."""
    reason = str(error)
    if isinstance(error, BlockingIOError):
        reason = "no further process may be started here: raise `ulimit -u`, or the container's limit on processes"
    elif isinstance(error, OSError) and error.strerror:
        reason = error.strerror + (f": {error.filename}" if error.filename else "")
    with contextlib.suppress(OSError):
        send_message(control, {"failed": reason})
