"""Checks and digests of the files of a reward model or a judge's model, without torch."""

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from paceline.base_directory import local_path
from paceline.errors import RewardError

SAMPLES, SAMPLE_BYTES = 64, 65536
"""Number and size of the evenly spread samples of a weight file: other weights differ nearly everywhere."""


def check_reward_model(name: str) -> None:
    """Refuse a directory that holds no reward model; of a Hub name only the form is checked.

    Raises:
        RewardError: no such directory, no config.json or *.safetensors in it, or a model that gives no single score.
    """
    path = local_path(name)
    # a name is of the Hub unless it must be a path: `data/model` beside a directory `data` is a mistyped path
    is_path = not name.strip() or path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1
    if not is_path and not ("/" in name and local_path(name.partition("/")[0]).is_dir()):
        return
    if not name.strip() or not path.is_dir():
        others = [entry.name for entry in path.parent.iterdir() if entry.is_dir()] if path.parent.is_dir() else []
        close = get_close_matches(path.name, others, n=1)
        nearest = f"did you mean {str(Path(name).parent / close[0])!r}? Else " if close else ""
        raise RewardError(
            f"--reward-funcs model:{name.strip() or repr(name)} is not a directory; {nearest}name a model "
            "directory or a Hub name such as Skywork/Skywork-Reward-V2-Qwen3-0.6B"
        )
    if not (path / "config.json").is_file():
        raise RewardError(
            f"--reward-funcs model:{name} is a directory without config.json; name one that transformers can load"
        )
    if not list(path.glob("*.safetensors")):
        raise RewardError(
            f"--reward-funcs model:{name} has no *.safetensors file; convert its weights, pickle is not loaded"
        )
    _check_config(name, path / "config.json")


def reward_model_files(name: str) -> list[Path]:
    """List weights, configuration and tokenizer of a reward model in a directory; none for one on the Hub."""
    patterns = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")
    return sorted(file for pattern in patterns for file in local_path(name).glob(pattern))


def language_model_files(name: str) -> list[Path]:
    """List weights, configuration and tokenizer of a judge's model, and of an adapter's base.

    The model is named as for `--model`: a directory, a run's directory, a GGUF file, or a Hub name whose files are in
    the cache. Empty for any other name.
    """
    path = local_path(name)
    if path.is_file():
        return [path]
    if (path / "config.yaml").is_file() and not (path / "config.json").is_file():
        path /= "final"
    if not path.is_dir():
        from huggingface_hub import try_to_load_from_cache

        with suppress(ValueError):  # no name that the Hub can have
            cached = try_to_load_from_cache(name, "config.json")
            return reward_model_files(str(Path(cached).parent)) if isinstance(cached, str) else []
        return []
    files = reward_model_files(str(path))
    with suppress(OSError, ValueError, KeyError, TypeError):  # no adapter, or one that is refused when it is loaded
        base = json.loads((path / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"]
        files += language_model_files(str(base))
    return files


def sampled_digest(file: Path) -> str:
    """Hash a file's size and evenly spread samples of it; a small file is hashed whole."""
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    if size <= SAMPLES * SAMPLE_BYTES:
        starts: Iterable[int] = range(0, size, SAMPLE_BYTES)
    else:
        starts = [(size - SAMPLE_BYTES) * n // (SAMPLES - 1) for n in range(SAMPLES)]
    with file.open("rb") as stream:
        for start in starts:
            stream.seek(start)
            digest.update(stream.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def _check_config(name: str, path: Path) -> None:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RewardError(
            f"--reward-funcs model:{name}: its config.json cannot be read ({error}); copy the model again"
        ) from error
    if not isinstance(config, dict):
        raise RewardError(f"--reward-funcs model:{name}: its config.json is not a JSON object; copy the model again")
    architectures = list(map(str, config.get("architectures") or ()))
    if any(architecture.endswith("ForCausalLM") for architecture in architectures):
        raise RewardError(
            f"--reward-funcs model:{name} is a language model ({architectures[0]}) without a trained score head; "
            "name a sequence-classification model that was trained to give rewards"
        )
    labels = config.get("id2label")
    if isinstance(labels, dict) and len(labels) > 1:
        raise RewardError(
            f"--reward-funcs model:{name} has {len(labels)} labels, but a reward is one number; "
            "name a model with one label, or wrap it in a reward function that picks one"
        )
