"""The calls of a Python file, and their arguments as far as they are written out: parsed, and nothing of it run."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.errors import ConfigError

WANTED = ("GRPOTrainer", "GRPOConfig", "LoraConfig", "load_dataset", "train_with_grpo", "from_pretrained")


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """An argument that stands there as a value: a number, a text, a list or a mapping of them."""

    value: object


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """An argument that is computed."""

    source: str
    """The code, in one line."""
    call: str | None = None
    """The last name of the function that it calls."""


Argument = Written | Made


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call."""

    positional: tuple[Argument, ...]
    named: Mapping[str, Argument]


def calls_of(text: str, place: str) -> dict[str, Call]:
    """The first call of each of `WANTED`, by name. A name that was set once stands for what it was set to.

    Raises:
        ConfigError: the file is not Python.
    """
    # a notebook's magic commands are no Python
    lines = ["" if line.lstrip().startswith(("!", "%")) else line for line in text.splitlines()]
    try:
        tree = ast.parse("\n".join(lines))
    except SyntaxError as error:
        raise ConfigError(f"{place} is not Python ({error.msg}, line {error.lineno}); give the script") from None
    names = _names(tree)
    found: dict[str, Call] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := _called(node)) in WANTED and name not in found:
            found[name] = _call(node, names)
    return found


def _names(tree: ast.Module) -> dict[str, ast.expr]:
    """What each name is set to, where that happens once in the file."""
    values: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    values.setdefault(target.id, []).append(node.value)
    return {name: found[0] for name, found in values.items() if len(found) == 1}


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Name):
        return node.func.id
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""


def _call(node: ast.Call, names: Mapping[str, ast.expr]) -> Call:
    named: dict[str, Argument] = {}
    for keyword in node.keywords:
        if keyword.arg is not None:
            named[keyword.arg] = _argument(keyword.value, names)
        elif isinstance(given := _argument(keyword.value, names), Written) and isinstance(given.value, dict):
            named |= {str(name): Written(value=value) for name, value in given.value.items()}
        else:
            named[f"**{ast.unparse(keyword.value)}"] = Made(source=ast.unparse(keyword.value))
    return Call(positional=tuple(_argument(one, names) for one in node.args), named=named)


def _argument(node: ast.expr, names: Mapping[str, ast.expr]) -> Argument:
    seen: set[str] = set()
    while isinstance(node, ast.Name) and node.id in names and node.id not in seen:
        seen.add(node.id)
        node = names[node.id]
    try:
        return Written(value=ast.literal_eval(node))
    except (ValueError, TypeError, SyntaxError):
        return Made(source=ast.unparse(node), call=_called(node) if isinstance(node, ast.Call) else None)
