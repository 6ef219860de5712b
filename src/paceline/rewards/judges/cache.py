"""Cache of verdicts on disk: a resumed run, or one with the same completions, repeats no request.

A small JSON file per verdict is written under a temporary name and renamed, so that processes share the cache without a
lock, and a kill leaves the whole file or none. It holds the judge's response, but neither the prompt nor a key.
"""

import json
import os
import threading
from contextlib import suppress
from pathlib import Path

from paceline.kernels.cache import cache_directory


class VerdictCache:
    """Responses of a judge, by the hash of the request."""

    def __init__(self, directory: Path | None = None) -> None:
        """`directory` None: `judges` in the user's cache."""
        self.directory = cache_directory() / "judges" if directory is None else directory

    def find(self, key: str) -> str | None:
        """Return the response to the request with this hash; None: there is none, or its file is damaged."""
        try:
            record = json.loads(self._path(key).read_bytes())
        except (OSError, ValueError):
            return None
        response = record.get("response") if isinstance(record, dict) else None
        return response if isinstance(response, str) else None

    def keep(self, key: str, response: str) -> None:
        """Write a response; raises OSError where it cannot be written."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
        try:
            beside.write_text(json.dumps({"response": response}), encoding="ascii")
            beside.replace(path)
        except OSError:
            with suppress(OSError):
                beside.unlink()
            raise

    def _path(self, key: str) -> Path:
        return self.directory / key[:2] / f"{key[2:]}.json"
