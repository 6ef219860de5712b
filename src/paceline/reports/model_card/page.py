"""The part of a card that a person reads, and the whole file."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import yaml

from paceline.config.presets import PRESETS
from paceline.config.reading import find_option
from paceline.config.sections import SamplingConfig
from paceline.metrics.comparisons import level_of_best, probability
from paceline.metrics.intervals import Interval
from paceline.objective.formula import as_text, objective
from paceline.reports.format import percent_interval
from paceline.reports.model_card.facts import CardFacts, HeldOutResult, Measured, Prompting
from paceline.reports.model_card.papers import paper_of

MARK = "<!-- Written by Paceline, which writes it again with the model; without this line it leaves the file alone. -->"
SECTIONS = ("lora", "sampling", "advantage", "loss", "optim")
"""Sections of the configuration that say what was optimised and how."""
ALWAYS = ("num_generations", "max_completion_length", "temperature", "learning_rate")
"""Options that the card always states; it states others where they differ from their defaults."""


def model_card(facts: CardFacts) -> str:
    """The whole file, the same for the same facts."""
    text = _written(facts)
    for name in sorted(facts.labels, key=len, reverse=True):
        text = text.replace(name, facts.labels[name])
    return text


def _written(facts: CardFacts) -> str:
    blocks = [
        header(facts),
        MARK,
        f"# {_text(facts.name)}",
        _opening(facts),
        *_results(facts),
        *([f"Its curves: {', '.join(f'<{link}>' for link in facts.links)}"] if facts.links else []),
        *(["## Last numbers", _table("name", "value", facts.numbers)] if facts.numbers else []),
        "## What was rewarded",
        _rewards(facts),
        "## Objective",
        *_objective(facts),
        "## Options",
        "Those that are otherwise than by default, and the main ones; `config.yaml` of the run has all.",
        _table("option", "value", _options(facts)),
        "## How to load it",
        f"```python\n{loading_program(facts)}\n```",
        "## Limits",
        "\n".join(f"- {limit}" for limit in _limits(facts)),
        "## Versions",
        _table("package", "version", facts.versions),
        "## Citation",
        *_citation(facts),
    ]
    return "\n\n".join(blocks) + "\n"


def _opening(facts: CardFacts) -> str:
    what = "A low-rank adapter for" if facts.is_adapter else "Fine-tuned from"
    trained_on = f" on {_code(facts.dataset.label)}" if facts.dataset is not None else ""
    return (
        f"{what} {_code(facts.base_model.label)}{trained_on}, in {_count(facts.steps, 'step')} of group-relative "
        "policy optimisation with Paceline."
    )


def _results(facts: CardFacts) -> list[str]:
    if not facts.results:
        return ["## Results", "Nothing was measured on held-out tasks."]
    evaluation = facts.config.evaluation
    how = "greedy" if evaluation.eval_temperature == 0 else f"at temperature {evaluation.eval_temperature:g}"
    note = (
        f"Right is what {_code(evaluation.eval_reward_func)} calls right, of "
        f"{_count(evaluation.eval_generations, 'completion')} per task, {how}, of at most "
        f"{facts.config.sampling.max_completion_length:,} tokens. Brackets are 95 % intervals; differences are paired "
        "by task, and the test is McNemar's, exact."
    )
    head = "| held-out set | tasks | before | after | difference, points | gained, lost | test |\n" + "|---" * 7 + "|"
    rows = "\n".join(_row(result) for result in facts.results)
    return ["## Results", f"{head}\n{rows}", note, *_looks(facts.results)]


def _row(result: HeldOutResult) -> str:
    change = result.comparison
    cells = [
        f"{_code(result.dataset.label)}",
        f"{result.num_tasks:,}",
        _accuracy(result.before),
        _accuracy(result.after),
        "" if change is None else _points(change.difference),
        "" if change is None else f"{change.gained:,}, {change.lost:,}",
        "" if change is None else probability(change.p_value),
    ]
    return f"| {' | '.join(cells)} |"


def _accuracy(measured: Measured | None) -> str:
    if measured is None:
        return ""
    return f"{percent_interval(measured.accuracy)}, step {measured.step:,}"


def _points(found: Interval) -> str:
    return f"{100 * found.value:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"


def _looks(results: Iterable[HeldOutResult]) -> list[str]:
    most = max(result.looks for result in results)
    if most < 2:
        return []
    return [
        f"The run was measured {most} times after its first step: a step that was chosen for its accuracy counts as "
        f"better from p < {level_of_best(most):.2g} on."
    ]


def _rewards(facts: CardFacts) -> str:
    return _table("reward", "weight", facts.config.rewards.weights)


def _objective(facts: CardFacts) -> list[str]:
    config, name = facts.config, facts.config.advantage.preset
    lines = objective(config)
    text = f"```text\n{as_text(lines)}```"
    said = [] if name is None else [_preset(name)]
    fields = ["As the fields of TRL's `GRPOConfig` say it:", _table("field", "value", facts.fields)]
    return [*said, text, *(fields if facts.fields else [])]


def _citation(facts: CardFacts) -> list[str]:
    paper, preset = paper_of(facts.config), facts.config.advantage.preset
    name = f"[{paper.title}](https://arxiv.org/abs/{paper.arxiv})"
    is_its_own = preset is not None and paper.arxiv in PRESETS[preset].source
    return [
        f"The objective is {'that' if is_its_own else 'nearest to that'} of {name}.",
        f"```bibtex\n{paper.bibtex}\n```",
    ]


def _preset(name: str) -> str:
    return f"Preset `{name}` ({PRESETS[name].source}), which differs from the paper in {PRESETS[name].differs}."


def _options(facts: CardFacts) -> dict[str, object]:
    config = facts.config
    values = {name: value for section in SECTIONS for name, value in asdict(getattr(config, section)).items()}
    kept = {name: value for name, value in values.items() if name in ALWAYS or value != find_option(name).default}
    return {**kept, "prompts_per_step": config.loop.prompts_per_step, "seed": config.loop.seed}


def _limits(facts: CardFacts) -> Iterator[str]:
    yield (
        "It was trained towards the rewards above and nothing else: what they do not see (style, safety, other tasks, "
        "other languages) may have changed, and was not measured."
    )
    if facts.results:
        yield "The accuracy is of tasks like those of training; on others it may be another."
    length = facts.config.sampling.max_completion_length
    yield f"Completions of training were cut after {length:,} tokens; longer ones are untried."
    yield from _asked(facts.prompting)
    yield "The licences of the base model and of the data hold; this card states none."


def _asked(prompting: Prompting) -> Iterator[str]:
    if prompting.missing_file is not None:
        yield (
            f"In training a system message came before each question, from {_code(prompting.missing_file)}, which was "
            "not there any more when this card was written; without it the model may answer otherwise."
        )
    elif prompting.system is not None:
        yield "In training the system message above came before each question; without it the answers may be others."


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
    """On one line, and no cell's end; `<` would begin an element of HTML."""
    return _one_line(text).replace("<", "&lt;")


def _code(text: str) -> str:
    return f"`{_one_line(text).replace('`', chr(39))}`"


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


TASK = "text-generation"
DIGITS = 4
"""Digits of a share: to a hundredth of a percent."""


def header(facts: CardFacts) -> str:
    """YAML between two lines of dashes."""
    data: dict[str, Any] = {
        "base_model": facts.base_model.hub,
        "datasets": [facts.dataset.hub] if facts.dataset is not None and facts.dataset.hub else None,
        "library_name": "peft" if facts.is_adapter else "transformers",
        "pipeline_tag": TASK,
        "model_name": facts.name,
        "tags": ["paceline", "grpo", "reinforcement-learning", *(["lora"] if facts.is_adapter else []), *facts.tags],
        "model-index": [_index(facts)] if facts.results else None,
    }
    said = {key: value for key, value in data.items() if value is not None}
    return f"---\n{yaml.safe_dump(said, sort_keys=False, allow_unicode=True, width=120)}---"


def _index(facts: CardFacts) -> dict[str, Any]:
    return {"name": facts.name, "results": [_result(one, facts) for one in facts.results]}


def _result(result: HeldOutResult, facts: CardFacts) -> dict[str, Any]:
    evaluation, after = facts.config.evaluation, result.after
    said = {
        "confidence": 0.95,
        "low": round(after.accuracy.low, DIGITS),
        "high": round(after.accuracy.high, DIGITS),
        "tasks": result.num_tasks,
        "step": after.step,
        "grader": evaluation.eval_reward_func,
        "temperature": evaluation.eval_temperature,
        "completions_per_task": evaluation.eval_generations,
        "max_new_tokens": _length(facts.config.sampling),
    }
    if result.before is not None:
        said["before"] = round(result.before.accuracy.value, DIGITS)
    metric = {"type": "accuracy", "name": "Accuracy", "value": round(after.accuracy.value, DIGITS), "args": said}
    place = {"name": result.dataset.label, "type": result.dataset.hub or result.dataset.label}
    return {"task": {"type": TASK, "name": "Text generation"}, "dataset": place, "metrics": [metric]}


def _length(sampling: SamplingConfig) -> int:
    return sampling.max_completion_length


QUESTION = "What is 12 + 30?"
CLASSES = {False: ("transformers", "AutoModelForCausalLM"), True: ("peft", "AutoPeftModelForCausalLM")}
"""Library and class that load the directory, by whether it holds an adapter."""


def loading_program(facts: CardFacts) -> str:
    """Return Python code that works wherever the directory is."""
    library, loader = CLASSES[facts.is_adapter]
    imports = sorted([f"from {library} import {loader}", "from transformers import AutoTokenizer"])
    if not facts.is_adapter:
        imports = [f"from transformers import {loader}, AutoTokenizer"]
    length = facts.config.sampling.max_completion_length
    lines = [
        *imports,
        "",
        'folder = "."  # the directory of this card, or the name that it has on the Hub',
        "tokenizer = AutoTokenizer.from_pretrained(folder)",
        f"model = {loader}.from_pretrained(folder)",
        *_prompt(facts),
        f"output = model.generate(**prompt, max_new_tokens={length}, do_sample=False)",
        'print(tokenizer.decode(output[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))',
    ]
    return "\n".join(lines)


def _prompt(facts: CardFacts) -> list[str]:
    if not facts.prompting.has_chat_template:
        return [f'prompt = tokenizer("{QUESTION}", return_tensors="pt")']
    system = [] if facts.prompting.system is None else [{"role": "system", "content": facts.prompting.system}]
    messages = [*system, {"role": "user", "content": QUESTION}]
    thinking = facts.config.data.enable_thinking
    switch = "" if thinking is None else f", enable_thinking={thinking}"
    return [
        "messages = [",
        *(f"    {json.dumps(message, ensure_ascii=False)}," for message in messages),
        "]",
        "prompt = tokenizer.apply_chat_template(",
        f'    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True{switch}',
        ")",
    ]
