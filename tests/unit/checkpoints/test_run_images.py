"""Images of a run are on disk before anything names them; what a stranger puts in their place is refused by name."""

import io
import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from paceline.checkpoints.journal import Committed
from paceline.checkpoints.run_directory import IMAGES, RunDir, copy_later
from paceline.data.pictures import Picture, PictureStore
from paceline.errors import CheckpointError, DataError, StorageError
from paceline.training.rollout_journal import Journal, check_images
from paceline.training.rollouts.sampler import TaskSampler
from paceline.types import Media, Task

CONFIG = "# paceline 0.1.0\n\nmodel: embedded\ndataset: shapes\n"


@pytest.fixture
def run(tmp_path: Path):
    with RunDir.create(tmp_path / "run", CONFIG) as opened:
        yield opened


def picture(store: PictureStore, shade: int) -> Picture:
    return store.add(Image.new("RGB", (4, 3), (shade, 0, 0)))


def task(number: int, *pictures: Picture) -> Task:
    media = tuple(Media(sha256=one.sha256, start=at, length=1) for at, one in enumerate(pictures))
    return Task(task_id=f"d:{number}", prompt="p", prompt_ids=(1, 2, 3), media=media, answer=None)


def journal_of(run: RunDir, store: PictureStore | None) -> Journal:
    return Journal(run, TaskSampler(tasks=[task(0)], seed=0, shuffle=False), Committed(), store)


def commit(run: RunDir, step: int, *pictures: Picture) -> None:
    run.write_images(pictures[0].store, [one.sha256 for one in pictures])
    run.commit_rollouts(step, [b"{}\n"], {"images": [one.sha256 for one in pictures]})


def png(size: tuple[int, int]) -> bytes:
    file = io.BytesIO()
    Image.new("1", size).save(file, "PNG")
    return file.getvalue()


def test_images_are_written_once_under_the_hash_of_their_pixels(run):
    store = PictureStore()
    first, second = picture(store, 1), picture(store, 2)
    journal = journal_of(run, store)
    journal.keep_images([task(0, first), task(1, first, second)])
    assert sorted(path.name for path in (run.path / IMAGES).iterdir()) == sorted([first.sha256, second.sha256])
    written = [path.stat().st_mtime_ns for path in sorted((run.path / IMAGES).iterdir())]
    journal.keep_images([task(2, second)])
    assert [path.stat().st_mtime_ns for path in sorted((run.path / IMAGES).iterdir())] == written
    assert PictureStore(run.path / IMAGES).pixels(second.sha256).getpixel((3, 2)) == (2, 0, 0)


def test_images_of_other_columns_are_written_too_as_reward_functions_read_them_elsewhere(run):
    store = PictureStore(run.path / IMAGES)
    shown, mask = picture(store, 1), picture(store, 2)
    row = replace(task(0, shown), columns={"image": shown, "more": [{"mask": mask}]})
    journal_of(run, store).keep_images([row])
    away = pickle.loads(pickle.dumps(row))  # noqa: S301
    assert away.columns["more"][0]["mask"].pixels().getpixel((0, 0)) == (2, 0, 0)


def test_a_run_of_text_has_no_folder_of_images(run):
    journal_of(run, None).keep_images([task(0)])
    check_images(run, 0)
    assert not (run.path / IMAGES).exists()


def test_the_bytes_of_a_file_are_kept_and_pixels_without_a_file_become_a_png(run, tmp_path):
    photo = tmp_path / "photo.jpg"
    Image.effect_noise((16, 8), 90).convert("RGB").save(photo, quality=30)
    store = PictureStore()
    of_file, of_program = store.add(str(photo), tmp_path), picture(store, 7)
    run.write_images(store, [of_file.sha256, of_program.sha256])
    assert (run.path / IMAGES / of_file.sha256).read_bytes() == photo.read_bytes()
    assert (run.path / IMAGES / of_program.sha256).read_bytes()[1:4] == b"PNG"


def test_a_full_disk_is_named_and_leaves_no_draft(run, monkeypatch):
    store = PictureStore()
    one = picture(store, 1)

    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageError, match=r"images cannot be written \(No space left on device\); make room for it"):
        run.write_images(store, [one.sha256])
    assert not list((run.path / IMAGES).iterdir())


def test_the_draft_of_a_killed_write_goes_and_images_that_nothing_names_stay(run):
    store = PictureStore()
    orphan = picture(store, 1)
    run.write_images(store, [orphan.sha256])
    (run.path / IMAGES / f".{'0' * 16}.new").write_bytes(b"half")
    run.close()
    with RunDir.open(run.path) as resumed:
        check_images(resumed, 0)
    assert [path.name for path in (run.path / IMAGES).iterdir()] == [orphan.sha256]


def test_a_missing_image_stops_a_resumed_run_by_name_whichever_step_it_is_of(run):
    store = PictureStore()
    early, late = picture(store, 1), picture(store, 2)
    commit(run, 1, early)
    commit(run, 2, late)
    check_images(run, 1)
    for lost in (early, late):
        file = run.path / IMAGES / lost.sha256
        content = file.read_bytes()
        file.unlink()
        with pytest.raises(CheckpointError, match=rf"--resume .*run: .*{lost.sha256}.*put the file back"):
            check_images(run, 1)
        file.write_bytes(content)
    check_images(run, 1)


def test_an_image_of_other_pixels_stops_the_run_if_its_rollouts_are_trained_on_again(run):
    store = PictureStore()
    one, other = picture(store, 1), picture(store, 2)
    commit(run, 1, one, other)
    (run.path / IMAGES / one.sha256).write_bytes((run.path / IMAGES / other.sha256).read_bytes())
    with pytest.raises(
        CheckpointError, match=f"{one.sha256} has changed: it now holds 4 x 3 pixels of the hash {other.sha256}"
    ):
        check_images(run, 0)


def test_the_same_pixels_in_another_file_are_the_same_image(run):
    store = PictureStore()
    one = picture(store, 1)
    commit(run, 1, one)
    one.pixels().save(run.path / IMAGES / one.sha256, "BMP")
    check_images(run, 0)
    journal_of(run, store).keep_images([task(0, one)])


HOSTILE = {
    "a pipe": os.mkfifo,
    "a link": lambda file: file.symlink_to("/etc/hostname"),
    "a directory": lambda file: file.mkdir(),
    "a drawing": lambda file: file.write_text(
        "<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
    ),
    "a program of PostScript": lambda file: file.write_text(
        "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage"
    ),
    "nothing": lambda file: file.write_bytes(b""),
    "a bomb": lambda file: file.write_bytes(png((30_000, 30_000))),
    "half an image": lambda file: file.write_bytes(png((64, 64))[:60]),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_a_stranger_puts_in_the_place_of_an_image_is_refused_without_waiting(run, what):
    store = PictureStore()
    one = picture(store, 1)
    commit(run, 1, one)
    file = run.path / IMAGES / one.sha256
    file.unlink()
    HOSTILE[what](file)
    with pytest.raises(DataError, match=f"the image .*{one.sha256} (cannot be read|has changed)"):
        PictureStore(run.path / IMAGES).pixels(one.sha256)
    with pytest.raises(CheckpointError, match=one.sha256):
        check_images(run, 0)
    with pytest.raises(DataError, match=one.sha256):
        journal_of(run, store).keep_images([task(0, one)])


def test_records_that_are_moved_aside_take_their_images_along(run, tmp_path):
    store = PictureStore()
    one = picture(store, 1)
    commit(run, 1, one)
    copy_later(run, 0, tmp_path / "aside")
    assert PictureStore(tmp_path / "aside" / IMAGES).pixels(one.sha256).size == (4, 3)
