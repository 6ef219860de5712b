"""Scripted stand-ins at the borders: an engine that says what it is told, tasks made of plain text."""

import itertools
from collections.abc import Mapping, Sequence

from paceline.config.objective import AdvantageConfig
from paceline.engines import Engine, Finished, FurtherRequests, OnFinished, Request, Sampling
from paceline.episodes.conversations import Completed, Drawn
from paceline.rewards.function import RewardFunction
from paceline.training.rollouts.rounds import EngineSampler
from paceline.training.rollouts.sampler import Sampler, Take
from paceline.types import Completion, Task, Trajectory, completed


def task(task_id: str, *, prompt: str = "1 + 1 =", answer: str | None = "2") -> Task:
    return Task(task_id=task_id, prompt=prompt, prompt_ids=tuple(prompt.encode()), answer=answer)


def completion(text: str, *, finish_reason: str = "stop") -> Completion:
    token_ids = tuple(text.encode()) or (0,)
    return Completion(
        token_ids=token_ids,
        logprobs=(-1.0,) * len(token_ids),
        finish_reason=finish_reason,
        text=text,
        policy_version=0,
    )


def trajectory(text: str, *, prompt: str = "1 + 1 =", finish_reason: str = "stop") -> Trajectory:
    """A completion of one turn behind its prompt."""
    return completed(tuple(prompt.encode()), completion(text, finish_reason=finish_reason))


def taking(tasks: Sequence[Task]) -> Take:
    """The tasks in order, from the first again after the last."""
    endless = itertools.cycle(tasks)
    return lambda count: [(next(endless), 0) for _ in range(count)]


class ScriptedEngine:
    """Gives each prompt, in order over all calls, the completions written for it, and remembers what it was asked.

    Further requests are taken once all completions before them are told of.
    """

    def __init__(self, script: Sequence[Sequence[Completion]], *, takes_further: bool = True) -> None:
        self._script = iter([tuple(group) for group in script])
        self.requests: list[Request] = []
        self.takes_further = takes_further

    def generate(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        *,
        on_finished: OnFinished | None = None,
        further: FurtherRequests | None = None,
    ) -> list[tuple[Completion, ...]]:
        assert self.takes_further or further is None
        groups: list[tuple[Completion, ...]] = []
        more: Sequence[Request] | None = requests
        while more is not None:
            self.requests.extend(more)
            for index, group in enumerate([next(self._script) for _ in more], start=len(groups)):
                groups.append(group)
                for sample, one in enumerate(group if on_finished is not None and self.takes_further else ()):
                    on_finished(
                        Finished(
                            request=index,
                            sample=sample,
                            token_ids=one.token_ids,
                            text=one.text,
                            finish_reason=one.finish_reason,
                        )
                    )
            more = None if further is None else further.take(wait=True)
        return groups


def scripted_sampler(
    script: Sequence[Sequence[Completion | Trajectory]],
    functions: Mapping[str, RewardFunction],
    weights: Mapping[str, float],
    advantage: AdvantageConfig,
    *,
    num_generations: int = 2,
    max_completion_length: int = 100,
    max_failure_rate: float = 0.0,
) -> Sampler:
    """The sampler on a `ScriptedEngine`; whole trajectories in the script take the engine's place."""
    groups = iter([tuple(group) for group in script])

    def dictated(engine: Engine, drawn: Drawn, *, num_generations: int, purpose: str) -> list[Completed]:
        return [
            Completed(
                task=task,
                trajectories=tuple(
                    one if isinstance(one, Trajectory) else completed(task.prompt_ids, one) for one in next(groups)
                ),
            )
            for task, _ in drawn
        ]

    rounds = EngineSampler(
        engine=ScriptedEngine(script),
        completer=dictated if any(isinstance(one, Trajectory) for group in script for one in group) else None,
        functions=functions,
        sampling=Sampling(max_completion_length=max_completion_length),
        num_generations=num_generations,
        advantage=advantage,
        reward_timeout=60.0,
        seed=0,
    )
    return Sampler(
        rounds=rounds,
        weights=weights,
        advantage=advantage,
        max_completion_length=max_completion_length,
        max_failure_rate=max_failure_rate,
    )
