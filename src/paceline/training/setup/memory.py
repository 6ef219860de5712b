"""What the options about memory need of this machine."""

import importlib.util
from typing import TYPE_CHECKING

from paceline.config.rules import require
from paceline.config.sections import Config
from paceline.errors import ConfigError

if TYPE_CHECKING:
    import torch


def check_memory_options(config: Config, device: "torch.device") -> None:
    """Refuse what can have no effect here, and a library that is not there.

    Raises:
        ConfigError: the sentence names the option and the remedy.
    """
    for name, value in (
        ("activation_offload", config.model.activation_offload),
        ("optimizer_offload", config.optim.optimizer_offload),
    ):
        right = not value or device.type == "cuda"
        require(right, name, value, "be false on a CPU", "everything lies in main memory already")
    if config.optim.optimizer == "adamw_8bit" and importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError("--optimizer adamw_8bit needs the package bitsandbytes; `pip install 'paceline[8bit]'`")
