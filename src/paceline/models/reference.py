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
    if loaded.adapter is None:
        return _frozen(load_model(config))
    _check_base_unchanged(loaded)
    return loaded


def frozen_copy(loaded: Loaded) -> Loaded:
    """The reference of a model object, as it is now; under an adapter `loaded` itself, as `load_reference` says."""
    if loaded.adapter is None:
        return _frozen(replace(loaded, model=copy.deepcopy(loaded.model)))
    _check_base_unchanged(loaded)
    return loaded


def _check_base_unchanged(loaded: Loaded) -> None:
    """Refuse an adapter that would change the model without it.

    Raises:
        ModelError: peft's `bias` is not "none".
    """
    assert loaded.adapter is not None  # only asked of a model that has one
    trained = getattr(loaded.adapter.active_peft_config, "bias", "none")
    if trained != "none":
        raise ModelError(
            f"the adapter's bias must be 'none' with --beta above 0, got {trained!r}; trained biases move the reference"
        )


def _frozen(loaded: Loaded) -> Loaded:
    loaded.model.requires_grad_(False)
    choose_forward(loaded.model)
    return loaded
