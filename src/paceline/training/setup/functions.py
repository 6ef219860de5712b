"""The reward functions of a run: those that the options name, and the models that are read for them."""

from collections.abc import Mapping

from paceline.config.sections import Config
from paceline.rewards.context import reward_context
from paceline.rewards.function import RewardFunction
from paceline.rewards.resolving import resolve
from paceline.runtime.devices import choose_device
from paceline.training.setup.overrides import Overrides


def configured_functions(config: Config) -> dict[str, RewardFunction]:
    """Every reward function that the options name, without reward models."""
    context = reward_context(config.rewards, config.sampling)
    return {name: resolve(name, context) for name in config.rewards.functions}


def with_reward_models(
    functions: Mapping[str, RewardFunction], config: Config, overrides: Overrides | None = None
) -> dict[str, RewardFunction]:
    """Functions, and the models that are read now, in the order of the configuration's names."""
    overrides = overrides or Overrides()
    addresses = overrides.reward_models or {name: name for name in config.rewards.reward_models}
    models = _read_models(addresses, config, overrides) if addresses else {}
    return {name: functions[name] if name in functions else models[name] for name in config.rewards.names}


def _read_models(addresses: Mapping[str, str], config: Config, overrides: Overrides) -> dict[str, RewardFunction]:
    # Imported here: the models of transformers take seconds to import, and most runs have no reward model.
    from paceline.rewards.model import load_reward_model

    device = choose_device(config.model)
    return {
        name: load_reward_model(address, device=device, tokenizer=overrides.reward_tokenizers.get(name))
        for name, address in addresses.items()
    }
