"""TRL's reward functions under the names that they have here."""

from collections.abc import Iterable, Mapping

from paceline.compat.commands.translation import Note
from paceline.config.reading import suggest
from paceline.errors import ConfigError

REWARDS: Mapping[str, tuple[str, str]] = {
    "accuracy_reward": ("accuracy", "the last box or tag outside the thinking is read, and 1,2 is not 12"),
    "reasoning_accuracy_reward": ("accuracy", "nothing inside <think> is an answer, there as here"),
    "think_format_reward": ("format", "asks for <answer>...</answer> behind the thought as well"),
    "get_soft_overlong_punishment": (
        "soft_overlong(max_length=1280, cache=256)",
        "with the lengths that TRL's command line fixes; leave the parentheses out for --max-completion-length",
    ),
}
"""Name there to the name here and what differs."""


def reward_names(names: Iterable[str]) -> tuple[tuple[str, ...], tuple[Note, ...]]:
    """Rewards of a command line as ours; a dotted path becomes `module:function`.

    Raises:
        ConfigError: a name that is neither.
    """
    found, notes = list[str](), list[Note]()
    for name in names:
        if name in REWARDS:
            ours, text = REWARDS[name]
            notes.append(Note(kind="changed", about=f"--reward_funcs {name}", text=f"{ours}: {text}"))
        elif "." in name:
            module, _, function = name.rpartition(".")
            ours = f"{module}:{function}"
        else:
            near = suggest(name, REWARDS, otherwise="give the dotted path of a function of your own")
            raise ConfigError(f"--reward_funcs must be of {', '.join(REWARDS)}, or a dotted path, got {name!r}; {near}")
        found.append(ours)
    return tuple(dict.fromkeys(found)), tuple(notes)
