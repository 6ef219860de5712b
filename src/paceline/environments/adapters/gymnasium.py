"""`gymnasium:ID(parameter=value, ...)`: an environment of Gymnasium whose actions are words, numbers or text.

The parameters are those of `gymnasium.make`, `max_episode_steps` among them. `actions=left/down/right/up` names the
actions of a `Discrete` space in order; those of Gymnasium's own text games have names (`KNOWN`).

| actions         | the action of a turn                                    |
|-----------------|---------------------------------------------------------|
| `Discrete`      | its last word that is an action's name, in either case  |
| without names   | its last whole number, if that is an action             |
| `Text`          | all of the turn, without thinking                       |

| the action                 | what the model reads                                       | reward of the turn    |
|----------------------------|------------------------------------------------------------|-----------------------|
| can be read                | what is seen now                                           | that of the step      |
| ends the task              | what is seen, `Terminated.`; the episode is done           | that of the step      |
| reaches the limit of steps | what is seen, `Truncated: ...`; the episode is done        | that of the step      |
| cannot be read             | `That is no action.` and the actions; counted, and no step | 0                     |

What is seen is the rendering as text, if the environment has one (`render_mode="ansi"`), a colour as `<red>S</red>`.
Otherwise it is the observation: numbers, text, or several of these. The episode's reward is the sum of the turns'.
A truncated episode keeps what it has. The environment draws from a generator of its own, seeded by `reset`.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from paceline.chat.thinking import visible_text
from paceline.environments import AgentTurn, Observation
from paceline.environments.adapters import Adapter, Parameters, seed_of
from paceline.environments.builtin.games import behind_prompt, last_number, said
from paceline.errors import ConfigError, first_line

ACTIONS = "actions"
MOST_NAMED = 30  # Numbers that are listed as actions
COLOURS = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white", "crimson")
"""Colours of a terminal from code 30 on, and of its background from 40 on."""
_CODE = re.compile("(\x1b\\[[\\d;]*m)")


class Known(NamedTuple):
    """Rules of games that Gymnasium gives in pictures and tables only."""

    actions: tuple[str, ...]
    """Names in the order of their numbers."""
    legend: str


KNOWN: Mapping[str, Known] = {
    "FrozenLakeEnv": Known(
        ("left", "down", "right", "up"), "Red is where you are; S is the start, F ice, H a hole, G the goal."
    ),
    "CliffWalkingEnv": Known(
        ("up", "right", "down", "left"), "x is where you are, o is free, C the cliff, T the goal."
    ),
    "TaxiEnv": Known(
        ("south", "north", "east", "west", "pickup", "dropoff"),
        "Yellow is the empty taxi and green the taxi with the passenger; the passenger waits at the blue letter and "
        "wants to go to the magenta one. No way leads through |.",
    ),
    "BlackjackEnv": Known(("stick", "hit"), "You see your sum, the dealer's card, and 1 if you have a usable ace."),
}
"""Names of actions and a legend, by the class of the environment."""


class Steps:
    """`Environment` around one of Gymnasium's."""

    def __init__(self, inner: Any, names: Sequence[str]) -> None:
        """`names`: of the actions in order; empty: numbers or text are said."""
        self._inner, self._names = inner, names
        self._total = 0.0

    def begin(self, task: Mapping[str, Any], seed: int) -> str:
        """Reset; returns the rules, what is seen first, and the actions."""
        observation, info = self._inner.reset(seed=seed_of(task, seed))
        kind = type(self._inner.unwrapped)
        rules = " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())
        legend = KNOWN[kind.__name__].legend if kind.__name__ in KNOWN else ""
        lines = [*filter(None, (rules, legend))]
        return behind_prompt(task, "\n".join([*lines, self._seen(observation), self._told(info)]))

    def observe(self, turn: AgentTurn) -> Observation:
        """Take a step, as the tables at the top of this file say."""
        action = self._read(visible_text(turn.content).strip())
        if action is None:
            return said(f"That is no action. {self._told({})}", reward=0.0, calls=1, failed_calls=1)
        observation, reward, terminated, truncated, info = self._inner.step(action)
        self._total += float(reward)
        lines = [self._seen(observation)]
        if terminated:
            lines.append("Terminated.")
        elif truncated:
            lines.append("Truncated: the limit of steps is reached.")
        elif "action_mask" in info:
            lines.append(self._told(info))
        return said("\n".join(lines), reward=float(reward), done=bool(terminated or truncated), calls=1)

    def close(self) -> float:
        """End the game; returns the sum of its rewards."""
        self._inner.close()
        return self._total

    def _read(self, text: str) -> Any:
        """Return the action that a text means; None: it means none."""
        space = self._inner.action_space
        if self._names:
            named = [word for word in re.findall(r"\w+", text.lower()) if word in self._names]
            return space.start + self._names.index(named[-1]) if named else None
        action = last_number(text) if hasattr(space, "n") else text
        return action if action is not None and space.contains(action) else None

    def _told(self, info: Mapping[str, Any]) -> str:
        """Say which actions there are, and which of them are possible where `info` knows."""
        space = self._inner.action_space
        if not hasattr(space, "n"):
            return f"Action: a text of {space.min_length} to {space.max_length} characters."
        first, count = int(space.start), int(space.n)
        if not self._names and count > MOST_NAMED:
            return f"Action: a number from {first} to {first + count - 1}."
        names = self._names or [str(first + index) for index in range(count)]
        listed = f"Actions: {', '.join(names)}."
        if "action_mask" not in info or all(info["action_mask"]):
            return listed
        allowed = [name for name, is_allowed in zip(names, info["action_mask"], strict=True) if is_allowed]
        return f"{listed} Possible now: {', '.join(allowed) or 'none'}."

    def _seen(self, observation: Any) -> str:
        if self._inner.render_mode == "ansi":
            return coloured(str(self._inner.render())).strip("\n")
        return _words(self._inner.observation_space, observation)


def coloured(text: str) -> str:
    r"""Return a terminal's text with its colours as tags.

    >>> coloured("S\x1b[41mF\x1b[0mG")
    'S<red>F</red>G'
    """
    parts, opened = list[str](), list[str]()
    for piece in _CODE.split(text):
        if not piece.startswith("\x1b["):
            parts.append(piece)
        elif piece in ("\x1b[m", "\x1b[0m"):
            parts += [f"</{opened.pop()}>"] if opened else []
        else:
            number = int(piece[2:-1].split(";")[0] or 0) % 10
            opened.append(COLOURS[number] if number < len(COLOURS) else "colour")
            parts.append(f"<{opened[-1]}>")
    return "".join(parts)


def _words(space: Any, value: Any) -> str:
    """Return an observation as text."""
    kind = type(space).__name__
    if kind == "Text":
        return str(value)
    if kind == "Discrete":
        return str(int(value))
    if kind == "Tuple":
        return f"({', '.join(_words(*pair) for pair in zip(space.spaces, value, strict=True))})"
    if kind == "Dict":
        return "\n".join(f"{name}: {_words(part, value[name])}" for name, part in space.spaces.items())
    return str(value.tolist())


def _is_told(space: Any) -> bool:
    """Return True if an observation of this space can be written exactly: no floating point in it."""
    kind = type(space).__name__
    if kind == "Tuple":
        return all(map(_is_told, space.spaces))
    if kind == "Dict":
        return all(map(_is_told, space.spaces.values()))
    return kind in ("Text", "Discrete", "MultiDiscrete", "MultiBinary")


def load(name: str, parameters: Parameters) -> Callable[[], Steps]:
    """Return what makes the episodes of an environment; see `adapters.Load`."""
    import gymnasium

    options = {key: value for key, value in parameters.items() if key != ACTIONS}
    try:
        plain = gymnasium.make(name, disable_env_checker=True, **options)
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise ConfigError(f"{first_line(error)}; `gymnasium.pprint_registry()` lists all") from error
    plain.close()
    kind, action_space = type(plain.unwrapped).__name__, plain.action_space
    shape = type(action_space).__name__
    if shape not in ("Discrete", "Text"):
        raise ConfigError(f"its actions are of the space {shape}, but words can say those of Discrete and Text only")
    modes = plain.metadata.get("render_modes", ())
    if "ansi" in modes:
        options["render_mode"] = "ansi"
    elif not _is_told(plain.observation_space):
        raise ConfigError(
            f"it has no rendering as text, and an observation of {plain.observation_space} cannot be told in words; "
            "register a wrapper that returns text"
        )
    names = _names(parameters, KNOWN[kind].actions if kind in KNOWN else (), action_space)
    return lambda: Steps(gymnasium.make(name, disable_env_checker=True, **options), names)


def _names(parameters: Parameters, known: Sequence[str], space: Any) -> Sequence[str]:
    if ACTIONS not in parameters:
        return known
    names = str(parameters[ACTIONS]).lower().split("/")
    count = int(space.n) if hasattr(space, "n") else 0
    if len(names) != count or len(set(names)) != count or not all(re.fullmatch(r"\w+", word) for word in names):
        raise ConfigError(f"actions must name each of {count} actions by a word of its own, got {len(names)}: a/b/c")
    return names


ADAPTER = Adapter(package="gymnasium", example="FrozenLake-v1", load=load)
