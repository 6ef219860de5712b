"""Loads the user's own code by its name: `module:function` is imported, `file.py:function` runs once per content."""

import copy
import difflib
import functools
import importlib
import importlib.util
import itertools
import re
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from paceline.base_directory import local_path
from paceline.config.reading import NULL_WORDS
from paceline.errors import PacelineError, RewardError
from paceline.runtime.secrets import hidden

_LOADING_ERRORS = (Exception, SystemExit)
"""Errors that the user's code may raise while it is loaded."""


def copied(value: Any) -> Any:
    """Return a deep copy of an object of the user's; an object that cannot be copied is returned itself.

    Locks, queues, clients and tensors of a graph raise different errors, as any class may.
    """
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - the border: a class says by its own code how it is copied
        return value


def own_function(name: str, *, flag: str, error: type[PacelineError] = RewardError) -> Callable[..., Any]:
    """The user's own function or class that the option `flag` calls `file.py:function` or `module:function`.

    Raises:
        error: no such file, module or function, or one that cannot be loaded.
    """
    where, _, attribute = name.rpartition(":")
    module = own_module(where, label=f"{flag} {name}", error=error)
    if not hasattr(module, attribute):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise error(
            f"{flag} {name}: there is no {attribute!r} in it{nearest(attribute, functions)}; "
            f"it defines {', '.join(functions) or 'no function'}"
        )
    function = getattr(module, attribute)
    if not callable(function):
        raise error(f"{flag} {name}: {attribute!r} is of type {type(function).__name__}, but must be a function")
    return cast(Callable[..., Any], function)


def own_module(where: str, *, label: str, error: type[PacelineError]) -> ModuleType:
    """The module of this name, or the file of this path as one; the sentence of an error begins with `label`.

    Raises:
        error: no such file or module, or one that cannot be loaded.
    """
    if where.endswith(".py"):
        return _load_file(label, local_path(where), error)
    try:
        return importlib.import_module(where)
    except _LOADING_ERRORS as cause:
        raise error(
            f"{label}: the module cannot be imported ({_describe(cause)}); install its package, check PYTHONPATH, or "
            "name the file as path/to/file.py:function"
        ) from cause


def own_name(function: Callable[..., object]) -> str:
    """Return the name by which an option records a function that a program gives as an object.

    >>> own_name(sum)
    'builtins:sum'
    """
    return f"{function.__module__}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def recorded_name(function: Any, words: Collection[str]) -> str:
    """Return the name by which an option with several functions records one that a program gives as an object.

    The text of an option is read: it is split at commas, and brackets, colons and some words have a meaning there. So
    other signs become `_`, and a function that is called as one of the `words` goes by its module too.

    >>> recorded_name(sum, ()), recorded_name(sum, ("sum",))
    ('sum', 'builtins:sum')
    """
    while isinstance(function, functools.partial):
        function = function.func
    name = re.sub(r"[^\w.<>-]", "_", str(getattr(function, "__name__", type(function).__name__)))
    if name and name.lower() not in {*NULL_WORDS, *words}:
        return name
    return f"{getattr(function, '__module__', None) or '__main__'}:{name or 'function'}"


def recorded_names(functions: Sequence[Any], words: Collection[str]) -> list[str]:
    """Return `recorded_name` of each; other functions of the same name are numbered from 2 on."""
    named = dict[str, Any]()
    for function in functions:
        name = recorded_name(function, words)
        numbered = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
        named[next(unused for unused in numbered if unused not in named)] = function
    return [*named]


def file_of_code(name: str) -> Path | None:
    """The file that the function `name` was loaded from; None: it has no module in its name, or one without a file."""
    where = name.rpartition(":")[0]
    file = where if where.endswith(".py") else getattr(sys.modules.get(where), "__file__", None)
    return None if file is None else local_path(file)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a question that asks for the nearest of the known names; empty if none is near.

    >>> nearest("acuracy", ["accuracy", "code"])
    "; did you mean 'accuracy'?"
    """
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _load_file(label: str, path: Path, error: type[PacelineError]) -> ModuleType:
    """Load the file as a module whose name has a hash of path and content, so that two files never share a module."""
    try:
        content = path.read_bytes()
    except OSError as cause:
        raise error(f"{label}: the file cannot be read ({cause}); check the path") from cause
    digest = blake2b(str(path.resolve()).encode() + b"\x00" + content, digest_size=8).hexdigest()
    module_name = f"paceline_own_{digest}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise error(f"{label}: {path} is not a Python file; its name must end with .py")
    beside = str(path.resolve().parent)
    if beside not in sys.path:  # last: a file of the user's own takes no library's name
        sys.path.append(beside)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except _LOADING_ERRORS as cause:
        del sys.modules[module_name]
        raise error(f"{label}: the file cannot be loaded ({_describe(cause)}); correct it first") from cause
    return module


def _describe(error: BaseException) -> str:
    where = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return hidden(f"{type(error).__name__}: {text}{where}")
