"""Verdicts on disk by what was asked: a run that is resumed, and one with the same completions, asks nothing twice.

One small JSON file per verdict, written beside its place and renamed into it, so that processes share the cache without
a lock and a kill leaves the whole file or none. The answer of the judge is kept, neither the prompt nor a key.
"""

import json
import os
import threading
from contextlib import suppress
from pathlib import Path

from paceline.kernels.cache import cache_directory


class VerdictCache:
    """A judge's answers by the hash of what was asked."""

    def __init__(self, directory: Path | None = None) -> None:
        """`directory` None: `judges` in the cache of this user."""
        self.directory = cache_directory() / "judges" if directory is None else directory

    def find(self, key: str) -> str | None:
        """Return the response to the request with this hash; None: there is none, or its file is damaged."""
        try:
            kept = json.loads(self._path(key).read_bytes())
        except (OSError, ValueError):
            return None
        answer = kept.get("answer") if isinstance(kept, dict) else None
        return answer if isinstance(answer, str) else None

    def keep(self, key: str, answer: str) -> None:
        """Keep an answer; raises OSError where it cannot be written."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
        try:
            beside.write_text(json.dumps({"answer": answer}), encoding="ascii")
            beside.replace(path)
        except OSError:
            with suppress(OSError):
                beside.unlink()
            raise

    def _path(self, key: str) -> Path:
        return self.directory / key[:2] / f"{key[2:]}.json"
