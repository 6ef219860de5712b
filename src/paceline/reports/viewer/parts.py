"""Files of a run that hold completions: one part of the pages each, at any moment of the run."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.reports.page.reading import RunRecord

TRAINING = "training"
"""What the pages call the set of a run's rollouts; held-out sets have their own names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPart:
    """The completions of one step of training, or of one evaluation."""

    key: str
    """Letters, digits and hyphens: its name in addresses and files."""
    set_name: str
    step: int
    file: Path
    signature: tuple[int, int]
    """Bytes and time of change in ns: another one says that the file is to be read again."""


def parts_of(run: RunRecord) -> tuple[RunPart, ...]:
    """Training first, then the held-out sets by name, each in the order of its steps."""
    training = [_part("rollouts", TRAINING, step, file) for step, file in sorted(run.rollout_files.items())]
    held_out = [
        _part(f"eval-{zlib.crc32(name.encode()):08x}", name, step, file)
        for (name, step), file in sorted(run.completion_files.items())
    ]
    return tuple(part for part in (*training, *held_out) if part is not None)


def by_key(parts: tuple[RunPart, ...]) -> Mapping[str, RunPart]:
    """Parts under the names that addresses give them."""
    return {part.key: part for part in parts}


def _part(kind: str, set_name: str, step: int, file: Path) -> RunPart | None:
    """None where a resumed run has removed the file since it was listed."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return RunPart(
        key=f"{kind}-{step:06d}",
        set_name=set_name,
        step=step,
        file=file,
        signature=(found.st_size, found.st_mtime_ns),
    )
