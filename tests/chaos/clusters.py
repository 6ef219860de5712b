"""Faults of a run on a cluster of this machine: a process of it dies, stops or is slow."""

import importlib.util
import os
import signal
from collections.abc import Callable

from tests.chaos.kills import CLUSTER, GONE_SECONDS, left_after, until_judging
from tests.chaos.processes import descendants
from tests.chaos.runs import Outcome, Place, mischief
from tests.chaos.scene import Impossible, Scene, must

CONSUMER = (
    "for entry in filter(str.isdigit, os.listdir('/proc')):",
    "    title = pathlib.Path('/proc', entry, 'cmdline').read_text()",
    "    status = pathlib.Path('/proc', entry, 'status').read_text()",
    "    if title.startswith('ray::TrainerActor') and f'PPid:\\t{os.getppid()}\\n' in status: pid = int(entry)",
)
"""A reward function's lines that find the trainer of its own cluster."""
ONCE = (
    "if (PLACE / 'scored').read_text().count(chr(10)) < 60: return",
    "try: (PLACE / 'sprung').touch(exist_ok=False)",
    "except FileExistsError: return",
)
QUICK = ("--actor-timeout", 4)


def _within(scene: Scene, *lines: str, options: tuple[object, ...] = (), words: tuple[str, ...] = ()) -> None:
    """The reward function does this once, in the midst of the run, which ends as if it had not."""
    place = scene.place()
    mischief(place, *ONCE, "import signal", *lines)
    must(place.train(*CLUSTER, *options), 0, *words)
    assert (place.folder / "sprung").exists(), "nothing was done"
    _must_be_whole(scene, place.outcome())


def _must_be_whole(scene: Scene, outcome: Outcome) -> None:
    """Its logprobs in samplers are of other batches, to rounding, so that one metric differs from one process."""
    for name in ("weights", "evals", "texts"):
        assert getattr(outcome, name) == getattr(scene.life.outcome, name), f"{name} differ from the undisturbed run's"


def dead_producer(scene: Scene) -> None:
    _within(scene, "os.kill(os.getpid(), signal.SIGKILL)")


def stopped_producer(scene: Scene) -> None:
    _within(scene, "os.kill(os.getpid(), signal.SIGSTOP)", options=QUICK)


def slow_producer(scene: Scene) -> None:
    _within(scene, "import time", "time.sleep(6)", options=QUICK)


def dead_trainer(scene: Scene) -> None:
    _within(scene, *CONSUMER, "os.kill(pid, signal.SIGKILL)", words=("restart 1 of 3",))


def stopped_trainer(scene: Scene) -> None:
    _within(scene, *CONSUMER, "os.kill(pid, signal.SIGSTOP)", options=QUICK, words=("restart 1 of 3",))


def _of_the_whole(scene: Scene, harm: Callable[[int, dict[int, str]], None]) -> Place:
    """Harm done to a cluster in its first step; nothing of it is left when it has ended."""
    place = scene.place()
    running = place.begin(*CLUSTER)
    until_judging(place, running)
    below = descendants(running.pid)
    harm(running.pid, below)
    ended = running.end()
    assert ended.returncode != 0, "it did not notice"
    left = left_after(below, GONE_SECONDS)
    assert not left, f"processes are left: {left}"
    return place


def dead_driver(scene: Scene) -> None:
    place = _of_the_whole(scene, lambda driver, below: os.kill(driver, signal.SIGKILL))
    _gone_on_with(scene, place)


def dead_node(scene: Scene) -> None:
    """What Ray itself runs on this machine."""

    def kill(driver: int, below: dict[int, str]) -> None:
        for pid, title in below.items():
            if "/raylet" in title.split(" ")[0]:
                os.kill(pid, signal.SIGKILL)

    _gone_on_with(scene, _of_the_whole(scene, kill))


def _gone_on_with(scene: Scene, place: Place) -> None:
    must(place.resume(), 0)
    _must_be_whole(scene, place.outcome())


def dead_vllm_worker(scene: Scene) -> None:
    if importlib.util.find_spec("vllm") is None:
        raise Impossible("vLLM is not installed; `make test-vllm` has a killed sampler that samples with it")
    vllm = ("--engine", "vllm", "--dtype", "float32")
    # vLLM's CPU build has no attention for Qwen3 with heads as narrow as these
    place, harmed = (scene.place(name, kind="llama") for name in ("undisturbed", "harmed"))
    must(place.train(*CLUSTER, *vllm), 0)
    mischief(harmed, *ONCE, "import signal", "os.kill(os.getpid(), signal.SIGKILL)")
    must(harmed.train(*CLUSTER, *vllm), 0)
    assert harmed.outcome().weights == place.outcome().weights
