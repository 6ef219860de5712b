"""Loading of libraries that take seconds."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading_libraries() -> Iterator[None]:
    """Import libraries without garbage collection, and exempt what they created from later collections.

    Collections during the imports and at the end of the process took 1 s of the 4.4 s for torch and transformers'
    tokenizers.
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
