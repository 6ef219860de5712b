"""What a field or flag of another tool means here, as one row, for `GRPOTrainer` and `paceline translate` alike."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, Literal, TypeVar

NoteKind = Literal["settled", "changed", "mended", "missing", "idle"]
MeaningKind = Literal["option", "kept", "refused", "idle"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Switch:
    """A feature that gives other fields a meaning."""

    is_on: Callable[[Any], bool]
    off: str
    """Clause for when it is off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Meaning:
    """Meaning of one field or flag."""

    kind: MeaningKind
    """`option`: it becomes options; `kept`: the trainer or its user reads it; `refused`; `idle`: without effect."""
    text: str = ""
    """How it becomes an option, or why it is refused or idle."""
    options: tuple[str, ...] = ()
    """Options that it decides, alone or with other fields."""
    convert: Callable[[Any], object] | None = None
    """Value of the first option; None where it takes several fields, as `translation.py` computes."""
    choices: tuple[str, ...] = ()
    remedy: str = ""
    """Remedy for a word that is no choice."""
    also: tuple[object, ...] = ()
    """Values with which a refused one means the same as its absence."""
    switch: Switch | None = None
    """Feature without which it changes nothing."""
    may_be_none: bool = False
    late: bool = False
    """Read when training starts: it may change after the trainer was made."""
    note: tuple[NoteKind, str] | None = None
    """What a translated command says of it, where that is not `text`."""
    command: str = ""
    """What the reader of a command makes of it, where several processes and vLLM are offered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """A field in the class body of a table, until `table` makes a dataclass field of it."""

    default: Any
    help: str
    meaning: Meaning | None


def becomes(
    default: Any, option: str, how: str = "", *, convert: Callable[[Any], object] = lambda value: value, **more: Any
) -> Any:
    """A field that becomes one option by itself."""
    meaning = Meaning(kind="option", text=how, options=(option,), convert=convert, **more)
    return _Row(default=default, help="", meaning=meaning)


def decides(default: Any, options: str, how: str = "", **more: Any) -> Any:
    """A field that decides options together with others."""
    meaning = Meaning(kind="option", text=how, options=tuple(options.split()), **more)
    return _Row(default=default, help="", meaning=meaning)


def kept(default: Any, note: tuple[NoteKind, str], *, help: str = "", late: bool = True, **more: Any) -> Any:
    """A field that the trainer, its callbacks or the user's script reads."""
    return _Row(default=default, help=help, meaning=Meaning(kind="kept", note=note, late=late, **more))


def refused(default: Any, reason: str, **more: Any) -> Any:
    """A field that must keep its default."""
    return _Row(default=default, help=f"Refused: {reason}.", meaning=Meaning(kind="refused", text=reason, **more))


def idle(default: Any, reason: str, **more: Any) -> Any:
    """A field on which no result depends."""
    return _Row(default=default, help=f"Of no effect: {reason}.", meaning=Meaning(kind="idle", text=reason, **more))


def other_default(default: Any, help: str) -> Any:
    """A field whose row is in another table, with another default."""
    return _Row(default=default, help=help, meaning=None)


Table = TypeVar("Table", bound=type)


def table(cls: Table) -> Table:
    """Turn the rows of a class body into dataclass fields, and collect their meanings in `MEANINGS`."""
    rows = {name: row for name, row in vars(cls).items() if isinstance(row, _Row)}
    made: Any = cls
    made.MEANINGS = {name: row.meaning for name, row in rows.items() if row.meaning is not None}
    for name, row in rows.items():
        default = {"default_factory": list} if row.default == [] else {"default": row.default}
        setattr(cls, name, field(**default, metadata={"help": row.help} if row.help else None))
    return cls


def flags(
    kind: MeaningKind, groups: Mapping[str, str], *, also: Mapping[str, tuple[str, ...]] | None = None
) -> dict[str, Meaning]:
    """Rows of flags of another command line: a text, and the names of the flags that it is of."""
    return {
        name: Meaning(kind=kind, text=text, also=(also or {}).get(name, ()))
        for text, names in groups.items()
        for name in names.split()
    }


def changed(args: Any, name: str) -> bool:
    """True if a field of a dataclass is not at its default."""
    # a program's own class below a table may have another default, which is a change
    of_class = getattr(type(args), "TABLE", type(args)).__dataclass_fields__[name]
    default = of_class.default if of_class.default_factory is MISSING else of_class.default_factory()
    return not same(getattr(args, name), default)


def same(value: object, other: object) -> bool:
    """Equal, with False distinct from 0: `local_rank=False` is no rank."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def fields_by_option(meanings: Mapping[str, Meaning]) -> dict[str, tuple[str, ...]]:
    """Fields that decide each option; those come first that decide it before any other option."""
    deciding: dict[str, tuple[str, ...]] = {}
    for option in dict.fromkeys(option for meaning in meanings.values() for option in meaning.options):
        names = [name for name, meaning in meanings.items() if option in meaning.options]
        ranks = {name: (name != option, meanings[name].options[0] != option) for name in names}
        deciding[option] = tuple(sorted(names, key=ranks.__getitem__))
    return deciding
