"""Libraries that take seconds to load."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading_libraries() -> Iterator[None]:
    """Import what stays for the life of the process, and keep Python's collector from looking for garbage in it.

    It would look many times during the imports, and again when the process ends: 1 s of the 4.4 s that torch and the
    tokenizers of transformers took.
    """
    known = len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > known:
            gc.freeze()
        gc.enable()
