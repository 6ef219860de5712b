"""The directory that relative names of files stand in, which a program that changes its working directory cannot move.

An entry point holds it for as long as its call lasts: the caller's working directory, or the one in which a run that is
opened again was started. Outside of an entry point it is the working directory.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import ConfigError


@dataclass(slots=True)
class _Call:
    """An entry point under way."""

    base: Path


LONGEST_NAME, LONGEST_PATH = 255, 4095
"""Bytes of a file's name, and of a whole path, on Linux."""
SHOWN = 60
"""Characters of an unusable name in a sentence."""

_calls: list[_Call] = []
"""Entry points under way, the innermost last."""


@contextmanager
def held_base(directory: Path) -> Iterator[None]:
    """Hold an absolute directory as the base of relative names within a block."""
    call = _Call(directory)
    _calls.append(call)
    try:
        yield
    finally:
        _calls[:] = [other for other in _calls if other is not call]


def hold_base(directory: Path) -> None:
    """Hold an absolute directory for the rest of the entry point's call; without one, as long as the process lives."""
    if _calls:
        _calls[-1].base = directory
    else:
        _calls.append(_Call(directory))


def base_directory() -> Path:
    """Return the base of relative names.

    Raises:
        ConfigError: none is held, and the working directory was removed.
    """
    return _calls[-1].base if _calls else working_directory()


def working_directory() -> Path:
    """Return the caller's directory; raise a ConfigError where it was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise ConfigError("the working directory was removed; change to a directory that exists") from None


def local_path(name: str | Path) -> Path:
    """Return the path that a name of a file stands for, absolute wherever a base is held.

    Raises:
        ConfigError: no file can have such a name.

    >>> with held_base(Path("/home/me")):
    ...     local_path("rows.jsonl").as_posix(), local_path("/data/rows.jsonl").as_posix()
    ('/home/me/rows.jsonl', '/data/rows.jsonl')
    """
    path = named_path(name)
    return _calls[-1].base / path if _calls else path


def named_path(name: str | Path) -> Path:
    """Return a name as a path, relative as it may be; raise a ConfigError where no file can have it."""
    try:
        whole = str(name).encode()
    except UnicodeEncodeError:
        raise ConfigError(f"the name {str(name)[:SHOWN]!a} is not UTF-8; rename it") from None
    longest = max(map(len, whole.split(b"/")))
    if longest > LONGEST_NAME or len(whole) > LONGEST_PATH:
        said = f"{longest} bytes between slashes" if longest > LONGEST_NAME else f"{len(whole)} bytes"
        raise ConfigError(
            f"the name {str(name)[:SHOWN]}... has {said}, and a file's has at most {LONGEST_NAME}, with all of its "
            f"directories {LONGEST_PATH}; give a shorter one"
        )
    if b"\0" in whole:
        raise ConfigError(f"the name {str(name)[:SHOWN]!r} has a zero byte, which no file's name has; leave it out")
    return expanded(name)


def expanded(name: str | Path) -> Path:
    """Return a name as a path with the home directory for `~` and `~USER`; a `~` before no user is part of the name."""
    try:
        return Path(name).expanduser()
    except RuntimeError:  # no such user
        return Path(name)


def import_path(entries: list[str]) -> list[str]:
    """Return the entries of `sys.path` for another process: absolute, the empty one as the base directory."""
    return [entry if os.path.isabs(entry) else str(base_directory() / entry) for entry in entries]
