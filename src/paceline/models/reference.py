"""The model that `beta` holds the policy to."""

import copy
from dataclasses import replace

from paceline.config import ModelConfig
from paceline.errors import ModelError
from paceline.models.forward import choose_forward
from paceline.models.loaded import Loaded
from paceline.models.loading import load_model


def load_reference(loaded: Loaded, config: ModelConfig) -> Loaded:
    """The model that `beta` holds the policy to: without the adapter where it has one, else as `config` names it.

    Under an adapter it is `loaded` itself, used within `without_adapter()`: no second model is read.

    Raises:
        ModelError: the adapter also trains biases of the base model, which are then no longer the reference's.
    """
    return _itself_without_adapter(loaded) or _frozen(load_model(config))


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
