"""Pages of the documentation site that are generated: rewards, presets, options, metrics, TRL's fields, the tutorial.

From docstrings, signatures and defaults alone, and from the notebook, as Markdown by path below `docs/`; `site_hook.py`
gives them to mkdocs.
"""

import dataclasses
import inspect
import json
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from paceline.cli.explain import source_of
from paceline.compat.trl.arguments import NOT_OFFERED
from paceline.compat.trl.fields import MEANINGS
from paceline.config.building import build_config
from paceline.config.changing import rule_of
from paceline.config.presets import PRESETS
from paceline.config.reading import Option, find_option, options, section_classes
from paceline.metrics.alarms import RULES
from paceline.metrics.definitions import METRICS
from paceline.objective.formula import as_text, objective
from paceline.rewards.function import BuiltIn, RewardContext, annotations
from paceline.rewards.resolving import BUILT_IN, default_system_prompt
from paceline.types import Task

CONTEXT = RewardContext(max_completion_length=512)
"""What a page's numbers are made with, where a function needs to know a length."""
TASK = Task(task_id="train.jsonl:1", prompt="6 * 7 = ", prompt_ids=(), answer="42", columns={"answer": "42"})
MADE = "*Made from the code of this version when the site was built.*"
NOTEBOOK = Path(__file__).parent.parent / "docs" / "tutorial.ipynb"
CHANGE = {
    "freely": "can change on resume",
    "by name": "can change on resume with `--override`",
    "never": "cannot change on resume",
}


def pages() -> dict[str, str]:
    """Every generated page: path below `docs/` to Markdown."""
    made = {f"rewards/{name}.md": reward_page(name) for name in BUILT_IN}
    made |= {f"presets/{name}.md": preset_page(name) for name in PRESETS}
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return made | {
        "options.md": options_page(),
        "metrics.md": metrics_page(),
        "trl-fields.md": trl_fields_page(),
        "tutorial.md": tutorial_page(notebook),
    }


def trl_fields_page() -> str:
    """Fields and arguments of TRL's trainer that are refused or change nothing, with the reason."""
    refused = {name: meaning.text for name, meaning in MEANINGS.items() if meaning.kind == "refused"}
    idle = {name: meaning.text for name, meaning in MEANINGS.items() if meaning.kind == "idle"}
    return "\n\n".join(
        [
            "# TRL's fields without an effect",
            "[From TRL](trl.md) says what differs otherwise.",
            "## Fields that are refused",
            "Any value but the default is refused before weights are read. Those of vLLM, with `use_vllm` only.",
            _reasons("field", refused),
            "## Arguments of the trainer that are refused",
            _reasons("argument", NOT_OFFERED),
            "## Fields that change nothing",
            "These are accepted, and listed when training starts.",
            _reasons("field", idle),
            MADE,
            "",
        ]
    )


def _reasons(title: str, reasons: Mapping[str, str]) -> str:
    """A table of names by their common reason."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        by_reason.setdefault(reason, []).append(f"`{name}`")
    rows = [f"| {', '.join(names)} | {reason} |" for reason, names in by_reason.items()]
    return "\n".join([f"| {title} | because |", "|---|---|", *rows])


def reward_page(name: str) -> str:
    """What a built-in reward function gives, takes and needs."""
    maker = BUILT_IN[name]
    function = maker(CONTEXT)
    return "\n\n".join(
        [f"# Reward `{name}`", *_said_of(name, maker), *_taken(name, maker), *_needed(name, function), MADE, ""]
    )


def _said_of(name: str, maker: Callable[..., BuiltIn]) -> Iterator[str]:
    """The docstrings, with what is raised as a list; a module's too where it is of this function alone."""
    module = inspect.getdoc(sys.modules[maker.__module__]) or ""
    if module.startswith(f"`{name}`:"):
        yield module
    text, _, raised = (inspect.getdoc(maker) or "").partition("\nRaises:\n")
    yield text.strip()
    if raised:
        refused = " ".join(raised.split()).partition(": ")[2]
        yield f"Refused before the first step: {refused}"


def _taken(name: str, maker: Callable[..., BuiltIn]) -> Iterator[str]:
    """The parameters that the name may carry, and a command with them."""
    yield "## Parameters"
    known = annotations(maker)
    if known:
        defaults = {one.name: one.default for one in inspect.signature(maker).parameters.values()}
        rows = [f"| `{one}` | {_type(kind)} | {_value(defaults[one])} |" for one, kind in known.items()]
        yield "\n".join(["| parameter | type | default |", "|---|---|---|", *rows])
        yield "A default of none follows from the run's own options. In the command's quotes a parameter is given so:"
        shown = next((f"{one}={_word(defaults[one])}" for one in known if defaults[one] is not None), "")
        named = f"'{name}({shown})'" if shown else name
    else:
        yield "None."
        named = name
    yield _shell(f"paceline train --model Qwen/Qwen2.5-1.5B-Instruct --dataset train.jsonl --reward-funcs {named}")


def _needed(name: str, function: BuiltIn) -> Iterator[str]:
    """What it asks of rows, tells the model, and gives at most."""
    yield "## In a run"
    facts = [f"The greatest score is {function.maximum:g}; evaluation counts {function.right:g} and above as right."]
    if (need := function.need) is not None:
        facts.append(
            f"It {need.does}: rows without them have no score, which is not 0. Where no row has any, "
            f"{', or '.join(need.remedies)}."
        )
    else:
        facts.append("It needs nothing of a row.")
    gold = function.gold(TASK) if function.gold is not None else None
    if gold is not None:
        facts.append(f"A completion that scores full where the gold answer is `42`: {_code(gold)}.")
    yield "\n".join(f"- {fact}" for fact in facts)
    message = default_system_prompt([name])
    if message is not None:
        yield "Without `--system-prompt`, where this is the first function that asks for a format, the model is told:"
        yield f"```text\n{message}\n```"


def preset_page(name: str) -> str:
    """A published objective: its formula with its numbers, its values, and what is otherwise than in its source."""
    preset = PRESETS[name]
    config = build_config({"model": "embedded", "dataset": "arithmetic", "preset": name})
    formula = objective(config)
    rows = [
        f"| [`{find_option(key).flag}`](../options.md#{find_option(key).flag.lstrip('-')}) | {_value(value)} "
        f"| {_value(find_option(key).default)} | {source_of(key, value) or ''} |"
        for key, value in preset.values.items()
    ]
    return "\n\n".join(
        [
            f"# Preset `{name}`",
            f"Source: {preset.source}.",
            f"It differs from it in {preset.differs}.",
            "## Values",
            "\n".join(["| option | here | without a preset | published in |", "|---|---|---|---|", *rows]),
            "Every other option keeps its default, and any option beside the preset wins.",
            _shell(
                "paceline train --model Qwen/Qwen2.5-1.5B-Instruct --dataset train.jsonl "
                f"--preset {name}\npaceline explain --model Qwen/Qwen2.5-1.5B-Instruct --dataset train.jsonl "
                f"--preset {name}"
            ),
            "## Formula",
            f"```text\n{as_text(formula)}```",
            "t is a token of a completion. The second command prints this for a run of your own.",
            MADE,
            "",
        ]
    )


def options_page() -> str:
    """Every option by section."""
    parts = [
        "# Options",
        "Flags are flat: the section is only where an option lives. In a file its name has underscores.",
    ]
    for section, section_class in section_classes().items():
        parts += [f"## {section.capitalize()}", inspect.getdoc(section_class) or ""]
        parts += [text for option in options() if option.section == section for text in _option(option)]
    return "\n\n".join([*parts, MADE, ""])


def _option(option: Option) -> Iterator[str]:
    yield f"### `{option.flag}` {{ #{option.flag.lstrip('-')} }}"
    yield option.help
    default = "has to be given" if option.required else f"default {_value(option.default)}"
    facts = [_type(option.type), default, CHANGE[rule_of(option.name)]]
    source = None if option.required else source_of(option.name, option.default)
    yield "; ".join(facts) + (f"; {source}" if source else "") + "."


def metrics_page() -> str:
    """The numbers of a step, and the rules that ring on them."""
    rows = [f"| `{name}` | {metric.unit} | {_cell(metric.meaning)} |" for name, metric in METRICS.items()]
    alarms = [f"| `{rule.name}` | {_cell(rule.meaning)} | {_cell(rule.remedy)} |" for rule in RULES]
    return "\n\n".join(
        [
            "# Metrics",
            "`metrics.jsonl` has one object with these names per step.",
            "\n".join(["| name | unit | meaning |", "|---|---|---|", *rows]),
            "## Alarms",
            "Rules on the last five steps; none of them ends a run ([watching.md](watching.md#alarms)).",
            "\n".join(["| alarm | active when | what to do |", "|---|---|---|", *alarms]),
            MADE,
            "",
        ]
    )


def tutorial_page(notebook: Mapping[str, typing.Any]) -> str:
    """A notebook as a page: its texts, and its cells of code without what they print."""
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    (_, first), *others = cells
    title, _, rest = first.partition("\n")
    parts = [f"```python\n{text}\n```" if kind == "code" else text for kind, text in others]
    own = "[This page is a notebook](tutorial.ipynb) too: download it and run it."
    return "\n\n".join([title, own, rest.strip(), *parts, ""])


def _type(kind: object) -> str:
    """A type in words: `float`, several `str`, one of a few words, or none."""
    if typing.get_origin(kind) is typing.Literal:
        return "one of " + ", ".join(f"`{word}`" for word in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return f"several of: {_type(typing.get_args(kind)[0])}"
    arms = typing.get_args(kind)
    if type(None) in arms:
        return " or ".join(_type(arm) for arm in arms if arm is not type(None)) + ", or `none`"
    if arms:
        return " or ".join(map(_type, arms))
    return WORDS[kind]


WORDS: Mapping[object, str] = {int: "a whole number", float: "a number", bool: "`true` or `false`", str: "a text"}


def _value(value: object) -> str:
    if value is dataclasses.MISSING:
        return ""
    if isinstance(value, tuple):
        return " ".join(map(_value, value)) or "none"
    return "none" if value is None else "an empty text" if value == "" else f"`{_word(value)}`"


def _word(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _shell(text: str) -> str:
    return f"```shell\n{text}\n```"


def _code(text: str) -> str:
    """In backticks that the text does not have, on one line."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    return f"{'`' * (longest + 1)} {' '.join(text.split())} {'`' * (longest + 1)}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
