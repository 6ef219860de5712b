"""The model that `beta` holds the policy to."""

import copy
from dataclasses import replace

from paceline.config.sections import ModelConfig
from paceline.errors import ModelError
from paceline.models.forward import choose_forward
from paceline.models.loaded import Loaded
from paceline.models.loading import load_model
from paceline.models.parallel.mesh_layout import MeshLayout
from paceline.models.split_loading import load_policy


def load_reference(loaded: Loaded, config: ModelConfig, *, parallel_layout: MeshLayout | None = None) -> Loaded:
    """The model that `beta` holds the policy to: without the adapter where it has one, else as `config` names it.

    With a `parallel_layout` it is this rank's part of it.

    Under an adapter it is `loaded` itself, used within `without_adapter()`: no second model is read.

    Raises:
        ModelError: the adapter also trains biases of the base model, which are then no longer the reference's.
    """
    own = _itself_without_adapter(loaded)
    if own is not None or parallel_layout is None:
        return own or _frozen(load_model(config))
    reference, _ = load_policy(config, parallel_layout=parallel_layout)
    reference.model.requires_grad_(False)
    return reference


def frozen_copy(loaded: Loaded) -> Loaded:
    """The reference of a model object, as it is now; under an adapter `loaded` itself, as `load_reference` says."""
    return _itself_without_adapter(loaded) or _frozen(replace(loaded, model=copy.deepcopy(loaded.model)))


def _itself_without_adapter(loaded: Loaded) -> Loaded | None:
    """The policy as its own reference, None where it has no adapter.

    Raises:
        ModelError: peft's `bias` is not "none": the model without its adapter would change.
    """
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
    choose_forward(loaded.model)
    return loaded
