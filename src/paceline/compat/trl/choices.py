"""Fields with a fixed set of words, and the error for any other word."""

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING

from paceline.config.presets import PRESETS
from paceline.config.reading import suggest
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.compat.trl.config import GRPOConfig

OPTIMIZERS: Mapping[str, str] = {
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw",
    "adamw_8bit": "adamw_8bit",
    "adamw_bnb_8bit": "adamw_8bit",
}
"""`optim` to `optimizer`; transformers has two names for each."""
SCHEDULES: Mapping[str, str] = {
    "constant": "constant",
    "constant_with_warmup": "constant",
    "linear": "linear",
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
}
"""`lr_scheduler_type` to `lr_schedule`, where an option exists."""
SCHEDULE_KEYWORDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("constant", "constant_with_warmup", "linear"), ()),
    "cosine": ("num_cycles",),
    "cosine_with_min_lr": ("num_cycles", "min_lr", "min_lr_rate"),
    "cosine_with_restarts": ("num_cycles",),
    "cosine_warmup_with_min_lr": ("num_cycles", "min_lr", "min_lr_rate", "warmup_lr_rate"),
    "polynomial": ("lr_end", "power"),
    "inverse_sqrt": ("timescale",),
    "warmup_stable_decay": (
        *("num_decay_steps", "num_stable_steps", "warmup_type", "decay_type", "min_lr_ratio", "num_cycles"),
    ),
}
"""Allowed `lr_scheduler_kwargs` of each of transformers' schedules.

Those that follow a measured loss are left out: nothing tells them one.
"""
INTERVALS = ("no", "steps", "epoch")

ABSENT_LOSSES: Mapping[str, str] = {
    "luspo": "a sequence's loss would grow with its length, an average that no option here has",
    "vespo": "its soft weights need a bound that no option here has",
}
"""Losses of TRL that are not offered, with the reason."""

CORRECTIONS = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")

CHOICES: Mapping[str, tuple[str, ...]] = {
    "loss_type": ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo"),
    "scale_rewards": ("group", "batch", "none"),
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
    "importance_sampling_level": ("token", "sequence"),
    "vllm_importance_sampling_mode": CORRECTIONS,
    "preset": tuple(PRESETS),
    "on_bad_row": ("stop", "skip"),
    "sandbox": ("auto", "namespaces", "landlock", "none"),
    "optim": tuple(OPTIMIZERS),
    "lr_scheduler_type": tuple(SCHEDULE_KEYWORDS),
    "eval_strategy": INTERVALS,
    "logging_strategy": INTERVALS,
    "save_strategy": (*INTERVALS, "best"),
    "hub_strategy": ("every_save", "end"),
}
REMEDIES: Mapping[str, str] = {
    "optim": "for any other optimizer give the trainer optimizers=(optimizer, None)",
    "hub_strategy": "the model is uploaded once, at the end; checkpoints stay in the run directory",
    "lr_scheduler_type": "for any other schedule give the trainer optimizers=(optimizer, scheduler)",
}
MAY_BE_NONE = ("preset",)


def check_choices(args: "GRPOConfig") -> None:
    """Refuse an unknown word; `scale_rewards` also takes True and False.

    Raises:
        ConfigError: the sentence holds the right words and the nearest of them.
    """
    scaled: object = args.scale_rewards
    if isinstance(scaled, bool):
        args.scale_rewards = "group" if scaled else "none"
    for name, words in CHOICES.items():
        value = getattr(args, name)
        if not (value in words or (value is None and name in MAY_BE_NONE)):
            raise ConfigError(_sentence(name, value.value if isinstance(value, Enum) else value))


def _sentence(name: str, value: object) -> str:
    if name == "loss_type" and value in ABSENT_LOSSES:
        return f"loss_type {value!r} is not offered: {ABSENT_LOSSES[str(value)]}; take one of {_words(name)}"
    remedy = suggest(str(value), CHOICES[name], otherwise=REMEDIES.get(name, ""))
    return f"{name} must be one of {_words(name)}, got {value!r}{'; ' + remedy if remedy else ''}"


def _words(name: str) -> str:
    return ", ".join(CHOICES[name])
