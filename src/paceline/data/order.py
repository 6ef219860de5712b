"""Order of tasks: a pure function of position and seed, so that a run resumes anywhere."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def task_index(position: int, *, size: int, seed: int, shuffle: bool) -> int:
    """Return the index in [0, size) of the task at `position`, counted from the start of the run.

    Positions run on through the epochs (epoch = position // size), and every epoch takes each task once. So a batch may
    span two epochs, and no remainder is left out. With `shuffle`, each epoch has an order of its own, fixed by `seed`.

    >>> [task_index(position, size=3, seed=0, shuffle=False) for position in range(5)]
    [0, 1, 2, 0, 1]

    Raises:
        ValueError: `position` < 0, `size` < 1, or a seed outside [0, 2^63).
    """
    if position < 0 or size < 1 or not 0 <= seed < 2**63:
        raise ValueError(f"position >= 0, size >= 1 and 0 <= seed < 2^63 must hold, got {position}, {size} and {seed}")
    epoch, offset = divmod(position, size)
    return int(_permutation(size, seed, epoch)[offset]) if shuffle else offset


def sample_places(count: int, *, size: int, seed: int) -> NDArray[np.int64]:
    """Return the first `count` places that `task_index` gives with `shuffle`; all come once before any repeats."""
    epochs = [_permutation(size, seed, epoch) for epoch in range(-(-count // size))]
    return np.concatenate(epochs)[:count].astype(np.int64)


# Two: a batch that spans two epochs must not compute them in turn.
@lru_cache(maxsize=2)
def _permutation(size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return all indices sorted by random keys: numpy keeps the raw Philox stream stable over releases, not
    `permutation`."""
    key = np.array([seed, epoch], dtype=np.uint64)
    return np.argsort(np.random.Philox(key=key).random_raw(size), kind="stable")
