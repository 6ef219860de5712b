"""`textarena:ID(parameter=value, ...)`: a game of TextArena for one player. The parameters are those of the game.

The model reads what the game says, each message once and its own not again, and says its move as the game asks.

| the move of a turn                            | what follows                                | reward of the turn |
|-----------------------------------------------|---------------------------------------------|--------------------|
| is valid                                      | what the game says                          | 0                  |
| is invalid, for the first time in succession  | what is wrong; counted                      | 0                  |
| is invalid, for the second time               | the end: the game's reward for it, often -1 | that of the game   |
| ends the game                                 | the end, with the game's reason             | that of the game   |

A game that is not over when the turns are used up has the reward 0. A second invalid move ends the game: that is the
model's doing, and trained on.

Games draw from Python's global generator, so each has a process. Some need word lists of NLTK, and load them when they
are imported: here they must be on this machine, nothing is downloaded. Games that ask a model on a server are refused.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from paceline.chat.thinking import visible_text
from paceline.environments import AgentTurn, Observation
from paceline.environments.adapters import Adapter, Parameters, seed_of
from paceline.environments.builtin.games import behind_prompt, said
from paceline.errors import ConfigError

ASKS_A_SERVER = ("Debate", "GuessWho", "ScenarioPlanning", "TwentyQuestions")
"""Games that ask a model on a server, by the first part of their names; read in version 0.7.4."""
NLTK_FOLDERS = ("corpora", "taggers", "tokenizers")


class SoloGame:
    """`Environment` around one game."""

    def __init__(self, make: Callable[[], Any], *, brackets: bool) -> None:
        """`brackets`: a move without any is put into them, as the package does for this game."""
        self._make, self._brackets = make, brackets
        self._inner: Any = None
        self._reward = 0.0

    def begin(self, task: Mapping[str, Any], seed: int) -> str:
        """Start the game; returns what it says first."""
        with _nothing_downloaded():
            self._inner = self._make()
            self._inner.reset(num_players=1, seed=seed_of(task, seed))
        _put_in_order(self._inner.state)
        return behind_prompt(task, self._heard())

    def observe(self, turn: AgentTurn) -> Observation:
        """Make a move, as the table at the top of this file says."""
        move = visible_text(turn.content).strip()
        if self._brackets and "[" not in move and "]" not in move:
            move = f"[{move}]"
        done, _ = self._inner.step(action=move)
        state, heard = self._inner.state, self._heard()
        if not done:
            return said(heard, calls=1, failed_calls=int(state.error_count > 0))
        rewards, info = self._inner.close()
        self._reward = float(rewards[0])
        reason = str(info[0]["reason"]) if "reason" in info[0] else ""
        text = "\n".join(filter(None, (heard, reason)))
        failed = int(info[0]["invalid_move"])
        return said(text, reward=self._reward, done=True, calls=1, failed_calls=failed)

    def close(self) -> float:
        """Return the game's reward; 0 if it is not over."""
        return self._reward

    def _heard(self) -> str:
        """Return what the game has said since the last move."""
        import textarena

        of_player = textarena.ObservationType.PLAYER_ACTION
        _, messages = self._inner.get_observation()
        return "\n".join(str(text).strip() for _, text, kind in messages if kind != of_player)


def _put_in_order(state: Any) -> None:
    """Give a wrong move its reason and its reward where a game has them the wrong way round, as Countdown has."""
    original = state.set_invalid_move

    def set_invalid_move(reason: Any, reward: Any = -1.0) -> None:
        original(*((reward, reason) if isinstance(reward, str) else (reason, reward)))

    state.set_invalid_move = set_invalid_move


@contextmanager
def _nothing_downloaded() -> Iterator[None]:
    """Let games find NLTK's data on this machine only: `nltk.download` looks there, and asks no server."""
    import nltk

    original = nltk.download
    nltk.download = _found_here
    try:
        yield
    finally:
        nltk.download = original


def _found_here(names: Any, *args: object, **others: object) -> bool:
    import nltk

    for name in [names] if isinstance(names, str) else names:
        paths = [f"{folder}/{name}{ending}" for folder in NLTK_FOLDERS for ending in ("", ".zip")]
        if not any(_has(nltk, path) for path in paths):
            raise ConfigError(
                f"the game needs NLTK's data {name!r}, which is not on this machine; "
                f"run: python -m nltk.downloader {name}"
            )
    return True


def _has(nltk: Any, path: str) -> bool:
    try:
        nltk.data.find(path)
    except LookupError:
        return False
    return True


def load(name: str, parameters: Parameters) -> Callable[[], SoloGame]:
    """Return what makes the episodes of a game; see `adapters.Load`."""
    import textarena
    from textarena.envs.registration import ENV_REGISTRY

    if name not in ENV_REGISTRY:
        near = get_close_matches(name, ENV_REGISTRY, n=3, cutoff=0.4)
        raise ConfigError(f"there is no game {name!r} among {len(ENV_REGISTRY)}; nearest: {', '.join(near) or 'none'}")
    if name.startswith(ASKS_A_SERVER):
        raise ConfigError(f"the game {name!r} asks a model on a server, and its answers could not be repeated")
    wrappers = [wrapper.__name__ for wrapper in ENV_REGISTRY[name].default_wrappers or ()]
    raw = f"{name}-raw" if f"{name}-raw" in ENV_REGISTRY else name
    return lambda: SoloGame(
        lambda: textarena.make(env_id=raw, **parameters), brackets="ActionFormattingWrapper" in wrappers
    )


ADAPTER = Adapter(package="textarena", example="GuessTheNumber-v0", load=load)
