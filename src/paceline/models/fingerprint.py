"""A model and a tokenizer known again, without reading weights that take minutes to read."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from transformers import AutoConfig, PreTrainedTokenizerBase

from paceline.config.sections import ModelConfig
from paceline.models.places import model_place

PIECES, PIECE_BYTES = 64, 65536
"""Of a weight file so many pieces, evenly spread, are hashed: other weights differ nearly everywhere."""
OF_THE_PLACE = ("_name_or_path", "transformers_version")
"""What a configuration says of where it lies and what wrote it, and not of the model."""


def model_fingerprint(config: ModelConfig) -> dict[str, str]:
    """By name of what it is of: the configuration's settings, and each weight file of a model on this disk."""
    place = model_place(config.model)
    read = AutoConfig.from_pretrained(place.base, trust_remote_code=config.trust_remote_code)
    settings = {key: value for key, value in read.to_diff_dict().items() if key not in OF_THE_PLACE}
    found = {f"config.json: {key}": json.dumps(value, sort_keys=True, default=str) for key, value in settings.items()}
    folders = [Path(place.base).expanduser(), *([] if place.adapter is None else [place.adapter])]
    files = [file for folder in folders for file in sorted(folder.glob("*.safetensors"))]
    return found | {file.name: sampled_hash(file) for file in files}


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """By name of what it is of."""
    parts: Mapping[str, object] = {
        "vocabulary": tokenizer.get_vocab(),
        "special tokens": tokenizer.special_tokens_map,
        "chat template": tokenizer.chat_template,
    }
    return {
        name: hashlib.sha256(json.dumps(part, sort_keys=True, default=str).encode()).hexdigest()[:16]
        for name, part in parts.items()
    }


def sampled_hash(file: Path) -> str:
    """Of a file's size and of pieces of it that are spread evenly, of a small file of all of it."""
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    whole = size <= PIECES * PIECE_BYTES
    starts = range(0, size, PIECE_BYTES) if whole else [(size - PIECE_BYTES) * n // (PIECES - 1) for n in range(PIECES)]
    with file.open("rb") as stream:
        for start in starts:
            stream.seek(start)
            digest.update(stream.read(PIECE_BYTES))
    return digest.hexdigest()[:16]
