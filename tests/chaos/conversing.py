"""Faults of runs whose completions are conversations, each with an environment in a process of its own."""

from pathlib import Path

from tests.chaos.runs import OPTIONS, Place, furnish
from tests.chaos.scene import REMEDY, Scene, must

WORLD = '''
"""Three turns, each answered by what the seed and the model's words come to; many different letters are worth most.

Where a file `trap.py` lies beside this one, it is run before each answer: whatever it does is no part of the run.
"""

import os, pathlib, signal

from paceline.environments import Observation

PLACE = pathlib.Path(__file__).parent


class World:
    def begin(self, task, seed):
        self.seed, self.said = seed, ""
        spring(self, None, "begun")
        return f" ({seed % 10})"

    def observe(self, turn):
        forced = spring(self, turn, "answered")
        if forced is not None:
            return forced
        self.said += turn.text
        number = (self.seed + len(self.said)) % 10
        return Observation(messages=({"role": "user", "content": str(number)},), reward=number / 10)

    def close(self):
        return len(set(self.said)) / 10


def spring(world, turn, name):
    """Count the calls of all conversations, and run the trap; return the answer that it has for the model."""
    with open(PLACE / name, "ab", buffering=0) as file:
        file.write(b".")
        count = file.tell()
    trap = PLACE / "trap.py"
    if trap.exists():
        names = globals() | {"world": world, "turn": turn, "count": count, "forced": None}
        exec(trap.read_text(), names)
        return names["forced"]


def trainer():
    """The process of the run: that of an episode is below the one it is forked from, and that one below a monitor."""
    pid = os.getpid()
    for _ in range(3):
        pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid
'''
STEPS, GROUPS, GENERATIONS, TURNS = 3, 2, 4, 3
CONVERSING: dict[str, object] = {
    **{name: value for name, value in OPTIONS.items() if not name.startswith("eval_")},
    "eval_reward_func": "reward.py:variety",
    "environment": "world.py:World",
    "max_turns": TURNS,
    "max_turn_length": 8,
    "max_completion_length": 120,
    "prompts_per_step": GROUPS,
    "num_generations": GENERATIONS,
    "max_steps": STEPS,
    "save_steps": 1,
    "deterministic": True,
}
"""Three steps of eight conversations of three turns, each with a checkpoint. It is deterministic: the engine's logprobs
are the same whenever an answer comes."""


def furnish_conversing(folder: Path) -> Place:
    """A new directory with an environment too."""
    place = furnish(folder)
    (place.folder / "world.py").write_text(WORLD)
    return Place(folder=folder, options=CONVERSING)


def lay_trap(place: Place, *lines: str) -> None:
    """Have every conversation do something before its environment begins (`turn` is None then) and answers."""
    (place.folder / "trap.py").write_text("".join(f"{line}\n" for line in lines))


def lift_trap(place: Place) -> None:
    """Leave conversations alone again."""
    (place.folder / "trap.py").unlink()


def calls(place: Place, name: str = "answered") -> int:
    """How often environments were asked to answer, or have `begun`."""
    file = place.folder / name
    return file.stat().st_size if file.exists() else 0


def _must_be_whole(scene: Scene, place: Place) -> None:
    """It is what an undisturbed run leaves, which is done once for all faults."""
    undisturbed = scene.root.parent / "conversing"
    if not undisturbed.exists():
        must(furnish_conversing(undisturbed).train(), 0)
    assert place.outcome() == Place(folder=undisturbed).outcome(), "another end than undisturbed"


def _stops(scene: Scene, harm: str, *words: str, options: tuple[object, ...] = ()) -> None:
    """All environments fail from the second step on: the run stops with the first cause, and goes on without it."""
    place = furnish_conversing(scene.root / "place")
    lay_trap(place, f"if turn is not None and count > {GROUPS * GENERATIONS * TURNS}: {harm}")
    must(place.train(*options), 1, "'World' failed in turn 1", *words)
    assert [record["step"] for record in place.run.metrics()] == [1]
    lift_trap(place)
    must(place.resume(), 0)
    _must_be_whole(scene, place)


def dead_environments(scene: Scene) -> None:
    _stops(scene, "os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL")


def hung_environments(scene: Scene) -> None:
    """As long as one answer may take, and not as long as all of them."""
    options = ("--environment-timeout", 3, 600)
    _stops(scene, "signal.pause()", "it took more than 3 seconds", options=options)


def flooding_environments(scene: Scene) -> None:
    harm = 'forced = {"messages": [{"role": "user", "content": "x" * 2**21}]}'
    _stops(scene, harm, "World.observe returned 2097", "at most 1048576 are allowed")


def wrong_environments(scene: Scene) -> None:
    _stops(scene, "forced = 'a text'", "World.observe returned a value of type str")


def slow_environments(scene: Scene) -> None:
    place = furnish_conversing(scene.root / "place")
    lay_trap(place, "import time", "time.sleep(0.1 * (count % 3))")
    must(place.train(), 0)
    _must_be_whole(scene, place)


def reluctant_environments(scene: Scene) -> None:
    """One that cannot begin is made again with the same seed, and changes no other conversation."""
    place = furnish_conversing(scene.root / "place")
    lay_trap(place, "if turn is None and count in (1, 2, 6, 14): raise OSError('no room')")
    must(place.train(), 0)
    assert calls(place, "begun") == STEPS * GROUPS * GENERATIONS + 4
    _must_be_whole(scene, place)


def environments_may_fail(scene: Scene) -> None:
    place = furnish_conversing(scene.root / "place")
    lay_trap(place, "if turn is not None and count in (3, 10, 26): os._exit(7)")
    must(place.train("--max-reward-failure-rate", 1), 0)
    assert [record["rewards"]["World"]["failures"] for record in place.run.metrics()] == [2, 1, 0]
    lines = [line for step in (1, 2, 3) for line in place.run.rollouts(step)]
    failed = [line for line in lines if line["dropped"] == "environment_failed"]
    assert len(failed) == 3
    assert all(line["rewards"]["World"] is None for line in failed)


def trainer_killed_between_turns(scene: Scene) -> None:
    place = furnish_conversing(scene.root / "place")
    lay_trap(place, "if turn is not None and count == 40: os.kill(trainer(), signal.SIGKILL)")
    assert place.train().returncode == -9
    lift_trap(place)
    must(place.resume(), 0)
    _must_be_whole(scene, place)


def sigterm_between_turns(scene: Scene) -> None:
    place = furnish_conversing(scene.root / "place")
    lay_trap(place, "if turn is not None and count == 40: os.kill(trainer(), signal.SIGTERM)")
    must(place.train(), 130, REMEDY)
    assert [record["step"] for record in place.run.metrics()] == [1, 2]
    lift_trap(place)
    must(place.resume(), 0)
    _must_be_whole(scene, place)


def sigterm_while_environments_hang(scene: Scene) -> None:
    """The grace ends before their deadline does."""
    place = furnish_conversing(scene.root / "place")
    lay_trap(
        place,
        "if turn is not None and count == 40: os.kill(trainer(), signal.SIGTERM)",
        "if turn is not None and count >= 40: signal.pause()",
    )
    ended = place.train("--stop-grace", 1)
    must(ended, 130)
    assert ended.seconds < 45, "it waited for the environments' own deadline of 60 s"
    lift_trap(place)
    must(place.resume(), 0)
    _must_be_whole(scene, place)
