"""Loading of libraries that take seconds."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading_libraries() -> Iterator[None]:
    """Import libraries without garbage collection, and exempt what they created from later collections.

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
