"""Libraries that take seconds to load."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading_libraries() -> Iterator[None]:
    """Import what stays for the life of the process, and keep Python's collector from looking for garbage in all that
    is there by then.

    It would look many times during the imports, and again when the process ends: 1 s of the 4.4 s that torch and the
    tokenizers of transformers took.
    """
    known, was_enabled = len(sys.modules), gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > known:
            gc.freeze()
        if was_enabled:
            gc.enable()
