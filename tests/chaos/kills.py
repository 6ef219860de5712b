"""`kill -9` at moments drawn from a seed: by the clock over the life of a run's directory, and at a write to disk."""

import os
import random
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.chaos.processes import descendants
from tests.chaos.runs import STEPS, Outcome, Place, committed, furnish
from tests.chaos.sabotage import Trap
from tests.support.forked import Ended, Program

DISK = ("os:fsync", "os:replace", "os:rename")
"""What every file goes through on its way to being there: a kill before each of them is a kill between any two."""
CLUSTER = ("--cluster", "--num-producers", "2", "--actor-timeout", "20")
TARGETS = ("driver", "SamplerActor", "TrainerActor")
JUDGED = 32
"""Completions: those of the trial and the first evaluation, and some of the first step."""
GONE_SECONDS = 90.0
"""In which all processes of a cluster are gone after its driver: agents of Ray wait 60 s for a lost control service."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Life:
    """A run that nothing happened to."""

    outcome: Outcome
    seconds: float
    of_directory: float
    """Seconds from when its directory was there to its end."""
    writes: dict[str, int]
    """Calls of each function of `DISK`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """One kill and what came of it."""

    target: str
    moment: str
    found: str
    """What the run was doing, by what it left."""
    is_same: bool
    """Whether the resumed run left what the undisturbed one did."""
    committed: int
    """Completions that the journal called committed at the kill."""
    generated_twice: int
    """Of them, those that were sampled again."""
    problem: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether the promise was."""
        return self.is_same and self.generated_twice == 0 and not self.problem

    def record(self) -> dict[str, object]:
        """For the result file."""
        return asdict(self) | {"kept": self.is_kept}


def live(folder: Path, *more: object) -> Life:
    """The undisturbed run, watched."""
    place = furnish(folder)
    tallies = {name: folder / name.replace(":", "-") for name in DISK}
    traps = [Trap(function=name, deed="count", first=0, tally=tally) for name, tally in tallies.items()]
    ended = place.train(*more, traps=traps)
    assert ended.returncode == 0, ended.said
    writes = {name: tally.stat().st_size if tally.exists() else 0 for name, tally in tallies.items()}
    again = furnish(folder.with_name(f"{folder.name}-again"))
    running = again.begin(*more)  # the first one also started the server of processes
    _until_there(again, running)
    there, ended = time.perf_counter(), running.end()
    assert again.outcome() == place.outcome(), "two undisturbed runs differ"
    of_directory = time.perf_counter() - there
    return Life(outcome=place.outcome(), seconds=ended.seconds, of_directory=of_directory, writes=writes)


def draw(life: Life, count: int, *, seed: int) -> list[float | Trap]:
    """So many moments: two of three by the clock, each in its own part of the life from the directory on, the others at
    a write."""
    drawn, moments = random.Random(seed), list[float | Trap]()
    by_clock = count - count // 3
    moments += [life.of_directory * (number + drawn.random()) / by_clock for number in range(by_clock)]
    writes = [(name, call) for name, calls in life.writes.items() for call in range(1, calls + 1)]
    moments += [Trap(function=name, deed="SIGKILL", first=call) for name, call in drawn.sample(writes, k=count // 3)]
    return moments


def kill(folder: Path, moment: float | Trap, life: Life) -> Kill:
    """Kill a run in one process, go on with it, compare."""
    place = furnish(folder)
    if isinstance(moment, Trap):
        place.begin(traps=[moment]).end()
        said = f"before call {moment.first} of {moment.function.replace(':', '.')}"
    else:
        running = place.begin()
        _until_there(place, running)
        if not running.ends_within(moment):
            running.send(signal.SIGKILL)
        running.end()
        said = f"{moment:.3f} s of {life.of_directory:.3f} after its directory was there"
    return _gone_on_with(place, life, target="one process", moment=said)


def live_on_cluster(folder: Path, life: Life) -> tuple[Life, float]:
    """The undisturbed run on a cluster, and the seconds from its first judged completions to its end."""
    place = furnish(folder)
    running = place.begin(*CLUSTER)
    until_judging(place, running)
    started = time.perf_counter()
    ended = running.end()
    assert ended.returncode == 0, ended.said
    outcome = place.outcome()
    # logprobs in producers are of other batches, to rounding: one metric is another
    assert (outcome.weights, outcome.texts) == (life.outcome.weights, life.outcome.texts)
    return replace(life, outcome=outcome, seconds=ended.seconds), time.perf_counter() - started


def kill_of_cluster(folder: Path, target: str, seconds: float, life: Life) -> Kill:
    """Kill one of a cluster's processes so long after its first completions were judged.

    After the loss of the driver somebody goes on with the run; after that of an actor the run does so by itself.
    """
    place = furnish(folder)
    running = place.begin(*CLUSTER)
    moment = f"{seconds:.2f} s after the first completions were judged"
    until_judging(place, running)
    running.ends_within(seconds)
    below = descendants(running.pid)
    actors = [pid for pid, title in below.items() if f"ray::{target}" in title]
    for victim in [running.pid] if target == "driver" else actors[:1]:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    if target != "driver":
        return _gone_on_by_itself(place, running, life, target=target, moment=moment)
    running.end()
    left = left_after(below, GONE_SECONDS)
    found = _gone_on_with(place, life, *CLUSTER, target=target, moment=moment)
    return replace(found, problem=f"processes outlive the driver: {left}") if left else found


def _until_there(place: Place, running: Program) -> None:
    """The run's directory: before it is there, a kill leaves nothing to go on with."""
    while not (place.run.path / "config.yaml").exists() and not running.ends_within(0.001):
        pass


def until_judging(place: Place, running: Program) -> None:
    """A step's completions, beside the trial of the reward function and the first evaluation."""
    while len(place.scored()) < JUDGED and not running.ends_within(0.02):
        pass


def _gone_on_by_itself(place: Place, running: Program, life: Life, *, target: str, moment: str) -> Kill:
    found, known, before = _found(place), committed(place), len(place.scored())
    return _compared(place, life, running.end(), known, before, target=target, moment=moment, found=found)


def _gone_on_with(place: Place, life: Life, *more: object, target: str, moment: str) -> Kill:
    """Go on with the run, or start it again where it had not begun, as whoever finds it would."""
    found, known, before = _found(place), committed(place), len(place.scored())
    ended = place.resume() if (place.run.path / "config.yaml").exists() else place.train(*more)
    return _compared(place, life, ended, known, before, target=target, moment=moment, found=found)


def _compared(
    place: Place, life: Life, ended: Ended, known: set[str], before: int, *, target: str, moment: str, found: str
) -> Kill:
    """What came of it, beside what the undisturbed run left; `before`: how many completions had been judged by then."""
    is_same = ended.returncode == 0 and place.outcome() == life.outcome
    again = len(known & set(place.scored()[before:]))
    problem = "" if ended.returncode == 0 else f"status {ended.returncode}: {ended.said[-300:]}"
    if is_same:
        shutil.rmtree(place.folder)
    return Kill(
        target=target,
        moment=moment,
        found=found,
        is_same=is_same,
        generated_twice=again,
        committed=len(known),
        problem=problem,
    )


def _found(place: Place) -> str:
    """What the run was doing when it was killed, by what it has left."""
    run = place.run
    if not (run.path / "config.yaml").exists():
        return "before the run began"
    if (run.path / "summary.json").exists():
        return "after the end"
    if any(run.path.glob("checkpoints/draft-*")):
        return "while saving"
    if (run.path / "final").exists():
        return "at the end"
    steps = len(run.metrics())
    return "after the last step" if steps == STEPS else f"in step {steps + 1}"


def left_after(below: dict[int, str], seconds: float) -> list[str]:
    """The processes of `below` that are still there when the time is over."""
    until = time.monotonic() + seconds
    while left := [title for pid, title in below.items() if _is_there(pid, title)]:
        if time.monotonic() > until:
            return left
        time.sleep(0.1)
    return []


def _is_there(pid: int, title: str) -> bool:
    try:
        found = Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return False
    return found == title and title != ""
