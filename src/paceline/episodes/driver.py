"""Many episodes at once: the engine samples turns while environments observe others; neither waits for the other.

Tokens go back to the engine as they were sampled: nothing that the model wrote is encoded again. What an episode
becomes depends on its key, its environment and the weights alone, never on the order in which environments observe.
"""

import queue
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from typing_extensions import override

from paceline.engines import Engine, Finished, FurtherRequests, Request, Sampling
from paceline.environments.hosting import Outcome
from paceline.episodes.chat import EpisodeChat
from paceline.episodes.conversations import Completed, Conversations, Drawn, Draws
from paceline.episodes.episode import EpisodeEnvironment, RunningEpisode, RunningGroup, episode, task_of, with_samples
from paceline.episodes.waits import EnvironmentCall, GroupBegun, NextTurn
from paceline.errors import TrainingError
from paceline.types import Completion

GRACE_SECONDS = 60.0
"""Seconds beyond an environment's own deadlines after which its observation counts as lost."""

OnSingleTurn = Callable[[int, tuple[int, ...], str], None]
"""Called with the index of a task, tokens and text of a completion that has one turn, as soon as it has ended."""


def complete(
    engine: Engine,
    drawn: Drawn,
    sampling: Sampling,
    draws: Draws,
    conversations: Conversations | None,
    on_single_turn: OnSingleTurn | None = None,
) -> list[Completed]:
    """Complete each task `num_generations` times: by one turn, or by an episode with the environment of its row.

    Raises:
        TrainingError: the observation of an environment was lost.
    """
    driver = EpisodeDriver(drawn, sampling, draws, conversations, on_single_turn)
    driver.run(engine)
    return driver.results()


class EpisodeDriver(FurtherRequests):
    """All episodes of one call. Observations arrive from any thread; episodes run in the engine's thread."""

    def __init__(
        self,
        drawn: Drawn,
        sampling: Sampling,
        draws: Draws,
        conversations: Conversations | None,
        on_single_turn: OnSingleTurn | None,
    ) -> None:
        """Begin as many episodes as there may be processes of environments."""
        self._sampling, self._draws, self._conversations = sampling, draws, conversations
        self._on_single_turn = on_single_turn
        self._arrived = queue.SimpleQueue[tuple[RunningEpisode, Outcome]]()
        self._waiting = Counter[str]()
        """By environment, calls that have not come back."""
        self._ready = list[tuple[Request, list[RunningEpisode]]]()
        self._requested = list[list[RunningEpisode]]()
        """Episodes of each request that the engine was given."""
        self._open, self._processes, self._continues = 0, 0, True
        """Episodes without an end, processes of environments, and whether a turn may name the one before it."""
        self._unbegun = deque[RunningGroup]()
        """Groups that wait until others have ended: an environment may hold a process."""
        self._groups = list[RunningGroup]()
        for number, (task, occurrence) in enumerate(drawn):
            spec = None if conversations is None else conversations.spec_of(task.columns)
            group = RunningGroup(number, task, occurrence, spec)
            self._groups.append(group)
            self._open += draws.num_generations
            if spec is None:
                self._begin(group)
            else:
                self._unbegun.append(group)
        self._has_environments = bool(self._unbegun)
        self._begin_more()

    def run(self, engine: Engine) -> None:
        """Hold all episodes to their ends: in one call of the engine, or in rounds where it takes no more meanwhile."""
        try:
            conversations = self._conversations if self._has_environments else None
            if conversations is not None and engine.takes_further and not conversations.in_rounds:
                first = self.take(wait=False) or ()
                results = engine.generate(first, self._sampling, on_finished=self._finished, further=self)
                self._collect(results, first=0)
            else:
                self._run_in_rounds(engine)
        finally:
            for group in self._groups:
                for running in group.episodes:
                    if running.is_open:  # the engine has failed
                        if running.hosted is not None:
                            running.hosted.call("close", then=lambda outcome: None)
                        running.running.close()
        while self._waiting.total():
            self._take_arrived()

    def _run_in_rounds(self, engine: Engine) -> None:
        self._continues = False
        while True:
            while self._waiting.total():  # lock-step: for all that were asked, and for room for others
                self._take_arrived()
            self._ready.sort(key=lambda ready: (ready[1][0].group.number, ready[1][0].sample))
            requests = self.take(wait=True)
            if requests is None:
                return
            first = len(self._requested) - len(requests)
            notify = None if self._on_single_turn is None else partial(self._notify, first)
            results = engine.generate(requests, self._sampling, on_finished=notify)
            self._collect(results, first)
            for request, completions in enumerate(results, first):
                for sample, completion in enumerate(completions):
                    running = self._requested[request][sample]
                    if running.spec is not None:
                        finished = Finished(
                            request=request,
                            sample=sample,
                            token_ids=completion.token_ids,
                            text=completion.text,
                            finish_reason=completion.finish_reason,
                        )
                        self._resume(running, finished)

    @override
    def take(self, *, wait: bool) -> Sequence[Request] | None:
        while True:
            while not self._arrived.empty():
                self._take_arrived()
            if self._ready:
                ready, self._ready = self._ready, []
                self._requested += [episodes for _, episodes in ready]
                return [request for request, _ in ready]
            if not self._open:
                return None
            if not wait:
                return ()
            self._take_arrived()

    def results(self) -> list[Completed]:
        """Each task as it was begun, with its trajectories, and with environments that nothing else refers to."""
        completed = [
            Completed(
                task=group.task,
                trajectories=tuple(with_samples(running) for running in group.episodes),
                shown_tasks=tuple(map(task_of, group.episodes)) if self._has_environments else (),
                environments=tuple(running.environment for running in group.episodes) if self._has_environments else (),
            )
            for group in self._groups
        ]
        for group in self._groups:
            for running in group.episodes:  # they refer to each other, and would live on
                running.hosted = running.environment = None
            group.episodes.clear()
        return completed

    # --- what episodes wait for

    def _resume(self, running: RunningEpisode, value: object = None) -> None:
        """Run an episode up to its next wait that is not over at once."""
        group = running.group
        while True:
            try:
                wait = running.running.send(value)
            except StopIteration as stop:
                running.trajectory = stop.value
                self._ended(running)
                break
            if isinstance(wait, EnvironmentCall) and (outcome := self._call(running, wait)) is not None:
                value = outcome
                continue
            if isinstance(wait, GroupBegun):
                running.is_beginning = False
                group.beginning -= 1
                group.begun.append(running)
            elif isinstance(wait, NextTurn):
                self._request(running, wait)
            break
        if group.begun and not group.beginning:
            self._open_group(group)

    def _call(self, running: RunningEpisode, call: EnvironmentCall) -> Outcome | None:
        """Call a method of an episode's environment; None: the outcome arrives later."""
        spec, group = running.spec, running.group
        assert spec is not None
        assert self._conversations is not None
        if call.method == "begin":
            running.host(spec, self._conversations)
        elif call.method == "close":
            self._close(running)
            if running.is_beginning:
                running.is_beginning = False
                group.beginning -= 1
        assert running.hosted is not None
        if running.hosted.is_instant:
            outcomes = list[Outcome]()
            running.hosted.call(call.method, *call.arguments, then=outcomes.append)
            return outcomes[0]
        self._waiting[spec.name] += 1
        running.hosted.call(call.method, *call.arguments, then=lambda outcome: self._arrived.put((running, outcome)))
        return None

    def _take_arrived(self) -> None:
        """Wait for an outcome and go on with its episode.

        Raises:
            TrainingError: none came for too long, not even a failure.
        """
        assert self._conversations is not None
        seconds = self._conversations.hosts.wait + self._conversations.hosts.seconds + GRACE_SECONDS
        try:
            running, outcome = self._arrived.get(timeout=seconds)
        except queue.Empty:
            raise TrainingError(
                f"the sampler waited {seconds:g} seconds for a response of {self._waiting.total()} environments "
                f"({', '.join(sorted(+self._waiting))}), and none came, not even a failure",
                remedies=["resume the run"],
            ) from None
        assert running.spec is not None
        self._waiting[running.spec.name] -= 1
        self._resume(running, outcome)

    def _ended(self, running: RunningEpisode) -> None:
        self._close(running)
        if running.spec is not None and running.spec.own_process:
            self._processes -= 1
            self._begin_more()

    def _close(self, running: RunningEpisode) -> None:
        """Count an episode as ended, once: it asks for nothing more."""
        if running.is_open:
            running.is_open = False
            self._open -= 1

    def _begin_more(self) -> None:
        """Begin as many groups as there may be processes; at least one at a time."""
        while self._unbegun:
            group = self._unbegun[0]
            assert group.spec is not None
            assert self._conversations is not None
            size = self._draws.num_generations if group.spec.own_process else 0
            most = self._conversations.hosts.most_processes
            if size and self._processes and self._processes + size > most:
                return
            self._unbegun.popleft()
            self._processes += size
            self._begin(group)

    def _begin(self, group: RunningGroup) -> None:
        task, spec, conversations = group.task, group.spec, self._conversations
        row = {**task.columns, "prompt": task.prompt, "messages": task.messages, "answer": task.answer}
        size = self._draws.num_generations
        group.beginning = 0 if spec is None else size
        # an only turn leaves nothing in its chat, so that one serves the group
        shared = EpisodeChat(task, None, conversations, self._sampling) if spec is None else None
        for sample in range(size):
            chat, environment = shared or EpisodeChat(task, spec, conversations, self._sampling), None
            if spec is not None and conversations is not None:
                seed = self._draws.environment_seed(task, group.occurrence)
                environment = EpisodeEnvironment(spec, row, seed, conversations.limits.episode_seconds)
            group.episodes.append(RunningEpisode(group, sample, chat, episode(chat, environment)))
        for running in group.episodes:
            self._resume(running)
        if spec is None:
            self._open_group(group)

    def _open_group(self, group: RunningGroup) -> None:
        """Ask for the first turns of a group. Where its episodes do not begin alike, each has a prompt of its own."""
        # in the order of the samples, whenever each has begun
        begun, group.begun = sorted(group.begun, key=lambda running: running.sample), []
        adds_to_prompt = any(running.chat.opening is not None for running in group.episodes)
        for running in begun:
            self._resume(running, adds_to_prompt)
        turns, group.first_turns = group.first_turns, []
        if adds_to_prompt and len({(running.chat.prompt, running.chat.prompt_ids) for running, _ in turns}) == 1:
            chats = [running.chat for running, _ in turns]
            if all(chat.messages == chats[0].messages for chat in chats):
                group.task = replace(
                    group.task,
                    prompt=chats[0].prompt,
                    prompt_ids=chats[0].prompt_ids,
                    messages=chats[0].messages,
                    row_prompt_ids=group.task.prompt_ids,
                )
        by_prompt = dict[tuple[int, ...], list[tuple[RunningEpisode, NextTurn]]]()
        if turns and not adds_to_prompt:  # all have the row's, which would be hashed for each
            by_prompt[group.task.prompt_ids] = turns
        else:
            for running, turn in turns:
                by_prompt.setdefault(turn.prompt_ids, []).append((running, turn))
        for prompt_ids, alike in by_prompt.items():
            keys = tuple(self._draws.key(group.task, group.occurrence, running.sample) for running, _ in alike)
            limits = tuple(turn.limit for _, turn in alike)
            are_whole = set(limits) == {self._sampling.max_completion_length}
            media, bound = alike[0][1].media, None if are_whole else limits
            request = Request(prompt_ids=prompt_ids, media=media, keys=keys, limits=bound)
            self._ready.append((request, [running for running, _ in alike]))

    def _request(self, running: RunningEpisode, turn: NextTurn) -> None:
        """Ask the engine for a turn; first ones are asked for together."""
        group = running.group
        if turn.number == 0:
            group.first_turns.append((running, turn))
            return
        key = self._draws.key(group.task, group.occurrence, running.sample, turn=turn.number)
        continues = running.turn_at if self._continues and turn.continues else None
        request = Request(
            prompt_ids=turn.prompt_ids, media=turn.media, keys=(key,), limits=(turn.limit,), continues=continues
        )
        self._ready.append((request, [running]))

    # --- what the engine has sampled

    def _finished(self, finished: Finished) -> bool:
        """Take a turn that has ended; True if another may continue it."""
        self._notify(0, finished)
        running = self._requested[finished.request][finished.sample]
        if running.spec is None:  # it goes on with the engine's whole completion
            self._close(running)
            return False
        running.turn_at = (finished.request, finished.sample)
        self._resume(running, finished)
        return running.is_open

    def _notify(self, first: int, finished: Finished) -> bool:
        """Tell of a completion that has one turn; `first` is the number of the engine's first request."""
        running = self._requested[first + finished.request][finished.sample]
        if running.spec is None and self._on_single_turn is not None:
            self._on_single_turn(running.group.number, finished.token_ids, finished.text)
        return False

    def _collect(self, results: Sequence[tuple[Completion, ...]], first: int) -> None:
        for episodes, completions in zip(self._requested[first:], results, strict=True):
            for running, completion in zip(episodes, completions, strict=True):
                if running.spec is None:
                    self._resume(running, completion)
                else:
                    running.completions.append(completion)
