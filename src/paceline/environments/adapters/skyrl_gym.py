"""`skyrl_gym:ID(parameter=value, ...)`: a text environment of SkyRL-Gym, for rows with what it grades by.

The environment gets the row's columns as `extras`, and the parameters as `env_config`. A row without a column
`reward_spec` has one made of its answer: `{"ground_truth": answer}`. `max_turns` among the parameters is put into the
extras, where environments look for it.

| the step                                      | what follows                      | reward of the turn |
|-----------------------------------------------|-----------------------------------|--------------------|
| answers                                       | the environment's messages        | that of the step   |
| says that it is done                          | its messages; the episode is done | that of the step   |
| has other words (`postprocessed_action`)      | the conversation fails            | none               |

Other words would take the place of the model's in the history, and be trained on as if the model had said them.
The episode's reward is the sum of the turns'. An environment of one's own is found as `skyrl_gym:module:ID`.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.environments import AgentTurn, Observation
from paceline.environments.adapters import Adapter, Parameters
from paceline.errors import ConfigError, EnvironmentFailure
from paceline.types import Message

MAX_TURNS = "max_turns"
REFUSED: Mapping[str, str] = {
    "lcb": "it runs the model's programs without isolation; use --reward-funcs code",
    "searchcode": "it runs the model's programs without isolation; use --environment python search:FOLDER",
    "search": "it asks a server; use --environment search:FOLDER",
    "text2sql": "it runs the model's SQL on files without isolation; write a tool of your own",
}
"""Environments of the package that are not safe here, or cannot be repeated; read in version 0.4.0."""


class TextSteps:
    """`Environment` around one of SkyRL-Gym's."""

    def __init__(self, make: Callable[[Mapping[str, Any]], Any], extras: Mapping[str, Any]) -> None:
        """`make` takes the extras of an episode: the row's columns with `extras`."""
        self._make, self._extras = make, extras
        self._inner: Any = None
        self._total = 0.0

    def begin(self, task: Mapping[str, Any], seed: int) -> Sequence[Message] | None:
        """Start the episode; returns the messages that it adds to the prompt.

        Raises:
            EnvironmentFailure: it changes the prompt.
        """
        is_made = "reward_spec" not in task and task["answer"] is not None
        spec = {"reward_spec": {"ground_truth": task["answer"]}} if is_made else {}
        prompt = list(task["messages"])
        self._inner = self._make({"extra_info": {}, **task, **spec, **self._extras})
        messages, _ = self._inner.init(list(prompt))
        if list(messages[: len(prompt)]) != prompt:
            raise EnvironmentFailure("its init changes the prompt, which is fixed by then; add messages behind it only")
        return list(messages[len(prompt) :]) or None

    def observe(self, turn: AgentTurn) -> Observation:
        """Take a step, as the table at the top of this file says.

        Raises:
            EnvironmentFailure: it replaces what the model said.
        """
        step = self._inner.step(turn.text)
        replaced = step.get("postprocessed_action")
        if replaced not in (None, turn.text):
            raise EnvironmentFailure(
                "it puts other words in the place of the model's (postprocessed_action), which would be trained on as "
                "if the model had said them; let it leave them"
            )
        self._total += float(step["reward"])
        return Observation(messages=tuple(step["observations"]), reward=float(step["reward"]), done=bool(step["done"]))

    def close(self) -> float:
        """End the episode; returns the sum of its rewards."""
        self._inner.close()
        return self._total


def load(name: str, parameters: Parameters) -> Callable[[], TextSteps]:
    """Return what makes the episodes of an environment; see `adapters.Load`."""
    import skyrl_gym

    module, _, registered = name.rpartition(":")
    if registered in REFUSED:
        raise ConfigError(f"the environment {registered!r} is refused: {REFUSED[registered]}")
    if module:
        importlib.import_module(module)
    if registered not in skyrl_gym.registry:
        known = ", ".join(known_id for known_id in sorted(skyrl_gym.registry) if known_id not in REFUSED)
        raise ConfigError(f"there is no environment {registered!r}; there are {known}, and your own as module:ID")
    settings = dict(parameters)
    extras = {MAX_TURNS: settings.pop(MAX_TURNS)} if MAX_TURNS in settings else {}
    return lambda: TextSteps(lambda extras: skyrl_gym.make(registered, env_config=settings, extras=extras), extras)


ADAPTER = Adapter(package="skyrl-gym", example="gsm8k_multi_turn", load=load, needs_rows=True)
