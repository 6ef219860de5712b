"""The shared secret of a launch: channels between ranks carry pickles, so whoever connects can run code.

The store answers whoever reaches its port, so it holds no secret. On one machine the secret is a file that only its
user may read; on several machines it is a variable of the launch.
"""

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.errors import ProcessLost
from paceline.workers.torchrun.environment import SECRET, Launched

REMEDY = f"set {SECRET} to the same random text for every rank"


@contextmanager
def offered_key(place: Launched) -> Iterator[bytes]:
    """Publish the first rank's key to the others, for the duration of the context.

    Raises:
        ProcessLost: the file cannot be made.
    """
    if place.secret is not None:
        yield place.secret.encode()
        return
    file, key = _file(place), secrets.token_hex(32)
    try:
        file.unlink(missing_ok=True)  # of a launch that was killed
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ProcessLost(
            f"{file}, by which ranks know each other, cannot be made ({error.strerror}); {REMEDY}"
        ) from None
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(key)
        yield key.encode()
    finally:
        file.unlink(missing_ok=True)


def shared_key(place: Launched) -> bytes:
    """Key of any other rank, once the first rank has published it.

    Raises:
        ProcessLost: the file is not there, or another user can read or has made it.
    """
    if place.secret is not None:
        return place.secret.encode()
    file = _file(place)
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise ProcessLost(
            f"{file}, by which ranks know each other, cannot be read ({error.strerror}); {REMEDY}"
        ) from None
    with os.fdopen(descriptor) as stream:
        found = os.fstat(descriptor)
        if found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise ProcessLost(f"{file}, by which ranks know each other, is not this user's alone; {REMEDY}")
        return stream.read().encode()


def _file(place: Launched) -> Path:
    """Path that is the same on all ranks and never comes from the store, which could name any file."""
    return Path(tempfile.gettempdir()) / f"paceline-ranks-{os.getuid()}-{place.port}-{place.attempt}"
