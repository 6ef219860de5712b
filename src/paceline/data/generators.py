"""Generated rows: the built-in `arithmetic` and `programs`, and the tasks of reasoning-gym."""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from types import ModuleType
from typing import cast

from paceline.data import arithmetic, programs
from paceline.data.rows import Row
from paceline.errors import DataError

BUILT_IN: Mapping[str, Callable[[str, int], Sequence[Mapping[str, object]]]] = {
    "arithmetic": arithmetic.rows,
    "programs": programs.rows,
}
"""Function of each built-in generator that makes its rows, given split and number."""

GYM_PREFIX = "reasoning_gym:"
DEFAULT_SIZE = 10_000

# reasoning-gym draws item i of a dataset from `seed + i`, so neighbouring seeds share all but one item: the splits lie
# a thousand million items apart.
GYM_SEEDS = {"train": 0, "test": 1_000_000_000}


def is_generator(dataset: str) -> bool:
    """Return True for a generator's name, which wins over a file of that name (`./arithmetic` is the file)."""
    return dataset in (*BUILT_IN, "reasoning_gym") or dataset.startswith(GYM_PREFIX)


def generate_rows(dataset: str, *, split: str, size: int | None) -> list[Row]:
    """Generate `size` rows (None: 10,000), always the same for the same name and split.

    The splits are `train` and `test`. `arithmetic` and `programs` keep them disjoint by question. `reasoning_gym:NAME`
    draws them from seeds so far apart that no item is shared; a task with few different questions can still repeat one
    by chance. Its rows have `question`, `answer` (None where many answers are right) and `reasoning_gym`, the package's
    own entry: a reward function scores with `get_score_answer_fn(entry["metadata"]["source_dataset"])(answer, entry)`.

    Raises:
        DataError: unknown task or split, a task that needs settings of its own, or the package is not installed.
    """
    count = DEFAULT_SIZE if size is None else size
    made = BUILT_IN[dataset](split, count) if dataset in BUILT_IN else _gym_columns(dataset, split, count)
    return [Row(row_id=f"{dataset}/{split}:{number}", columns=columns) for number, columns in enumerate(made, start=1)]


def _gym_columns(dataset: str, split: str, size: int) -> Sequence[Mapping[str, object]]:
    gym, name = _import_gym(), dataset.removeprefix(GYM_PREFIX)
    known = sorted(gym.factory.DATASETS)
    if name not in known:
        nearest = get_close_matches(name, known, n=3, cutoff=0.4) or ["chain_sum", "leg_counting", "gcd"]
        raise DataError(f"--dataset {GYM_PREFIX}{name}: no such task among {len(known)}; nearest: {', '.join(nearest)}")
    if split not in GYM_SEEDS:
        raise DataError(
            f"--dataset {GYM_PREFIX}{name} has the splits 'train' and 'test', got {split!r}; use one of them"
        )
    try:
        entries = gym.create_dataset(name, seed=GYM_SEEDS[split], size=size)
    except (AssertionError, ValueError) as error:
        raise DataError(
            f"--dataset {GYM_PREFIX}{name}: has no defaults to run on ({error}); take another task"
        ) from error
    taken = [entries[index] for index in range(size)]
    return [{"question": entry["question"], "answer": entry["answer"], "reasoning_gym": entry} for entry in taken]


def _import_gym() -> ModuleType:
    try:
        import reasoning_gym
    except ImportError as error:
        raise DataError(
            "--dataset reasoning_gym:NAME needs the optional package; run: pip install 'paceline[reasoning-gym]'"
        ) from error
    return cast(ModuleType, reasoning_gym)
