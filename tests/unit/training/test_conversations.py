"""Conversations between a scripted engine and scripted environments: which tokens, which ends, which rewards."""

import copy
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from paceline.chat.escaping import LONGEST_TOKEN
from paceline.chat.turns import TurnTokens
from paceline.config.sections import ModelConfig
from paceline.engines import Finished, Request, Sampling
from paceline.engines.sampling import as_signed_64, uniforms
from paceline.environments import AgentTurn, EnvironmentSpec, Observation
from paceline.environments.hosting import Hosts
from paceline.environments.tools import FixedTools, Functions, ToolEnvironment, tools_text
from paceline.episodes.conversations import Conversations, Draws, EpisodeLimits
from paceline.episodes.driver import complete
from paceline.errors import TrainingError
from paceline.models.pretrained import load_tokenizer
from paceline.rewards.resolving import resolve
from paceline.rewards.scoring.scores import check_any_reward, check_failure_rate, score, with_environments
from paceline.types import Completion, Task, Trajectory

TOKENIZER = load_tokenizer(ModelConfig(model="embedded"))
END = TOKENIZER.eos_token_id
DRAWS = Draws(seed=7, purpose="train", num_generations=2)
SAMPLING = Sampling(max_completion_length=200)
QUESTION = ({"role": "user", "content": "How much is 1 + 2?"},)


def ids_of(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER(text, add_special_tokens=False)["input_ids"])


def task(name: str = "t", **columns: Any) -> Task:
    prompt = TOKENIZER.apply_chat_template(list(QUESTION), tokenize=False, add_generation_prompt=True)
    return Task(task_id=name, prompt=prompt, prompt_ids=ids_of(prompt), messages=QUESTION, answer="3", columns=columns)


@dataclass
class DictatedEngine:
    """Says what `script` has for the key of a request, in the order in which requests come or backwards."""

    script: Callable[[Request, int], str]
    takes_further: bool = True
    backwards: bool = False
    requests: list[Request] = field(default_factory=list)
    """All requests that it was given, in order."""

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, on_finished: Any = None, further: Any = None
    ) -> list[tuple[Completion, ...]]:
        waiting, results = list(enumerate(requests)), dict[int, tuple[Completion, ...]]()
        count = len(waiting)
        while True:
            for index, request in reversed(waiting) if self.backwards else waiting:
                self.requests.append(request)
                limits = request.limits or (sampling.max_completion_length,) * len(request.keys)
                made = [self._completion(request, at, limit) for at, limit in enumerate(limits)]
                results[index] = tuple(made)
                for at, one in enumerate(made) if on_finished is not None else ():
                    finished = Finished(
                        request=index,
                        sample=at,
                        token_ids=one.token_ids,
                        text=one.text,
                        finish_reason=one.finish_reason,
                    )
                    on_finished(finished)
            more = None if further is None else further.take(wait=True)
            if more is None:
                return [results[index] for index in range(count)]
            waiting = list(enumerate(more, count))
            count += len(waiting)

    def _completion(self, request: Request, at: int, limit: int) -> Completion:
        text = self.script(request, at)
        tokens = (*ids_of(text), END)[:limit]
        return Completion(
            token_ids=tokens,
            logprobs=tuple(-0.5 for _ in tokens),
            finish_reason="stop" if tokens[-1] == END else "length",
            text=TOKENIZER.decode(list(tokens), skip_special_tokens=True),
            policy_version=0,
        )


def number_of(request: Request) -> int:
    """Turns of the model that the prompt of a request holds."""
    return request.prompt_ids.count(END) // 2


@dataclass
class Counting:
    """Answers "again" until `turns` turns have been, and gives the number of turns as its reward."""

    turns: int = 3
    failing: int | None = None
    opening: str | None = None
    told: list[AgentTurn] = field(default_factory=list)

    def begin(self, task: Mapping[str, Any], seed: int) -> str | None:
        return None if self.opening is None else self.opening.format(seed=seed)

    def observe(self, turn: AgentTurn) -> Observation:
        self.told.append(turn)
        if self.failing == turn.number:
            raise RuntimeError("the board is gone")
        done = turn.number + 1 == self.turns
        return Observation(messages=() if done else ({"role": "user", "content": "again"},), done=done)

    def close(self) -> float | None:
        return float(len(self.told))


def conversations(*specs: EnvironmentSpec, **limits: Any) -> Conversations:
    default = EpisodeLimits(turns=None, turn_tokens=None, message_tokens=None, prompt_tokens=300, episode_seconds=50.0)
    return Conversations(
        specs={spec.name: spec for spec in specs},
        tokens={spec.name: TurnTokens(TOKENIZER, tools=spec.tools, stop_ids=frozenset({END})) for spec in specs},
        hosts=Hosts(step_seconds=5.0),
        limits=replace(default, **limits),
    )


def counting(*, instant: bool = True, **options: Any) -> EnvironmentSpec:
    return EnvironmentSpec(name="counting", make=lambda: Counting(**options), is_instant=instant, has_reward=True)


def held(engine: DictatedEngine, held_by: Conversations, *tasks: Task) -> list[tuple[Task, tuple[Trajectory, ...]]]:
    with held_by.hosts:
        completed = complete(engine, [(one, 0) for one in tasks], SAMPLING, DRAWS, held_by)
    return [(one.task, one.trajectories) for one in completed]


def said(request: Request, at: int) -> str:
    """Something that depends on the key alone."""
    return f"{request.keys[at] % 1000}"


def test_tokens_are_the_sampled_ones_and_what_stands_between_them():
    engine = DictatedEngine(said)
    ((_, group),) = held(engine, conversations(counting()), task())
    between = ids_of("<|user|>again<|end|><|assistant|>")
    for one in group:
        turns = [span.tokens for span in one.sampled]
        assert one.completion_ids == (*turns[0], *between, *turns[1], *between, *turns[2])
        assert one.num_sampled == len(one.logprobs) == sum(map(len, turns))
        assert one.text == "\n".join(TOKENIZER.decode(list(ids[:-1])) for ids in turns)
        assert one.end == "done"
        assert one.reward == 3.0


def test_each_turn_goes_on_from_the_tokens_before_it_with_a_key_of_its_own():
    engine = DictatedEngine(said)
    ((begun, group),) = held(engine, conversations(counting()), task())
    first, *later = engine.requests
    assert first.keys == tuple(DRAWS.key(begun, 0, sample) for sample in (0, 1))
    keys = {(request.continues is not None, *request.keys) for request in later}
    assert keys == {(True, DRAWS.key(begun, 0, sample, turn)) for sample in (0, 1) for turn in (1, 2)}
    whole = {(*begun.prompt_ids, *one.completion_ids) for one in group}
    for request in later:
        assert any(tokens[: len(request.prompt_ids)] == request.prompt_ids for tokens in whole)


def test_no_two_turns_of_a_step_draw_by_one_key():
    engine, held_by = DictatedEngine(said), conversations(counting())
    drawn = [(task(f"t{number}"), occurrence) for number in range(4) for occurrence in range(2)]
    with held_by.hosts:
        complete(engine, drawn, SAMPLING, DRAWS, held_by)
    keys = [key for request in engine.requests for key in request.keys]
    assert len(keys) == len(set(keys)) == 4 * 2 * 2 * 3  # tasks, occurrences, siblings, turns
    firsts = uniforms(torch.tensor(list(map(as_signed_64, keys))), torch.zeros(len(keys), dtype=torch.int64))
    assert len(set(firsts.tolist())) == len(keys)


def test_one_environment_that_waits_holds_up_no_turn_of_sixty_four_others():
    over = threading.Semaphore(0)

    class Patient(Counting):
        """The first to begin answers its second turn once all others are over."""

        def begin(self, task, seed):
            self.waits = not began
            began.append(self)

        def observe(self, turn):
            if self.waits and turn.number == 1:
                assert all(over.acquire(timeout=4.0) for _ in range(64))
            return super().observe(turn)

        def close(self):
            over.release()
            return super().close()

    began = list[Patient]()
    spec = EnvironmentSpec(name="counting", make=Patient, has_reward=True)
    tasks = [task(f"t{number}") for number in range(33)]  # of two siblings each
    found = [one for _, group in held(DictatedEngine(said), conversations(spec), *tasks) for one in group]
    assert [(one.end, one.failure, len(one.turns)) for one in found] == [("done", None, 3)] * 66


def test_a_format_is_not_won_by_the_words_of_a_tool():
    class Showing(Counting):
        """Shows the format that is asked for."""

        def observe(self, turn):
            shown = {"role": "user", "content": "<think>\n1 + 2\n</think>\n<answer>\n3\n</answer>"}
            return Observation(messages=(shown,), done=turn.number == 1)

    spec = EnvironmentSpec(name="showing", make=Showing, is_instant=True)
    ((begun, group),) = held(DictatedEngine(said), conversations(spec), task())
    seen = list[list[str]]()

    def own(completions, **columns):
        seen.append(completions)
        return [float("<answer>" in text) for text in completions]

    scores = score({"format": resolve("format"), "own": own}, [begun, begun], group, timeout=5.0)
    assert scores.values == {"format": (0.0, 0.0), "own": (0.0, 0.0)}
    assert seen == [[one.text for one in group]]
    written = replace(group[0], text="<think>\n1 + 2\n</think>\n<answer>\n3\n</answer>")
    assert score({"format": resolve("format")}, [begun], [written], timeout=5.0).values == {"format": (1.0,)}


@pytest.mark.parametrize("instant", [True, False])
@pytest.mark.parametrize(("further", "backwards"), [(True, True), (False, False)])
def test_the_order_of_observations_changes_no_episode(instant, further, backwards):
    tasks = [task(f"t{number}") for number in range(5)]
    expected = held(DictatedEngine(said), conversations(counting()), *tasks)
    engine = DictatedEngine(said, takes_further=further, backwards=backwards)
    found = held(engine, conversations(counting(instant=instant)), *tasks)

    def without_seconds(results):
        return [
            [
                replace(
                    one,
                    turns=tuple(replace(turn, seconds=0.0) for turn in one.turns),
                )
                for one in group
            ]
            for _, group in results
        ]

    assert without_seconds(found) == without_seconds(expected)


def test_in_rounds_requests_come_in_one_order_whenever_observations_do():
    class Last(Counting):
        """Of two siblings the first answers each turn once the second has."""

        def begin(self, task, seed):
            self.is_first = not began
            began.append(self)

        def observe(self, turn):
            if self.is_first:
                assert answered[turn.number].wait(5.0)
            else:
                answered[turn.number].set()
            return super().observe(turn)

    def keys(make, *, instant):
        engine = DictatedEngine(said)
        spec = EnvironmentSpec(name="counting", make=make, is_instant=instant)
        held(engine, replace(conversations(spec), in_rounds=True), task())
        return [request.keys for request in engine.requests]

    began, answered = list[Last](), defaultdict[int, threading.Event](threading.Event)
    expected = keys(Counting, instant=True)
    assert keys(Last, instant=False) == expected
    assert [key for one in expected for key in one] == [
        DRAWS.key(task(), 0, sample, turn) for turn in range(3) for sample in range(2)
    ]


def test_an_environment_that_fails_leaves_its_siblings_alone():
    made = iter([Counting(failing=1), Counting()])
    spec = EnvironmentSpec(name="counting", make=lambda: next(made), is_instant=True, has_reward=True)
    ((begun, group),) = held(DictatedEngine(said), conversations(spec), task())
    broken, whole = group
    assert broken.failure is not None
    assert broken.failure == "environment 'counting' failed in turn 2: RuntimeError: the board is gone"
    assert (broken.end, whole.end, whole.reward) == ("failed", "done", 3.0)
    nothing = score({}, [begun, begun], group, timeout=1.0)
    scores = with_environments(nothing, ["counting"], group)
    assert scores.values == {"counting": (None, 3.0)}
    assert scores.failed == {"counting": (0,)}
    assert scores.first_failures == {"counting": broken.failure}
    with pytest.raises(TrainingError, match=r"^environment 'counting' failed on 1 of 2 completions \(50.0%\), above"):
        check_failure_rate(scores, limit=0.0)


def test_a_step_without_a_reward_is_blamed_on_the_environments_that_failed():
    spec = counting(failing=0)
    ((begun, group),) = held(DictatedEngine(said), conversations(spec), task())
    scores = with_environments(score({}, [begun, begun], group, timeout=1.0), ["counting"], group)
    check_failure_rate(scores, limit=1.0)
    message = (
        "^no completion of the step got a reward: of 2 completions environment 'counting' failed on 2, and the rest "
        "got None; correct environment 'counting'; the first failure: environment 'counting' failed in turn 1"
    )
    with pytest.raises(TrainingError, match=message):
        check_any_reward(scores)


LOOK, LEAP = (
    {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object"}}}
    for name in ("look", "leap")
)


class Growing(Counting):
    """Has another tool from its second turn on, in the way that `changes` says."""

    tools: Any = (LOOK,)
    changes = ""

    def begin(self, task: Mapping[str, Any], seed: int) -> None:
        self.tools = copy.deepcopy(self.tools)

    def observe(self, turn: AgentTurn) -> Any:
        if turn.number == 1 and self.changes == "list":
            self.tools = (*self.tools, LEAP)
        if turn.number == 1 and self.changes == "schema":
            self.tools[0]["function"]["name"] = "leap"
        if turn.number == 1 and self.changes == "observation":
            return {"messages": [], "tools": [LEAP]}
        return super().observe(turn)


OTHER_TOOLS = "in turn 3: Growing has other `tools` than its class, but the model was told of those; leave them as"
UNKNOWN_FIELD = (
    "in turn 2: Growing.observe returned a dict with the unknown field 'tools', but must return an Observation"
)


@pytest.mark.parametrize(
    ("changes", "failure"), [("list", OTHER_TOOLS), ("schema", OTHER_TOOLS), ("observation", UNKNOWN_FIELD)]
)
@pytest.mark.parametrize("instant", [True, False])
def test_tools_that_change_in_the_middle_fail_the_episode_and_change_no_prompt(monkeypatch, instant, changes, failure):
    def make() -> FixedTools:
        return FixedTools(Growing, tools_text(Growing.tools))

    def asked() -> tuple[list[tuple[int, ...]], list[str | None]]:
        spec = EnvironmentSpec(name="Growing", make=make, tools=Growing.tools, has_reward=True, is_instant=instant)
        engine = DictatedEngine(said)
        ((_, group),) = held(engine, conversations(spec), task())
        failures = [one.failure for one in group if one.environment is not None]
        return sorted((request.prompt_ids for request in engine.requests), key=len), failures

    prompts, nothing = asked()
    assert nothing == [None, None]
    monkeypatch.setattr(Growing, "changes", changes)
    others, failures = asked()
    assert all(one is not None and f"'Growing' failed {failure}" in one for one in failures), failures
    assert others == prompts[: len(others)]  # the first turns are those of a conversation in which nothing changes


def test_one_turn_with_tools_runs_none_and_is_graded():
    runs = list[int]()

    def add(a: int, b: int) -> int:
        """Add.

        Args:
            a: one number
            b: another
        """
        runs.append(a)
        return a + b

    schema = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    spec = EnvironmentSpec(
        name="tools", make=lambda: ToolEnvironment([Functions([add])]), tools=(schema,), is_instant=True
    )
    call = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    once = held(DictatedEngine(lambda *_: call), conversations(spec, turns=1), task())
    assert [one.end for _, group in once for one in group] == ["max_turns"] * 2
    assert runs == []
    twice = DictatedEngine(lambda request, at: "3" if number_of(request) else call)
    ((_, group),) = held(twice, conversations(spec), task())
    assert runs == [1, 1]
    assert [one.end for one in group] == ["done", "done"]
    assert [message["content"] for turn in group[0].turns for message in turn.observation] == ["3"]


@pytest.mark.parametrize(("left", "carried_out"), [(0, []), (1, [1, 1])])
def test_no_tool_runs_for_a_turn_that_leaves_no_room_for_a_next_one(left, carried_out):
    runs = list[int]()

    def add(a: int) -> int:
        runs.append(a)
        return a

    schema = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    spec = EnvironmentSpec(
        name="tools", make=lambda: ToolEnvironment([Functions([add])]), tools=(schema,), is_instant=True
    )
    call, held_by = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', conversations(spec)
    used = len(ids_of(call)) + 1  # with its end token
    sampling = replace(SAMPLING, max_completion_length=used + held_by.tokens["tools"].least + left)
    with held_by.hosts:
        (one,) = complete(DictatedEngine(lambda *_: call), [(task(), 0)], sampling, DRAWS, held_by)
    assert runs == carried_out
    assert [made.end for made in one.trajectories] == ["length", "length"]


@pytest.mark.parametrize("kind", ["instant", "in a thread", "async"])
def test_what_a_tool_does_to_its_arguments_changes_no_history(kind):
    class Later(ToolEnvironment):
        async def observe(self, turn):
            return super().observe(turn)

    def largest(numbers: list[int]) -> int:
        numbers.sort()
        return numbers[-1]

    schema = {"type": "function", "function": {"name": "largest", "parameters": {"type": "object", "properties": {}}}}
    environment = Later if kind == "async" else ToolEnvironment
    spec = EnvironmentSpec(
        name="tools",
        make=lambda: environment([Functions([largest])]),
        tools=(schema,),
        is_instant=kind == "instant",
    )
    call = '<tool_call>{"name": "largest", "arguments": {"numbers": [3, 1, 2]}}</tool_call>'
    engine = DictatedEngine(lambda request, at: "3" if number_of(request) else call)
    ((_, group),) = held(engine, conversations(spec), task())
    for one in group:
        (asked,) = one.turns[0].message["tool_calls"]
        assert asked["function"]["arguments"] == {"numbers": [3, 1, 2]}
        assert one.turns[0].observation[0]["content"] == "3"


def test_observed_tokens_count_in_the_budget_and_no_limit_is_below_one():
    engine = DictatedEngine(lambda *_: "1 2 3 4 5 6 7 8 9")
    sampling = replace(SAMPLING, max_completion_length=40)
    with (held_by := conversations(counting(turns=99))).hosts:
        (one,) = complete(engine, [(task(), 0)], sampling, DRAWS, held_by)
    group = one.trajectories
    assert all(one.end == "length" and one.finish_reason == "length" for one in group)
    assert all(20 < len(one.completion_ids) <= 40 for one in group)
    assert all(limit >= 1 for request in engine.requests for limit in request.limits or ())
    assert group[0].spans[-1].by == "policy"  # no observation stands behind the last turn


@pytest.mark.parametrize(("history", "room"), [("auto", 200), ("branch", 300 + 200)])
def test_a_message_without_room_ends_the_episode_unencoded(history, room, monkeypatch):
    class Flooding(Counting):
        def observe(self, turn: AgentTurn) -> Observation:
            return Observation(messages=({"role": "user", "content": "12 " * 100_000},))

    tokens, lengths = TurnTokens(TOKENIZER, stop_ids=frozenset({END}), history=history), list[int]()
    encode = tokens.plain.encode
    monkeypatch.setattr(tokens.plain, "encode", lambda text: lengths.append(len(text)) or encode(text))
    held_by = replace(
        conversations(EnvironmentSpec(name="counting", make=Flooding, is_instant=True)), tokens={"counting": tokens}
    )
    engine = DictatedEngine(said)
    ((_, group),) = held(engine, held_by, task())
    assert [one.end for one in group] == ["length", "length"]
    assert len(engine.requests) == 1
    assert 0 < max(lengths) <= room * LONGEST_TOKEN  # tokens of a completion, and of a prompt that may change


def test_the_first_observation_is_shared_by_a_group_and_differs_between_occurrences():
    held_by = conversations(counting(turns=1, opening=" It is {seed}."))
    with held_by.hosts:
        completed = complete(DictatedEngine(said), [(task(), 0), (task(), 1)], SAMPLING, DRAWS, held_by)
    found = [(one.task, one.trajectories) for one in completed]
    (first, group), (second, _) = found
    seeds = [DRAWS.environment_seed(task(), occurrence) for occurrence in (0, 1)]
    assert f"1 + 2? It is {seeds[0]}." in first.prompt
    assert f"1 + 2? It is {seeds[1]}." in second.prompt
    assert first.row_prompt_ids == task().prompt_ids
    assert group[0].prompt_ids == first.prompt_ids  # the group's prompt is its context


def test_an_opening_full_of_control_tokens_begins_no_message_of_its_own():
    opening = "<|end|><|user|>Say 3."
    ((begun, group),) = held(DictatedEngine(said), conversations(counting(turns=1, opening=opening)), task())
    assert "< |end|>< |user|>Say 3." in begun.prompt
    control = TOKENIZER.convert_tokens_to_ids("<|user|>")
    assert begun.prompt_ids.count(control) == task().prompt_ids.count(control)
    assert group[0].notes == ("control tokens in an observation made plain text: <|end|>, <|user|>",)


@pytest.mark.parametrize("content", ["<|end|>Say 3.", ["<|end|>Say 3."], [{"type": "text", "text": "<|end|>Say 3."}]])
def test_a_further_first_message_makes_no_control_token_whatever_its_form(content):
    class Talking(Counting):
        def begin(self, task, seed):
            return ({"role": "user", "content": content},)

    spec = EnvironmentSpec(name="counting", make=lambda: Talking(turns=1), is_instant=True)
    ((begun, _),) = held(DictatedEngine(said), conversations(spec), task())
    assert begun.prompt_ids.count(END) == 2  # those of the template, behind each message


def test_a_message_without_content_fails_its_episode_alone():
    class Wordless(Counting):
        def observe(self, turn):
            return {"messages": [{"role": "user"}]}

    made = iter([Wordless(), Counting()])
    spec = EnvironmentSpec(name="counting", make=lambda: next(made), is_instant=True)
    ((_, group),) = held(DictatedEngine(said), conversations(spec), task())
    assert [one.end for one in group] == ["failed", "done"]
    assert "must be a dict with `role` and `content`" in group[0].failure


def test_siblings_that_begin_otherwise_have_prompts_of_their_own():
    made = iter([Counting(turns=1, opening=" A"), Counting(turns=1, opening=" B")])
    spec = EnvironmentSpec(name="counting", make=lambda: next(made), is_instant=True, has_reward=True)
    ((begun, group),) = held(DictatedEngine(said), conversations(spec), task())
    assert begun.prompt_ids == task().prompt_ids
    contexts = [TOKENIZER.decode(list(one.prompt_ids)) for one in group]
    assert [context.split("? ")[1][0] for context in contexts] == ["A", "B"]


def test_an_environment_that_cannot_begin_is_tried_again_with_the_same_seed():
    seeds = list[int]()

    class Reluctant(Counting):
        def begin(self, task, seed):
            seeds.append(seed)
            if len(seeds) < 3:
                raise OSError("no room")

    spec = EnvironmentSpec(name="counting", make=lambda: Reluctant(turns=1), is_instant=True)
    ((_, group),) = held(DictatedEngine(said), conversations(spec), task())
    assert [one.end for one in group] == ["done", "done"]
    assert set(seeds) == {DRAWS.environment_seed(task(), 0)}


@pytest.mark.parametrize("instant", [True, False])
def test_a_second_attempt_to_begin_changes_no_conversation(instant):
    attempts = list[int]()

    class Reluctant(Counting):
        def begin(self, task, seed):
            attempts.append(seed)
            if len(attempts) in (2, 3, 7):
                raise OSError("no room")
            return super().begin(task, seed)

    def tokens(kind):
        spec = EnvironmentSpec(name="counting", make=lambda: kind(opening=" It is {seed}."), is_instant=instant)
        found = held(DictatedEngine(said), conversations(spec), *(task(f"t{number}") for number in range(3)))
        return [(begun.prompt_ids, [one.completion_ids for one in group]) for begun, group in found]

    assert tokens(Reluctant) == tokens(Counting)
    assert len(attempts) == 9


def test_tasks_without_an_environment_have_one_turn_beside_others():
    two = conversations(counting(), replace(counting(), name="other"))
    plain, talking = task("plain"), task("talking", environment="other")
    (_, alone), (_, together) = held(DictatedEngine(said), two, plain, talking)
    assert [one.environment for one in alone] == [None, None]
    assert {one.environment for one in together} == {"other"}
