"""Faults of files that a run has left: damaged, missing, foreign, changed."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.chaos.runs import ROWS, STEPS, committed
from tests.chaos.scene import Scene, must, must_refuse


def truncate(file: Path) -> None:
    """Cut the second half off."""
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def flip(file: Path) -> None:
    """Change one bit in the middle."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def _newest(scene: Scene, name: str, harm: Callable[[Path], None]) -> None:
    """Harm a file of the newest checkpoint; the one before is taken, and the file is named."""
    place = scene.stopped()
    harm(place.checkpoints()[-1] / name)
    scene.must_resume(place, f"step-{STEPS:06d}", "skipped", "going on after step 4")


def truncated_weights(scene: Scene) -> None:
    _newest(scene, "model/model.safetensors", truncate)


def flipped_weights(scene: Scene) -> None:
    _newest(scene, "model/model.safetensors", flip)


def flipped_optimiser(scene: Scene) -> None:
    _newest(scene, "optimizer.safetensors", flip)


def missing_optimiser(scene: Scene) -> None:
    _newest(scene, "optimizer.safetensors", Path.unlink)


def missing_progress(scene: Scene) -> None:
    _newest(scene, "progress.json", Path.unlink)


def emptied_manifest(scene: Scene) -> None:
    _newest(scene, "manifest.json", lambda file: file.write_bytes(b""))


def no_newest_checkpoint(scene: Scene) -> None:
    place = scene.stopped()
    shutil.rmtree(place.checkpoints()[-1])
    scene.must_resume(place, "going on after step 4")


def no_whole_checkpoint(scene: Scene) -> None:
    place = scene.stopped()
    for checkpoint in place.checkpoints():
        flip(checkpoint / "optimizer.safetensors")
    must_refuse(place, "holds no whole checkpoint", "step-000004", "step-000006")


def half_written_checkpoint(scene: Scene) -> None:
    place = scene.stopped(last=4)
    draft = place.run.path / "checkpoints" / "draft-000006"
    shutil.copytree(place.checkpoints()[-1], draft)
    (draft / "manifest.json").unlink()
    scene.must_resume(place, "going on after step 4")
    assert not draft.exists()


def pickles_in_a_checkpoint(scene: Scene) -> None:
    place = scene.stopped()
    canary = place.folder / "canary"
    for name in ("optimizer.pt", "rng_state.pth", "model/pytorch_model.bin", "model/training_args.bin"):
        (place.checkpoints()[-1] / name).write_bytes(pickle.dumps(_Payload(canary)))
    scene.must_resume(place)
    assert not canary.exists(), "the pickle was loaded"


class _Payload:
    """What runs a command when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self):
        return Path.touch, (self.canary,)


def torn_metrics_line(scene: Scene) -> None:
    place = scene.stopped(last=4)
    with (place.run.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step":7,"lo')
    scene.must_resume(place, "1 unfinished line")


def damaged_metrics_line(scene: Scene) -> None:
    place = scene.stopped()
    lines = (place.run.path / "metrics.jsonl").read_bytes().split(b"\n")
    lines[2] = lines[2][:20]
    (place.run.path / "metrics.jsonl").write_bytes(b"\n".join(lines))
    must_refuse(place, "metrics.jsonl, line 3, is not a JSON object")


def torn_journal_line(scene: Scene) -> None:
    place = scene.stopped(last=4)
    with _journal(place.run.path).open("ab") as file:
        file.write(b'{"step":7,"by')
    known, before = committed(place), len(place.scored())
    scene.must_resume(place, "1 unfinished line")
    assert known, "no step was committed"
    assert not known & set(place.scored()[before:]), "committed steps were generated again"


def damaged_journal_line(scene: Scene) -> None:
    place = scene.stopped(last=4)
    journal = _journal(place.run.path)
    lines = journal.read_bytes().split(b"\n")
    lines[4] = lines[4].replace(b'"step":5', b'"step":3')
    journal.write_bytes(b"\n".join(lines))
    scene.must_resume(place, "journal.jsonl, line 5, is damaged")


def damaged_rollouts(scene: Scene) -> None:
    place = scene.stopped(last=4)
    flip(place.run.path / "rollouts" / "step-000005.jsonl")
    scene.must_resume(place, "rollouts of step 5")


def _journal(run: Path) -> Path:
    journal = run / "journal.jsonl"
    assert journal.exists(), "there is no journal"
    return journal


def changed_option(scene: Scene) -> None:
    place = scene.stopped(last=4)
    must_refuse(place, "--learning-rate is 0.5 and was 0.01", "--override", options=("--learning-rate", 0.5))
    must(place.resume("--learning-rate", 0.5, "--override", "learning_rate"), 0)
    assert [record["learning_rate"] for record in place.run.metrics()] == [0.01] * 4 + [0.5] * 2


def edited_configuration(scene: Scene) -> None:
    place = scene.stopped(last=4)
    file = place.run.path / "config.yaml"
    whole = file.read_text()
    file.write_text(whole.replace("num_generations: 4", "num_generations: 8"))
    must_refuse(place, "--num-generations is 8 and was 4 (config.yaml was edited)")
    file.write_text(whole)
    scene.must_resume(place)


def changed_row(scene: Scene) -> None:
    place = scene.stopped(last=4)
    file = place.folder / "rows.jsonl"
    whole = file.read_text()
    file.write_text(
        "".join(json.dumps({**row, "answer": "#### 1"} if n == 20 else row) + "\n" for n, row in enumerate(ROWS))
    )
    must_refuse(place, "rows.jsonl:21", "--override dataset")
    file.write_text(whole)
    scene.must_resume(place)


def changed_model(scene: Scene) -> None:
    place = scene.stopped(last=4)
    file = place.folder / "model" / "model.safetensors"
    whole = file.read_bytes()
    flip(file)
    must_refuse(place, "has another model.safetensors than it had", "--override model")
    file.write_bytes(whole)
    scene.must_resume(place)


def same_command_again(scene: Scene) -> None:
    place = scene.stopped(last=4)
    must(place.train(), 2, "already holds a run", "--resume run", "another directory")
    scene.must_resume(place)
