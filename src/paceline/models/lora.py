"""Adapters on a loaded model, through the library peft: low-rank matrices (LoRA) or whatever peft puts into layers.

W [O, I] stays as it is; A [r, I] and B [O, r] are trained: y = x W^T + (alpha / r) x A^T B^T.
Source: LoRA, arXiv:2106.09685, section 4.1.
"""

import copy
import json
import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from paceline.config.sections import OTHER_ADAPTER, LoraConfig
from paceline.errors import ModelError, first_line
from paceline.models.experts import expert_parameters
from paceline.models.loaded import ADAPTER_NAME, Loaded, fill_adapter, import_peft, read_adapter_config
from paceline.models.vision.families import family_of
from paceline.models.weight_headers import ALL_LINEAR, check_targets

if TYPE_CHECKING:
    from peft import LoraConfig as PeftLoraConfig
    from peft import PeftConfig, PeftModel

OF_FILES = (
    *("task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision"),
    "inference_mode",
)
"""Settings of peft's that say what an adapter belongs to, and not what it computes."""
ALL_EXPERTS = "all-experts"
"""Name for every matrix of every expert."""
NEUTRAL_STARTS = (True, False, "gaussian", "orthogonal")
"""Values of peft's `init_lora_weights` that leave the base model's weights alone."""


def make_lora_config(section: LoraConfig, parameters: Sequence[str] = ()) -> "PeftLoraConfig":
    """Describe to peft the adapter that the options ask for; `parameters` are the experts' that get one too.

    Raises:
        ModelError: peft is not installed, or does not know one of the settings.
    """
    targets = section.lora_targets
    described: dict[str, Any] = {
        "r": section.lora_rank,
        "lora_alpha": 2 * section.lora_rank if section.lora_alpha is None else section.lora_alpha,
        "target_modules": ALL_LINEAR if targets == (ALL_LINEAR,) else list(targets),
        "target_parameters": list(parameters) or None,
        # dropout would make the trained distribution another one than the sampled one, and is off whatever is given
        "lora_dropout": 0.0,
        "bias": "none",
        "task_type": "CAUSAL_LM",
        **section.settings,
    }
    try:
        description: PeftLoraConfig = import_peft().LoraConfig(**described)
    except (TypeError, ValueError) as error:
        written = " ".join(section.lora_settings)
        raise ModelError(f"--lora-settings {written} is none of peft's LoraConfig: {first_line(error)}") from error
    return description


def lora_options(peft_config: "PeftConfig") -> dict[str, object]:
    """Return the options that ask for the adapter of a configuration of peft's, as `make_lora_config` reads them.

    An adapter of another kind than LoRA is named, with all of its settings, and no options can ask for it.

    Raises:
        ModelError: a setting is an object that no option can hold.
    """
    peft = import_peft()
    kind, plain = cast(Enum, peft_config.peft_type).value, peft.LoraConfig().to_dict()
    is_lora = type(peft_config) is peft.LoraConfig
    settings: dict[str, Any] = {
        name: sorted(value) if isinstance(value, set) else value
        for name, value in peft_config.to_dict().items()
        if name not in OF_FILES and (not is_lora or value != plain[name])
    }
    options: dict[str, object] = {}
    if is_lora:
        targets = settings.pop("target_modules", None)
        lora = cast(Any, peft_config)
        options = {"lora_rank": lora.r, "lora_alpha": float(lora.lora_alpha)}
        options["lora_parameters"] = tuple(settings.pop("target_parameters", None) or ())
        settings = {name: value for name, value in settings.items() if name not in ("r", "lora_alpha")}
        if targets == ALL_LINEAR or (isinstance(targets, list | tuple) and targets):
            options["lora_targets"] = (targets,) if isinstance(targets, str) else tuple(targets)
        else:  # peft's own choice for the kind of model, or a pattern
            settings["target_modules"] = targets
    else:
        settings = {OTHER_ADAPTER: kind, **settings}
    try:
        written = tuple(f"{name}={json.dumps(value)}" for name, value in settings.items())
    except TypeError as error:
        raise ModelError(
            f"peft_config must hold what JSON can, so that config.yaml can say it, got {peft_config} ({error})"
        ) from error
    return {**options, "lora_settings": written}


def add_adapter(
    loaded: Loaded, adapter: "LoraConfig | PeftConfig", *, seed: int = 0, with_vision: bool = False
) -> Loaded:
    """Put a fresh adapter into a model's layers, in place; it is all that stays trainable. LoRA starts as no change.

    `adapter` is copied. `seed` fixes the random part of the start; the global random state is left as it was.
    `with_vision`: layers that encode images are adapted too, else those of the language model alone.
    ModelError: an adapter that changes something other than layers, reaches the output embedding, or names modules that
    are not there.
    """
    targets: Any = getattr(adapter, "target_modules", None)
    if isinstance(adapter, LoraConfig):
        targets = ALL_LINEAR if adapter.lora_targets == (ALL_LINEAR,) else adapter.lora_targets
    # a list of names is checked before peft is loaded, which takes seconds; peft knows what one string means
    if targets is not None and not isinstance(targets, str):
        kinds, head = (nn.Linear, nn.Embedding, Conv1D), loaded.model.get_output_embeddings()
        left_out = None if with_vision else _vision_modules(loaded)
        layers = [
            name
            for name, module in loaded.model.named_modules()
            if isinstance(module, kinds) and module is not head and not (left_out and re.fullmatch(left_out, name))
        ]
        check_targets(map(str, targets), layers)
    if isinstance(adapter, LoraConfig):
        adapter = make_lora_config(adapter, _asked_parameters(loaded.model, adapter.lora_parameters))
    return _attach(loaded, adapter if with_vision else _of_text(loaded, adapter), seed=seed)


def _vision_modules(loaded: Loaded) -> str | None:
    """Return a pattern of the names of all modules that encode images; None: the model reads none."""
    family = family_of(loaded.model.config.model_type)
    if family is None:
        return None
    return rf"(.*\.)?({'|'.join(map(re.escape, (*family.encoder, *family.projector)))})(\..*)?"


def _of_text(loaded: Loaded, adapter: "PeftConfig") -> "PeftConfig":
    """Return an adapter's configuration that leaves out what encodes images, whatever the names of its targets."""
    pattern = _vision_modules(loaded)
    if pattern is None:
        return adapter
    described: Any = copy.deepcopy(adapter)
    if getattr(described, "target_modules", None) == ALL_LINEAR:
        head = loaded.model.get_output_embeddings()
        described.target_modules = {
            name
            for name, module in loaded.model.named_modules()
            if isinstance(module, nn.Linear | Conv1D) and module is not head and not re.fullmatch(pattern, name)
        }
        return cast("PeftConfig", described)
    if not hasattr(described, "exclude_modules"):
        kind = cast(Enum, described.peft_type).value
        raise ModelError(
            f"an adapter of the kind {kind} cannot leave out layers, so that those would get one too which encode "
            "images; give --lora-vision true, or a peft.LoraConfig"
        )
    excluded = described.exclude_modules or ()
    patterns = [excluded] if isinstance(excluded, str) else [rf"(.*\.)?{re.escape(name)}" for name in excluded]
    described.exclude_modules = "|".join(f"({each})" for each in (*sorted(patterns), pattern))
    return cast("PeftConfig", described)


def _asked_parameters(model: PreTrainedModel, asked: Sequence[str]) -> Sequence[str]:
    """Return the names of experts' matrices, `ALL_EXPERTS` resolved; ModelError if the model has no such matrix."""
    if not asked:
        return asked
    experts = expert_parameters(model)
    names = [name for name, parameter in model.named_parameters() if parameter.dim() == 3]
    if not experts:
        rule = "be left out of a model without experts that transformers keeps as matrices in three dimensions"
        raise ModelError(f"--lora-parameters must {rule}, got {' '.join(asked)}")
    if tuple(asked) == (ALL_EXPERTS,):
        return experts
    check_targets(asked, names, option="--lora-parameters")
    return asked


def load_adapter(loaded: Loaded, directory: Path) -> Loaded:
    """Add the adapter of a directory, to go on training; ModelError if it is unreadable or does not fit."""
    attached = _attach(loaded, read_adapter_config(directory), seed=0)
    assert attached.adapter is not None  # just attached
    fill_adapter(attached.adapter, directory)
    return attached


def adopt_adapter(loaded: Loaded, adapter: "PeftModel") -> Loaded:
    """Train on the adapter that a model has; ModelError for several, or one merged, frozen or of a refused kind."""
    names = list(adapter.peft_config)
    if names != [ADAPTER_NAME]:
        raise ModelError(f"the PeftModel must hold one adapter named {ADAPTER_NAME!r}, got {', '.join(names)}")
    check_adapter_kind(adapter.peft_config[ADAPTER_NAME])
    if adapter.get_model_status().merged_adapters:
        raise ModelError("the PeftModel's adapter is merged into the weights; call its unmerge_adapter() first")
    _check_output(loaded.model, tied=_is_tied(loaded.model))
    trained = {
        name for name, parameter in adapter.named_parameters() if ADAPTER_NAME in name and parameter.requires_grad
    }
    if not trained:
        raise ModelError(
            "the PeftModel has no parameter of its adapter that requires a gradient; load it with "
            "PeftModel.from_pretrained(..., is_trainable=True)"
        )
    loaded.model.requires_grad_(False)
    layers: Any = adapter.base_model
    layers.enable_adapter_layers()
    adapter.set_adapter(ADAPTER_NAME)
    for name, parameter in adapter.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name in trained)  # what the program froze stays so
    adapter.peft_config[ADAPTER_NAME].inference_mode = False
    return replace(loaded, adapter=adapter)


def _attach(loaded: Loaded, peft_config: "PeftConfig", *, seed: int) -> Loaded:
    peft = import_peft()
    check_adapter_kind(peft_config)
    config, tied = copy.deepcopy(peft_config), _is_tied(loaded.model)
    config.base_model_name_or_path = None  # peft writes the present model's name
    config.task_type = "CAUSAL_LM"
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft calls names that transformers is about to drop
            torch.default_generator.manual_seed(seed)  # peft draws on the CPU
            adapter = peft.get_peft_model(loaded.model, config)
    except (ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"the adapter cannot be put into the model: {first_line(error)}") from error
    _check_output(loaded.model, tied=tied)
    # a directory's whole path, so that the exported adapter finds its base model from anywhere
    described = adapter.peft_config[ADAPTER_NAME]
    base = described.base_model_name_or_path
    if base and Path(base).is_dir():
        described.base_model_name_or_path = str(Path(base).resolve())
    return replace(loaded, adapter=adapter)


def check_adapter_kind(peft_config: "PeftConfig") -> None:
    """Refuse with a ModelError what the configuration alone shows to be no adapter that can be trained here."""
    kind = str(cast(Enum, peft_config.peft_type).value)
    if peft_config.is_prompt_learning or peft_config.is_adaption_prompt or kind == "XLORA":
        raise ModelError(
            f"the adapter must put matrices into the model's layers, got the kind {kind}; give a peft.LoraConfig"
        )
    if kind == "ADALORA":
        raise ModelError(
            "the adapter must keep its ranks, got the kind ADALORA, which moves them; give a peft.LoraConfig"
        )
    start = getattr(peft_config, "init_lora_weights", True)
    if start not in NEUTRAL_STARTS:
        raise ModelError(
            f"init_lora_weights must be one of {NEUTRAL_STARTS}, got {start!r}; it would change the base's weights"
        )
    if getattr(peft_config, "alora_invocation_tokens", None):
        raise ModelError("alora_invocation_tokens must be left out; the adapter has to act on every token")
    if getattr(peft_config, "layer_replication", None):
        raise ModelError("layer_replication must be left out; without its adapter the model would be another one")


def _check_output(model: PreTrainedModel, *, tied: bool) -> None:
    """Log-probabilities are computed from hidden states and the output embedding's own weight."""
    advice = f"leave it out of the adapter's targets, as {ALL_LINEAR} does"
    if _is_peft(model.get_output_embeddings()):
        raise ModelError(f"an adapter on the output embedding is not supported; {advice}")
    if tied and _is_peft(model.get_input_embeddings()):
        raise ModelError(f"the input embedding is also the output embedding here, which takes no adapter; {advice}")


def _is_peft(module: nn.Module) -> bool:
    return type(module).__module__.startswith("peft.")


def _is_tied(model: PreTrainedModel) -> bool:
    head = model.get_output_embeddings()
    return head is not None and getattr(head, "weight", None) is getattr(model.get_input_embeddings(), "weight", None)
