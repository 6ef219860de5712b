"""Spans to the trace events that Perfetto opens."""

import json

import pytest

from paceline.errors import ProcessLost
from paceline.rewards.scoring.scores import Scores
from paceline.runtime.timeline import Recorder, Span, trace
from paceline.training.rollouts.rounds import Round
from paceline.workers.ray.consumers import Consumers
from paceline.workers.ray.worker_group import Lost, WorkerGroup
from tests.unit.workers.test_ray_consumers import ScriptedRanks, manifest
from tests.unit.workers.test_ray_worker_group import ScriptedWorkers


class Clock:
    """Goes on by a second whenever it is read."""

    def __init__(self) -> None:
        self.now = 99.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def spans_of(recorder: Recorder) -> list[tuple[str, str, float, float]]:
    return [(span.row, span.name, span.start, span.seconds) for span in recorder.take()]


def test_a_trace_has_a_named_row_for_each_actor_and_microseconds_from_the_first_span_on():
    spans = [
        Span(row="consumer", name="update 1", start=12.5, seconds=0.25),
        Span(row="producer 0", name="generate", start=10.0, seconds=2.0),
        Span(row="consumer", name="publish 1", start=12.75, seconds=0.5),
    ]
    found = json.loads(json.dumps(trace(spans)))
    rows = {event["tid"]: event["args"]["name"] for event in found["traceEvents"] if event["name"] == "thread_name"}
    assert rows == {1: "producer 0", 2: "consumer"}
    events = [event for event in found["traceEvents"] if event["ph"] == "X"]
    assert [(rows[e["tid"]], e["name"], e["ts"], e["dur"]) for e in events] == [
        ("producer 0", "generate", 0.0, 2e6),
        ("consumer", "update 1", 2.5e6, 0.25e6),
        ("consumer", "publish 1", 2.75e6, 0.5e6),
    ]
    assert {event["pid"] for event in found["traceEvents"]} == {1}


def test_a_trace_of_nothing_is_one_too():
    assert trace([])["traceEvents"] == []


def test_what_fails_is_recorded_and_what_was_taken_is_gone():
    recorder = Recorder(Clock())
    with pytest.raises(ValueError, match="no"), recorder.span("here", "update 1"):
        raise ValueError("no")
    assert spans_of(recorder) == [("here", "update 1", 100.0, 1.0)]
    assert recorder.take() == []


def test_phases_lie_end_to_end():
    recorder = Recorder(Clock())
    recorder.phases("here", 5.0, (("generate 1", 2.0), ("reward 1", 0.5)))
    assert spans_of(recorder) == [("here", "generate 1", 5.0, 2.0), ("here", "reward 1", 7.0, 0.5)]


def test_every_call_of_a_producer_is_a_span_of_its_row_also_one_that_is_lost():
    group = WorkerGroup(ScriptedWorkers(2, {(1, 0): Lost("gone")}), Recorder(Clock()))
    group.share_out("do", [("a",), ("b",)])
    assert spans_of(group.recorder) == [
        ("producer 1", "do", 101.0, 1.0),  # lost
        ("producer 1", "do", 103.0, 1.0),
        ("producer 0", "do", 100.0, 5.0),
    ]


def test_every_call_of_a_consumer_is_a_span_of_its_rank_also_one_that_is_lost():
    recorder = Recorder(Clock())
    consumers = Consumers(ScriptedRanks([manifest(0), Lost("gone")], [manifest(0), manifest(1)]), recorder)
    consumers.weights(0)
    with pytest.raises(ProcessLost):
        consumers.weights(1)
    assert spans_of(recorder) == [
        ("consumer 1", "manifest", 101.0, 1.0),
        ("consumer 0", "manifest", 100.0, 3.0),
        ("consumer 1", "manifest", 105.0, 1.0),
        ("consumer 0", "manifest", 104.0, 3.0),
    ]


def test_a_round_of_samples_shows_its_two_phases_inside_the_call():
    scores = Scores(values={}, failed={}, seconds={}, first_failures={}, notes={}, tallies={}, formed=())
    part = Round(scored=(), scores=scores, generate_seconds=0.5, reward_seconds=0.25)
    group = WorkerGroup(ScriptedWorkers(1, {(0, 0): part}), Recorder(Clock()))
    group.share_out("sample", [("a",)])
    assert spans_of(group.recorder) == [
        ("producer 0", "sample", 100.0, 1.0),
        ("producer 0", "generate", 100.0, 0.5),
        ("producer 0", "reward", 100.5, 0.25),
    ]
