"""Options as text in, a checked `Config` out, and back: no files, no torch.

sections.py  every option, once: type, default, meaning, rule
reading.py   the table of options; one text or value to the option's type
building.py  a flat mapping of names to a `Config`; the rules between options
flat_yaml.py YAML text to a flat mapping; a `Config` to its resolved YAML
"""

from paceline.config.building import build_config, check
from paceline.config.flat_yaml import parse_yaml, to_yaml
from paceline.config.reading import Option, find_option, option_name, options, parse_value, suggest
from paceline.config.sections import (
    Config,
    DataConfig,
    EngineConfig,
    EvalConfig,
    LoopConfig,
    LossConfig,
    ModelConfig,
    OptimConfig,
    RewardConfig,
    SamplingConfig,
)

__all__ = [
    "Option",
    "options",
    "find_option",
    "option_name",
    "suggest",
    "parse_value",
    "build_config",
    "check",
    "parse_yaml",
    "to_yaml",
    "Config",
    "ModelConfig",
    "DataConfig",
    "RewardConfig",
    "SamplingConfig",
    "EngineConfig",
    "LossConfig",
    "OptimConfig",
    "EvalConfig",
    "LoopConfig",
]
