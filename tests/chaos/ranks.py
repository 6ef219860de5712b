"""Faults of a run on two ranks that torchrun starts: one of them dies, stops or is slow, in the midst of a step."""

import os

from tests.chaos.clusters import ONCE, QUICK
from tests.chaos.runs import Place, mischief
from tests.chaos.scene import REMEDY, Scene
from tests.support.forked import LONGEST_SECONDS, Ended, Program, python

APART = ("--sampling-ranks", 1)


def dead_rank(scene: Scene) -> None:
    _ends_with(scene, 1, "os.kill(os.getpid(), signal.SIGKILL)", says="rank 1 is gone")


def dead_first_rank(scene: Scene) -> None:
    """The launcher says which: the first rank has the terminal."""
    _ends_with(scene, 0, "os.kill(os.getpid(), signal.SIGKILL)", says="rank : 0")


def dead_sampling_rank(scene: Scene) -> None:
    _ends_with(scene, 1, "os.kill(os.getpid(), signal.SIGKILL)", says="rank 1 is gone", options=APART)


def stopped_rank(scene: Scene) -> None:
    _ends_with(scene, 1, "os.kill(os.getpid(), signal.SIGSTOP)", says="rank 1 ", options=QUICK)


def stopped_sampling_rank(scene: Scene) -> None:
    _ends_with(scene, 1, "os.kill(os.getpid(), signal.SIGSTOP)", says="rank 1 ", options=(*APART, *QUICK))


def slow_rank(scene: Scene) -> None:
    undisturbed, place = scene.place("undisturbed"), scene.place()
    assert _launch(undisturbed).returncode == 0
    mischief(place, "if os.environ.get('RANK') != '1': return", *ONCE, "import time", "time.sleep(6)")
    assert _launch(place, *QUICK).returncode == 0
    assert (place.folder / "sprung").exists(), "nothing was done"
    assert place.outcome().weights == undisturbed.outcome().weights


def _ends_with(scene: Scene, rank: int, deed: str, *, says: str, options: tuple[object, ...] = ()) -> None:
    """Harm to one rank ends all of them, with its name and what to do; the resumed run ends as the undisturbed one."""
    undisturbed, place = scene.place("undisturbed"), scene.place()
    assert _launch(undisturbed, *options).returncode == 0
    mischief(place, f"if os.environ.get('RANK') != '{rank}': return", *ONCE, "import signal", deed)
    ended = _launch(place, *options)
    assert (place.folder / "sprung").exists(), "nothing was done"
    assert ended.returncode != 0
    assert says in ended.said, ended.said[-600:]
    if rank:
        assert REMEDY in ended.said, ended.said[-600:]
    mischief(place, "pass")
    resumed = _launch(place, words=["--resume", "run", "--override", "reward_funcs"])
    assert resumed.returncode == 0, resumed.said[-600:]
    assert place.outcome().weights == undisturbed.outcome().weights


def _launch(place: Place, *more: object, words: list[str] | None = None) -> Ended:
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "paceline", "train"]
    given = [*launcher, *map(str, words or place.words()), *map(str, more)]
    program = Program(python, given, str(place.folder), {**os.environ, "OMP_NUM_THREADS": "1"})
    return program.start().end(2 * LONGEST_SECONDS)
