"""The rollout journal: commits a step's rollouts to disk, and reads what an earlier attempt committed.

Rollouts are written in a thread while the step is trained on. The loop waits for them before it records the step, so a
step that was reported has its rollouts on disk. The resumed run reads what is committed and never samples it again; a
step that was killed earlier is sampled again, to the same tokens.
"""

import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from paceline.checkpoints.digests import image_names, prompts_digest
from paceline.checkpoints.journal import Committed
from paceline.checkpoints.run_directory import IMAGES, RunDir
from paceline.checkpoints.run_files import BackgroundWrite
from paceline.data.row_images import pictures_in
from paceline.errors import CheckpointError, DataError
from paceline.training.rollouts.restoring import batch_about, restorable_lines, restored_batch, restored_groups
from paceline.training.rollouts.rounds import RolloutBatch
from paceline.training.rollouts.sampler import TaskSampler
from paceline.types import Task

if TYPE_CHECKING:
    from paceline.data.pictures import PictureStore

WRITE_SECONDS = 600.0
"""Timeout of a step that waits for its rollouts to be on disk, in seconds."""


def of_these_tasks(committed: Committed, task_sampler: TaskSampler) -> Committed:
    """Return the committed steps before the first whose prompts differ from the data order."""
    task_sampler = replace(task_sampler)
    for count, entry in enumerate(committed.entries):
        drawn = task_sampler.take(entry["groups"])
        if task_sampler.position != entry["position"] or prompts_digest(task for task, _ in drawn) != entry["prompts"]:
            fault = f"the rollouts from step {entry['step']} on are of other prompts than the dataset has: made again"
            return Committed(entries=committed.entries[:count], faults=(*committed.faults, fault))
    return committed


def check_images(run_dir: RunDir, step: int) -> None:
    """Refuse a run where an image that its journal names is missing or, of rollouts after `step`, is another one.

    Those rollouts are trained on again; earlier ones are checked when they are read.

    Raises:
        CheckpointError: the sentence names the image's file.
    """
    steps = {name: number for number, entry in run_dir.journal().items() for name in entry.get("images", ())}
    if not steps:
        return
    from paceline.data.pictures import PictureStore  # other runs need none

    pictures = PictureStore(run_dir.path / IMAGES)
    for name, number in steps.items():
        try:
            if number > step:
                pictures.pixels(name)
            elif not (run_dir.path / IMAGES / name).is_file():
                raise DataError(
                    f"{run_dir.path / IMAGES / name}, an image of step {number}, is missing; put the file back, or "
                    "start a new run"
                )
        except DataError as error:
            raise CheckpointError(f"--resume {run_dir.path}: {error}") from error


class Journal:
    """Rollouts of a run's steps in order: committed when sampled, read if an earlier attempt committed them."""

    def __init__(
        self,
        run_dir: RunDir,
        task_sampler: TaskSampler,
        committed: Committed,
        pictures: "PictureStore | None" = None,
    ) -> None:
        """`committed` holds the run's next steps, whose tasks `task_sampler` gives next (see `of_these_tasks`);
        `pictures` the images of prompts."""
        self._run_dir, self._pictures = run_dir, pictures
        self._kept_images = set[str]()
        self._entries = {entry["step"]: entry for entry in committed.entries}
        self._task_sampler = replace(task_sampler)
        self.again = len(self._entries)
        """Number of steps whose rollouts are reused."""
        self.position: int = committed.entries[-1]["position"] if committed.entries else task_sampler.position
        """Position in the data order after them."""
        self._writing: BackgroundWrite[None] | None = None
        self._is_closed = False
        self._beginning = threading.Lock()  # of a write: another thread may commit while this one closes

    def read(self, number: int) -> RolloutBatch | None:
        """Read the rollouts of a step that an earlier attempt committed, once; None if it did not."""
        entry = self._entries.pop(number, None)
        if entry is None:
            return None
        groups = restored_groups(self._run_dir.rollouts(number))
        # the tasks as the dataset has them, with all columns, and their prompts as environments began them
        drawn = self._task_sampler.take(len(groups))
        tasks = [
            replace(task, prompt=group.task.prompt, prompt_ids=group.task.prompt_ids, media=group.task.media)
            for group, (task, _) in zip(groups, drawn, strict=True)
        ]
        groups = tuple(replace(group, task=task) for group, task in zip(groups, tasks, strict=True))
        return restored_batch(entry, groups)

    def keep_images(self, tasks: Iterable[Task]) -> None:
        """Write images of prompts that this attempt has not written yet: before a prompt is sampled, so also before the
        line that names them, and before another process reads them.

        Raises:
            StorageError: the disk refused.
        """
        if self._pictures is None:  # prompts are text
            return
        # those of other columns too, as reward functions in another process read them
        tasks = list(tasks)
        names = {picture.sha256 for task in tasks for picture in pictures_in(task.columns)} | {*image_names(tasks)}
        if new := sorted(names - self._kept_images):
            self._run_dir.write_images(self._pictures, new)
            self._kept_images |= names

    def commit(self, number: int, batch: RolloutBatch) -> None:
        """Begin to write a step's rollouts, after those before it are on disk; raises as `wait` does."""
        self.wait()
        # here and not in the thread, which would hold the interpreter's lock during the update
        lines, about = [*restorable_lines(batch.groups)], batch_about(batch)
        with self._beginning:
            if not self._is_closed:
                self._writing = BackgroundWrite(
                    lambda: self._run_dir.commit_rollouts(number, lines, about),
                    name=f"what was sampled for step {number}",
                )

    def wait(self) -> None:
        """Wait for all pending writes.

        Raises:
            StorageError: the disk refused, or took too long.
        """
        if self._writing is not None:
            self._writing.result(wait=True, seconds=WRITE_SECONDS)

    def close(self) -> None:
        """Refuse further writes, and wait for the pending one; its error goes to the caller of `wait`."""
        with self._beginning:
            self._is_closed = True
        if self._writing is not None:
            self._writing.ends_within(WRITE_SECONDS)
