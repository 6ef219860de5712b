"""What episodes of bench_conversations.py do, and how fast an engine could be that lets none of them wait.

Only the standard library is imported here, so that the benchmark stays small beside its contenders.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean

MOST_TURNS = 20
MOST_LATENCY = 2.0
"""Seconds of one observation, at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Episodes of one model."""

    model: str
    turn_tokens: int
    """Tokens of a turn, at most."""
    rows: int
    """Rows that the engine computes at once, at most."""
    episodes: int = 256


SETTINGS = {
    "embedded": Setting(model="embedded", turn_tokens=12, rows=64),
    "13m": Setting(model="13m", turn_tokens=12, rows=64),
}
"""An engine that could do far more, and one that is the bottleneck."""


def drawn_latencies(number: int) -> tuple[float, ...]:
    """Seconds until the environment of episode `number` has begun, and until it observes each of 1 to 20 turns."""
    chance = Random(f"latencies of episode {number}")
    return tuple(chance.uniform(0, MOST_LATENCY) for _ in range(chance.randint(1, MOST_TURNS) + 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnWork:
    """A turn as it came out."""

    read: int
    """Tokens of the environment to read before it, one in a round; 0 for a first turn, whose prompt is computed."""
    sampled: int
    latency: float
    """Seconds from its end to the observation, as measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeWork:
    """An episode as it came out."""

    starts: float
    """Seconds until its first turn may begin: its group begins together."""
    turns: tuple[TurnWork, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimum:
    """What an engine takes that lets no conversation wait while it has a free row."""

    seconds: float
    busy: float
    """Seconds in rounds and prompts."""


def optimum(
    episodes: Sequence[EpisodeWork], *, rows: int, round_seconds: Callable[[int], float], prompt_seconds: float
) -> Optimum:
    """Simulate an engine in which whatever is ready joins the next round, as long as there is a row.

    `round_seconds` is what a round of so many rows takes, `prompt_seconds` what a first prompt does.

    Both episodes begin with three tokens, of which the prompt gives the first. One is answered after 5 s, and then has
    one token more, behind one that it reads. A round takes a second.

    >>> turns = [TurnWork(read=0, sampled=3, latency=5), TurnWork(read=1, sampled=1, latency=1)]
    >>> works = [EpisodeWork(starts=0, turns=(turns[0],)), EpisodeWork(starts=0, turns=(*turns,))]
    >>> optimum(works, rows=2, round_seconds=lambda rows: 1, prompt_seconds=0)
    Optimum(seconds=10.0, busy=4.0)
    """
    arrivals = [(one.starts, number, 0) for number, one in enumerate(episodes)]
    heapq.heapify(arrivals)
    working = list[tuple[int, int, int]]()  # round in which it ends, episode, turn
    now, busy, rounds, end = 0.0, 0.0, 0, 0.0
    while arrivals or working:
        if not working:
            now = max(now, arrivals[0][0])
        while arrivals and arrivals[0][0] <= now and len(working) < rows:
            _, number, turn = heapq.heappop(arrivals)
            work = episodes[number].turns[turn]
            if turn == 0:
                now, busy = now + prompt_seconds, busy + prompt_seconds
            heapq.heappush(working, (rounds + max(1, work.read + work.sampled - (turn == 0)), number, turn))
        seconds = round_seconds(len(working))
        now, busy, rounds = now + seconds, busy + seconds, rounds + 1
        while working and working[0][0] <= rounds:
            _, number, turn = heapq.heappop(working)
            answered = now + episodes[number].turns[turn].latency
            end = max(end, answered)
            if turn + 1 < len(episodes[number].turns):
                heapq.heappush(arrivals, (answered, number, turn + 1))
    return Optimum(seconds=end, busy=busy)


def line_through(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return intercept and slope of the least squares line; flat where all points stand at one place.

    >>> line_through([(1, 3), (2, 5), (3, 7)])
    (1.0, 2.0)
    """
    x, y = fmean(at for at, _ in points), fmean(value for _, value in points)
    square = sum((at - x) ** 2 for at, _ in points)
    slope = sum((at - x) * (value - y) for at, value in points) / square if square else 0.0
    return y - slope * x, slope


def covered(intervals: Sequence[tuple[float, float]]) -> float:
    """Return the length of the union of intervals.

    >>> covered([(0, 2), (1, 3), (5, 6)])
    4.0
    """
    total, until = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
