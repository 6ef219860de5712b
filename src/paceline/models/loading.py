"""Model and tokenizer from a directory or a Hub name, with every doubt settled before weights are read."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from paceline.config import ModelConfig
from paceline.errors import ModelError
from paceline.products import speed_up_linear_layers

# transformers draws a bar for every load and save, also of a model that takes a millisecond
disable_progress_bar()

ONE_THREAD_PARAMETERS = 1_000_000
"""Below this a second thread gains a third on idle cores and, where another process wants the core, costs up to 18
times the time: the threads spin for each other at every one of many small operations."""

EMBEDDED = "embedded"
"""The name of the small model that ships with the package."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A model on its device with float32 weights, and the precision to compute in."""

    model: PreTrainedModel
    compute_dtype: torch.dtype
    eos_token_ids: frozenset[int]


def model_directory(name: str) -> str:
    """The place that transformers loads `name` from: the package's own directory for `embedded`.

    Raises:
        ModelError: `name` looks like a local path that is not there, or a directory without a model.
    """
    if name == EMBEDDED:
        return str(Path(__file__).parent.parent / "embedded")
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"--model {name} is a directory without config.json; name one that transformers can load")
        if not list(path.glob("*.safetensors")):
            raise ModelError(f"--model {name} has no *.safetensors file; convert its weights, pickle is not loaded")
        return str(path)
    if path.is_file() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(
            f"--model {name} is not a directory; name a model directory or a Hub name such as Qwen/Qwen3-0.6B"
        )
    return name


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """The model's tokenizer.

    Raises:
        ModelError: there is none, or it cannot be read.
    """
    place = model_directory(config.model)
    try:
        return AutoTokenizer.from_pretrained(place, trust_remote_code=config.trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"--model {config.model}: its tokenizer cannot be loaded: {_first_line(error)}") from error


def load_model(config: ModelConfig) -> Loaded:
    """The model in float32 on the chosen device, dropout off, ready to train; on a CPU it also sets torch's threads.

    Raises:
        ModelError: no such model, unreadable weights, or a device or precision that is not there.
    """
    place, device = model_directory(config.model), choose_device(config)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            place, dtype=torch.float32, trust_remote_code=config.trust_remote_code, use_safetensors=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"--model {config.model} cannot be loaded: {_first_line(error)}") from error
    _without_dropout(model)
    speed_up_linear_layers(model)
    if device.type == "cpu":
        torch.set_num_threads(choose_threads(config, model.num_parameters()))
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return Loaded(
        model=model.to(device).train(),
        compute_dtype=choose_dtype(config, device),
        eos_token_ids=_eos_token_ids(model),
    )


def choose_device(config: ModelConfig) -> torch.device:
    """The device that `--device` means on this machine.

    Raises:
        ModelError: CUDA is asked for and there is none.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ModelError("--device must be cpu or auto here, got 'cuda'; torch finds no CUDA device")
    return torch.device("cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu")


def choose_threads(config: ModelConfig, parameters: int) -> int:
    """CPU threads for a model of this many parameters, by `--threads`."""
    if config.threads:
        return config.threads
    return 1 if parameters < ONE_THREAD_PARAMETERS else torch.get_num_threads()


def choose_dtype(config: ModelConfig, device: torch.device) -> torch.dtype:
    """Precision of the computation: bfloat16 where the machine multiplies it in hardware and nobody said otherwise."""
    if config.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.dtype]


def context_length(config: ModelConfig) -> int | None:
    """Positions that the model can tell apart, None where its configuration does not say. Reads no weights."""
    place = model_directory(config.model)
    try:
        loaded = AutoConfig.from_pretrained(place, trust_remote_code=config.trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"--model {config.model}: its config.json cannot be loaded: {_first_line(error)}") from error
    return getattr(loaded.get_text_config(), "max_position_embeddings", None)


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: Path, dtype: torch.dtype) -> None:
    """Write a directory that `transformers` loads, weights in `dtype`, which is also what config.json says."""
    state = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
    model.save_pretrained(path, state_dict=state)
    config = json.loads((path / "config.json").read_text())
    config["dtype"] = str(dtype).removeprefix("torch.")
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer.save_pretrained(path)


def _eos_token_ids(model: PreTrainedModel) -> frozenset[int]:
    """Every token that ends a completion, as the model's generation settings say."""
    generation = model.generation_config
    ids = generation.eos_token_id if generation is not None else None
    ids = model.config.get_text_config().eos_token_id if ids is None else ids
    if ids is None:
        return frozenset()
    return frozenset(ids) if isinstance(ids, list) else frozenset([ids])


def _without_dropout(model: PreTrainedModel) -> None:
    """Dropout would make the trained distribution another one than the sampled one."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
