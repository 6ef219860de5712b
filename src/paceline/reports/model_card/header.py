"""The part of a card that the Hub reads.

Source: the model card metadata of huggingface_hub (`ModelCardData`, `EvalResult`).
"""

from typing import Any

import yaml

from paceline.config.sections import SamplingConfig
from paceline.reports.model_card.facts import CardFacts, Result

TASK = "text-generation"
DIGITS = 4
"""Of a share: a hundredth of a percent."""


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


def _result(result: Result, facts: CardFacts) -> dict[str, Any]:
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
