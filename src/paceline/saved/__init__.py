"""The checkpoints of a run as they lie on disk: found, known to be whole, set aside. What is in them is not read.

    checkpoints/step-000100/
      ...                      see `checkpoint`, which writes and reads it
      progress.json            step, position in the data, policy version
      manifest.json            size and SHA-256 of every other file

So a directory without a whole checkpoint is refused before torch is loaded.

finding.py  whole checkpoints in a directory, damaged ones set aside
files.py    synced, fingerprinted, removed
"""

from paceline.saved.files import Fingerprint, discard, files, fingerprint, sync
from paceline.saved.finding import (
    Checkpoint,
    Progress,
    checkpoints_before,
    free_name,
    newest_checkpoint,
    numbered,
    read_checkpoint,
    remove_leftovers,
    set_damaged_aside,
)

__all__ = [
    "Progress",
    "Checkpoint",
    "newest_checkpoint",
    "checkpoints_before",
    "free_name",
    "read_checkpoint",
    "numbered",
    "remove_leftovers",
    "set_damaged_aside",
    "Fingerprint",
    "files",
    "fingerprint",
    "sync",
    "discard",
]
