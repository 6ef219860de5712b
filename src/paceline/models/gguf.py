"""Models in GGUF files, llama.cpp's format: unpacked once into a directory that transformers loads, and written."""

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import re
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.base_directory import local_path
from paceline.config.packages import install_command
from paceline.errors import ConfigError, ModelError, first_line
from paceline.kernels.cache import cache_directory

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedModel

ENDING = ".gguf"
MAGIC = b"GGUF"
"""The first bytes of every such file."""
PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
"""File names of the parts of a model that llama.cpp has split."""
EXTRA = ("gguf", "accelerate")
"""Packages that transformers reads such files with."""
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""Model types of transformers that can be written, and their architectures in GGUF files."""
WRITTEN = frozenset(
    {
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"),
        *("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta", "tie_word_embeddings"),
    }
)
"""Fields of config.json that a file stores, or that its tensors show."""
WITHOUT_EFFECT = frozenset(
    {
        *("model_type", "architectures", "dtype", "torch_dtype", "transformers_version", "_name_or_path", "use_cache"),
        *(
            "bos_token_id",
            "eos_token_id",
            "pad_token_id",
            "initializer_range",
            "attention_dropout",
            "max_window_layers",
        ),
        *("return_dict", "output_attentions", "output_hidden_states", "torchscript", "use_bfloat16", "tokenizer_class"),
        *("id2label", "label2id", "problem_type", "task_specific_params", "prefix", "is_decoder", "is_encoder_decoder"),
        *("chunk_size_feed_forward", "_attn_implementation_autoset", "unsloth_version", "unsloth_fixed"),
    }
)
"""Fields that do not change what the model computes, or belong to the tokenizer."""
ONLY: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("silu", "swish"),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "pretraining_tp": (1, None),
    "use_sliding_window": (False, None),
    "partial_rotary_factor": (1, 1.0, None),
}
"""Values that other fields must have for the file to be the same model."""
READ = frozenset(
    {
        *("context_length", "embedding_length", "block_count", "feed_forward_length", "vocab_size"),
        *("attention.head_count", "attention.head_count_kv", "attention.layer_norm_rms_epsilon"),
        *("attention.key_length", "attention.value_length", "rope.dimension_count", "rope.freq_base"),
    }
)
"""Numbers of a file that transformers reads for these architectures."""
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")
"""Types of a matrix that the gguf package computes and llama.cpp runs, the largest first."""
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Pattern by which the tokenizers of Llama 3 and Qwen2 split text; they differ in the digits of a part."""
CONVERT = "convert the directory that export writes with llama.cpp's convert_hf_to_gguf.py"
COMPARED_TOKENS = 16
"""Tokens of the pass by which a written file is checked."""
TOLERANCE = 1e-3
"""Largest difference of its logits, as a share of the largest: sums in another order differ by less in float32."""
BLOCK = 32
"""Numbers that share a scale in each of the quantised types."""


def gguf_file(name: str) -> Path | None:
    """Return the GGUF file that a model's name stands for: itself, or the only one in a directory without config.json.

    ModelError: such a directory has several of them.
    """
    path = local_path(name)
    if path.suffix == ENDING and path.is_file():
        return path
    if not path.is_dir() or (path / "config.json").is_file():
        return None
    files = sorted(path.glob(f"*{ENDING}"))
    if len(files) > 1:
        raise ModelError(f"--model {name} has {len(files)} GGUF files; name one, such as {files[0]}")
    return files[0] if files else None


def unpacked(file: Path, label: str) -> Path:
    """Return the directory that transformers loads, made of a GGUF file once and kept in the user's cache.

    Weights are dequantised into float32, which is exact. Tokenizer and chat template are the file's. The directory's
    name is a digest of its origin, so a changed file is unpacked again.

    Raises:
        ModelError: no whole GGUF file, an architecture that transformers does not read from one, or a missing package.
    """
    with file.open("rb") as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            raise ModelError(f"{label} is no GGUF file, as it does not begin with {MAGIC.decode()}; get it again")
    if PART.search(file.name):
        raise ModelError(f"{label} is one part of a model; join the parts with llama-gguf-split --merge")
    if any(importlib.util.find_spec(name) is None for name in EXTRA):
        raise ModelError(f"{label} needs the packages {' and '.join(EXTRA)}; `{install_command(*EXTRA)}`")
    status = file.stat()
    return _unpacked(file.resolve(), status.st_size, status.st_mtime_ns, label)


@functools.cache
def _unpacked(file: Path, size: int, changed: int, label: str) -> Path:
    made_of = f"{file}\0{size}\0{changed}\0{importlib.metadata.version('transformers')}"
    directory = cache_directory() / f"{file.stem}-{hashlib.blake2b(made_of.encode(), digest_size=8).hexdigest()}"
    if directory.is_dir():
        return directory
    from transformers import AutoTokenizer

    _quiet_progress_bars()
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model = _from_file(file)
    except (OSError, ValueError, LookupError, RuntimeError, AttributeError, struct.error) as error:
        raise ModelError(f"{label} cannot be unpacked: {first_line(error)}; get it again if it is not whole") from error
    _check_read(file, model, label)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
        made = Path(scratch) / directory.name
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        try:
            made.rename(directory)  # whole or not at all
        except OSError:
            if not directory.is_dir():  # else another process was first
                raise
    return directory


def _check_read(file: Path, model: "PreTrainedModel", label: str) -> None:
    """Refuse a file of which transformers leaves out a tensor or a number, such as a bias or a scaled position.

    ModelError: one is left out. Only files of `ARCHITECTURES` are looked at.
    """
    import gguf

    reader = gguf.GGUFReader(file)
    architecture = str(reader.fields["general.architecture"].contents())
    if architecture not in ARCHITECTURES.values():
        return
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], model.config.num_hidden_layers)
    known = {names.get_name(name, try_suffixes=(".weight", ".bias")) for name in model.state_dict()}
    unread = sorted({tensor.name for tensor in reader.tensors} - known)
    prefix = f"{architecture}."
    unread += [
        name
        for name, field in reader.fields.items()
        if name.startswith(prefix)
        and name.removeprefix(prefix) not in READ
        and field.contents() not in (0, False, "", "none", [])
    ]
    if unread:
        raise ModelError(
            f"{label} has {unread[0]}, which transformers does not read from such a file, so that another model would "
            "be computed; name the directory that the file was made of"
        )


def check_written(folder: Path, kind: str) -> None:
    """Refuse what `write_gguf` cannot write, by a directory's config.json and tokenizer.json; ConfigError.

    `kind` is the type of the matrices.
    """
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError(f"--format gguf needs the package gguf; `{install_command('gguf')}`")
    if kind not in TYPES:
        raise ConfigError(f"--format gguf:TYPE must have one of the types {', '.join(TYPES)}, got {kind}")
    described = _read(folder / "config.json")
    family = described.get("model_type")
    if family not in ARCHITECTURES:
        raise ConfigError(
            f"--format gguf writes the architectures {', '.join(ARCHITECTURES)}, and the model is a {family}; {CONVERT}"
        )
    if (field := _unwritten(described)) is not None:
        raise ConfigError(
            f"--format gguf would write another model, as it has no place for {field} of {folder / 'config.json'}; "
            f"{CONVERT}"
        )
    if kind.startswith("Q") and described["hidden_size"] % BLOCK:
        raise ConfigError(f"--format gguf:{kind} needs rows of a multiple of {BLOCK}; take gguf:BF16")
    tokenizer = _read(folder / "tokenizer.json") if (folder / "tokenizer.json").is_file() else None
    if tokenizer is None or tokenizer["model"]["type"] != "BPE" or _split_name(tokenizer["pre_tokenizer"]) is None:
        raise ConfigError(
            "--format gguf writes byte-level BPE as GPT-2, Llama 3, Qwen2 or SmolLM divide text, and the tokenizer of "
            f"{folder} is another; {CONVERT}"
        )


def _unwritten(described: Mapping[str, Any]) -> str | None:
    """Return a field of config.json with its value that changes what a model computes and is not written."""
    for field, value in described.items():
        if field in WRITTEN or field in WITHOUT_EFFECT:
            continue
        if field in ONLY:
            is_right = value in ONLY[field]
        elif field in ("rope_parameters", "rope_scaling"):
            others = {"rope_theta": None, "rope_type": "default", "type": "default", "partial_rotary_factor": 1.0}
            is_right = value is None or all(
                name == "rope_theta" or (name in others and setting in (others[name], None))
                for name, setting in value.items()
            )
        elif field == "sliding_window":  # of Qwen, only with `use_sliding_window`
            is_right = value is None or described["model_type"].startswith("qwen")
        elif field == "layer_types":
            is_right = value is None or set(value) == {"full_attention"}
        else:
            is_right = False
        if not is_right:
            return f"{field} {json.dumps(value)}"
    return None


def _read(file: Path) -> dict[str, Any]:
    described: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return described


def write_gguf(folder: Path, file: Path, kind: str = "BF16") -> None:
    """Write the whole model of a directory as one GGUF file, matrices in type `kind` and vectors in float32.

    The file is read back and compared by one forward pass, which takes the memory of the model in float32.

    Raises:
        ConfigError: what `check_written` refuses, or the file is of another model; then it is removed.
    """
    check_written(folder, kind)
    import gguf
    from safetensors import safe_open

    described = _read(folder / "config.json")
    wanted = gguf.GGMLQuantizationType[kind]
    architecture = ARCHITECTURES[described["model_type"]]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], described["num_hidden_layers"])
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if kind == "F32" else f"MOSTLY_{kind}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _add_shape(writer, described)
    _add_tokenizer(writer, folder, described)
    turned = {"q_proj": described["num_attention_heads"], "k_proj": described["num_key_value_heads"]}
    for part in sorted(folder.glob("*.safetensors")):
        with safe_open(part, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118  # not a dictionary
                weight = stored.get_tensor(name).float().numpy()
                heads = turned.get(name.split(".")[-2])
                if architecture == "llama" and heads is not None:
                    weight = _interleaved(weight, heads)
                called = names.get_name(name, try_suffixes=(".weight", ".bias"))
                if called is None:
                    raise ConfigError(f"--format gguf has no name for the weight {name} of {folder}; {CONVERT}")
                here = wanted if weight.ndim > 1 else gguf.GGMLQuantizationType.F32
                writer.add_tensor(called, gguf.quantize(weight, here), raw_dtype=here)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    try:
        difference = _compare(folder, file, wanted)
        wrong = "" if difference <= TOLERANCE else f"computes other logits (off by {difference:.2g} of the largest)"
    except (OSError, ValueError, LookupError, RuntimeError, AttributeError) as error:
        wrong = f"cannot be read back ({first_line(error)})"
    if wrong:
        file.unlink()
        raise ConfigError(f"--format gguf: the file of {folder} {wrong}, so it is not kept; {CONVERT}")


def _compare(folder: Path, file: Path, kind: Any) -> float:
    """Return the largest difference of the logits of a directory's model, with its matrices rounded as in the file,
    and of the file's, as a share of the largest logit."""
    import gguf
    import torch
    from transformers import AutoModelForCausalLM

    _quiet_progress_bars()
    logits = []
    for is_file in (False, True):
        model = _from_file(file) if is_file else AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        tokens = torch.arange(COMPARED_TOKENS)[None] * 7919 % model.config.vocab_size
        with torch.no_grad():
            for weight in () if is_file else model.parameters():
                if weight.ndim > 1:
                    rounded = gguf.quantize(weight.numpy(), kind)
                    weight.copy_(torch.from_numpy(gguf.dequantize(rounded, kind)).view_as(weight))
            logits.append(model.eval()(tokens).logits)
        del model
    expected, got = logits
    return float((got - expected).abs().max() / expected.abs().max())


def _from_file(file: Path) -> "PreTrainedModel":
    """Load a GGUF file with its weights in float32, which is exact."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM

    # a transformers that can keep the quantised weights has to be told not to; older ones cannot keep them
    settings = getattr(transformers, "GgufConfig", None)
    dequantised = {} if settings is None else {"quantization_config": settings(dequantize=True)}
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, **dequantised
    )
    return model


def _quiet_progress_bars() -> None:
    """Switch transformers' progress bars off, except the one over a file's tensors on a terminal."""
    import transformers.modeling_gguf_pytorch_utils
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    reading: Any = transformers.modeling_gguf_pytorch_utils
    reading.tqdm = functools.partial(reading.tqdm, disable=None)  # None: tqdm asks whether it is one


def _add_shape(writer: Any, described: dict[str, Any]) -> None:
    heads = described["num_attention_heads"]
    width = described.get("head_dim") or described["hidden_size"] // heads
    rope = described.get("rope_parameters") or {"rope_theta": described["rope_theta"]}
    writer.add_context_length(described["max_position_embeddings"])
    writer.add_embedding_length(described["hidden_size"])
    writer.add_block_count(described["num_hidden_layers"])
    writer.add_feed_forward_length(described["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(described["num_key_value_heads"])
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(described["rms_norm_eps"])
    writer.add_vocab_size(described["vocab_size"])


def _add_tokenizer(writer: Any, folder: Path, described: dict[str, Any]) -> None:
    from gguf import TokenType
    from transformers import AutoTokenizer

    read = _read(folder / "tokenizer.json")
    # a model may have more rows than its tokenizer has tokens: these are never written or read
    tokens = [f"[PAD{index}]" for index in range(described["vocab_size"])]
    kinds = [TokenType.UNUSED] * len(tokens)
    for text, index in read["model"]["vocab"].items():
        tokens[index], kinds[index] = text, TokenType.NORMAL
    for added in read["added_tokens"]:
        kind = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
        tokens[added["id"]], kinds[added["id"]] = added["content"], kind
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in read["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_split_name(read["pre_tokenizer"]))
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    writer.add_add_bos_token(tokenizer("a").input_ids[:1] == [tokenizer.bos_token_id])
    for name in ("bos", "eos", "unk", "pad"):
        if (index := getattr(tokenizer, f"{name}_token_id")) is not None:
            getattr(writer, f"add_{name}_token_id")(index)
    if tokenizer.chat_template is not None:
        writer.add_chat_template(tokenizer.chat_template)


def _split_name(divides: dict[str, Any]) -> str | None:
    """Return llama.cpp's name of a tokenizer's pre-tokenizer, None if it is not supported."""
    parts = divides["pretokenizers"] if divides["type"] == "Sequence" else [divides]
    patterns = [part["pattern"]["Regex"] for part in parts if part["type"] == "Split" and "Regex" in part["pattern"]]
    kinds = [part["type"] for part in parts]
    if kinds == ["Split", "ByteLevel"] and patterns:
        return {WORDS % "{1,3}": "llama-bpe", WORDS % "": "qwen2"}.get(patterns[0])
    if not parts[-1].get("use_regex"):
        return None
    return {("ByteLevel",): "gpt-2", ("Digits", "ByteLevel"): "smollm"}.get(tuple(kinds))


def _interleaved(weight: "np.ndarray[Any, Any]", heads: int) -> "np.ndarray[Any, Any]":
    """Return the rows of each head in llama.cpp's order, with the halves of a rotated pair side by side."""
    pairs = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)
