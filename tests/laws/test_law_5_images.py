"""Law 5, images: they are on disk before anything names them, so a killed run ends in the same weights; one that is
missing or changed stops a resumed run by name."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from paceline.checkpoints.run_directory import IMAGES, RunDir
from tests.chaos.sabotage import Trap, lay
from tests.support.forked import forked, paceline
from tests.support.seeing import picture, write_seeing_model

STEPS = 4
WORDS = (
    f"--max-steps {STEPS} --prompts-per-step 3 --num-generations 2 --max-completion-length 6 --save-steps 2 "
    "--eval-steps 4 --allow-overlap true --warmup-steps 0 --learning-rate 1e-3"
)
REWARD = """
def score(completions, image, **columns):
    return [sum(text.encode()) % 7 / 7 + each.getpixel((0, 0))[0] / 1000 for text, each in zip(completions, image)]
"""


def killed(trap: Trap, words: list[str]) -> None:
    from paceline.cli.main import main

    lay(trap)
    main(words)


def weights(run: Path) -> str:
    return hashlib.sha256((run / "final" / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model that reads images, 12 rows with one each, and a reward that looks at it."""
    made = tmp_path_factory.mktemp("images")
    write_seeing_model(made / "model", "idefics3")
    rows = []
    for number in range(12):
        picture(number).save(made / f"{number}.png")
        rows.append({"question": f"How many? {number % 4}", "image": f"{number}.png", "answer": str(number % 3)})
    lines = [json.dumps(row) + "\n" for row in rows]
    (made / "rows.jsonl").write_text("".join(lines))
    (made / "held_out.jsonl").write_text("".join(lines[:3]))
    (made / "mine.py").write_text(REWARD)
    return made


def words_of(folder: Path, run: Path) -> list[str]:
    files = {
        "model": "model",
        "dataset": "rows.jsonl",
        "eval-dataset": "held_out.jsonl",
        "reward-funcs": "mine.py:score",
    }
    named = [word for option, name in files.items() for word in (f"--{option}", str(folder / name))]
    return ["train", *named, "--output-dir", str(run), *WORDS.split()]


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> Path:
    run = folder / "undisturbed"
    ended = paceline(*words_of(folder, run))
    assert ended.returncode == 0, ended.said
    return run


def interrupted(folder: Path, run: Path, function: str, count: int) -> None:
    trap = Trap(function=f"paceline.{function}", deed="SIGKILL", first=count)
    ended = forked(killed, trap, words_of(folder, run))
    assert ended.returncode == -9, ended.said
    assert not (run / "final").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("function", "count"),
    [
        (
            "data.pictures:PictureStore.write",
            5,
        ),  # after those of the held-out rows and one of training, before the next
        ("runtime.whole_files:sync", 8),  # the first of training is in its place, its directory not on disk
        ("checkpoints.run_directory:RunDir.commit_rollouts", 3),  # all images of step 3, and no rollouts
        ("checkpoints.run_directory:append", 7),  # rollouts and no line that names them
        ("checkpoints.run_directory:RunDir.append_metrics", 4),  # the line and no metrics
    ],
)
def test_a_run_with_images_that_is_killed_at_a_write_ends_in_the_same_weights(
    folder, undisturbed, tmp_path, function, count
):
    run = tmp_path / "run"
    interrupted(folder, run, function, count)
    named = {name for entry in RunDir(run).journal().values() for name in entry.get("images", ())}
    assert named <= {file.name for file in (run / IMAGES).iterdir()}
    ended = paceline("train", "--resume", str(run))
    assert ended.returncode == 0, ended.said
    assert weights(run) == weights(undisturbed)
    images = {file.name: file.read_bytes() for file in (run / IMAGES).iterdir()}
    assert images == {file.name: file.read_bytes() for file in (undisturbed / IMAGES).iterdir()}
    assert len(images) == 12


@pytest.fixture(scope="module")
def broken_off(folder: Path, tmp_path_factory) -> Path:
    """A run that was killed after step 3 was committed, one step after its checkpoint."""
    run = tmp_path_factory.mktemp("broken") / "run"
    interrupted(folder, run, "checkpoints.run_directory:RunDir.append_metrics", 3)
    assert RunDir(run).journal().keys() == {1, 2, 3}
    return run


@pytest.mark.long
@pytest.mark.parametrize(("step", "deed"), [(3, "deleted"), (1, "deleted"), (3, "changed"), (3, "cut"), (3, "a pipe")])
def test_an_image_that_is_missing_or_changed_stops_the_resumed_run_by_name(broken_off, tmp_path, step, deed):
    run = shutil.copytree(broken_off, tmp_path / "run")
    image = run / IMAGES / RunDir(run).journal()[step]["images"][0]
    content = image.read_bytes()
    image.unlink()
    if deed == "changed":
        other = picture(99)
        other.putpixel((0, 0), (1, 2, 3))
        other.save(image, "PNG")
    elif deed == "cut":
        image.write_bytes(content[:-40])
    elif deed == "a pipe":
        os.mkfifo(image)
    files = {file.name for file in run.rglob("*")}
    ended = paceline("train", "--resume", str(run))
    assert ended.returncode == 2, ended.said
    assert image.name in ended.said
    assert "Traceback" not in ended.said
    assert {file.name for file in run.rglob("*")} == files  # nothing was changed
    if deed == "a pipe":
        image.unlink()
    image.write_bytes(content)
    assert paceline("train", "--resume", str(run)).returncode == 0


def test_a_row_whose_image_changed_by_one_pixel_is_changed_data(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "rows", ignore=shutil.ignore_patterns("undisturbed"))
    run = tmp_path / "run"
    ended = paceline(*words_of(copy, run), "--max-steps", "1")
    assert ended.returncode == 0, ended.said
    other = picture(5)
    other.putpixel((7, 7), (1, 2, 3))
    other.save(copy / "5.png")
    ended = paceline("train", "--resume", str(run), "--max-steps", "2")
    assert ended.returncode == 2
    assert "has other content than it had, first in row rows.jsonl:6" in ended.said


def test_a_step_counts_its_images_and_what_encoding_them_took(undisturbed):
    steps = RunDir(undisturbed).metrics()
    assert [step["images"] for step in steps] == [3] * STEPS
    assert all(0 < step["image_tokens_share"] < 1 for step in steps)
    assert all(step["clock"]["vision"] > 0 for step in steps)
    # what was encoded to sample from it is there when it is trained on
    assert all(0 < step["clock"]["image_reuse"] < 1 for step in steps)
