"""Run the program as a module with a function to call: arguments and value are JSON."""

import builtins
import json
import os
import types
from collections.abc import Callable
from importlib import import_module
from typing import Any, NoReturn

from paceline.sandbox.inside.program import NO_FUNCTION, VALUE, compiled, leave, new_module, status_of

MODULE = "solution"
"""Name of the program's module; under `__main__`, code below `if __name__ == "__main__"` would read stdin."""

GIVEN: dict[str, str] = {
    "typing": "Any Callable Deque DefaultDict Dict FrozenSet Generator Iterable Iterator List Optional Sequence Set "
    "Tuple Type TypeVar Union",
    "collections": "ChainMap Counter OrderedDict defaultdict deque namedtuple",
    "itertools": "accumulate chain combinations combinations_with_replacement count cycle groupby islice pairwise "
    "permutations product repeat starmap takewhile zip_longest",
    "functools": "cache cmp_to_key lru_cache partial reduce",
    "heapq": "heapify heappop heappush heappushpop heapreplace nlargest nsmallest",
    "bisect": "bisect bisect_left bisect_right insort insort_left insort_right",
    "math": "ceil comb factorial floor gcd inf isqrt lcm log log10 log2 pi prod sqrt",
    "string": "ascii_letters ascii_lowercase ascii_uppercase digits",
    "copy": "copy deepcopy",
    "dataclasses": "dataclass field",
    "random": "",
    "re": "",
    "operator": "",
    "json": "",
    "sys": "",
    "datetime": "",
}
"""Modules and names that programs of this kind use without importing them. No built-in name is among them."""


def call_function(source: str, name: str, arguments: str, report: int) -> NoReturn:
    """Define the program, call its function, write the value into the report and leave."""
    write = _writer(report)
    values = json.loads(arguments)
    module = new_module(MODULE)
    try:
        module.__dict__["__builtins__"] = {**vars(builtins), **_given()}  # beneath the program's own names
        exec(compiled(source, report), module.__dict__)
        function = _find(module, name)
        if function is None:
            os.write(report, NO_FUNCTION)
            leave(1)
        write(function(*values))
    except BaseException as error:  # noqa: BLE001
        leave(status_of(error, report) or 1)
    os._exit(0)


def _given() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for module in GIVEN:
        names[module] = import_module(module)
    for module, members in GIVEN.items():
        names.update((member, getattr(names[module], member)) for member in members.split() if member != module)
    return names


def _find(module: types.ModuleType, name: str) -> Callable[..., Any] | None:
    """Return the method of a class `Solution`, or the function of that name."""
    solution = module.__dict__.get("Solution")
    if isinstance(solution, type) and callable(getattr(solution, name, None)):
        return getattr(solution(), name)  # type: ignore[no-any-return]
    function = module.__dict__.get(name)
    return function if callable(function) else None


def _writer(report: int) -> Callable[[object], None]:
    """Return a writer of a value as JSON: tuples become arrays; NaN and infinities are written as Python reads them."""
    encode = json.JSONEncoder(ensure_ascii=True, check_circular=True, allow_nan=True).encode
    put = os.write

    def write(value: object) -> None:
        data = memoryview(VALUE + encode(value).encode())
        while data:
            data = data[put(report, data) :]

    return write
