"""Traps in a process of a run: the n-th call of a function of Python, torch or ours does harm before it does its work.

A fault has to come in the midst of an update, a save or a second, where no signal from outside arrives on time.
"""

import errno
import importlib
import itertools
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Call = Callable[..., Any]
Deed = Callable[[Call, tuple[Any, ...], dict[str, Any]], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trap:
    """Harm in the calls `first` to `last` of a function."""

    function: str
    """Where it is found: `os:fsync`, `paceline.training.learner.learner:Learner.step`."""
    deed: str
    """One of `DEEDS`."""
    first: int = 1
    last: int | None = None
    """None: the first one alone."""
    tally: Path | None = None
    """A file that grows by a byte with every call."""


def lay(trap: Trap) -> None:
    """Put it in the function's place, in this process."""
    module, _, path = trap.function.partition(":")
    *owners, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    original, deed, numbers = getattr(owner, name), DEEDS[trap.deed], itertools.count(1)
    last = trap.first if trap.last is None else trap.last

    def trapped(*arguments: Any, **options: Any) -> Any:
        if trap.tally is not None:
            with trap.tally.open("ab", buffering=0) as file:
                file.write(b".")
        if trap.first <= next(numbers) <= last:
            return deed(original, arguments, options)
        return original(*arguments, **options)

    setattr(owner, name, trapped)


def _signalled(*numbers: signal.Signals) -> Deed:
    def deed(original: Call, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        for number in numbers:
            os.kill(os.getpid(), number)
        return original(*arguments, **options)

    return deed


def _refused(number: int) -> Deed:
    def deed(original: Call, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        raise OSError(number, os.strerror(number))

    return deed


def _nothing(original: Call, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return original(*arguments, **options)


def _no_memory(original: Call, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    import torch

    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


def _no_number(original: Call, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The gradient of a loss times NaN is NaN in every weight."""
    loss, *rest = arguments
    return original(loss * float("nan"), *rest, **options)


def _clock_back(original: Call, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return original(*arguments, **options) - 3600.0


def _slow(original: Call, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    time.sleep(0.1)
    return original(*arguments, **options)


DEEDS: dict[str, Deed] = {
    "count": _nothing,
    "SIGKILL": _signalled(signal.SIGKILL),
    "SIGTERM": _signalled(signal.SIGTERM),
    "SIGHUP": _signalled(signal.SIGHUP),
    "two SIGTERM": _signalled(signal.SIGTERM, signal.SIGTERM),
    "disk full": _refused(errno.ENOSPC),
    "disk broken": _refused(errno.EIO),
    "read-only": _refused(errno.EROFS),
    "no memory": _no_memory,
    "NaN": _no_number,
    "an hour back": _clock_back,
    "slow": _slow,
}
