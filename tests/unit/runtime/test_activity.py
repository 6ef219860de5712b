"""What a process does is told once, in order and to the end, and leaves no trace in a run's results."""

import io
import json
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from pathlib import Path

import pytest
from rich.console import Console

from paceline.checkpoints.run_directory import RunDir
from paceline.config.building import build_config
from paceline.errors import ProcessLost
from paceline.rewards.scoring.scores import Scores, score
from paceline.runtime.activity import ACTIVITY, Activity, TimeSpan, trace
from paceline.training.rollouts.rounds import RolloutBatch
from paceline.training.run import save
from paceline.training.session import train
from paceline.training.setup.preparation import prepare
from paceline.training.setup.run_request import RunRequest
from paceline.workers.group import Lost, WorkerGroup
from tests.support.cluster_runs import options_in, weights
from tests.support.recorded_progress import RecordedProgress
from tests.unit.rewards.test_rewards_scoring import task, trajectory
from tests.unit.training.test_train_saving import Scripted
from tests.unit.workers.test_worker_group import ScriptedRanks, ScriptedWorkers


def run(folder: Path, told: AbstractContextManager[object], **options: object) -> None:
    folder.mkdir()
    config = build_config({**options_in(folder / "given"), "max_steps": 2, **options})
    inputs = prepare(config)
    with told:
        assert train(RunRequest(config=config, output_dir=folder / "run"), inputs, console=Console(file=io.StringIO()))


@pytest.mark.long
def test_a_step_samples_scores_and_updates_each_from_nothing_to_the_end(tmp_path):
    told = RecordedProgress()
    run(tmp_path / "told", told, num_iterations=2, micro_batch_tokens=64)
    phases = [(name, list(said)) for name, said in groupby(told.said, key=lambda one: one[0])]
    assert [name for name, _ in phases] == ["generate", "reward", "update"] * 2
    for name, said in phases:
        done, of, tokens = ([one[place] for one in said] for place in (1, 2, 3))
        assert done == sorted(done)
        assert tokens == sorted(tokens)
        assert (done[0], tokens[0]) == (0, 0)
        assert done[-1] == of[-1]
        assert (tokens[-1] > 0) == (name == "generate")
    updates = [said for name, said in phases if name == "update"]
    # of several micro-batches twice, each is told once; then that all is over
    assert all([one[1] for one in said[1:-1]] == list(range(1, said[-1][2] + 1)) for said in updates)
    assert all(said[-1][2] % 2 == 0 and said[-1][2] > 2 for said in updates)
    run(tmp_path / "untold", nullcontext(), num_iterations=2, micro_batch_tokens=64)
    assert weights(RunDir(tmp_path / "told" / "run")) == weights(RunDir(tmp_path / "untold" / "run"))


def test_reward_functions_are_counted_as_they_are_called():
    told, seen = RecordedProgress(), []

    def look(completions: list[str]) -> list[float]:
        seen.append(told.said[-1])
        return [1.0] * len(completions)

    with told:
        score({"a": look, "b": look}, [task(0)], [trajectory("x")], timeout=60.0)
    assert seen == [("reward", 0, 2, 0), ("reward", 1, 2, 0)]
    assert told.said[-1] == ("reward", 2, 2, 0)


def test_samplers_count_by_the_shares_that_came_back_and_a_lost_one_adds_nothing():
    told = RecordedProgress()
    workers = ScriptedWorkers(1, {(0, 1): Lost("gone")})
    with told:
        WorkerGroup(workers, "sampler").share_out("sample", [("a",), ("b",)])
    assert told.said == [("generate", done, 2, 0) for done in (0, 1, 1, 2)]


def test_a_checkpoint_is_what_a_run_turns_to_and_the_screen_says_so():
    told = RecordedProgress()
    one = Scripted().at(1)
    with told:
        save(one)
    assert told.begun == ["checkpoint of step 1"]


class Clock:
    """Goes on by a second whenever it is read."""

    def __init__(self) -> None:
        self.now = 99.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def rows_of(spans: list[TimeSpan]) -> list[tuple[str, str, float, float]]:
    return [(span.row, span.name, span.start, span.seconds) for span in spans]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> list[TimeSpan]:
    """What the process keeps for a trace, by a clock that goes on when it is read."""
    kept = list[TimeSpan]()
    monkeypatch.setattr(ACTIVITY, "clock", Clock())
    monkeypatch.setattr(ACTIVITY, "spans", kept)
    return kept


def test_a_trace_has_a_named_row_for_each_actor_and_microseconds_from_the_first_span_on():
    spans = [
        TimeSpan(row="trainer", name="update 1", start=12.5, seconds=0.25),
        TimeSpan(row="sampler 0", name="generate", start=10.0, seconds=2.0),
        TimeSpan(row="trainer", name="publish 1", start=12.75, seconds=0.5),
    ]
    found = json.loads(json.dumps(trace(spans)))
    rows = {event["tid"]: event["args"]["name"] for event in found["traceEvents"] if event["name"] == "thread_name"}
    assert rows == {1: "sampler 0", 2: "trainer"}
    events = [event for event in found["traceEvents"] if event["ph"] == "X"]
    assert [(rows[e["tid"]], e["name"], e["ts"], e["dur"]) for e in events] == [
        ("sampler 0", "generate", 0.0, 2e6),
        ("trainer", "update 1", 2.5e6, 0.25e6),
        ("trainer", "publish 1", 2.75e6, 0.5e6),
    ]
    assert {event["pid"] for event in found["traceEvents"]} == {1}


def test_a_trace_of_nothing_is_one_too():
    assert trace([])["traceEvents"] == []


def test_what_fails_has_a_span_too_and_two_events():
    activity = Activity(Clock())
    activity.spans = []
    with pytest.raises(ValueError, match="no"), activity.span("here", "update 1"):
        raise ValueError("no")
    assert (activity.latest, activity.count) == ("here: update 1 ended", 2)
    assert rows_of(activity.spans) == [("here", "update 1", 100.0, 1.0)]


def test_the_latest_event_says_how_far_a_phase_has_come():
    activity = Activity(Clock())
    assert activity.latest == "nothing yet"
    activity.beat("sampler 0", "load")
    activity.advance("generate", 3, 64, tokens=812)
    assert activity.latest == "generate: 3 of 64, 812 tokens"
    assert activity.events() == ["generate: 3 of 64, 812 tokens, 1.0 s ago", "sampler 0: load, 2.0 s ago"]


def test_nothing_is_kept_where_nobody_wants_a_trace():
    activity = Activity(Clock())
    with activity.span("here", "update 1"):
        pass
    assert activity.spans is None


def test_phases_lie_end_to_end():
    activity = Activity()
    activity.spans = []
    activity.phases("here", 5.0, (("generate 1", 2.0), ("reward 1", 0.5)))
    assert rows_of(activity.spans) == [("here", "generate 1", 5.0, 2.0), ("here", "reward 1", 7.0, 0.5)]


def test_every_call_of_a_sampler_is_a_span_of_its_row_also_one_that_is_lost(spans):
    group = WorkerGroup(ScriptedWorkers(2, {(1, 0): Lost("gone")}), "sampler")
    group.share_out("do", [("a",), ("b",)])
    assert rows_of(spans) == [
        ("sampler 1", "do", 102.0, 1.0),  # lost
        ("sampler 1", "do", 105.0, 1.0),
        ("sampler 0", "do", 101.0, 7.0),
    ]


def test_every_call_of_a_trainer_is_a_span_of_its_row_also_one_that_is_lost(spans):
    trainers = WorkerGroup(ScriptedRanks(["one", Lost("gone")], ["two", "two"]), "trainer")
    trainers.call("manifest")
    with pytest.raises(ProcessLost):
        trainers.call("manifest")
    assert rows_of(spans) == [
        ("trainer 1", "manifest", 101.0, 1.0),
        ("trainer 0", "manifest", 100.0, 3.0),
        ("trainer 1", "manifest", 105.0, 1.0),
        ("trainer 0", "manifest", 104.0, 3.0),
    ]


def test_a_round_of_samples_shows_its_two_phases_inside_the_call(spans):
    scores = Scores(values={}, failed={}, seconds={}, first_failures={}, notes={}, tallies={}, formed=())
    part = RolloutBatch(groups=(), scores=scores, generate_seconds=0.5, reward_seconds=0.25)
    group = WorkerGroup(ScriptedWorkers(1, {(0, 0): part}), "sampler")
    group.share_out("sample", [("a",)])
    assert rows_of(spans) == [
        ("sampler 0", "sample", 101.0, 1.0),
        ("sampler 0", "generate", 101.0, 0.5),
        ("sampler 0", "reward", 101.5, 0.25),
    ]
