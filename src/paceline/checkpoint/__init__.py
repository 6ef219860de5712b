"""Atomic save and restore of everything that makes the next step. Safetensors and JSON only; no pickle.

    checkpoints/step-000100/
      model/                   a directory that `transformers` loads, weights in float32; of an adapter, peft's format
      optimizer.safetensors    the optimiser's tensors by parameter name, its numbers in the header
      reference.safetensors    the reference model, where it moves during the run
      progress.json            step, position in the data, policy version
      manifest.json            size and SHA-256 of every other file

Where no rank has all of the model, each writes the pieces that it has and no earlier rank has:

      model/                   config.json, tokenizer, pieces-00001-of-00004.safetensors ...
      optimizer-00001-of-00004.safetensors ...

A file is read in whole or in pieces alike, so a checkpoint is gone on with by any number of ranks in any layout.
Randomness needs no saving: order and samples are functions of the seed and of the position. A checkpoint is written
beside its place, synced and renamed, so it is complete or absent.

saving.py      all ranks take and write one checkpoint
background.py  in a thread, while the run goes on
room.py        on the disk, and in memory for copies
tokenizer_files.py  the same in each
moments.py     an optimiser's state, and a reference's weights
trained.py     what they know of a model
"""

from paceline.checkpoint.background import Desk
from paceline.checkpoint.moments import load_optimizer, load_reference_weights
from paceline.checkpoint.room import refuse_small_disk, room_of_run
from paceline.checkpoint.saving import Taken, take_checkpoint
from paceline.checkpoint.tokenizer_files import TokenizerFiles
from paceline.checkpoint.trained import Trained, Writer

__all__ = [
    "Trained",
    "TokenizerFiles",
    "Writer",
    "Taken",
    "Desk",
    "take_checkpoint",
    "load_optimizer",
    "load_reference_weights",
    "refuse_small_disk",
    "room_of_run",
]
