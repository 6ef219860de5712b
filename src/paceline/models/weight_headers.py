"""Checks of a model's weight files by their headers, before any weight is read.

A file of safetensors is 8 bytes, little-endian, with the length of a header; the header, a JSON object that gives each
tensor its shape and its place; and the tensors, end to end. Source: https://github.com/huggingface/safetensors#format
"""

import importlib.util
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from paceline.config.packages import install_command
from paceline.errors import ModelError
from paceline.models.places import GET_AGAIN

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""File names of transformers: a model's only weight file, and the index of several."""
LONGEST_HEADER = 100_000_000
"""Largest number of bytes of a header in the format."""
PLAIN = frozenset(
    {"gemma", "gemma2", "gemma3_text", "granite", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "smollm3"}
)
"""Model types whose files name the weights as the modules, with an embedding of `vocab_size` times `hidden_size`. Other
weights may be renamed, merged or split by transformers."""
EMBEDDINGS = ("model.embed_tokens.weight", "embed_tokens.weight")
"""Names of their input embedding, in a model saved with or without its head."""
OF_EVERY_LAYER = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
"""Weights that each of their layers has."""
ALL_LINEAR = "all-linear"
"""Target for every linear layer except the output embedding."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """Header of a file."""

    shapes: Shapes
    nbytes: int
    """Bytes of the whole file."""


def read_header(file: Path, label: str) -> Header:
    """Read the header of a file, which may be truncated after it; ModelError, naming the model `label`, if invalid."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > min(file.stat().st_size - 8, LONGEST_HEADER):
                raise ValueError("it ends within its header, or the header is longer than any")
            listed = json.loads(stream.read(length))
        tensors = {name: tensor for name, tensor in listed.items() if name != "__metadata__"}
        shapes = {name: tuple(map(int, tensor["shape"])) for name, tensor in tensors.items()}
        places = sorted((int(tensor["data_offsets"][0]), int(tensor["data_offsets"][1])) for tensor in tensors.values())
        ends = [end for _, end in places]
        if [start for start, _ in places] != [0, *ends[:-1]][: len(places)] or any(
            start > end for start, end in places
        ):
            raise ValueError("its tensors do not lie end to end")
        if any(size < 0 for shape in shapes.values() for size in shape):
            raise ValueError("a shape is negative")
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise ModelError(f"{label} cannot be loaded: {file.name} has no whole header; {GET_AGAIN}") from error
    return Header(shapes=shapes, nbytes=8 + length + max(ends, default=0))


def read_whole(file: Path, label: str) -> Shapes:
    """Return names and shapes of a file's tensors; ModelError if it is not as long as its header says."""
    header, size = read_header(file, label), file.stat().st_size
    if size != header.nbytes:
        raise ModelError(
            f"{label} cannot be loaded: {file.name} has {size} bytes, and {header.nbytes} by its header; {GET_AGAIN}"
        )
    return header.shapes


def check_weights(directory: Path, described: Mapping[str, Any], label: str, *, targets: Collection[str] = ()) -> None:
    """Refuse files that cannot be the model of a config.json, or lack a target layer; loading decides in doubt.

    `described` is the config.json, `label` the model in messages; `targets` are an adapter's (`--lora-targets`).
    ModelError: a file is missing or not whole, a weight is missing, the embedding has another shape, or there is no
    such layer.
    """
    if "transformers_weights" in described:  # names files of its own
        return
    shapes = {name: shape for file in _files(directory, label) for name, shape in read_whole(file, label).items()}
    if described.get("model_type") not in PLAIN or described.keys() & {"auto_map", "quantization_config"}:
        return
    expected = (described.get("vocab_size"), described.get("hidden_size"))
    for name, shape in shapes.items():
        if name in EMBEDDINGS and None not in expected and shape != expected:
            raise other_shape_error(label, name)
    if shapes and (missing := _missing(described, shapes)):
        raise missing_error(label, missing)
    # weights of norms have one dimension; the output embedding takes no adapter
    matrices = [name for name, shape in shapes.items() if name.endswith(".weight") and len(shape) == 2]
    layers = [name.removesuffix(".weight") for name in matrices if name != "lm_head.weight"]
    if layers:
        # a longer name may be that of a module around the model
        check_targets([target for target in targets if "." not in target and target != ALL_LINEAR], layers)


def check_quantised(described: Mapping[str, Any], label: str, *, has_adapter: bool) -> None:
    """Refuse quantised weights, except 4 bits of bitsandbytes under a trained adapter (QLoRA).

    Most other formats have no gradient; 8 bits of bitsandbytes have one, but a token's result depends on its batch
    (LLM.int8, arXiv:2208.07339), so that engine and trainer would differ. `described` is a config.json, `label` the
    model in messages. ModelError: as above, or bitsandbytes is not installed.
    """
    settings = described.get("quantization_config")
    if not settings:
        return
    is_4bit = bool(settings.get("load_in_4bit"))
    if not (is_4bit and has_adapter):
        method = "bitsandbytes" if is_4bit or settings.get("load_in_8bit") else settings.get("quant_method")
        how = f"{method}, {4 if is_4bit else 8} bits" if method == "bitsandbytes" else method
        raise ModelError(
            f"{label} has quantised weights ({how}), which cannot be trained; name a model with its weights in full, "
            "or train an adapter (--lora-rank) on weights that bitsandbytes has quantised to 4 bits"
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ModelError(f"{label} has quantised weights and needs bitsandbytes; `{install_command('bitsandbytes')}`")


def _missing(described: Mapping[str, Any], shapes: Shapes) -> list[str]:
    """List weights of a model of a `PLAIN` type that its files lack, named as its modules.

    Every layer has what most layers have. A model that was saved without its head lacks the prefix `model.`.
    """
    count, tied = described.get("num_hidden_layers"), described.get("tie_word_embeddings")
    if not isinstance(count, int):
        return []
    there = {name.removeprefix("model.") for name in shapes}
    layers = Counter(name.split(".", 2)[2] for name in there if name.startswith("layers.") and name.count(".") > 1)
    of_most = {name for name, number in layers.items() if 2 * number > count and not name.endswith("inv_freq")}
    of_layer = sorted({*of_most, *OF_EVERY_LAYER})
    expected = [f"layers.{layer}.{name}" for layer in range(count) for name in of_layer]
    expected += ["norm.weight", *([] if "lm_head.weight" in there else ["embed_tokens.weight"])]
    missing = [f"model.{name}" for name in expected if name not in there]
    return missing + (["lm_head.weight"] if tied is False and "lm_head.weight" not in there else [])


def missing_error(label: str, names: Collection[str]) -> ModelError:
    """Weights that a model has by its config.json are in none of its files; a library would draw them at random."""
    others = len(names) - 1
    more = f" (and {others} more)" if others > 1 else " (and one more)" if others else ""
    return ModelError(
        f"{label}: its files have no weight {min(names)}{more}, which its config.json asks for; get files and "
        "config.json of one model, with the names that transformers gives to weights"
    )


def other_shape_error(label: str, name: str) -> ModelError:
    """Weights and config.json are of two models, as the weight `name` shows."""
    return ModelError(
        f"{label}: its weights have other shapes than its config.json says, such as {name}; get both from one place"
    )


def check_targets(targets: Iterable[str], layers: Collection[str], option: str = "--lora-targets") -> None:
    """Refuse with a ModelError a target that ends no layer's name: peft only asks for one match among all targets."""
    for target in targets:
        if any(name == target or name.endswith(f".{target}") for name in layers):
            continue
        offered = sorted({name.rsplit(".", 1)[-1] for name in layers if not name.rsplit(".", 1)[-1].isdigit()})
        near = get_close_matches(target, offered, n=1)
        hint = f"did you mean {near[0]}? There are" if near else "there are"
        kind = "layers" if option == "--lora-targets" else "matrices"
        raise ModelError(f"{option} must name {kind} of the model, got {target!r}; {hint} {', '.join(offered)}")


def shard_names(index: Path) -> list[str]:
    """List the files of a model's index; OSError, ValueError, KeyError, TypeError or AttributeError if it is none."""
    return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))


def _files(directory: Path, label: str) -> list[Path]:
    """List the weight files that transformers reads; none if only files of other names exist."""
    if (directory / WHOLE).is_file():
        return [directory / WHOLE]
    if not (directory / INDEX).is_file():
        return []
    try:
        shards = [directory / name for name in shard_names(directory / INDEX)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{label} cannot be loaded: {INDEX} lists no files; {GET_AGAIN}") from error
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise ModelError(f"{label} cannot be loaded: {missing[0]} is not there, and {INDEX} lists it; {GET_AGAIN}")
    return shards
