"""README.md of a trained model: what it was made from, towards what, what came of it, how to load it.

`CardFacts` says what a card says, without a path of the machine on which the model was trained; `model_card` writes it.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, field
from pathlib import PurePath
from typing import Any

import yaml

from paceline.config.presets import PRESETS
from paceline.config.reading import find_option
from paceline.config.sections import Config
from paceline.metrics.comparisons import Comparison, level_of_best, probability
from paceline.metrics.statistics import Interval
from paceline.models.places import TEXT_NAMES
from paceline.objective.formula import as_text, objective
from paceline.reports.format import count, percent_interval, points
from paceline.reports.papers import paper_of

MARK = "<!-- Written by Paceline, which writes it again with the model; without this line it leaves the file alone. -->"
SECTIONS = ("lora", "sampling", "advantage", "loss", "optim")
"""Sections of the configuration that say what was optimised and how."""
ALWAYS = ("num_generations", "max_completion_length", "temperature", "learning_rate")
"""Options that the card always states; it states others where they differ from their defaults."""
TASK = "text-generation"
DIGITS = 4
"""Digits of a share: to a hundredth of a percent."""
QUESTION = "What is 12 + 30?"
IMAGE_QUESTION = "What is in the image?"
TEXT_ONLY = "The base model also reads images or sound; this is its language model alone, a causal language model."


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A model or a dataset by its public name."""

    label: str
    hub: str | None = None
    """Name on the Hub, for what is from there."""


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
    """Comparison of both, task by task; None where there was one measurement or no task was graded both times."""
    looks: int = 0
    """Measurements after the first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompting:
    """Prompt format of the run."""

    has_chat_template: bool
    system: str | None = None
    """The system message."""
    missing_file: str | None = None
    """Name of the system message's file, if it no longer exists."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A held-out task as the run asked it."""

    prompt: str
    """Whole text, through the chat template where there is one."""
    answer: str
    """Gold answer of the task."""
    question: str | None = None
    """The user's message alone; None: the prompt is plain text, or more than a system message and a question."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardFacts:
    """Facts that a card states."""

    name: str
    config: Config
    base_model: Source
    dataset: Source | None
    is_adapter: bool
    """True if the directory holds an adapter alone."""
    is_text_part: bool = False
    """True if the base model also reads images or sound, and its language model alone was trained."""
    has_images: bool = False
    """True if prompts of the run held images."""
    prompting: Prompting
    steps: int
    """Steps that the weights were trained for."""
    versions: Mapping[str, str]
    results: tuple[HeldOutResult, ...] = ()
    example: Example | None = None
    """Task that the card's program asks; None: a question that any model can be asked."""
    tags: tuple[str, ...] = ()
    """Tags besides those that every card has."""
    fields: Mapping[str, object] = field(default_factory=dict)
    """Fields of `GRPOConfig` that the objective was given by, if it was."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Last numbers of a program's own log, by name."""
    links: tuple[str, ...] = ()
    """Addresses at which trackers show the run's curves."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Replacements for names in the configuration that hold a path of this machine."""


def model_card(facts: CardFacts) -> str:
    """Write the whole file; the same facts give the same bytes."""
    config = facts.config
    what = "A low-rank adapter for" if facts.is_adapter else "Fine-tuned from"
    trained_on = f" on {_code(facts.dataset.label)}" if facts.dataset is not None else ""
    paper, preset = paper_of(config), config.advantage.preset
    is_its_own = preset is not None and paper.arxiv in PRESETS[preset].source
    formula = [f"```text\n{as_text(objective(config))}```"]
    if preset is not None:
        of_preset = PRESETS[preset]
        formula.insert(
            0, f"Preset `{preset}` ({of_preset.source}), which differs from the paper in {of_preset.differs}."
        )
    if facts.fields:
        formula += ["As the fields of TRL's `GRPOConfig` say it:", _table("field", "value", facts.fields)]
    blocks = [
        header(facts),
        MARK,
        f"# {_text(facts.name)}",
        f"{what} {_code(facts.base_model.label)}{trained_on}, in {count(facts.steps, 'step')} of group-relative "
        "policy optimisation with Paceline.",
        *([TEXT_ONLY] if facts.is_text_part else []),
        "## Results",
        *(_results(facts) if facts.results else ["Nothing was measured on held-out tasks."]),
        *([f"Its curves: {', '.join(f'<{link}>' for link in facts.links)}"] if facts.links else []),
        *(["## Last numbers", _table("name", "value", facts.numbers)] if facts.numbers else []),
        "## What was rewarded",
        _table("reward", "weight", config.rewards.weights),
        "## Objective",
        *formula,
        "## Options",
        "Those that are otherwise than by default, and the main ones; `config.yaml` of the run has all.",
        _table("option", "value", _options(config)),
        "## How to load it",
        f"```python\n{loading_program(facts)}\n```",
        "## Limits",
        "\n".join(f"- {limit}" for limit in _limits(facts)),
        "## Versions",
        _table("package", "version", facts.versions),
        "## Citation",
        f"The objective is {'that' if is_its_own else 'nearest to that'} of "
        f"[{paper.title}](https://arxiv.org/abs/{paper.arxiv}).",
        f"```bibtex\n{paper.bibtex}\n```",
    ]
    text = "\n\n".join(blocks) + "\n"
    for name in sorted(facts.labels, key=len, reverse=True):
        text = text.replace(name, facts.labels[name])
    return text


def header(facts: CardFacts) -> str:
    """Metadata for the Hub: YAML between two lines of dashes."""
    evaluation, results = facts.config.evaluation, []
    for result in facts.results:
        after = result.after
        measured = {
            "confidence": 0.95,
            "low": round(after.accuracy.low, DIGITS),
            "high": round(after.accuracy.high, DIGITS),
            "tasks": result.num_tasks,
            "step": after.step,
            "grader": evaluation.eval_reward_func,
            "temperature": evaluation.eval_temperature,
            "completions_per_task": evaluation.eval_generations,
            "max_new_tokens": facts.config.sampling.max_completion_length,
        }
        if facts.config.engine.engine_quantization != "none":
            measured["engine_quantization"] = facts.config.engine.engine_quantization
        if result.before is not None:
            measured["before"] = round(result.before.accuracy.value, DIGITS)
        value = round(after.accuracy.value, DIGITS)
        metric = {"type": "accuracy", "name": "Accuracy", "value": value, "args": measured}
        dataset = {"name": result.dataset.label, "type": result.dataset.hub or result.dataset.label}
        task = {"type": TASK, "name": "Text generation"}
        results.append({"task": task, "dataset": dataset, "metrics": [metric]})
    data: dict[str, Any] = {
        "base_model": facts.base_model.hub,
        "datasets": [facts.dataset.hub] if facts.dataset is not None and facts.dataset.hub else None,
        "library_name": "peft" if facts.is_adapter else "transformers",
        "pipeline_tag": "image-text-to-text" if facts.has_images else TASK,
        "model_name": facts.name,
        "tags": ["paceline", "grpo", "reinforcement-learning", *(["lora"] if facts.is_adapter else []), *facts.tags],
        "model-index": [{"name": facts.name, "results": results}] if results else None,
    }
    known = {key: value for key, value in data.items() if value is not None}
    return f"---\n{yaml.safe_dump(known, sort_keys=False, allow_unicode=True, width=120)}---"


def _results(facts: CardFacts) -> list[str]:
    rows = ["| held-out set | tasks | before | after | difference, points | gained, lost | test |", "|---" * 7 + "|"]
    for result in facts.results:
        sides = [
            "" if side is None else f"{percent_interval(side.accuracy)}, step {side.step:,}"
            for side in (result.before, result.after)
        ]
        changes = ["", "", ""]
        if (change := result.comparison) is not None:
            difference, low, high = (points(n) for n in astuple(change.difference))
            changes = [f"{difference} [{low}, {high}]", f"{change.gained:,}, {change.lost:,}"]
            changes.append(probability(change.p_value))
        rows.append(f"| {' | '.join([_code(result.dataset.label), f'{result.num_tasks:,}', *sides, *changes])} |")
    evaluation = facts.config.evaluation
    how = "greedy" if evaluation.eval_temperature == 0 else f"at temperature {evaluation.eval_temperature:g}"
    note = (
        f"Right is what {_code(evaluation.eval_reward_func)} calls right, of "
        f"{count(evaluation.eval_generations, 'completion')} per task, {how}, of at most "
        f"{facts.config.sampling.max_completion_length:,} tokens. Brackets are 95 % intervals; differences are paired "
        "by task, and the test is McNemar's, exact."
    )
    if facts.config.engine.engine_quantization == "fp8":
        note += " Layers were multiplied in eight bits (e4m3); the weights here are not rounded, and were not measured."
    most, blocks = max(result.looks for result in facts.results), ["\n".join(rows), note]
    if most > 1:
        blocks.append(
            f"The run was measured {most} times after its first step: a step that was chosen for its accuracy counts "
            f"as better from p < {level_of_best(most):.2g} on."
        )
    return blocks


def _options(config: Config) -> dict[str, object]:
    values = {name: value for section in SECTIONS for name, value in asdict(getattr(config, section)).items()}
    values["engine_quantization"] = config.engine.engine_quantization
    kept = {name: value for name, value in values.items() if name in ALWAYS or value != find_option(name).default}
    return {**kept, "prompts_per_step": config.loop.prompts_per_step, "seed": config.loop.seed}


def loading_program(facts: CardFacts) -> str:
    """Return Python code that works wherever the directory is."""
    if facts.has_images:
        return _loading_program_with_image(facts)
    loader = "AutoPeftModelForCausalLM" if facts.is_adapter else "AutoModelForCausalLM"
    imports = [f"from transformers import {loader}, AutoTokenizer"]
    model = [f"model = {loader}.from_pretrained(folder)"]
    if facts.is_adapter:
        imports = [f"from peft import {loader}", "from transformers import AutoTokenizer"]
    if facts.is_adapter and facts.is_text_part:
        libraries = "AutoConfig, AutoModelForCausalLM, AutoTokenizer"
        imports = ["from peft import PeftConfig, PeftModel", f"from transformers import {libraries}"]
        model = [
            "base = PeftConfig.from_pretrained(folder).base_model_name_or_path",
            "text = AutoConfig.from_pretrained(base).get_text_config()",
            f"names = {dict(TEXT_NAMES)}",
            "model = AutoModelForCausalLM.from_pretrained(base, config=text, key_mapping=names)",
            "model = PeftModel.from_pretrained(model, folder)",
        ]
    example = facts.example
    comment = [] if example is None else [f"# a held-out task, asked as in the run; its gold answer: {example.answer}"]
    if example is not None and example.question is None:
        text, plain = json.dumps(example.prompt, ensure_ascii=False), not facts.prompting.has_chat_template
        prompt = [f'prompt = tokenizer({text}, return_tensors="pt"{"" if plain else ", add_special_tokens=False"})']
    elif not facts.prompting.has_chat_template:
        prompt = [f'prompt = tokenizer("{QUESTION}", return_tensors="pt")']
    else:
        question = QUESTION if example is None or example.question is None else example.question
        system = [] if facts.prompting.system is None else [{"role": "system", "content": facts.prompting.system}]
        messages = [*system, {"role": "user", "content": question}]
        thinking = facts.config.data.enable_thinking
        switch = "" if thinking is None else f", enable_thinking={thinking}"
        prompt = [
            "messages = [",
            *(f"    {json.dumps(message, ensure_ascii=False)}," for message in messages),
            "]",
            "prompt = tokenizer.apply_chat_template(",
            f'    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True{switch}',
            ")",
        ]
    length = facts.config.sampling.max_completion_length
    lines = [
        *imports,
        "",
        'folder = "."  # the directory of this card, or the name that it has on the Hub',
        "tokenizer = AutoTokenizer.from_pretrained(folder)",
        *model,
        *comment,
        *prompt,
        f"output = model.generate(**prompt, max_new_tokens={length}, do_sample=False)",
        'print(tokenizer.decode(output[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))',
    ]
    return "\n".join(lines)


def _loading_program_with_image(facts: CardFacts) -> str:
    libraries = "AutoModelForImageTextToText, AutoProcessor"
    imports, folder = [f"from transformers import {libraries}"], "folder"
    model = ["model = AutoModelForImageTextToText.from_pretrained(folder)"]
    if facts.is_adapter:
        imports, folder = ["from peft import PeftConfig, PeftModel", *imports], "base"
        model = [
            "base = PeftConfig.from_pretrained(folder).base_model_name_or_path",
            "model = PeftModel.from_pretrained(AutoModelForImageTextToText.from_pretrained(base), folder)",
        ]
    parts = [{"type": "image", "image": "image.png"}, {"type": "text", "text": IMAGE_QUESTION}]
    system = [] if facts.prompting.system is None else [{"role": "system", "content": facts.prompting.system}]
    lines = [
        *imports,
        "",
        'folder = "."  # the directory of this card, or the name that it has on the Hub',
        *model,
        f"processor = AutoProcessor.from_pretrained({folder})",
        "messages = [",
        *(f"    {json.dumps(message)}," for message in (*system, {"role": "user", "content": parts})),
        "]",
        "prompt = processor.apply_chat_template(",
        '    messages, add_generation_prompt=True, tokenize=True, return_tensors="pt", return_dict=True',
        ")",
        f"output = model.generate(**prompt, max_new_tokens={facts.config.sampling.max_completion_length}, "
        "do_sample=False)",
        'print(processor.decode(output[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))',
    ]
    return "\n".join(lines)


def _limits(facts: CardFacts) -> Iterator[str]:
    yield (
        "It was trained towards the rewards above and nothing else: what they do not see (style, safety, other tasks, "
        "other languages) may have changed, and was not measured."
    )
    if facts.results:
        yield "The accuracy is of tasks like those of training; on others it may be another."
    length = facts.config.sampling.max_completion_length
    yield f"Completions of training were cut after {length:,} tokens; longer ones are untried."
    if facts.has_images:
        yield "In training Pillow scaled the images; other software scales them a little otherwise."
    if facts.prompting.missing_file is not None:
        yield (
            f"In training a system message came before each question, from {_code(facts.prompting.missing_file)}, "
            "which was not there any more when this card was written; without it the model may answer otherwise."
        )
    elif facts.prompting.system is not None:
        yield "In training the system message above came before each question; without it the answers may be others."
    yield "The licences of the base model and of the data hold; this card states none."


def _table(first: str, second: str, rows: Mapping[str, object]) -> str:
    lines = [f"| {_code(name)} | {_cell(value)} |" for name, value in rows.items() if value is not None]
    return "\n".join([f"| {first} | {second} |", "|---|---|", *lines])


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bool):
        return str(value).lower()
    return _text(", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))


def _text(text: str) -> str:
    """Escape text for a cell of a table: one line, no `|`, no HTML."""
    return _one_line(text).replace("<", "&lt;")


def _code(text: str) -> str:
    return f"`{_one_line(text).replace('`', chr(39))}`"


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
