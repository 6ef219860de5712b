"""Faults of a reward function and of an update: what raises, hangs, dies, has no number or no memory."""

import math
import signal

import torch
from safetensors.torch import load_file

from tests.chaos.runs import Place, mischief
from tests.chaos.sabotage import Trap
from tests.chaos.scene import Scene, must

BACKWARD = "torch:Tensor.backward"
LATE = "if (PLACE / 'scored').read_text().count(chr(10)) < 90: return"
"""Not before step 3 or so: each step has 16 completions, and an evaluation eight."""


def _stops(scene: Scene, *lines: str, words: tuple[str, ...], options: tuple[object, ...] = ()) -> None:
    """The run stops with the function's name; once it is mended, the run goes on to what it would have been."""
    place = scene.place()
    mischief(place, LATE, *lines)
    must(place.train(*options), 1, "reward.py:variety", *words)
    scene.must_resume(place, override="reward_funcs")


def raises(scene: Scene) -> None:
    _stops(scene, "raise ValueError('no such column')", words=("no such column",))


def leaves_the_program(scene: Scene) -> None:
    _stops(scene, "raise SystemExit(0)", words=("SystemExit",))


def hangs(scene: Scene) -> None:
    lines = ("import time", "time.sleep(60)")
    _stops(scene, *lines, words=("--reward-timeout",), options=("--reward-timeout", 0.5))


def returns_nan(scene: Scene) -> None:
    place = scene.place()
    text = (place.folder / "reward.py").read_text()
    late = "(PLACE / 'scored').read_text().count(chr(10)) > 90"
    harmed = text.replace("/ 10 for completion", f"/ 10 * (float('nan') if {late} else 1) for completion")
    assert harmed != text
    (place.folder / "reward.py").write_text(harmed)
    must(place.train(), 1, "reward.py:variety", "nan")
    _must_be_finite(place)
    scene.must_resume(place, override="reward_funcs")


def dies_by_a_signal(scene: Scene) -> None:
    place = scene.place()
    mischief(place, LATE, "import signal", "os.kill(os.getpid(), signal.SIGSEGV)")
    assert place.train().returncode == -signal.SIGSEGV
    scene.must_resume(place, override="reward_funcs")


def is_slow(scene: Scene) -> None:
    place = scene.place()
    mischief(place, "import time", "time.sleep(0.2)")
    must(place.train(), 0)
    scene.must_be_whole(place.outcome())


def may_fail(scene: Scene) -> None:
    place = scene.place()
    mischief(place, LATE, "if any(len(one) % 2 for one in completions): raise ValueError('no such column')")
    must(place.train("--max-reward-failure-rate", 1, "--eval-reward-func", "format"), 0)
    failures = [record["rewards"]["reward.py:variety"]["failures"] for record in place.run.metrics()]
    assert 0 < failures[-1] < 16, failures
    assert place.run.metrics()[-1]["rollouts_without_reward"] == failures[-1]


def no_memory(scene: Scene) -> None:
    """The same update, from smaller micro-batches."""
    place = scene.place()
    must(place.train(traps=[Trap(function=BACKWARD, deed="no memory", first=3)]), 0)
    ours, theirs = (_weights(one) for one in (place, Place(folder=scene.finished)))
    assert max((ours[name] - theirs[name]).abs().max().item() for name in theirs) < 1e-4, "other weights"


def one_nan_gradient(scene: Scene) -> None:
    place = scene.place()
    must(place.train(traps=[Trap(function=BACKWARD, deed="NaN", first=3)]), 0)
    assert sum(record["updates_skipped"] for record in place.run.metrics()) == 1
    _must_be_finite(place)


def nan_gradients_without_end(scene: Scene) -> None:
    place = scene.place()
    must(place.train(traps=[Trap(function=BACKWARD, deed="NaN", first=3, last=10**9)]), 1, "in a row")
    assert list((place.run.path / "kept").glob("step-*.jsonl")), "no batch was kept"
    _must_be_finite(place)


def _must_be_finite(place: Place) -> None:
    files = [*place.run.path.glob("checkpoints/*/model/*.safetensors"), *place.run.path.glob("final/*.safetensors")]
    assert all(torch.isfinite(tensor).all() for file in files for tensor in load_file(file).values())
    assert all(math.isfinite(record["loss"]) for record in place.run.metrics())


def _weights(place: Place) -> dict[str, torch.Tensor]:
    return load_file(place.run.path / "final" / "model.safetensors")
