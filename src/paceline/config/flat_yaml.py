"""Convert YAML text to a flat mapping of options, and a `Config` to YAML text that reads back as the same `Config`.

A scalar keeps its text, and the option's own type decides. `1e-4` is a number, `no` may be the name of a split, `2024`
the name of a directory."""

import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager

import yaml

from paceline import __version__
from paceline.config.reading import find_option, option_name, options, parse_value, section_classes
from paceline.config.sections import Config
from paceline.errors import ConfigError

NULL_TAG = "tag:yaml.org,2002:null"
PLAIN_TAGS = tuple(
    f"tag:yaml.org,2002:{name}"
    for name in ("null", "bool", "int", "float", "str", "seq", "map", "timestamp", "value", "merge")
)


def parse_yaml(text: str, source: str) -> dict[str, object]:
    """Read the options of a file's text by name, each of its type. `source` names the file in errors.

    Raises:
        ConfigError: not YAML, not a flat mapping, an unknown or repeated option, a wrong value, or a tag that
            asks for an object; the sentence holds the line.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
            raise ConfigError(f"{source} is not YAML: {' '.join(str(error).split())}") from None
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        hint = "; indent with spaces" if "'\\t'" in str(error.problem) else ""
        raise ConfigError(f"{source} line {error.problem_mark.line + 1} is not YAML: {problem}{hint}") from None
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{source} must hold lines of `option: value`, got a {_kind(root)}")
    values: dict[str, object] = {}
    for key, node in root.value:
        location = f"{source} line {key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(f"{location}: the name of an option must be a word, got a {_kind(key)}")
        name = option_name(key.value)
        if name in values:
            raise ConfigError(f"{location}: {name} is given a second time; keep one of them")
        with _located(location):
            values[name] = parse_value(find_option(name), _plain(node, name))
    return values


def option_lines(text: str) -> dict[str, int]:
    """Return the line, from 1, of each option in a text that `parse_yaml` accepts."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = [] if root is None else root.value
    return {option_name(key.value): key.start_mark.line + 1 for key, _ in pairs}


@contextmanager
def _located(location: str) -> Iterator[None]:
    """Prefix refusals raised inside the context with a location."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{location}: {error}") from None


def _plain(node: yaml.Node, name: str) -> object:
    """Return a scalar as its text, null as None, and a list as a list of texts."""
    if node.tag not in PLAIN_TAGS:
        tag = node.tag.replace("tag:yaml.org,2002:", "!!")
        raise ConfigError(f"{name} has the tag {tag}, and a configuration never makes objects; write the plain value")
    if isinstance(node, yaml.SequenceNode) and all(isinstance(item, yaml.ScalarNode) for item in node.value):
        return [_plain(item, name) for item in node.value]
    if isinstance(node, yaml.ScalarNode):
        return None if node.tag == NULL_TAG else node.value
    raise ConfigError(f"{name} holds a nested {_kind(node)}; options are flat: one value, or one list of values")


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "mapping"
    return "list" if isinstance(node, yaml.SequenceNode) else "single value"


def to_yaml(config: Config) -> str:
    """Write every option with its value, by section, under the section's docstring."""
    blocks = [f"# paceline {__version__}\n"]
    for section, section_class in section_classes().items():
        sentence = " ".join((inspect.getdoc(section_class) or "").split())
        values = getattr(config, section)
        names = [option.name for option in options() if option.section == section]
        lines = "".join(yaml_line(name, getattr(values, name)) for name in names)
        blocks.append(f"# {section}: {sentence}\n{lines}")
    return "\n".join(blocks)


def yaml_line(name: str, value: object) -> str:
    """Write one option with its value, as `parse_yaml` reads it back.

    `default_flow_style=None` writes a list inside its brackets; a lone scalar needs block style.
    """
    plain = list(value) if isinstance(value, tuple) else value
    style = None if isinstance(plain, list) else False
    return str(yaml.safe_dump({name: plain}, default_flow_style=style, allow_unicode=True, width=math.inf))
