"""Completions of tasks: in one turn, or in conversations whose environments answer while the engine goes on.

Tokens are handed on as they were sampled: nothing that the model wrote is encoded again. What an episode becomes
depends on its key, its environment and the weights alone, never on the order in which environments answer.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from typing_extensions import override

from paceline.chat.turns import TurnTokens
from paceline.engines import Engine, Finished, FurtherRequests, OnFinished, Request, Sampling
from paceline.environments import ModelRequest, Observation
from paceline.environments.hosting import Outcome
from paceline.errors import ConfigError, ModelError
from paceline.training.rollouts.contexts import check_tools, first_context, next_context, note_unmet, read_turn
from paceline.training.rollouts.conversations import Completed, Conversations, Drawn, Draws
from paceline.training.rollouts.episodes import Answers, RunningEpisode, RunningGroup, completion_of
from paceline.types import Completion, EpisodeEnd, Task, Turn

_Made = TypeVar("_Made")

BEGIN_ATTEMPTS = 3
"""Attempts to begin an episode: nothing of it has been sampled, so another one begins alike."""
PATIENCE_SECONDS = 60.0
"""Seconds beyond an environment's own deadlines after which its answer counts as lost."""


def complete(
    engine: Engine,
    drawn: Drawn,
    sampling: Sampling,
    draws: Draws,
    conversations: Conversations | None,
    on_finished: Callable[[int, tuple[int, ...], str], None] | None = None,
) -> list[Completed]:
    """Complete each task `num_generations` times.

    `on_finished` is told of completions that have one turn, by the index of their task.

    Raises:
        TrainingError: an environment's answer was lost.
    """
    tasks, samples = [task for task, _ in drawn], range(draws.num_generations)
    if conversations is None or not any(conversations.spec_of(task.columns) for task in tasks):
        requests = [
            Request(prompt_ids=task.prompt_ids, keys=tuple(draws.key(task, occurrence, sample) for sample in samples))
            for task, occurrence in drawn
        ]
        tell = None if on_finished is None else _telling(on_finished)
        completions = engine.generate(requests, sampling, on_finished=tell)
        return [Completed(task=task, completions=group) for task, group in zip(tasks, completions, strict=True)]
    batch = EpisodeBatch(drawn, sampling, draws, conversations, on_finished)
    batch.run(engine)
    return batch.results()


def _telling(on_finished: Callable[[int, tuple[int, ...], str], None]) -> OnFinished:
    def tell(one: Finished) -> bool:
        on_finished(one.request, one.token_ids, one.text)
        return False

    return tell


class EpisodeBatch(FurtherRequests):
    """All episodes of one call: answers come in from any thread, and are worked on in the engine's."""

    def __init__(
        self,
        drawn: Drawn,
        sampling: Sampling,
        draws: Draws,
        conversations: Conversations,
        on_finished: Callable[[int, tuple[int, ...], str], None] | None,
    ) -> None:
        self._sampling, self._draws, self._conversations = sampling, draws, conversations
        self._limits, self._on_finished = conversations.limits, on_finished
        patience = conversations.hosts.wait + conversations.hosts.seconds + PATIENCE_SECONDS
        self._answers = Answers(patience)
        self._ready = list[tuple[Request, list[RunningEpisode]]]()
        self._at = list[list[RunningEpisode]]()
        """Episodes of each request that the engine was given."""
        self._open, self._asked, self._closing = 0, 0, 0
        self._continues, self._living = True, 0
        self._unbegun = deque[RunningGroup]()
        """Groups that wait until others have ended: an environment may hold a process."""
        self._groups = [RunningGroup(number, *one) for number, one in enumerate(drawn)]
        for group in self._groups:
            spec = conversations.spec_of(group.task.columns)
            group.episodes = [RunningEpisode(group, sample, spec) for sample in range(draws.num_generations)]
            self._open += len(group.episodes)
            if spec is None:
                self._ask_first(group)
            else:
                self._unbegun.append(group)
        self._begin_more()

    def run(self, engine: Engine) -> None:
        """Sample all episodes to their ends, in one call of the engine, or round by round where it takes no more."""
        try:
            if engine.takes_further and not self._conversations.in_rounds:
                first = self.take(wait=False)
                results = engine.generate(first or (), self._sampling, on_finished=self._finished, further=self)
                self._collect(results)
            else:
                self._run_in_rounds(engine)
        finally:
            for group in self._groups:
                for episode in group.episodes:
                    if episode.end is None and episode.hosted is not None:  # the engine has failed
                        episode.hosted.call("close", then=lambda outcome: None)
        while self._closing:
            self._answers.work_on_next()

    def _run_in_rounds(self, engine: Engine) -> None:
        self._continues = False
        while True:
            while self._asked or self._closing:  # lock-step: for all that were asked, and for room for others
                self._answers.work_on_next()
            self._ready.sort(key=lambda ready: (ready[1][0].group.number, ready[1][0].sample))
            requests = self.take(wait=True)
            if requests is None:
                return
            first = len(self._at) - len(requests)
            results = engine.generate(requests, self._sampling)
            self._collect(results, first)
            for index, completions in enumerate(results):
                for sample, one in enumerate(completions):
                    self._finished(
                        Finished(
                            request=first + index,
                            sample=sample,
                            token_ids=one.token_ids,
                            text=one.text,
                            finish_reason=one.finish_reason,
                        )
                    )

    @override
    def take(self, *, wait: bool) -> Sequence[Request] | None:
        while True:
            self._answers.work_on_all()
            if self._ready:
                ready, self._ready = self._ready, []
                self._at += [episodes for _, episodes in ready]
                return [request for request, _ in ready]
            if not self._open:
                return None
            if not wait:
                return ()
            self._answers.work_on_next()

    def results(self) -> list[Completed]:
        """Each task as it was begun, with its completions, and with environments that nothing else refers to."""
        found = [
            Completed(
                task=group.task,
                completions=tuple(completion_of(episode) for episode in group.episodes),
                asked=tuple(self._task_of(episode) for episode in group.episodes),
                environments=tuple(episode.environment for episode in group.episodes),
            )
            for group in self._groups
        ]
        for group in self._groups:
            for episode in group.episodes:  # they refer to each other, and would live on
                episode.hosted = episode.environment = None
            group.episodes.clear()
        return found

    def _task_of(self, episode: RunningEpisode) -> Task:
        """Return the task as an episode began it: siblings may begin in different ways."""
        group = episode.group
        opening = group.openings.get(episode.sample)
        if opening is None or opening == group.task.messages:
            return group.task
        return replace(group.task, prompt=episode.prompt, prompt_ids=episode.prompt_ids, messages=opening)

    # --- what is asked of environments, and what they answer

    def _begin_more(self) -> None:
        """Begin as many groups as there may be processes; at least one at a time."""
        while self._unbegun:
            group = self._unbegun[0]
            spec = group.episodes[0].spec
            assert spec is not None
            size = len(group.episodes) if spec.own_process else 0
            if size and self._living and self._living + size > self._conversations.hosts.most_processes:
                return
            self._unbegun.popleft()
            self._living += size
            task, group.beginning = group.task, len(group.episodes)
            group.row = {**task.columns, "prompt": task.prompt, "messages": task.messages, "answer": task.answer}
            group.seed = self._draws.environment_seed(task, group.occurrence)
            for episode in group.episodes:
                self._begin(episode)

    def _begin(self, episode: RunningEpisode) -> None:
        group, episode.attempts = episode.group, episode.attempts + 1
        episode.open(self._conversations.hosts)
        self._asked += 1
        self._answers.ask(episode, "begin", group.row, group.seed, then=self._begun)

    def _begun(self, episode: RunningEpisode, outcome: Outcome) -> None:
        self._asked -= 1
        episode.seconds += outcome.seconds
        if outcome.failure is not None and episode.attempts < BEGIN_ATTEMPTS:
            self._begin(episode)
            return
        group = episode.group
        group.beginning -= 1
        if outcome.failure is not None:
            self._fail(episode, f"could not begin: {outcome.failure}", timed_out=outcome.timed_out)
        elif isinstance(outcome.value, ModelRequest):
            episode.request = outcome.value
            group.openings[episode.sample] = outcome.value.messages
        elif outcome.value:
            episode.begin(outcome.value, self._conversations.tokens[episode.name].plain)
            group.openings[episode.sample] = episode.messages
        if not group.beginning:
            self._ask_first(group)

    def _ask_first(self, group: RunningGroup) -> None:
        """Ask for the first turns of a group. Where its episodes do not begin alike, each has a prompt of its own."""
        living = [episode for episode in group.episodes if episode.end is None]
        if group.openings:
            for episode in living:
                self._set_prompt(episode)
            living = [episode for episode in living if episode.end is None]
        if not living:
            return
        by_prompt = dict[tuple[int, ...], list[RunningEpisode]]()
        for episode in living:
            by_prompt.setdefault(episode.prompt_ids, []).append(episode)
        first = living[0]
        if group.openings and all((one.messages, one.prompt) == (first.messages, first.prompt) for one in living):
            row, ids = group.task.prompt_ids, first.prompt_ids
            group.task = replace(
                group.task, prompt=first.prompt, prompt_ids=ids, messages=first.messages, row_prompt_ids=row
            )
        for prompt_ids, episodes in by_prompt.items():
            keys = tuple(self._draws.key(group.task, group.occurrence, one.sample) for one in episodes)
            limits = tuple(map(self._turn_limit, episodes))
            are_whole = set(limits) == {self._sampling.max_completion_length}
            request = Request(prompt_ids=prompt_ids, keys=keys, limits=None if are_whole else limits)
            self._ready.append((request, episodes))

    def _set_prompt(self, episode: RunningEpisode) -> None:
        """Give an episode the prompt that its environment has begun, or fail it."""
        if (found := self._shown(episode, first_context)) is None:
            return
        episode.prompt, context = found
        episode.notes += context.notes
        episode.prompt_ids = episode.held = context.ids
        if episode.request is not None:
            episode.messages = episode.group.openings[episode.sample] = context.messages
        if len(context.ids) > self._limits.prompt_tokens:
            said, limit = f"makes a prompt of {len(context.ids)} tokens", self._limits.prompt_tokens
            check_tools(episode, self._conversations.tokens[episode.name], len(context.ids), limit)
            self._fail(episode, f"{said} by its first message, above --max-prompt-length {limit}")

    def _shown(self, episode: RunningEpisode, made: Callable[[RunningEpisode, TurnTokens], _Made]) -> _Made | None:
        """Make a context; None: a program has asked for one that the chat template refuses, and its episode fails."""
        try:
            return made(episode, self._conversations.tokens_for(episode.name, episode.request))
        except (ModelError, ConfigError) as error:
            if episode.request is None:
                raise
            self._fail(episode, f"asked for what the model cannot be shown: {error.message}")
            return None

    def _left(self, episode: RunningEpisode) -> int:
        return self._sampling.max_completion_length - episode.used

    def _turn_limit(self, episode: RunningEpisode) -> int:
        left = self._left(episode)
        own = self._limits.turn_tokens if episode.spec is not None else None
        asked = None if episode.request is None else episode.request.max_tokens
        return min(one for one in (left, own, asked) if one is not None)

    def _finished(self, one: Finished) -> bool:
        """Take a turn that has ended; True if another may continue it."""
        episode, episode.place = self._at[one.request][one.sample], (one.request, one.sample)
        limit = self._turn_limit(episode)
        episode.held += one.token_ids
        episode.used += len(one.token_ids)
        if episode.spec is None:
            if self._on_finished is not None:
                self._on_finished(episode.group.number, one.token_ids, one.text)
            self._open -= 1
            episode.end = "done"
            return False
        tokens, left = self._conversations.tokens_for(episode.name, episode.request), self._left(episode)
        episode.sampled += (one.token_ids,)
        episode.read += (episode.messages,)
        episode.turns_are_used_up = self._limits.turns is not None and len(episode.turns) + 1 >= self._limits.turns
        episode.is_last = episode.turns_are_used_up or left <= tokens.least
        episode.is_cut = one.finish_reason == "length" and len(one.token_ids) >= limit and left <= 0
        message, told = read_turn(one, episode, tokens)
        episode.turn = {
            "sampled": len(one.token_ids),
            "finish_reason": one.finish_reason,
            "prompt_ids": episode.own_context(),
            "message": message,
            "malformed": told.malformed,
        }
        note_unmet(episode, self._sampling, limit)
        if episode.is_cut and episode.request is None:
            episode.turns += (Turn(**episode.turn),)
            self._end(episode, "length")
            return False
        self._asked += 1
        self._answers.ask(episode, "answer", told, then=self._answered)
        return episode.end is None

    def _answered(self, episode: RunningEpisode, outcome: Outcome) -> None:
        self._asked -= 1
        episode.seconds += outcome.seconds
        if outcome.failure is not None:
            episode.turns += (Turn(**episode.turn),)
            self._fail(episode, f"failed in turn {len(episode.turns)}: {outcome.failure}", timed_out=outcome.timed_out)
            return
        observation: Observation = outcome.value
        turn = Turn(
            **episode.turn,
            answer=observation.messages,
            reward=observation.reward,
            calls=observation.calls,
            failed_calls=observation.failed_calls,
            seconds=outcome.seconds,
        )
        episode.turns, episode.request = (*episode.turns, turn), observation.request
        if episode.seconds > self._limits.episode_seconds:
            said = f"took more than the {self._limits.episode_seconds:g} seconds of an episode (--environment-timeout)"
            self._fail(episode, said, timed_out=True)
        elif episode.is_cut:
            self._end(episode, "length")
        elif observation.done:
            self._end(episode, "done")
        elif episode.is_last:
            self._end(episode, "max_turns" if episode.turns_are_used_up else "length")
        else:
            self._go_on(episode, turn)

    def _go_on(self, episode: RunningEpisode, turn: Turn) -> None:
        """Ask for the next turn, after what the environment answered, if there is room for it."""
        total = self._sampling.max_completion_length
        context = self._shown(episode, partial(next_context, limits=self._limits, max_completion_length=total))
        if context is None:
            if episode.end is None:
                self._end(episode, "length")
            return
        given, room = context.given, self._limits.prompt_tokens + total - len(context.ids)
        episode.notes = (*episode.notes, *context.notes)
        if min(self._left(episode) - len(given), room) < 1:
            self._end(episode, "length")
            return
        episode.messages = context.messages
        episode.turns = (*episode.turns[:-1], replace(turn, answer=context.answer, observed=len(given)))
        episode.observed += (given,)
        episode.used += len(given)
        place = episode.place if self._continues and given else None
        episode.held = context.ids
        key = self._draws.key(episode.group.task, episode.group.occurrence, episode.sample, turn=len(episode.turns))
        limit = min(self._turn_limit(episode), room)
        request = Request(prompt_ids=context.ids, keys=(key,), limits=(limit,), continues=place)
        self._ready.append((request, [episode]))

    def _fail(self, episode: RunningEpisode, said: str, *, timed_out: bool = False) -> None:
        episode.failure = f"environment {episode.name!r} {said}"
        self._end(episode, "timed_out" if timed_out else "failed")

    def _end(self, episode: RunningEpisode, end: EpisodeEnd) -> None:
        episode.end = end
        self._open -= 1
        self._closing += 1
        self._answers.ask(episode, "close", then=self._closed)

    def _closed(self, episode: RunningEpisode, outcome: Outcome) -> None:
        self._closing -= 1
        if episode.spec is not None and episode.spec.own_process:
            self._living -= 1
            self._begin_more()
        episode.settle(outcome)

    # --- what becomes of them

    def _collect(self, results: Sequence[tuple[Completion, ...]], first: int = 0) -> None:
        for episodes, completions in zip(self._at[first:], results, strict=True):
            for episode, completion in zip(episodes, completions, strict=True):
                episode.parts += (completion,)
