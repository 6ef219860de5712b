"""The table of options, read from the sections, and the conversion of values to an option's type."""

import ast
import contextlib
import dataclasses
import difflib
import functools
import inspect
import itertools
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paceline.config.rules import refusal
from paceline.config.sections import JUDGE, Config, json_or_text
from paceline.errors import ConfigError, PacelineError

NULL_WORDS = ("none", "null")
BOOL_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
A_SLIP = 0.9
"""Likeness of two words from which on one is the other with a slip of a letter."""
VERBATIM = ("stop", "dataset", "eval_dataset", "environment", "chat_template_kwargs", "lora_settings")
"""Options with several values whose text is not split at commas, which may be part of a value."""
_COMMA = re.compile(r",(?![^(]*\))")
"""Comma outside brackets, which hold the parameters of a reward function's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """An option: its section and the values it accepts."""

    name: str
    """Name in Python and YAML, with underscores."""
    section: str
    """Field of `Config` that holds the option."""
    type: object
    """Annotation, for example `float`, `int | None`, `tuple[str, ...]` or a `Literal`."""
    default: object
    """Default value; `dataclasses.MISSING` if there is none."""
    help: str
    """Docstring of the field."""

    @property
    def flag(self) -> str:
        """Name on the command line, with hyphens."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def required(self) -> bool:
        """True if a configuration without it is refused."""
        return self.default is dataclasses.MISSING

    @property
    def optional(self) -> bool:
        """True if None is a value."""
        return type(None) in typing.get_args(self.type)

    @property
    def plain_type(self) -> object:
        """The type without `| None`."""
        if isinstance(self.type, types.UnionType) or typing.get_origin(self.type) is typing.Union:
            return next(arm for arm in typing.get_args(self.type) if arm is not type(None))
        return self.type

    @property
    def kinds(self) -> tuple[type, ...]:
        """Types of a single value, the one to try first in front: `bool | str` is true, false, or another text."""
        arms = typing.get_args(self.type) if isinstance(self.type, types.UnionType) else (self.type,)
        return tuple(arm for arm in arms if isinstance(arm, type) and arm is not type(None))

    @property
    def choices(self) -> tuple[str, ...]:
        """Words of a `Literal`, otherwise empty."""
        return typing.get_args(self.plain_type) if typing.get_origin(self.plain_type) is typing.Literal else ()

    @property
    def takes_code(self) -> bool:
        """True if the user's own function, as `file.py:function` or `module:function`, is a value beside the words."""
        return bool(self.choices) and str in typing.get_args(self.type)

    @property
    def is_switch(self) -> bool:
        """True if the flag alone turns it on: true and false are its values, or among its words."""
        return self.plain_type is bool or "true" in self.choices

    @property
    def item_type(self) -> type | None:
        """Type of one value of an option that takes several, otherwise None."""
        arms = (self.plain_type, *typing.get_args(self.type))
        several = next((arm for arm in arms if typing.get_origin(arm) is tuple), None)
        return None if several is None else typing.get_args(several)[0]


@functools.cache
def options() -> tuple[Option, ...]:
    """Return every option, in the order of the sections."""
    return tuple(
        Option(
            name=field.name,
            section=section,
            type=typing.get_type_hints(section_class)[field.name],
            default=field.default,
            help=field_docstrings(section_class)[field.name],
        )
        for section, section_class in section_classes().items()
        for field in dataclasses.fields(section_class)
    )


def values_of(config: Config) -> dict[str, object]:
    """Return the value of every option by name, in the order of the sections."""
    return {option.name: getattr(getattr(config, option.section), option.name) for option in options()}


@functools.cache
def section_classes() -> dict[str, typing.Any]:
    """Return the sections of `Config`: field name to dataclass."""
    return typing.get_type_hints(Config)


@functools.cache
def field_docstrings(of: type) -> dict[str, str]:
    """Read the string under each annotated field of a class: Python keeps them in the source only."""
    body = typing.cast(ast.ClassDef, ast.parse(inspect.getsource(of)).body[0]).body
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def option_name(spelling: str) -> str:
    """Normalise a spelling: `--learning-rate`, `learning-rate` and `learning_rate` are one option.

    >>> option_name("--learning-rate")
    'learning_rate'
    """
    return spelling.removeprefix("--").replace("-", "_")


SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "lr": ("learning_rate",),
    "batch_size": ("prompts_per_step", "micro_batch_tokens"),
    "train_batch_size": ("prompts_per_step", "micro_batch_tokens"),
    "epochs": ("num_epochs",),
    "num_train_epochs": ("num_epochs",),
    "steps": ("max_steps",),
    "num_steps": ("max_steps",),
    "output": ("output_dir",),
    "out": ("output_dir",),
    "data": ("dataset",),
    "reward": ("reward_funcs",),
    "max_tokens": ("max_completion_length",),
    "group_size": ("num_generations",),
}
"""Names of options in other programs that are not close to their names here."""


def find_option(spelling: str) -> Option:
    """Return the option of this name.

    Raises:
        ConfigError: there is none; the sentence holds the nearest names.
    """
    by_name = {option.name: option for option in options()}
    name = option_name(spelling)
    if name not in by_name:
        flags = [by_name[near].flag for near in SYNONYMS.get(name, ())]
        remedy = (
            f"did you mean {' or '.join(flags)}?"
            if flags
            else suggest(name, by_name, form=lambda near: by_name[near].flag)
        )
        raise ConfigError(f"there is no option --{name.replace('_', '-')}; {remedy}")
    return by_name[name]


def suggest(
    word: str,
    candidates: Iterable[str],
    *,
    form: typing.Callable[[str], str] = str,
    otherwise: str = "`paceline train --help all` lists all",
) -> str:
    """Suggest the nearest right words for a misspelt one, or where to find them.

    >>> suggest("cosin", ["constant", "linear", "cosine"])
    'did you mean cosine?'
    """
    near = difflib.get_close_matches(word.lower(), list(candidates), n=3, cutoff=0.65)
    likeness = [difflib.SequenceMatcher(None, word.lower(), name).ratio() for name in near]
    if likeness and likeness[0] >= A_SLIP:  # longer names that hold the same word are not meant
        near = [name for name, value in zip(near, likeness, strict=True) if value >= A_SLIP]
    return f"did you mean {' or '.join(form(name) for name in near)}?" if near else otherwise


def base_name(name: str) -> str:
    """The part of a name before its parameters.

    >>> base_name("cosine(max_length=512)")
    'cosine'
    """
    return name.partition("(")[0].strip()


def served_model(name: str) -> str | None:
    """Return the model of a judge that the run serves itself; None: a judge at an address, or another reward.

    >>> served_model("judge:runs/judge(mode=rank)"), served_model("judge:http://h/v1(model=m)"), served_model("code")
    ('runs/judge', None, None)
    """
    base = base_name(name)
    model = base.removeprefix(JUDGE)
    return model if base.startswith(JUDGE) and model and ":" not in model else None


def served_judges(config: Config) -> tuple[str, ...]:
    """Names of the judges whose models a run serves itself, in training and on held-out tasks."""
    names = dict.fromkeys((*config.rewards.functions, config.evaluation.eval_reward_func))
    return tuple(name for name in names if served_model(name) is not None)


def parameter_texts(name: str, *, label: str, error: type[PacelineError]) -> dict[str, str]:
    """The parameters that a name carries in brackets, by their names, as they are written.

    `label` names it in messages; `error` is raised for malformed brackets.

    >>> parameter_texts("cosine(max_length=512, max_wrong=-0.5)", label="", error=ConfigError)
    {'max_length': '512', 'max_wrong': '-0.5'}
    """
    _, bracket, rest = name.partition("(")
    if bracket and not rest.rstrip().endswith(")"):
        raise error(f"{label}: the bracket is not closed; write {base_name(name)}(parameter=value)")
    texts = dict[str, str]()
    for part in filter(None, map(str.strip, rest.rstrip().removesuffix(")").split(","))):
        parameter, equals, value = map(str.strip, part.partition("="))
        if not equals or not value:
            raise error(f"{label}: {part!r} is no parameter; write parameter=value")
        if parameter in texts:
            raise error(f"{label}: {parameter} is given twice; give it once")
        texts[parameter] = value
    return texts


def scheduler_of(text: str) -> tuple[str, dict[str, object]]:
    """Return name and parameters of an `lr_scheduler`.

    >>> scheduler_of("cosine(warmup=0.1, num_cycles=2)")
    ('cosine', {'warmup': 0.1, 'num_cycles': 2})

    Raises:
        ConfigError: its brackets are not well-formed.
    """
    written = parameter_texts(text, label=f"--lr-scheduler {text}", error=ConfigError)
    return base_name(text), {name: json_or_text(value) for name, value in written.items()}


def is_code(value: object) -> bool:
    """Return True for the name of a user's function, `file.py:function` or `module:function`.

    >>> is_code("mine.py:advantage"), is_code("package.module:advantage"), is_code("group")
    (True, True, False)
    """
    return isinstance(value, str) and all(value.rpartition(":"))


def parse_value(option: Option, value: object) -> object:
    """Convert text from a command line or a file, or a value from Python, to the option's type.

    Raises:
        ConfigError: it is not of that type.
    """
    if _is_null(option, value):
        return None
    if option.item_type is not None:
        values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        if len(values) == 1 and isinstance(values[0], str) and option.name not in VERBATIM:
            # `accuracy,cosine(max_length=9, max_wrong=0)` holds two values
            values = [item.strip() for item in _COMMA.split(values[0])]
        several = tuple(_parse_single(option, option.item_type, item) for item in values)
        # of `str | tuple[str, ...]` a single value stands alone
        is_bare_alone = isinstance(option.type, types.UnionType) and option.item_type in typing.get_args(option.type)
        return several[0] if is_bare_alone and len(several) == 1 else several
    if option.choices:
        if option.is_switch and str(value).strip().lower() in BOOL_WORDS:
            return str(_parse_single(option, bool, value)).lower()
        if isinstance(value, str) and value in option.choices:
            return value
        if option.takes_code and is_code(value):
            return value
        rule = f"be one of {', '.join(option.choices)}"
        rule += ", or a function as file.py:function or module:function" if option.takes_code else ""
        raise refusal(option.name, value, rule, suggest(str(value), option.choices, otherwise=""))
    *others, last = option.kinds
    for kind in others:
        with contextlib.suppress(ConfigError):
            return _parse_single(option, kind, value)
    return _parse_single(option, last, value)


def _is_null(option: Option, value: object) -> bool:
    """Return True for a null word; the empty text is null except for text options."""
    if not option.optional:
        return False
    if isinstance(value, list) and len(value) == 1:  # a flag that takes several, given one word
        (value,) = value
    if isinstance(value, str):
        return value.strip().lower() in NULL_WORDS or (value.strip() == "" and option.plain_type is not str)
    return value is None


def _parse_single(option: Option, kind: type, value: object) -> object:
    if kind is bool:
        word = str(value).strip().lower()
        if word not in BOOL_WORDS:
            raise refusal(option.name, value, "be true or false")
        return BOOL_WORDS[word]
    if kind is int:
        if isinstance(value, int | str) and not isinstance(value, bool):
            with contextlib.suppress(ValueError):
                return int(value)
        raise refusal(option.name, value, "be a whole number", "write it in digits, such as 8")
    if kind is float:
        if not isinstance(value, int | float | str) or isinstance(value, bool):
            raise refusal(option.name, value, "be a number")
        try:
            number = float(value)
        except (ValueError, OverflowError):
            raise refusal(option.name, value, "be a number", "write it as 0.5 or 1e-6") from None
        if not math.isfinite(number):
            raise refusal(option.name, value, "be a finite number")
        return number
    if not isinstance(value, str):
        raise refusal(option.name, value, "be text")
    return value
