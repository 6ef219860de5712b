"""A policy on several ranks, each of which reads only its own part, and the reference model of the KL penalty."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from paceline.config.sections import LoraConfig, ModelConfig
from paceline.config.vision import VisionConfig
from paceline.errors import ModelError, first_line
from paceline.models.activation_checkpointing import Activations
from paceline.models.activations import layers_of
from paceline.models.forward import PolicyForward, choose_forward, compute_alike, measure_activations
from paceline.models.loaded import Loaded
from paceline.models.loading import (
    TEXT_ALONE,
    UNREADABLE,
    fill,
    give_memory,
    has_all,
    load_model,
    prepared,
    ready,
    skeleton,
    stored_dtype,
    weight_files,
)
from paceline.models.parallel.mesh_ranks import MeshLayout
from paceline.models.parallel.stages import mark_both_ends
from paceline.models.places import ADAPTER_CONFIG, model_place
from paceline.models.plain_forward import keep_score_cap, without_noise
from paceline.models.pretrained import read_config
from paceline.runtime.devices import choose_device

if TYPE_CHECKING:
    from peft import PeftConfig

    from paceline.models.vision.tower import Pictures

TWIN_LAYERS, TWIN_VOCABULARY = 2, 512
"""Layers and tokens of a model's small twin, on which its forward pass is chosen."""


def load_policy(
    config: ModelConfig,
    lora: "LoraConfig | PeftConfig | None" = None,
    *,
    parallel_layout: MeshLayout,
    checkpoint: Path | None = None,
    seed: int = 0,
) -> tuple[Loaded, PolicyForward]:
    """Load this rank's part of the model that `load_model` would load whole, and choose its forward pass.

    A model with an adapter, or whose tensors have other names in files than in transformers' classes, is first read
    whole into main memory. ModelError: as `load_model`; quantised weights, with or without an adapter.
    """
    described = read_config(config)
    if described.to_dict().get("quantization_config"):
        raise ModelError(f"--model {config.model} has quantised weights, which one process trains; start one alone")
    location = model_place(config.model)
    asked = lora.lora_rank > 0 if isinstance(lora, LoraConfig) else lora is not None
    saved = checkpoint is not None and (checkpoint / ADAPTER_CONFIG).is_file()
    if not (asked or saved or location.adapter is not None):
        source, device = str(checkpoint or location.base), choose_device(config)
        try:
            model, files = skeleton(source, trust_remote_code=config.trust_remote_code), weight_files(source)
            if has_all(model, files, and_no_more=True):  # else transformers says what is missing or left over
                loaded = ready(prepared(model, config, device, stored=stored_dtype(described)), config)
                twin = _twin(loaded, device)  # the model computes as its twin chooses to
                forward = choose_forward(twin, loaded.compute_dtype)
                compute_alike(model, twin)
                parallel_layout.apply(model, loaded.compute_dtype)
                give_memory(model, torch.device("cpu") if parallel_layout.sharding.offload else device)
                mark_both_ends(model)  # parameters are others by now
                fill(model, files)
                return loaded, forward
        except UNREADABLE as error:
            raise ModelError(f"--model {source} cannot be loaded: {first_line(error)}") from error
    loaded = load_model(config, lora, checkpoint=checkpoint, seed=seed)
    forward = choose_forward(loaded.model, loaded.compute_dtype)
    parallel_layout.apply(loaded.model, loaded.compute_dtype)
    return loaded, forward


def measure_by_twin(loaded: Loaded, forward: PolicyForward) -> Activations:
    """Measure the saved activations of this rank's part of a model by its twin."""
    twin = _twin(loaded, loaded.model.device)
    choose_forward(twin, loaded.compute_dtype)
    measured, layers = measure_activations(twin, forward, loaded.compute_dtype), len(layers_of(loaded.model))
    return replace(measured, all_layers=measured.all_layers / measured.layers * layers, layers=layers)


def _twin(loaded: Loaded, device: torch.device) -> PreTrainedModel:
    """Make a model of the same widths with few layers and tokens."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        twin: PreTrainedModel = AutoModelForCausalLM.from_config(
            twin_config(loaded.model.config), dtype=loaded.model.dtype
        )
    without_noise(twin)
    keep_score_cap(twin)
    cast(nn.Module, twin).to(device)
    return twin


def twin_config(config: PretrainedConfig) -> PretrainedConfig:
    """Return a configuration with few tokens, and with few layers, among them one of each kind."""
    config = copy.deepcopy(config)
    text = config.get_text_config()
    kinds = list(getattr(text, "layer_types", None) or [])
    count, each = min(text.num_hidden_layers, TWIN_LAYERS), list(dict.fromkeys(kinds))
    if kinds:
        try:
            text.layer_types = each + kinds[: max(0, count - len(each))]
            count = len(text.layer_types)
        except AttributeError:  # transformers works the kinds out from other options: enough layers to have all of them
            count = max(count, *(kinds.index(kind) + 1 for kind in each))
    text.num_hidden_layers = count
    text.vocab_size, text.pad_token_id = min(text.vocab_size, TWIN_VOCABULARY), None
    return config


def load_reference(
    loaded: Loaded,
    config: ModelConfig,
    *,
    parallel_layout: MeshLayout | None = None,
    pictures: "Pictures | None" = None,
    vision: VisionConfig = TEXT_ALONE,
) -> Loaded:
    """Return the reference model of the KL penalty, or this rank's part of it if there is a `parallel_layout`.

    Under an adapter it is `loaded` itself, used within `without_adapter()`; else it is read as `config` names it.
    `pictures` and `vision`: as for `load_model`; features of a frozen encoder are those of the policy.
    ModelError: the adapter also trains biases of the base model, which are then no longer the reference's.
    """
    reference = _itself_without_adapter(loaded)
    if reference is not None or parallel_layout is None:
        return reference or _seeing_alike(_frozen(load_model(config, pictures=pictures, vision=vision)), loaded)
    reference, _ = load_policy(config, parallel_layout=parallel_layout)
    reference.model.requires_grad_(False)
    return reference


def frozen_copy(loaded: Loaded) -> Loaded:
    """Return a frozen copy of a model object as reference; under an adapter `loaded` itself, as in `load_reference`."""
    reference = _itself_without_adapter(loaded)
    if reference is not None:
        return reference
    copied, vision = copy.deepcopy(loaded.model), loaded.vision
    if vision is not None and vision.is_trained:
        vision = vision.of(copied)
    return _frozen(replace(loaded, model=copied, vision=vision))


def _seeing_alike(reference: Loaded, policy: Loaded) -> Loaded:
    """Return a reference that takes the features of the policy's encoder, if that stays as it was read."""
    if policy.vision is None or policy.vision.is_trained:
        return reference
    return replace(reference, vision=policy.vision)


def _itself_without_adapter(loaded: Loaded) -> Loaded | None:
    if loaded.adapter is None:
        return None
    trained = getattr(loaded.adapter.active_peft_config, "bias", "none")
    if trained != "none":
        raise ModelError(
            f"the adapter's bias must be 'none' with --beta above 0, got {trained!r}; trained biases move the reference"
        )
    return loaded


def _frozen(loaded: Loaded) -> Loaded:
    loaded.model.requires_grad_(False)
    choose_forward(loaded.model, vision=loaded.vision)
    return loaded
