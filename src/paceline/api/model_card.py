"""README.md of a trained model: what it was made from, what was optimised, with which versions. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from paceline.config import Config

SECTIONS = ("advantage", "loss", "optim", "sampling")
"""Sections of the configuration that say what was optimised and how."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardFacts:
    """What a card says besides the configuration."""

    name: str
    base_model: str
    dataset: str | None
    is_adapter: bool
    tags: Sequence[str]
    versions: Mapping[str, str]
    steps: int
    results: Mapping[str, float]
    """The last numbers of the log, by name."""
    fields: Mapping[str, object]
    """The objective as the arguments' fields say it."""


def model_card(config: Config, facts: CardFacts) -> str:
    """The whole file: a header that the Hub reads, and tables that a person reads."""
    header = {
        "base_model": facts.base_model,
        "library_name": "peft" if facts.is_adapter else "transformers",
        "model_name": facts.name,
        "tags": ["paceline", "grpo", *facts.tags],
        **({"datasets": [facts.dataset]} if facts.dataset else {}),
    }
    settings = {name: value for section in SECTIONS for name, value in asdict(getattr(config, section)).items()}
    what = "a low-rank adapter for" if facts.is_adapter else "fine-tuned from"
    trained_on = f" on `{facts.dataset}`" if facts.dataset else ""
    rewards = ", ".join(f"`{name}` (weight {weight:g})" for name, weight in config.rewards.weights.items())
    blocks = [
        "---\n" + "".join(f"{key}: {json.dumps(value)}\n" for key, value in header.items()) + "---",
        f"# {facts.name}",
        f"This model is {what} `{facts.base_model}`{trained_on}, in {facts.steps} updates of group-relative policy "
        "optimisation with Paceline.",
        f"Rewards: {rewards}.",
        *(["## Last numbers", _table(facts.results)] if facts.results else []),
        "## Objective",
        "As the fields of TRL's `GRPOConfig` say it:",
        _table(facts.fields),
        "As Paceline's options say it; what is off is left out:",
        _table(settings),
        "## Versions",
        _table(facts.versions),
    ]
    return "\n\n".join(blocks) + "\n"


def _table(rows: Mapping[str, object]) -> str:
    lines = [f"| `{name}` | {_cell(value)} |" for name, value in rows.items() if value is not None]
    return "\n".join(["| name | value |", "|---|---|", *lines])


def _cell(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
