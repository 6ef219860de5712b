"""`paceline train` of one process whose rollouts go nowhere: what the journal's cost is measured against.

python benchmarks/train_unjournalled.py [train's options]
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.checkpoint import Checkpoint
from paceline.cli.arguments import parse
from paceline.cli.configuration import read_configuration
from paceline.cli.train import COMMAND
from paceline.config import Config
from paceline.train import Journal, Placed, Prepared, Produced, in_this_process, train


@dataclass
class Unwritten:
    """A `Journal` of a run that begins: nothing is read and nothing is written."""

    position: int = 0
    again: int = 0

    def produce(self, number: int, make: Callable[[int], Produced]) -> Produced:
        return make(number)


@dataclass
class Unjournalled:
    """Halves without their journal."""

    halves: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.halves, name)

    def begin(self, journal: Journal) -> None:
        self.halves.begin(Unwritten())


@contextmanager
def unjournalled(config: Config, prepared: Prepared, checkpoint: Checkpoint | None) -> Iterator[Placed]:
    with in_this_process(config, prepared, checkpoint) as placed:
        yield replace(placed, halves=Unjournalled(placed.halves))


def main() -> int:
    config = read_configuration(parse(COMMAND, sys.argv[1:])).config
    done = train(config, Path(str(config.loop.output_dir)), resume=False, console=Console(), place=unjournalled)
    return 0 if done else 1


if __name__ == "__main__":
    raise SystemExit(main())
