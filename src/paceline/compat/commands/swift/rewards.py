"""ms-swift's reward functions and their flags, as ours with parameters."""

from collections.abc import Mapping

from paceline.compat.commands.flags import GivenFlags, one
from paceline.compat.commands.translation import Note
from paceline.config.reading import suggest
from paceline.errors import ConfigError

REWARDS: Mapping[str, tuple[str, str]] = {
    "accuracy": (
        "accuracy",
        "read the first <answer>, gave bare LaTeX in it 0, and a gold answer that nobody could read 1; here the last "
        "one counts, and such rows are refused",
    ),
    "format": ("format", "allowed tags inside tags; here each stands once, in order"),
    "react_format": ("react_format", ""),
    "cosine": ("cosine", "rose again beyond its greatest length; here it stays"),
    "repetition": ("repetition", "took a line of Chinese for one word; here characters count there"),
    "soft_overlong": ("soft_overlong", "fell without end beyond the greatest length; here it stays at -1"),
    "toolbench": ("tool_call", "calls are compared as JSON values"),
    "math": ("boxed", "cut a box at its first closing brace; here braces match, and the last box counts"),
}
"""Our name of each reward function, and the defect of theirs."""
PARAMETERS: Mapping[str, Mapping[str, str]] = {
    "cosine": {
        "cosine_max_len": "max_length",
        "cosine_min_len_value_wrong": "min_wrong",
        "cosine_max_len_value_wrong": "max_wrong",
        "cosine_min_len_value_correct": "max_correct",
        "cosine_max_len_value_correct": "min_correct",
    },
    "repetition": {"repetition_n_grams": "ngram", "repetition_max_penalty": "max_penalty"},
    "soft_overlong": {"soft_max_length": "max_length", "soft_cache_length": "cache"},
}
"""Flags of each reward, with our parameter."""


def reward_names(given: GivenFlags) -> tuple[tuple[str, ...], tuple[Note, ...]]:
    """Value of `--reward_funcs` as ours, parameters in parentheses.

    Raises:
        ConfigError: a name that is neither built in nor a function of the user's own.
    """
    found, notes = list[str](), list[Note]()
    names = given.get("reward_funcs", ())
    for name in names:
        if ":" in name:
            found.append(name)
            continue
        if name not in REWARDS:
            near = suggest(name, REWARDS, otherwise="name a plugin's function as file.py:function")
            raise ConfigError(f"--reward_funcs must be of {', '.join(REWARDS)}, got {name!r}; {near}")
        ours, text = REWARDS[name]
        if text:
            renamed = f"is {ours} here: " * (ours != name)
            notes.append(Note(kind="mended", about=f"--reward_funcs {name}", text=renamed + text))
        found.append(ours + _parameters(name, given))
    if "soft_overlong" in names and one(given, "soft_cache_length") is None:
        raise ConfigError("--soft_cache_length must be given with the reward soft_overlong, got none; a fifth is usual")
    return tuple(dict.fromkeys(found)), tuple((*notes, *_idle(given, names)))


def _parameters(name: str, given: GivenFlags) -> str:
    set_ = {ours: one(given, flag) for flag, ours in PARAMETERS.get(name, {}).items()}
    texts = [f"{ours}={value}" for ours, value in set_.items() if value is not None]
    return f"({', '.join(texts)})" if texts else ""


def _idle(given: GivenFlags, names: tuple[str, ...]) -> list[Note]:
    return [
        Note(kind="idle", about=f"--{flag}", text=f"the reward {reward} is not among --reward_funcs")
        for reward, flags in PARAMETERS.items()
        for flag in flags
        if flag in given and reward not in names
    ]
