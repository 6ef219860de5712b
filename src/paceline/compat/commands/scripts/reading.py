"""Calls of a Python file, their literal arguments and its datasets: the file is parsed and never run."""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from paceline.errors import ConfigError

WANTED = ("GRPOTrainer", "GRPOConfig", "LoraConfig", "load_dataset", "train_with_grpo", "from_pretrained")
ITEM = "[]"
"""Name of the call that `rows["train"]` counts as."""
ONLY_SHOWS = ("print", "pprint", "display", "info", "debug", "warning")
"""Functions that do not change their arguments."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A literal argument: a number, a text, or a list or mapping of them."""

    value: object
    names: frozenset[str] = frozenset()
    """Variables that it was read through."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """A computed argument."""

    source: str
    """Its code on one line, also for a variable that is set more than once."""
    name: str | None = None
    """Variable or function without a known value in the file."""
    call: "ScriptCall | None" = None
    """The call that makes it."""
    items: "tuple[Argument, ...]" = ()
    """Items of a literal list or tuple."""
    names: frozenset[str] = frozenset()
    """Variables that it was read through."""


Argument = Written | Made


def source_of(argument: Argument | None) -> str:
    """The argument as a script writes it."""
    if argument is None:
        return "none"
    return argument.source if isinstance(argument, Made) else repr(argument.value)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptCall:
    """One call."""

    name: str
    """Last part of the callee's name."""
    receiver: Argument | None
    """Expression before the dot or the bracket."""
    positional: tuple[Argument, ...]
    named: Mapping[str, Argument]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptChange:
    """A statement that changes a variable's object: `args.seed = 1`, `names.append("a")`, `freeze(model)`."""

    source: str
    attribute: str
    """Attribute that is set or called; empty if unknown."""
    is_call: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """Calls of `WANTED` in a file, and what surrounds them."""

    calls: Mapping[str, tuple[ScriptCall, ...]]
    """Calls by name, in the file's order; a variable that is set once stands for its value."""
    changes: Mapping[str, tuple[ScriptChange, ...]]
    """Changes by variable."""
    functions: frozenset[str]
    """Names of functions that the file defines."""
    trainer: tuple[ScriptCall, ...]
    """Methods called on a GRPOTrainer."""
    trainer_names: frozenset[str]
    """Variables that hold a GRPOTrainer."""

    def changes_behind(self, argument: Argument | None) -> tuple[ScriptChange, ...]:
        """Changes of a variable that the argument was read through."""
        names = sorted(argument.names) if argument is not None else ()
        return tuple(change for name in names for change in self.changes.get(name, ()))


def read_script(text: str, place: str) -> Script:
    """Calls of `WANTED` in a file, and other uses of the same variables; ConfigError for a file that is not Python."""
    # a notebook's magic commands are no Python
    lines = ["" if line.lstrip().startswith(("!", "%")) else line for line in text.splitlines()]
    try:
        tree = ast.parse("\n".join(lines))
    except SyntaxError as error:
        raise ConfigError(f"{place} is not Python ({error.msg}, line {error.lineno}); give the script") from None
    reader, nodes = _ScriptReader(tree), list(ast.walk(tree))
    calls, methods = dict[str, tuple[ScriptCall, ...]](), list[ScriptCall]()
    in_order = sorted(
        (node for node in nodes if isinstance(node, ast.Call)), key=lambda one: (one.lineno, one.col_offset)
    )
    for node in in_order:
        if (name := _called(node)) in WANTED:
            calls[name] = (*calls.get(name, ()), reader.call(node))
        elif isinstance(node.func, ast.Attribute):
            receiver = reader.argument(node.func.value)
            if isinstance(receiver, Made) and receiver.call is not None and receiver.call.name == "GRPOTrainer":
                methods.append(reader.call(node))
    changes: dict[str, tuple[ScriptChange, ...]] = {}
    for name, change in (found for node in nodes for found in _changed_by(node)):
        changes[name] = (*changes.get(name, ()), change)
    return Script(
        calls=calls,
        changes=changes,
        functions=frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef)),
        trainer=tuple(methods),
        trainer_names=frozenset(
            name
            for name, value in reader.values.items()
            if isinstance(value, ast.Call) and _called(value) == "GRPOTrainer"
        ),
    )


class _ScriptReader:
    """Expressions of a file, with each variable that is set once replaced by its value."""

    def __init__(self, tree: ast.Module) -> None:
        # every variable, once per place that sets it; without functions and imports
        self.times = Counter(
            node.arg if isinstance(node, ast.arg) else node.id
            for node in ast.walk(tree)
            if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load))
        )
        self.values: dict[str, ast.expr] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                targets, value = node.targets, node.value
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                targets, value = [node.target], node.value
            else:
                continue
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            self.values |= {name: value for name in names if self.times[name] == 1}

    def argument(self, node: ast.expr) -> Argument:
        """The expression as far as it is literal."""
        through = set[str]()
        while isinstance(node, ast.Name) and node.id in self.values and node.id not in through:
            through.add(node.id)
            node = self.values[node.id]
        names = frozenset(through)
        if isinstance(node, ast.Name):
            times = self.times[node.id]
            source = f"{node.id}, which is set {times} times" if times > 1 else node.id
            return Made(source=source, name=node.id if not times else None, names=names | {node.id})
        if isinstance(node, ast.List | ast.Tuple):
            items = tuple(self.argument(one) for one in node.elts)
            names = names.union(*(item.names for item in items))
            values = [item.value for item in items if isinstance(item, Written)]
            if len(values) == len(items):
                return Written(value=values, names=names)
            return Made(source=ast.unparse(node), items=items, names=names)
        if isinstance(node, ast.Call | ast.Subscript):
            call = self.call(node)
            parts = (*call.positional, *call.named.values(), *([call.receiver] if call.receiver else []))
            names = names.union(*(part.names for part in parts))
            return Made(source=ast.unparse(node), call=call, names=names)
        try:
            return Written(value=ast.literal_eval(node), names=names)
        except (ValueError, TypeError, SyntaxError):
            return Made(source=ast.unparse(node), names=names)

    def call(self, node: ast.Call | ast.Subscript) -> ScriptCall:
        """A call with its arguments; an item access counts as one."""
        if isinstance(node, ast.Subscript):
            item = self.argument(node.slice)
            return ScriptCall(name=ITEM, receiver=self.argument(node.value), positional=(item,), named={})
        named: dict[str, Argument] = {}
        for keyword in node.keywords:
            given = self.argument(keyword.value)
            if keyword.arg is not None:
                named[keyword.arg] = given
            elif isinstance(given, Written) and isinstance(given.value, dict):
                named |= {str(name): Written(value=one, names=given.names) for name, one in given.value.items()}
            else:
                source = f"**{ast.unparse(keyword.value)}"
                named[source] = Made(source=source, names=given.names)
        receiver = self.argument(node.func.value) if isinstance(node.func, ast.Attribute) else None
        positional = tuple(self.argument(one) for one in node.args)
        return ScriptCall(name=_called(node), receiver=receiver, positional=positional, named=named)


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Name):
        return node.func.id
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""


def _changed_by(node: ast.AST) -> Iterator[tuple[str, ScriptChange]]:
    """Variables whose object a statement changes, with the change."""
    if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete):
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]
        for target in targets:
            if isinstance(target, ast.Attribute | ast.Subscript) and (name := _root(target)) is not None:
                attribute = target.attr if isinstance(target, ast.Attribute) else ""
                yield name, ScriptChange(source=ast.unparse(node), attribute=attribute, is_call=False)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        call, function = node.value, _called(node.value)
        if function in (*WANTED, *ONLY_SHOWS):
            return
        if isinstance(call.func, ast.Attribute) and (name := _root(call.func)) is not None:
            yield name, ScriptChange(source=ast.unparse(call), attribute=function, is_call=True)
        for one in (*call.args, *(keyword.value for keyword in call.keywords)):
            if isinstance(one, ast.Name):
                yield one.id, ScriptChange(source=ast.unparse(call), attribute="", is_call=True)


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


FILES = ("json", "parquet")
"""File kinds that `load_dataset` takes by name and Paceline by their suffix."""
POSITIONS = ("path", "name", "data_dir", "data_files", "split")
FIRST_ROWS = re.compile(r"(?P<split>[\w.-]+)(?:\[:(?P<count>\d+)\])?")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptRows:
    """A dataset written out in the script."""

    place: str
    config: str | None = None
    split: str | None = None
    """None if not given, or for a file's only split."""
    count: int | None = None
    """None for all rows."""
    is_file: bool = False
    others: Mapping[str, Argument]
    """Arguments of the call outside the other fields."""


def rows_of(argument: Argument | None) -> ScriptRows | None:
    """Dataset of `load_dataset(NAME)[SPLIT].select(range(N))`, every part optional; None for other expressions."""
    call = argument.call if isinstance(argument, Made) else None
    if call is None:
        return None
    if call.name == "load_dataset":
        return _loaded(call)
    rows = rows_of(call.receiver)
    if rows is None or rows.count is not None or len(call.positional) != 1 or call.named:
        return None
    only = call.positional[0]
    if call.name == ITEM and rows.split is None and isinstance(only, Written) and isinstance(only.value, str):
        return replace(rows, split=None if rows.is_file else only.value)
    if call.name == "select" and isinstance(only, Made) and only.call is not None and only.call.name == "range":
        count = only.call.positional[0] if len(only.call.positional) == 1 else None
        if isinstance(count, Written) and isinstance(count.value, int):
            return replace(rows, count=count.value)
    return None


def _loaded(call: ScriptCall) -> ScriptRows | None:
    given = {**dict(zip(POSITIONS, call.positional, strict=False)), **call.named}
    texts = {name: one.value for name, one in given.items() if isinstance(one, Written)}
    if len(call.positional) > len(POSITIONS) or any(name not in texts and name in POSITIONS for name in given):
        return None
    path, config, files, split = (texts.get(name) for name in ("path", "name", "data_files", "split"))
    found = FIRST_ROWS.fullmatch(split) if isinstance(split, str) else None
    if not isinstance(path, str) or texts.get("data_dir") is not None or (split is not None and found is None):
        return None
    name = None if found is None else found["split"]
    count = int(found["count"]) if found is not None and found["count"] else None
    others = {key: one for key, one in given.items() if key not in POSITIONS}
    if path in FILES:
        is_one = isinstance(files, str) and "*" not in files and "://" not in files and config is None
        if not is_one or name not in (None, "train"):
            return None
        return ScriptRows(place=str(files), count=count, is_file=True, others=others)
    if files is not None:
        return None
    config = None if config is None else str(config)
    return ScriptRows(place=path, config=config, split=name, count=count, others=others)
