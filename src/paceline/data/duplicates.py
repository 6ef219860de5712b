"""Prompts that stand in more than one row: of a dataset, or of what is trained on and what is held out."""

import json
import re
from collections.abc import Sequence

from paceline.config.sections import DataConfig
from paceline.data.formats import screen
from paceline.data.row_images import ImageInput
from paceline.data.rows import WHOLE, Row, sample_indices
from paceline.data.sources import ReadFiles, has_split, load_rows
from paceline.errors import DataError
from paceline.types import Task

_DRAWN_AGAIN = re.compile(r"#\d+$")
"""End of the name of a row that `--dataset FILE#N` takes more than once."""


def repeated_prompts(tasks: Sequence[Task]) -> list[str]:
    """Sentences on rows that repeat an earlier prompt and answer, and on those that answer it differently."""
    first, same, other = dict[object, Task](), list[tuple[Task, Task]](), list[tuple[Task, Task]]()
    for task in tasks:
        if _DRAWN_AGAIN.search(task.task_id):
            continue
        before = first.setdefault(_asked(task), task)
        if before is not task:
            (same if before.answer == task.answer else other).append((before, task))
    sentences = []
    if same:
        before, task = same[0]
        sentences.append(
            f"{len(same)} of {len(tasks)} rows repeat the prompt and the answer of an earlier one ({task.task_id} "
            f"those of {before.task_id}) and count as often; remove them where that is not meant"
        )
    if other:
        before, task = other[0]
        sentences.append(
            f"{len(other)} of {len(tasks)} rows have an earlier one's prompt and another answer ({before.task_id} has "
            f"{before.answer!r}, {task.task_id} has {task.answer!r}); correct or remove one of each"
        )
    return sentences


def also_trained_on(held_out: Sequence[Task], training: Sequence[Task]) -> list[str]:
    """A sentence where prompts of a held-out set are trained on too; none where there are none."""
    trained = {_asked(task): task.task_id for task in reversed(training)}
    repeated = [task for task in held_out if _asked(task) in trained]
    if not repeated:
        return []
    first = repeated[0]
    return [
        f"{len(repeated)} of {len(held_out)} prompts are trained on too ({first.task_id} is {trained[_asked(first)]}): "
        "what is measured on it is also what was memorised"
    ]


def _asked(task: Task) -> object:
    """Return what makes a prompt the same as another: its text, and its images."""
    return task.prompt, tuple(media.sha256 for media in task.media)


def refuse_overlap(name: str, held_out: Sequence[Task], training: Sequence[Task]) -> None:
    """Refuse a held-out set, by its name, of which prompts are trained on too; raises a DataError."""
    for sentence in also_trained_on(held_out, training):
        raise DataError(
            f"held-out set {name}: {sentence}",
            remedies=[
                "keep these rows out of one of the two",
                "give --eval-share 0.1 in the place of a held-out set",
                "give --allow-overlap if it is meant",
            ],
        )


def training_rows(
    data: DataConfig, *, seed: int, files: ReadFiles | None, images: ImageInput | None = None
) -> tuple[Sequence[Row], Sequence[Row]]:
    """Read the rows of `dataset`: those to train on, and those that `eval_share` holds out.

    Raises:
        DataError: as `load_rows` and `held_apart`.
    """
    rows = load_rows(data.dataset, split=data.dataset_split, size=data.dataset_size, seed=seed, files=files)
    return (rows, ()) if data.eval_share is None else held_apart(rows, data, seed=seed, images=images)


def held_out_rows(
    data: DataConfig, address: str, *, size: int | None, seed: int, files: ReadFiles | None
) -> tuple[Sequence[Row], str | None]:
    """Read the first `size` rows (None: all) of a held-out set, and say which split they are; None: it has none.

    Raises:
        DataError: as `load_rows`.
    """
    split = data.eval_split if has_split(address, data.eval_split, files) else None
    return load_rows(address, split=split or data.dataset_split, size=size, seed=seed, files=files), split


def held_apart(
    rows: Sequence[Row], data: DataConfig, *, seed: int, images: ImageInput | None = None
) -> tuple[list[Row], list[Row]]:
    """Divide rows into those to train on and `eval_share` of their prompts to hold out; rows of one prompt stay
    together, and a row that cannot be used stays among the first.

    Raises:
        DataError: the rows are too many to be read whole, or too few to hold any out.
    """
    share = data.eval_share
    assert share is not None
    if len(rows) > WHOLE:
        raise DataError(
            f"--eval-share {share:g} is of at most {WHOLE:,} rows, which are read whole, and there are {len(rows):,}",
            remedies=["put some rows into a file for --eval-dataset", "name a split of the dataset by --eval-split"],
        )
    usable = screen(rows, data, None, images).rows
    prompt_of = {
        row.row_id: json.dumps([row.prompt, *(picture.sha256 for picture in row.pictures)], sort_keys=True, default=str)
        for row in usable
    }
    prompts = list(dict.fromkeys(prompt_of.values()))
    count = round(share * len(prompts))
    if not 0 < count < len(prompts):
        raise DataError(
            f"--eval-share {share:g} of {len(prompts)} different prompts leaves none to "
            f"{'train on' if count else 'hold out'}; take another share, or more rows"
        )
    held_out = {prompts[index] for index in sample_indices(count, size=len(prompts), seed=seed)}
    return (
        [row for row in rows if prompt_of.get(row.row_id) not in held_out],
        [row for row in rows if prompt_of.get(row.row_id) in held_out],
    )
