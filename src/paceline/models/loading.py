"""Models ready to train, from a directory, a Hub name or a user's own object; and their weights from files.

Files may be in any layout. Of a model that lies on several ranks each reads its own part and no more.
"""

import contextlib
import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PretrainedConfig, PreTrainedModel
from transformers.utils.hub import cached_file
from transformers.utils.logging import disable_progress_bar

from paceline.config.sections import LoraConfig, ModelConfig
from paceline.errors import ModelError, first_line
from paceline.kernels.cpu.compiling import library
from paceline.kernels.linear import speed_up_linear_layers
from paceline.models.activations import is_recomputing, recompute
from paceline.models.loaded import NEEDS_PEFT, PIECES, Loaded, fill_adapter, import_peft, read_adapter_config
from paceline.models.lora import add_adapter, adopt_adapter, load_adapter
from paceline.models.parallel.pieces import files_of, open_stored, saved_tensors
from paceline.models.places import ADAPTER_CONFIG, GET_AGAIN, model_place
from paceline.models.plain_forward import without_noise
from paceline.models.pretrained import read_config
from paceline.models.tied_embedding import add_up_in_place
from paceline.models.weight_headers import INDEX, WHOLE, check_quantised, missing_error, other_shape_error, shard_names
from paceline.runtime.devices import choose_device, choose_dtype, choose_threads

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel

UNREADABLE = (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError)
"""What libraries raise for a directory that holds no model, or a damaged one."""


# transformers draws a bar for every load and save, also of a model that takes a millisecond
disable_progress_bar()


def load_model(
    config: ModelConfig, lora: "LoraConfig | PeftConfig | None" = None, *, checkpoint: Path | None = None, seed: int = 0
) -> Loaded:
    """Load a model in float32 on the chosen device, dropout off, ready to train; on a CPU it also sets torch's threads.

    Args:
        config: which model. The directory of an adapter gives its base model with the adapter, which is trained on.
        lora: the adapter to train; None or a rank of 0: all weights, or the adapter that `config` names.
        checkpoint: a checkpoint's `model` directory: its weights, or its adapter on the model of `config`.
        seed: fixes the random start of a new adapter.

    Raises:
        ModelError: a model, weights, device, precision or adapter that is not there, unreadable or unfit.
    """
    asked, place, device = _asked_adapter(lora), model_place(config.model), choose_device(config)
    adapter, base = place.adapter, place.base
    if adapter is not None and asked is not None:
        _check_same_adapter(config.model, lora, adapter)
    if checkpoint is not None:
        is_whole = not (checkpoint / ADAPTER_CONFIG).is_file()
        adapter, base = (None, str(checkpoint)) if is_whole else (checkpoint, base)
        if is_whole and (asked is not None or place.adapter is not None):
            raise ModelError(f"{checkpoint} holds a whole model and no adapter; go on without one")
    described = read_config(config)
    if base == place.base:
        has_adapter = adapter is not None or asked is not None
        check_quantised(described.to_dict(), f"--model {config.model}", has_adapter=has_adapter)
    loaded = prepared(_read(base, config), config, device, stored=stored_dtype(described))
    if adapter is not None:
        loaded = load_adapter(loaded, adapter)
    elif asked is not None:
        loaded = add_adapter(loaded, asked, seed=seed)
    cast(nn.Module, ready(loaded, config).model).to(device)
    return loaded


def adopt_model(
    model: "PreTrainedModel | PeftModel",
    config: ModelConfig,
    lora: "LoraConfig | PeftConfig | None" = None,
    *,
    seed: int = 0,
) -> Loaded:
    """Make a user's own model object ready as `load_model` does, in place: float32, on its device, dropout off.

    A `PeftModel` goes on training the adapter that it has. ModelError: no model of transformers, a quantised one, or an
    adapter that is refused.
    """
    asked, device = _asked_adapter(lora), choose_device(config)
    adapter: PeftModel | None = None
    if isinstance(model, PreTrainedModel):
        base = model
    elif isinstance(model, import_peft().PeftModel) and isinstance(model.get_base_model(), PreTrainedModel):
        adapter, base = model, cast(PreTrainedModel, model.get_base_model())
    else:
        raise ModelError(f"the model must be a PreTrainedModel or a PeftModel around one, got {type(model).__name__}")
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
    if adapter is not None:
        loaded = adopt_adapter(loaded, adapter)
    elif asked is not None:
        loaded = add_adapter(loaded, asked, seed=seed)
    cast(nn.Module, ready(loaded, config).model).to(device)
    return loaded


def restore_weights(loaded: Loaded, checkpoint: Path) -> None:
    """Put the weights of a checkpoint's `model` directory into a model of the same shape, or a rank's part of it.

    An adapter is put in before its model is split. ModelError: they cannot be read or belong to another model.
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
    """Options that describe an adapter must describe the one that is there."""
    if not isinstance(lora, LoraConfig):
        raise ModelError(f"--model {name} is an adapter already; leave out the second one, or merge the first")
    there = read_adapter_config(adapter)
    rank, alpha = getattr(there, "r", None), getattr(there, "lora_alpha", None)
    if rank != lora.lora_rank:
        raise ModelError(f"--lora-rank must be {rank}, as in --model {name}, got {lora.lora_rank}; or leave it out")
    if lora.lora_alpha is not None and alpha != lora.lora_alpha:
        raise ModelError(f"--lora-alpha must be {alpha}, as in --model {name}, got {lora.lora_alpha}; or leave it out")


def _read(place: str, config: ModelConfig) -> PreTrainedModel:
    if is_in_pieces(Path(place)):
        try:
            model = skeleton(place, trust_remote_code=config.trust_remote_code)
            give_memory(model, torch.device("cpu"))
            fill(model, weight_files(place))
        except UNREADABLE as error:
            raise ModelError(f"{Path(place)} cannot be put together: {first_line(error)}") from error
        return model
    name = config.model if place == model_place(config.model).base else place
    try:
        reader: Any = AutoModelForCausalLM  # its signature leaves out the report
        loaded, report = reader.from_pretrained(
            place,
            dtype=torch.float32,
            trust_remote_code=config.trust_remote_code,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # what does not match is refused by its name
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, AssertionError, SafetensorError) as error:
        raise ModelError(f"--model {name} cannot be loaded: {first_line(error)}; {GET_AGAIN}") from error
    check_loaded(loaded, report, f"--model {name}")
    read: PreTrainedModel = loaded
    return read


def check_loaded(model: PreTrainedModel, report: Mapping[str, Any], label: str) -> None:
    """Refuse a model that is not the one of its files, by what transformers reports of loading it.

    It draws weights that the files lack at random, leaves out those for which config.json has no place, and does not
    tie what config.json ties where the files differ. Heads and towers beside the language model may be left out.

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
    """Return the precision of a model's files by its config.json, float32 where that does not say."""
    said = described.dtype
    found: torch.dtype = getattr(torch, said) if isinstance(said, str) else said or torch.float32
    return found


def prepared(model: PreTrainedModel, config: ModelConfig, device: torch.device, *, stored: torch.dtype) -> Loaded:
    """Before an adapter is attached: the faster products, one gradient of a tied matrix, and torch's threads.

    `stored`: precision of what the model was made of.
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
    """After an adapter is attached: nothing is drawn at random, by the adapter's dropout neither."""
    if config.gradient_checkpointing == "true" or is_recomputing(loaded.model):
        recompute(loaded.model, None)
    without_noise(loaded.model)
    return loaded


def weight_files(place: str) -> list[Path]:
    """List the files with a model's weights, as transformers writes them or pieces; one of `UNREADABLE` without any."""
    if is_in_pieces(Path(place)):
        return files_of(Path(place), PIECES)
    with contextlib.suppress(OSError):  # then there are several
        return [_file(place, WHOLE)]
    return [_file(place, name) for name in shard_names(_file(place, INDEX))]


def _file(place: str, name: str) -> Path:
    return Path(cast(str, cached_file(place, name)))  # it raises where there is none


def is_in_pieces(directory: Path) -> bool:
    """Return whether no rank that wrote it had all of the model."""
    return next(directory.glob(f"{PIECES}*.safetensors"), None) is not None


def skeleton(place: str, *, trust_remote_code: bool) -> PreTrainedModel:
    """Make a model in float32, all of it on `meta`: shapes without memory. Errors are some of `UNREADABLE`."""
    config = AutoConfig.from_pretrained(place, trust_remote_code=trust_remote_code)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, trust_remote_code=trust_remote_code
        )
    with contextlib.suppress(OSError):  # without one it is as the model's configuration says
        model.generation_config = GenerationConfig.from_pretrained(place)
    model.eval()
    return model


def give_memory(model: PreTrainedModel, device: torch.device) -> None:
    """Give memory on `device` to what is on `meta`, a rank's parts as large as they are; weights stay undefined.

    Buffers that no file has, such as rotary frequencies, are computed.
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
    """Return whether files have tensors by the very names that a model, or a rank's part of one, has them under."""
    with open_stored(files) as stored:
        names, stored_names = set(saved_tensors(model)), set(stored.names())
    return names == stored_names if and_no_more else names <= stored_names


def bits_hang_on(device: torch.device) -> str:
    """What has to be the same for the same bits, besides options, data and versions of libraries; a sentence."""
    if device.type == "cuda":
        return "deterministic: the same bits again on the same kind of GPU; an operation that torch has not so raises"
    kernels = "compiled kernels" if library().functions is not None else "no compiled kernels"
    threads = torch.get_num_threads()
    return (
        f"deterministic: a CPU gives the same bits again by itself, on the same kind of processor with {threads} "
        f"thread{'s' * (threads > 1)} (--threads) and {kernels}, as here"
    )
