"""What a card says, as records that hold no path of the machine on which the model was trained."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from paceline.config.sections import Config
from paceline.metrics.comparisons import Comparison
from paceline.metrics.intervals import Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A model or a dataset by the name under which others may know it."""

    label: str
    hub: str | None = None
    """Its name on the Hub, where it is from there."""


def named(address: str, *, is_local: Callable[[str], bool]) -> Source:
    """An option's address as a source: of a path its last part alone, as nobody else has the directories above it.

    >>> named("openai/gsm8k:main", is_local=lambda path: False)
    Source(label='openai/gsm8k:main', hub='openai/gsm8k')
    >>> named("/home/me/rows.jsonl", is_local=lambda path: True)
    Source(label='rows.jsonl', hub=None)
    """
    name = address.partition(":")[0]
    if not is_local(name) and re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return Source(label=address, hub=name)
    return Source(label=PurePath(address).name or address)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Accuracy on a held-out set after a number of steps."""

    step: int
    accuracy: Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOutResult:
    """A held-out set as it was measured first and last, up to the step that the weights are of."""

    dataset: Source
    num_tasks: int
    after: Measured
    before: Measured | None = None
    """None: there was one measurement."""
    comparison: Comparison | None = None
    """Comparison of both, task by task; None also where no task was graded both times."""
    looks: int = 0
    """Measurements after the first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompting:
    """How the model was asked."""

    has_chat_template: bool
    system: str | None = None
    """The system message."""
    missing_file: str | None = None
    """Where the system message stood, if it was not there any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A held-out task as the run asked it."""

    prompt: str
    """The whole text, through the chat template where there is one."""
    answer: str
    """Its gold answer."""
    question: str | None = None
    """The user's message alone; None: the prompt is plain text, or more than a system message and a question."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardFacts:
    """What a card says besides the configuration, `config`."""

    name: str
    config: Config
    base_model: Source
    dataset: Source | None
    is_adapter: bool
    """True where the directory holds an adapter alone."""
    prompting: Prompting
    steps: int
    """Steps that the weights were trained for."""
    versions: Mapping[str, str]
    results: tuple[HeldOutResult, ...] = ()
    example: Example | None = None
    """What the program of the card asks; None: a question that any model can be asked."""
    tags: tuple[str, ...] = ()
    """Beside those that every card has."""
    fields: Mapping[str, object] = field(default_factory=dict)
    """The objective as the fields of `GRPOConfig` say it, where these were its source."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Last numbers of a program's own log, by name."""
    links: tuple[str, ...] = ()
    """Where trackers show the run's curves to others."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What stands in the place of names in the configuration that hold a path of this machine."""
