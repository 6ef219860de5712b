"""Who is still there: the end of a rank reaches the others at once, silence after its limit, an error with its rank."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import pytest

from paceline.errors import ConfigError, PacelineError, ProcessLost, RewardError, TrainingError
from paceline.models.parallel.process_group import RankLost
from paceline.runtime.activity import ACTIVITY
from paceline.runtime.interrupts import SIGNAL, give_signal_back
from paceline.workers.torchrun.heartbeats import Ended, PeerHeartbeats
from paceline.workers.torchrun.launch import is_of_an_unnamed_loss, told_apart_from_a_loss

BEAT = 0.02
SOON = 30.0
"""Seconds that a test waits for what comes within some beats."""


class Ranks:
    """The first rank and others in one process, with channels between them."""

    def __init__(self, opened: ExitStack) -> None:
        self.opened, self.forced = opened, threading.Event()
        """`forced`: a process would have been ended."""
        self.beat = BEAT

    def between(
        self, others: int, *, limit: float = SOON
    ) -> tuple[PeerHeartbeats, list[PeerHeartbeats], list[Connection]]:
        """The first rank, the others, and their ends of the channels."""
        pairs = [Pipe() for _ in range(others)]
        first = self.heartbeats({rank: own for rank, (own, _) in enumerate(pairs, start=1)}, limit=limit)
        return (
            first,
            [self.heartbeats({0: channel}, limit=SOON) for _, channel in pairs],
            [channel for _, channel in pairs],
        )

    def first(self, others: int, *, limit: float = SOON) -> tuple[PeerHeartbeats, list[Connection]]:
        """The first rank, and channels of others that do nothing by themselves."""
        pairs = [Pipe() for _ in range(others)]
        first = self.heartbeats({rank: own for rank, (own, _) in enumerate(pairs, start=1)}, limit=limit)
        return first, [channel for _, channel in pairs]

    def heartbeats(self, peers: dict[int, Any], *, limit: float) -> PeerHeartbeats:
        one = PeerHeartbeats(peers, limit=limit, force=lambda verdict: self.forced.set(), beat=self.beat)
        return self.opened.enter_context(one)


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})  # the test's own thread is not interrupted
    with ExitStack() as opened:
        yield Ranks(opened)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {SIGNAL})


@pytest.fixture
def unhandled() -> Iterator[None]:
    """SIGTERM as a new process has it; what ends by an error leaves it ignored."""
    former = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    give_signal_back(signal.SIGTERM)
    signal.signal(signal.SIGTERM, former)


def until(is_so: Callable[[], bool]) -> None:
    for _ in range(int(SOON / BEAT)):
        if is_so():
            return
        threading.Event().wait(BEAT)
    raise AssertionError("it never came")


def said(heartbeats: PeerHeartbeats) -> str:
    verdict = heartbeats.verdict(SOON)
    assert isinstance(verdict, PacelineError)
    return f"{type(verdict).__name__}: {verdict}"


def caught(work: Callable[[], object]) -> BaseException:
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - what the test looks at
        return error
    raise AssertionError("nothing was raised")


def test_a_rank_whose_line_ends_is_gone(ranks):
    first, channels = ranks.first(2)
    channels[1].close()
    assert said(first) == "ProcessLost: rank 2 is gone"


def test_a_rank_without_a_sign_of_life_is_lost_after_its_limit(ranks):
    first, _ = ranks.first(1, limit=4 * BEAT)
    assert said(first) == f"ProcessLost: rank 1 gave no sign of life for {4 * BEAT:g} s"


@pytest.mark.long
def test_ranks_that_show_signs_of_life_are_never_lost(ranks):
    first, (other,), _ = ranks.between(1, limit=1.0)
    assert first.verdict(1.5) is None
    assert other.verdict(0.0) is None


@pytest.mark.parametrize("kind", [ConfigError, RewardError, TrainingError])
def test_the_error_of_a_rank_is_told_by_the_first_one_in_its_kind_and_with_its_rank(ranks, kind):
    first, others, _ = ranks.between(2)
    others[1].tell_failure(kind("--device must be cpu or auto here"))
    assert said(first) == f"{kind.__name__}: rank 2: --device must be cpu or auto here"


def test_an_error_that_nobody_raised_on_purpose_comes_with_where_it_came_from(ranks):
    first, (other,), _ = ranks.between(1)
    try:
        {}["no such key"]
    except KeyError as error:
        other.tell_failure(error)
    sentence, _, trace = said(first).partition("\nTraceback (most recent call last):\n")
    assert sentence == "TrainingError: rank 1 failed: KeyError: 'no such key'"
    assert "test_torchrun_heartbeats.py" in trace


def test_a_rank_that_only_lost_touch_leaves_it_to_the_culprit_to_be_named(ranks):
    ranks.beat = 1.0  # the culprit's line must end before the doubt of some beats does
    first, others, channels = ranks.between(2)
    others[0].tell_failure(RankLost("rank 1 was adding up gradients when another rank went away"))
    others[1].__exit__(None, None, None)
    channels[1].close()
    assert said(first) == "ProcessLost: rank 2 is gone"


def test_a_lost_touch_without_a_culprit_is_told_in_the_end(ranks):
    first, others, _ = ranks.between(2)
    others[0].tell_failure(RankLost("rank 1 was collecting metrics when another rank was late"))
    assert said(first) == "ProcessLost: rank 1: rank 1 was collecting metrics when another rank was late"


def test_all_ranks_end_with_the_status_of_the_first(ranks):
    first, others, _ = ranks.between(2)
    first.tell_end(130)
    assert [other.verdict(SOON).status for other in others] == [130, 130]


def test_a_rank_whose_first_one_is_gone_ends_as_a_failed_run(ranks):
    own, channel = Pipe()
    other = ranks.heartbeats({0: channel}, limit=SOON)
    own.close()
    verdict = other.verdict(SOON)
    assert isinstance(verdict, Ended)
    assert verdict.status == 1


def test_the_main_thread_raises_the_verdict_once(ranks):
    first, channels = ranks.first(1)
    channels[0].close()
    first.verdict(SOON)
    with pytest.raises(ProcessLost, match="rank 1 is gone"):
        first.raise_verdict()
    first.raise_verdict()


def test_a_verdict_that_the_main_thread_raised_itself_is_not_raised_again_by_the_signal(ranks):
    first, channels = ranks.first(1)
    channels[0].close()

    def ends() -> None:
        try:
            first.raise_verdict(SOON)
        except ProcessLost as lost:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {SIGNAL})
            signal.raise_signal(SIGNAL)
            raise ProcessLost(f"{lost}; the remedy") from None

    assert str(caught(ends)) == "rank 1 is gone; the remedy"


@pytest.mark.parametrize(
    ("on_its_way", "is_unnamed"),
    [
        (None, True),
        (ProcessLost("rank 1 is gone; the remedy"), False),
        (KeyboardInterrupt(), True),
        (RuntimeError("while it ended"), True),
    ],
    ids=["itself", "named", "a launcher's signal", "another error"],
)
def test_a_lost_touch_is_named_where_no_sentence_names_it_yet(on_its_way, is_unnamed):
    def work() -> None:
        try:
            raise RankLost("rank 0 was adding up gradients when another rank went away")
        except RankLost:
            raise (on_its_way or RankLost("so")) from None

    assert is_of_an_unnamed_loss(caught(work)) is is_unnamed
    assert not is_of_an_unnamed_loss(TrainingError("the gradient's norm is nan"))


def test_a_main_thread_that_is_on_its_way_out_is_left_alone(ranks):
    first, channels = ranks.first(1)
    first.leave()
    channels[0].close()
    first.verdict(SOON)
    first.raise_verdict()
    first.__exit__(None, None, None)
    assert SIGNAL not in signal.sigpending()
    assert not ranks.forced.is_set()


@pytest.mark.long
def test_a_launchers_signal_interrupts_where_no_rank_is_lost(ranks, unhandled):
    first, _ = ranks.first(1)
    with pytest.raises(KeyboardInterrupt), told_apart_from_a_loss(first):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("leaves", [False, True], ids=["raised", "told to the others"])
def test_a_launchers_signal_leaves_the_name_of_a_lost_rank_that_is_on_its_way_out(ranks, unhandled, leaves):
    first, channels = ranks.first(1)
    channels[0].close()
    first.verdict(SOON)

    def ends() -> None:
        try:
            first.raise_verdict()
        except ProcessLost:
            if leaves:
                first.leave()
            signal.raise_signal(signal.SIGTERM)
            raise

    with pytest.raises(ProcessLost, match="rank 1 is gone"), told_apart_from_a_loss(first):
        ends()


def test_a_main_thread_that_does_not_come_out_is_waked_and_then_ended(ranks):
    _, channels = ranks.first(1)
    channels[0].close()
    assert ranks.forced.wait(SOON)
    assert SIGNAL in signal.sigpending()


def test_the_first_rank_learns_what_the_others_did_last_and_has_them_write_down_where_they_stand(ranks, tmp_path):
    first, _, _ = ranks.between(2)
    ACTIVITY.beat("learner", "pass 3 of 8")
    first.ask_for_stacks(tmp_path)
    for rank in (1, 2):
        until(lambda rank=rank: (tmp_path / f"rank-{rank}.txt").exists())
        assert "most recent call first" in (tmp_path / f"rank-{rank}.txt").read_text()
    until(lambda: any(event.startswith("rank 2: ") for event in ACTIVITY.events()))
