"""Options as text in, a checked `Config` out, and back: no files, no torch.

addresses.py addresses of datasets
sections.py  every option, once: type, default, meaning, rule
objective.py the same for what a step optimises
layout.py    the same for how model and samples lie on the processes that train
sources.py   where an option or a value of it was published
presets.py   published objectives as values of these options
rules.py     how a section refuses a value
reading.py   the table of options; one text or value to the option's type
building.py  a flat mapping of names to a `Config`; the rules between options
changing.py  which options a run that is gone on with may have otherwise
flat_yaml.py YAML text to a flat mapping; a `Config` to its resolved YAML
"""

from paceline.config.building import build_config, check, following_values
from paceline.config.changing import (
    RULES,
    Difference,
    changes_what_is_computed,
    differences,
    override_names,
    plain_options,
    refuse_changes,
)
from paceline.config.flat_yaml import option_lines, parse_yaml, to_yaml, yaml_line
from paceline.config.layout import ParallelConfig, Schedule, Sizes, layout, training_ranks
from paceline.config.objective import AdvantageConfig, LossConfig, OptimConfig, PresetName
from paceline.config.presets import PRESETS, Preset, preset_values
from paceline.config.reading import Option, find_option, option_name, options, parse_value, suggest
from paceline.config.sections import (
    ClusterConfig,
    Config,
    DataConfig,
    EngineConfig,
    EvalConfig,
    LoopConfig,
    LoraConfig,
    ModelConfig,
    RewardConfig,
    SamplingConfig,
)
from paceline.config.sources import source_of

__all__ = [
    "Option",
    "options",
    "find_option",
    "option_name",
    "suggest",
    "parse_value",
    "build_config",
    "check",
    "following_values",
    "RULES",
    "Difference",
    "differences",
    "changes_what_is_computed",
    "refuse_changes",
    "override_names",
    "plain_options",
    "parse_yaml",
    "option_lines",
    "source_of",
    "to_yaml",
    "yaml_line",
    "PRESETS",
    "Preset",
    "preset_values",
    "PresetName",
    "Config",
    "ModelConfig",
    "LoraConfig",
    "DataConfig",
    "RewardConfig",
    "SamplingConfig",
    "EngineConfig",
    "AdvantageConfig",
    "LossConfig",
    "OptimConfig",
    "EvalConfig",
    "LoopConfig",
    "ClusterConfig",
    "ParallelConfig",
    "Schedule",
    "Sizes",
    "layout",
    "training_ranks",
]
