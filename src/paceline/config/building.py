"""A flat mapping of option names to a `Config`, and every rule that holds between two options."""

from collections.abc import Mapping
from typing import Any

from paceline.config.reading import NULL_WORDS, find_option, options, parse_value, section_classes
from paceline.config.sections import Config, require
from paceline.errors import ConfigError

MAY_BE_EMPTY = ("system_prompt",)
"""Text options for which the empty text means something; elsewhere it is an unset shell variable."""


def build_config(given: Mapping[str, object]) -> Config:
    """The configuration that these options make, all others at their defaults.

    Names may have hyphens or underscores; values may be text or already of the option's type.

    Raises:
        ConfigError: an unknown or repeated name, a wrong value, a missing required option, or options at odds.
    """
    values: dict[str, object] = {}
    for spelling, value in given.items():
        option = find_option(spelling)
        if option.name in values:
            raise ConfigError(f"{option.flag} is given twice, with a hyphen and with an underscore; keep one of them")
        values[option.name] = parse_value(option, value)
    _refuse_missing(values)
    config = Config(**{section: _build_section(section, values) for section in section_classes()})
    check(config)
    return config


def _refuse_missing(values: Mapping[str, object]) -> None:
    missing = [option for option in options() if option.required and option.name not in values]
    if missing:
        meanings = "; ".join(f"{option.flag} ({option.help.rstrip('.')})" for option in missing)
        raise ConfigError(f"missing {meanings}: give it as a flag or in the --config file")


def _build_section(section: str, values: Mapping[str, object]) -> Any:
    names = [option.name for option in options() if option.section == section]
    return section_classes()[section](**{name: values[name] for name in names if name in values})


def check(config: Config) -> None:
    """The rules that no section can see alone.

    Raises:
        ConfigError: two options are at odds; the sentence names both.
    """
    _check_texts(config)
    if config.loop.max_steps is not None:
        require(
            config.optim.warmup_steps <= config.loop.max_steps,
            "warmup_steps",
            config.optim.warmup_steps,
            f"be at most --max-steps ({config.loop.max_steps})",
            "the peak learning rate would never be reached",
        )


def _check_texts(config: Config) -> None:
    for option in options():
        value = getattr(getattr(config, option.section), option.name)
        if option.plain_type is not str or value is None:
            continue
        require(value != "" or option.name in MAY_BE_EMPTY, option.name, value, "not be empty")
        is_null_word = option.optional and value.strip().lower() in NULL_WORDS
        require(not is_null_word, option.name, value, "not be a word that files and flags read as None")
