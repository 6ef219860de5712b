"""Models ready to train, from a directory, a Hub name or a user's own object; and their weights from files.

Files may be in any layout. Of a model on several ranks, each reads only its own part.
"""

import contextlib
import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.utils.hub import cached_file
from transformers.utils.logging import disable_progress_bar

from paceline.config.sections import LoraConfig, ModelConfig
from paceline.config.vision import VisionConfig
from paceline.errors import ModelError, first_line
from paceline.kernels.cpu.compiling import library
from paceline.kernels.linear import speed_up_linear_layers
from paceline.models.activations import is_recomputing, recompute
from paceline.models.loaded import NEEDS_PEFT, PIECES, Loaded, fill_adapter, read_adapter_config
from paceline.models.lora import add_adapter, adopt_adapter, load_adapter
from paceline.models.parallel.pieces import files_of, open_stored, saved_tensors
from paceline.models.places import ADAPTER_CONFIG, GET_AGAIN, model_place
from paceline.models.plain_forward import keep_score_cap, without_noise
from paceline.models.pretrained import is_read_whole, read_config, text_config
from paceline.models.text_part import parts_of_object, read_model
from paceline.models.tied_embedding import add_up_in_place
from paceline.models.vision.families import freeze
from paceline.models.weight_headers import INDEX, WHOLE, check_quantised, missing_error, other_shape_error, shard_names
from paceline.runtime.devices import choose_device, choose_dtype, choose_threads

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel

    from paceline.models.vision.tower import Pictures

UNREADABLE = (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError)
"""Exceptions of libraries for a directory without a model, or with a damaged one."""

TEXT_ALONE = VisionConfig()
"""Options of a run whose prompts hold no images."""


# transformers draws a bar for every load and save, also of a model that takes a millisecond
disable_progress_bar()


def load_model(
    config: ModelConfig,
    lora: "LoraConfig | PeftConfig | None" = None,
    *,
    checkpoint: Path | None = None,
    seed: int = 0,
    vision: VisionConfig = TEXT_ALONE,
    pictures: "Pictures | None" = None,
) -> Loaded:
    """Load a model in float32 on the chosen device, dropout off, ready to train; on a CPU it also sets torch's threads.

    Args:
        config: which model. An adapter's directory gives its base model with the adapter, whose training continues.
        lora: the adapter to train; None or a rank of 0: all weights, or the adapter that `config` names.
        checkpoint: a checkpoint's `model` directory: its weights, or its adapter on the model of `config`.
        seed: fixes the random start of a new adapter.
        vision: how images are read, and which parts that read them are trained.
        pictures: images of the prompts by their hashes; None: prompts are text, and the language model alone is loaded.

    Raises:
        ModelError: a model, weights, device, precision or adapter is missing, unreadable or unsuitable.
    """
    asked, source, device = _asked_adapter(lora), model_place(config.model), choose_device(config)
    adapter, base = source.adapter, source.base
    if adapter is not None and asked is not None:
        _check_same_adapter(config.model, lora, adapter)
    if checkpoint is not None:
        is_whole = not (checkpoint / ADAPTER_CONFIG).is_file()
        adapter, base = (None, str(checkpoint)) if is_whole else (checkpoint, base)
        if is_whole and (asked is not None or source.adapter is not None):
            raise ModelError(f"{checkpoint} holds a whole model and no adapter; go on without one")
    described = read_config(config)
    if base == source.base:
        has_adapter = adapter is not None or asked is not None
        check_quantised(described.to_dict(), f"--model {config.model}", has_adapter=has_adapter)
    if pictures is None:
        loaded = prepared(
            _read(base, config, whole=is_read_whole(described)), config, device, stored=stored_dtype(described)
        )
        freeze(loaded.model, vision)
    else:
        from paceline.models.vision.placeholders import read_image_processor

        processor = read_image_processor(config, vision)  # it tells first of a model that reads no images
        model = _read(base, config, whole=True)
        loaded = prepared(model, config, device, stored=stored_dtype(described))
        loaded = _seeing(loaded, vision, pictures, processor, source.base)
    if adapter is not None:
        loaded = load_adapter(loaded, adapter)
    elif asked is not None:
        loaded = add_adapter(loaded, asked, seed=seed, with_vision=vision.lora_vision)
    cast(nn.Module, ready(loaded, config).model).to(device)
    return loaded


def _seeing(loaded: Loaded, options: VisionConfig, pictures: "Pictures", processor: Any, source: str) -> Loaded:
    """Give a whole model the images that its prompts hold, and freeze what reads them as far as it is not trained."""
    from paceline.models.vision.tower import Vision

    if getattr(loaded.model, "is_quantized", False):
        raise ModelError("the model has quantised weights, and the prompts hold images, which takes full weights")
    model, dtype = loaded.model, loaded.compute_dtype
    freeze(model, options)
    vision = Vision(model=model, pictures=pictures, processor=processor, compute_dtype=dtype, source=source)
    return replace(loaded, vision=vision)


def adopt_model(
    model: "PreTrainedModel | PeftModel",
    config: ModelConfig,
    lora: "LoraConfig | PeftConfig | None" = None,
    *,
    seed: int = 0,
    vision: VisionConfig = TEXT_ALONE,
    pictures: "Pictures | None" = None,
    image_processor: Any = None,
) -> Loaded:
    """Prepare a user's own model object as `load_model` does, in place: float32, on its device, dropout off.

    Without `pictures`, only the language model of an object that also reads images or sound is trained. A `PeftModel`
    continues training its adapter. `image_processor`: the user's own; None: that of the directory that the object was
    read from. ModelError: no model of transformers, a quantised one, or an adapter that is refused.
    """
    asked, device = _asked_adapter(lora), choose_device(config)
    base, adapter = parts_of_object(model, whole=pictures is not None)
    if adapter is not None and asked is not None:
        raise ModelError("the model is a PeftModel and has an adapter; leave out the second one, or merge the first")
    if getattr(base, "_hf_peft_config_loaded", False):
        raise ModelError("the model has an adapter added by transformers; wrap the plain model with peft instead")
    check_quantised(base.config.to_dict(), "the model", has_adapter=adapter is not None or asked is not None)
    stored = base.dtype
    if getattr(base, "is_quantized", False):
        for tensor in (*base.parameters(), *base.buffers()):
            if tensor.is_floating_point() and type(tensor).__name__ != "Params4bit":  # whose storage may be of any kind
                tensor.data = tensor.data.float()
    else:
        cast(nn.Module, base).float()
    loaded = prepared(base, config, device, stored=stored)
    if pictures is None:
        freeze(base, vision)
    else:
        from paceline.models.vision.placeholders import image_processor_of

        loaded = _seeing(
            loaded, vision, pictures, image_processor_of(base, image_processor, vision), base.name_or_path or ""
        )
    if adapter is not None:
        loaded = adopt_adapter(loaded, adapter)
    elif asked is not None:
        loaded = add_adapter(loaded, asked, seed=seed, with_vision=vision.lora_vision)
    cast(nn.Module, ready(loaded, config).model).to(device)
    return loaded


def restore_weights(loaded: Loaded, checkpoint: Path) -> None:
    """Load the weights of a checkpoint's `model` directory into a model of the same shape, or a rank's part of it.

    An adapter is loaded before its model is split. ModelError: they cannot be read or belong to another model.
    """
    if loaded.adapter is not None:
        fill_adapter(loaded.adapter, checkpoint)
        return
    try:
        files = weight_files(str(checkpoint))
        if has_all(loaded.model, files):
            fill(loaded.model, files)
        else:  # transformers knows the names that some models have in files
            reader: Any = type(loaded.model)  # its signature leaves out the report
            saved, report = reader.from_pretrained(
                checkpoint, dtype=torch.float32, use_safetensors=True, output_loading_info=True
            )
            check_loaded(saved, report, str(checkpoint))
            loaded.model.load_state_dict(saved.state_dict())
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{checkpoint} cannot be loaded into the model: {first_line(error)}") from error


def _asked_adapter(lora: "LoraConfig | PeftConfig | None") -> "LoraConfig | PeftConfig | None":
    if not isinstance(lora, LoraConfig):
        return lora
    if lora.lora_rank == 0:
        return None
    if importlib.util.find_spec("peft") is None:  # known without the seconds that loading it takes
        raise ModelError(NEEDS_PEFT)
    return lora


def _check_same_adapter(name: str, lora: "LoraConfig | PeftConfig | None", adapter: Path) -> None:
    """Refuse options that describe another adapter than the existing one."""
    if not isinstance(lora, LoraConfig):
        raise ModelError(f"--model {name} is an adapter already; leave out the second one, or merge the first")
    there = read_adapter_config(adapter)
    rank, alpha = getattr(there, "r", None), getattr(there, "lora_alpha", None)
    if rank != lora.lora_rank:
        raise ModelError(f"--lora-rank must be {rank}, as in --model {name}, got {lora.lora_rank}; or leave it out")
    if lora.lora_alpha is not None and alpha != lora.lora_alpha:
        raise ModelError(f"--lora-alpha must be {alpha}, as in --model {name}, got {lora.lora_alpha}; or leave it out")


def _read(source: str, config: ModelConfig, *, whole: bool = False) -> PreTrainedModel:
    if is_in_pieces(Path(source)):
        try:
            model = skeleton(source, trust_remote_code=config.trust_remote_code, whole=whole)
            give_memory(model, torch.device("cpu"))
            fill(model, weight_files(source))
        except UNREADABLE as error:
            raise ModelError(f"{Path(source)} cannot be put together: {first_line(error)}") from error
        return model
    name = config.model if source == model_place(config.model).base else source
    try:
        loaded, report = read_model(
            source,
            trust_remote_code=config.trust_remote_code,
            whole=whole,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # what does not match is refused by its name
        )
    except (OSError, ValueError, KeyError, RuntimeError, AssertionError, SafetensorError) as error:
        raise ModelError(f"--model {name} cannot be loaded: {first_line(error)}; {GET_AGAIN}") from error
    check_loaded(loaded, report, f"--model {name}")
    return loaded


def check_loaded(model: PreTrainedModel, report: Mapping[str, Any], label: str) -> None:
    """Refuse a model that differs from its files, by transformers' report of loading it.

    transformers draws missing weights at random, skips those that config.json has no place for, and does not tie what
    config.json ties if the files differ. Heads and towers beside the language model may be left out.

    Raises:
        ModelError: one of these; it names a weight.
    """
    if missing := report["missing_keys"]:
        raise missing_error(label, missing)
    if other := report["mismatched_keys"]:
        raise other_shape_error(label, min(name for name, *_ in other))
    modules = dict(model.named_modules())
    places = {"", model.base_model_prefix}
    unused = [] if getattr(model, "is_quantized", False) else report["unexpected_keys"]
    for name in sorted(unused):
        parents = [name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1)]
        nearest = next((parent for parent in parents if parent in modules), "")
        # a buffer of earlier transformers, such as a causal mask, lies in a module of modules that is still there
        is_buffer = nearest == parents[0] and any(modules[nearest].children()) if parents else True
        if "lora_" in name or (nearest not in places and not is_buffer and not name.endswith(".inv_freq")):
            raise ModelError(
                f"{label}: its files have the weight {name}, for which its config.json has no place, so that another "
                "model would be computed; get files and config.json of one model"
            )
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    is_tied = getattr(model.config.get_text_config(), "tie_word_embeddings", False)
    if is_tied and head is not None and head.weight is not embedding.weight:
        raise ModelError(
            f"{label}: its config.json ties the output embedding to the input embedding, and its files have two "
            'that differ; write "tie_word_embeddings": false into config.json, or get the files again'
        )


def stored_dtype(described: PretrainedConfig) -> torch.dtype:
    """Return the precision of a model's files by its config.json, float32 if that does not say."""
    dtype = described.dtype
    stored: torch.dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype or torch.float32
    return stored


def prepared(model: PreTrainedModel, config: ModelConfig, device: torch.device, *, stored: torch.dtype) -> Loaded:
    """Set up a model before an adapter is attached: fast products, a tied matrix's gradient, torch's threads.

    `stored`: precision of the model's files or object.
    """
    if config.deterministic and device.type == "cuda":  # a CPU gives the same bits each time by itself
        # before the device's first product, as cuBLAS reads this once: a fixed workspace per stream, which NVIDIA
        # recommends for reproducible results
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)  # raises where torch has no such operation
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
    speed_up_linear_layers(model)
    add_up_in_place(model)
    # On a CPU with AVX-512 for bfloat16, bitsandbytes repacks 4-bit weights at the first pass without gradients, with
    # scales rounded to bfloat16: sampling and training would use different weights, and widths below 64 would fail.
    for layer in model.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            setattr(layer, "support_avx512bf16_for_cpu", False)  # noqa: B010  # torch types attributes as modules
    if device.type == "cpu":
        torch.set_num_threads(choose_threads(config, model.num_parameters()))
    dtype = choose_dtype(config, device, model.num_parameters())
    return Loaded(model=model, compute_dtype=dtype, stored_dtype=stored)


def ready(loaded: Loaded, config: ModelConfig) -> Loaded:
    """Switch recomputation on and all randomness off, after an adapter is attached."""
    if config.gradient_checkpointing == "true" or is_recomputing(loaded.model):
        recompute(loaded.model, None)
    without_noise(loaded.model)
    keep_score_cap(loaded.model)
    return loaded


def weight_files(source: str) -> list[Path]:
    """List a model's weight files, transformers' or pieces; one of `UNREADABLE` if there are none."""
    if is_in_pieces(Path(source)):
        return files_of(Path(source), PIECES)
    with contextlib.suppress(OSError):  # then there are several
        return [_file(source, WHOLE)]
    return [_file(source, name) for name in shard_names(_file(source, INDEX))]


def _file(source: str, name: str) -> Path:
    return Path(cast(str, cached_file(source, name)))  # it raises where there is none


def is_in_pieces(directory: Path) -> bool:
    """Return whether a directory holds pieces of several ranks."""
    return next(directory.glob(f"{PIECES}*.safetensors"), None) is not None


def skeleton(source: str, *, trust_remote_code: bool, whole: bool = False) -> PreTrainedModel:
    """Make a model in float32 on the meta device, without memory. Errors are some of `UNREADABLE`.

    `whole`: all of a model that also reads images; else its language model.
    """
    config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
    made_by: Any = AutoModelForImageTextToText if whole else AutoModelForCausalLM
    with torch.device("meta"):
        model: PreTrainedModel = made_by.from_config(
            config if whole else text_config(config), dtype=torch.float32, trust_remote_code=trust_remote_code
        )
    with contextlib.suppress(OSError):  # without one it is as the model's configuration says
        model.generation_config = GenerationConfig.from_pretrained(source)
    model.eval()
    return model


def give_memory(model: PreTrainedModel, device: torch.device) -> None:
    """Allocate a model's meta tensors, or a rank's parts of them, on `device`; weights stay uninitialised.

    Buffers that are not saved, such as rotary frequencies, are computed.
    """
    twice = dict[int, list[tuple[nn.Module, str]]]()
    for module in model.modules():
        for name, parameter in module._parameters.items():
            twice.setdefault(id(parameter), []).append((module, name))
    model.to_empty(device=device)
    for (first, name), *others in twice.values():
        for module, other in others:  # a matrix in two places is two by now, unless it lies in slices
            setattr(module, other, getattr(first, name))
    with torch.no_grad():
        for module in model.modules():
            if module._non_persistent_buffers_set:
                model._init_weights(module)


def fill(model: PreTrainedModel, files: Sequence[Path]) -> None:
    """Read this rank's part of every weight and buffer from files in any layout; errors are some of `UNREADABLE`."""
    with open_stored(files) as stored:
        stored.fill(model)


def has_all(model: PreTrainedModel, files: Sequence[Path], *, and_no_more: bool = False) -> bool:
    """Return whether files have all tensors of a model, or a rank's part of it, under the same names."""
    with open_stored(files) as stored:
        names, stored_names = set(saved_tensors(model)), set(stored.names())
    return names == stored_names if and_no_more else names <= stored_names


def bits_hang_on(device: torch.device) -> str:
    """Describe what the bits of a run depend on, besides options, data and versions of libraries."""
    if device.type == "cuda":
        return "deterministic: the same bits again on the same kind of GPU; an operation that torch has not so raises"
    kernels = "compiled kernels" if library().functions is not None else "no compiled kernels"
    threads = torch.get_num_threads()
    return (
        f"deterministic: a CPU gives the same bits again by itself, on the same kind of processor with {threads} "
        f"thread{'s' * (threads > 1)} (--threads) and {kernels}, as here"
    )
