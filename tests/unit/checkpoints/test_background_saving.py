"""Checkpoints written from copies by a thread, the room that they need, and what is left where there is none."""

import errno
import os
import threading
from pathlib import Path

import pytest
import torch

from paceline.checkpoints.finding import TrainingState, newest_checkpoint, set_damaged_aside
from paceline.checkpoints.run_files import BackgroundWrite
from paceline.checkpoints.saving import (
    CheckpointWriter,
    SpaceNeeded,
    TokenizerFiles,
    copies_fit,
    refuse_full,
    refuse_small_disk,
    room_of_run,
    take_checkpoint,
)
from paceline.errors import ConfigError, StorageError
from paceline.models.loaded import Loaded
from paceline.models.parallel.ranks import ONE_RANK
from paceline.models.parallel.staging import StagingBuffers
from tests.support.checkpoint_files import content, save_checkpoint
from tests.support.tiny import tiny_model, tiny_tokenizer


class Failing:
    """A `Trained` whose weights the disk does not take, and the `Writer` of them: half a file, then an error."""

    nbytes = 12_345

    def __init__(self, loaded: Loaded, number: int) -> None:
        self.model, self.number = loaded.model, number

    def weights_writer(self, ranks):
        return self

    def copied(self, staging):
        return self

    def write(self, folder: Path) -> list[Path]:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(self.number, os.strerror(self.number))


def trained(kind: str = "qwen2"):
    model = tiny_model(kind)
    if kind == "llama":
        model.config.tie_word_embeddings = True
        model.get_output_embeddings().weight = model.get_input_embeddings().weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    update(model, optimizer)
    return Loaded(model=model, compute_dtype=torch.float32), optimizer


def update(model, optimizer) -> None:
    model(torch.tensor([[1, 2, 3]])).logits.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def arguments(loaded, optimizer) -> dict:
    return {"loaded": loaded, "tokenizer": TokenizerFiles(tiny_tokenizer()), "optimizer": optimizer, "keep": 2}


def state(step: int) -> TrainingState:
    return TrainingState(step=step, position=step, policy_version=step)


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_what_is_written_later_is_the_moment_that_was_taken_and_so_is_the_next_one(tmp_path, kind):
    loaded, optimizer = trained(kind)
    given, staging = arguments(loaded, optimizer) | {"reference": loaded}, StagingBuffers(lambda: 1 << 40)
    for step in (1, 2):
        at_once = save_checkpoint(tmp_path / "at once", state(step), **given)
        taken = take_checkpoint(tmp_path / "later", state(step), **given, staging=staging)
        update(loaded.model, optimizer)
        later = taken.write(ONE_RANK)
        assert taken.is_copied
        assert taken.sentences == ()
        assert content(later.path) == content(at_once.path)


@pytest.mark.parametrize("template", [None, "{{ messages }}", {"default": "{{ messages }}", "tools": "{{ tools }}"}])
def test_a_tokenizers_files_are_what_it_saves_itself_and_made_once(tmp_path, template):
    loaded, optimizer = trained()
    tokenizer = tiny_tokenizer(chat_template=template)
    tokenizer.save_pretrained(tmp_path / "itself")
    own, staging = content(tmp_path / "itself"), StagingBuffers(lambda: 1 << 40)
    given = arguments(loaded, optimizer) | {"tokenizer": TokenizerFiles(tokenizer)}
    for step in (1, 2):
        taken = take_checkpoint(tmp_path / "run", state(step), **given, staging=staging)
        tokenizer.chat_template = "nobody reads it any more"
        there = content(taken.write(ONE_RANK).model)
        assert {name: there.get(name) for name in own} == own


def test_a_moment_that_is_not_copied_is_the_memory_itself(tmp_path):
    loaded, optimizer = trained()
    for free in (0, None):
        staging = StagingBuffers(lambda free=free: free)
        taken = take_checkpoint(tmp_path, state(1), **arguments(loaded, optimizer), staging=staging)
        assert taken.is_copied == (free is None)
        assert taken.nbytes == sum(one.nbytes for one in loaded.model.parameters()) * 3 + 4 * len(optimizer.state)
    staging = StagingBuffers(lambda: 0 if staging.nbytes else taken.nbytes * 2)  # what it has already counts as free
    for _ in range(2):
        assert take_checkpoint(tmp_path, state(1), **arguments(loaded, optimizer), staging=staging).is_copied


def test_where_memory_is_short_the_run_waits_and_keeps_none_for_copies(tmp_path):
    loaded, optimizer = trained()
    free = [1 << 40, 0]
    staging = StagingBuffers(lambda: free.pop(0) - staging.nbytes)
    first, second = (
        take_checkpoint(tmp_path, state(1), **arguments(loaded, optimizer), staging=staging) for _ in range(2)
    )
    assert (first.is_copied, second.is_copied) == (True, False)
    assert staging.nbytes == 0
    (sentence,) = second.sentences
    assert f"{second.nbytes:,} bytes, take more than 50% of the main memory" in sentence


def test_copies_share_the_memory_of_a_machine():
    def asked(nbytes: int, free: int | None, host: str, kept: int = 0) -> SpaceNeeded:
        return SpaceNeeded(nbytes=nbytes, free=free, kept=kept, host=host)

    assert copies_fit([asked(25, 100, "a"), asked(25, 101, "a"), asked(40, 80, "b"), asked(99, None, "c")])
    assert not copies_fit([asked(25, 100, "a"), asked(26, 101, "a")])
    assert not copies_fit([asked(1, 100, "a"), asked(41, 80, "b")])
    # the next ones lie where these lay: what was free is taken, and theirs
    assert copies_fit([asked(25, 50, "a", kept=25), asked(25, 51, "a", kept=25)])
    assert not copies_fit([asked(25, 49, "a", kept=25), asked(25, 49, "a", kept=25)])


def test_a_thread_writes_and_is_waited_for(tmp_path):
    loaded, optimizer = trained()
    taken = take_checkpoint(tmp_path, state(1), **arguments(loaded, optimizer), staging=StagingBuffers(lambda: None))
    go = threading.Event()

    def write():
        go.wait()
        return taken.write(ONE_RANK)

    writing = BackgroundWrite(write, name="the checkpoint of step 1")
    assert writing.result(wait=False, seconds=60) is None
    assert newest_checkpoint(tmp_path) == (None, ())
    with pytest.raises(StorageError, match=r"the checkpoint of step 1 is not on disk after 0\.01 s; look at the disk"):
        writing.result(wait=True, seconds=0.01)
    go.set()
    assert writing.result(wait=True, seconds=60) == newest_checkpoint(tmp_path)[0]


def test_a_writer_does_not_forget_a_checkpoint_that_is_still_being_written(tmp_path, monkeypatch):
    loaded, optimizer = trained()
    taken = take_checkpoint(tmp_path, state(1), **arguments(loaded, optimizer), staging=StagingBuffers(lambda: None))
    go, writer = threading.Event(), CheckpointWriter(None)

    class Slow:
        is_copied, state = True, taken.state

        def write(self, group):
            go.wait()
            return taken.write(group)

    writer.begin(Slow(), ONE_RANK)
    monkeypatch.setattr("paceline.checkpoints.saving.SAVE_SECONDS", 0.01)
    with pytest.raises(StorageError, match="is not on disk after"):
        writer.take(wait=True)
    assert writer.take(wait=False) is None
    go.set()
    monkeypatch.setattr("paceline.checkpoints.saving.SAVE_SECONDS", 60)
    assert writer.take(wait=True) == newest_checkpoint(tmp_path)[0]
    assert writer.take(wait=True) is None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_disk_that_fails_leaves_the_last_checkpoint_and_no_draft(tmp_path, number):
    loaded, optimizer = trained()
    good = save_checkpoint(tmp_path, state(1), **arguments(loaded, optimizer))
    given = arguments(Failing(loaded, number), optimizer) | {"staging": StagingBuffers(lambda: None)}
    writing = BackgroundWrite(lambda: take_checkpoint(tmp_path, state(2), **given).write(ONE_RANK), name="it")
    with pytest.raises(StorageError) as raised:
        writing.result(wait=True, seconds=60)
    assert raised.value.exit_status == 1
    for words in (str(tmp_path / "draft-000002"), os.strerror(number), "a checkpoint needs", "are free; make room"):
        assert words in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]
    assert newest_checkpoint(tmp_path) == (good, ())


def test_a_checkpoint_that_has_no_room_is_not_begun(tmp_path):
    with pytest.raises(StorageError, match=r"a checkpoint needs 4,611,686,018,427,387,904 bytes, [\d,]+ are free"):
        refuse_full(tmp_path, needed=1 << 62)
    refuse_full(tmp_path, needed=1)


def test_the_room_of_a_run_by_hand():
    assert room_of_run(checkpoint=10, final=4, saves=50, keep=2) == 34  # two that are kept, and the one on its way
    assert room_of_run(checkpoint=10, final=4, saves=1, keep=2) == 14
    assert room_of_run(checkpoint=10, final=4, saves=0, keep=2) == 14  # that of an interrupt


def test_a_disk_that_is_too_small_is_refused_before_the_run_and_what_is_there_counts_as_room(tmp_path):
    place = tmp_path / "run" / "checkpoints" / "step-000001"
    with pytest.raises(
        ConfigError, match=r"--output-dir .*/run must have room for .*, [\d,]+ bytes, and [\d,]+ are free"
    ):
        refuse_small_disk(tmp_path / "run", needed=1 << 62)
    place.mkdir(parents=True)
    with (place / "model").open("wb") as file:
        file.truncate(1 << 40)
    refuse_small_disk(tmp_path / "run", needed=1 << 40)


def test_a_damaged_checkpoint_is_kept_under_another_name_however_many_come_after_it(tmp_path):
    given = arguments(*trained())
    for _ in range(2):
        for step in (1, 2):
            save_checkpoint(tmp_path, state(step), **given)
        (tmp_path / "step-000002" / "progress.json").write_text("{")
        found, _ = newest_checkpoint(tmp_path)
        (sentence,) = set_damaged_aside(tmp_path, found)
        assert sentence.startswith(f"{tmp_path / 'step-000002'} is kept as {tmp_path / 'damaged-step-000002'}")
    for step in (3, 4, 5):
        save_checkpoint(tmp_path, state(step), **given)
    kept = ["damaged-step-000002", "damaged-step-000002-2", "step-000004", "step-000005"]
    assert sorted(path.name for path in tmp_path.iterdir()) == kept
