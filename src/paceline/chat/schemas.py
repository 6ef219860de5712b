"""JSON schemas of tools, made by transformers' own helper from a function's types and docstring."""

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

from paceline.errors import ConfigError, first_line

REMEDY = "a tool has a type for each argument, and a docstring with a line `name: description` for each below `Args:`"


def check_tool(function: Callable[..., Any]) -> None:
    """Check that a function says what a schema needs, without importing anything for it.

    Raises:
        ConfigError: an argument has no type or description, or cannot be given by name; there is no docstring.
    """
    name = name_of(function)
    description = inspect.getdoc(function) or ""
    if not description:
        raise ConfigError(
            f"tool {name}: it has no docstring, but the model has to know what it does", remedies=[REMEDY]
        )
    for argument, parameter in _parameters(function).items():
        if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
            raise ConfigError(
                f"tool {name}: argument {str(parameter)!r} cannot be given by name, as a model's are",
                remedies=["name each argument"],
            )
        if parameter.annotation is inspect.Parameter.empty:
            raise ConfigError(f"tool {name}: argument {argument!r} has no type", remedies=[REMEDY])
        if not re.search(rf"(?m)^\s*{argument}:", description):
            raise ConfigError(f"tool {name}: its docstring does not describe argument {argument!r}", remedies=[REMEDY])


def tool_schema(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the schema of a function as chat templates show it: `{"type": "function", "function": {...}}`.

    Raises:
        ConfigError: as `check_tool`, or a type is none that JSON has.
    """
    # Here, as it takes seconds, and imports torch for the names of types.
    from transformers.utils.chat_template_utils import (
        DocstringParsingException,
        TypeHintParsingException,
        get_json_schema,
    )

    check_tool(function)
    name = name_of(function)
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError) as error:
        raise ConfigError(f"tool {name}: its types cannot be read ({first_line(error)})", remedies=[REMEDY]) from error
    for argument in _parameters(function):
        try:
            get_json_schema(_only(argument, hints[argument]))
        except TypeHintParsingException as error:
            raise ConfigError(
                f"tool {name}: the type of argument {argument!r} has no counterpart in JSON ({first_line(error)})",
                remedies=["use str, int, float, bool, list, dict, Literal or unions of them"],
            ) from error
    try:
        schema: Mapping[str, Any] = get_json_schema(function)
    except (DocstringParsingException, ValueError) as error:
        raise ConfigError(f"tool {name}: {first_line(error)}", remedies=[REMEDY]) from error
    return schema


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a tool.

    Raises:
        ConfigError: it has none that a model can write.
    """
    name = getattr(function, "__name__", "")
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ConfigError(f"tool {name or function!r}: it has no name of its own", remedies=["give it as a function"])
    return str(name)


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters that a model gives: those of a method without its object."""
    parameters = dict(inspect.signature(function).parameters)
    first = next(iter(parameters.values()), None)
    if first is not None and first.name == "self" and first.annotation is inspect.Parameter.empty:
        del parameters["self"]
    return parameters


def _only(argument: str, hint: object) -> Callable[..., Any]:
    """Make a function with this one argument, to learn whether its type is the one that cannot be converted."""

    def only(**arguments: Any) -> None:
        """Do nothing."""

    parameter = inspect.Parameter(argument, inspect.Parameter.KEYWORD_ONLY, annotation=hint)
    only.__signature__ = inspect.Signature([parameter])  # type: ignore[attr-defined]
    only.__annotations__ = {argument: hint}
    only.__doc__ = f"Do nothing.\n\nArgs:\n    {argument}: Anything."
    return only


def text_schema(name: str, description: str, **arguments: str) -> Mapping[str, Any]:
    """Return the schema of a built-in tool, whose arguments are all texts: what `tool_schema` makes of its function.

    `arguments` are their descriptions by name.
    """
    properties = {argument: {"type": "string", "description": text} for argument, text in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    function = {"name": name, "description": description, "parameters": parameters, "return": {"type": "string"}}
    return {"type": "function", "function": function}
