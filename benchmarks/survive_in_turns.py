"""`paceline train` of one process that survives in every other turn of steps and writes nothing down in the others.

    python benchmarks/survive_in_turns.py FIRST TURN WINDOW MOMENTS [train's options]

FIRST is the first turn that survives, 0 or 1; TURN its steps. Of the steps that survive, a checkpoint is begun before
the first of every WINDOW. MOMENTS is the file for when each step was written down, in seconds.
"""

import json
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.checkpoints.finding import Checkpoint, TrainingState
from paceline.cli.arguments import parse
from paceline.cli.train import COMMAND
from paceline.config.sections import Config
from paceline.training.backend import Backend, in_this_process
from paceline.training.rollout_journal import Journal
from paceline.training.rollouts.rounds import RolloutBatch
from paceline.training.session import train
from paceline.training.setup.configuration import read_configuration
from paceline.training.setup.inputs import RunInputs
from paceline.training.setup.preparation import prepare
from paceline.training.setup.run_request import RunRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class Turns:
    """Which steps survive."""

    first: int
    turn: int
    window: int

    def survives(self, step: int) -> bool:
        """Whether step 1, 2, ... is written down."""
        return (step - 1) // self.turn % 2 == self.first

    def saves(self, step: int) -> bool:
        """Whether a checkpoint is begun before it."""
        turns, within = divmod(step - 1, self.turn)
        return self.survives(step) and (turns // 2 * self.turn + within) % self.window == 0


@dataclass(kw_only=True)
class JournalInTurns:
    """The journal of a run that begins, passed by in turns that do not survive."""

    turns: Turns
    journal: Journal
    position: int = 0
    again: int = 0

    def commit(self, number: int, batch: RolloutBatch) -> None:
        if self.turns.survives(number):
            self.journal.commit(number, batch)


@dataclass(kw_only=True)
class BackendInTurns:
    """A backend that is asked to survive in every turn, and does in every other."""

    backend: Any
    turns: Turns
    moments: list[float] = field(default_factory=list)
    is_saving: bool = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def begin(self, journal: Journal) -> None:
        self.backend.begin(JournalInTurns(turns=self.turns, journal=journal))

    def news(self) -> list[str]:
        """A step has been written down, and what follows belongs to the next."""
        self.moments.append(time.perf_counter())
        return self.backend.news()

    def save(self, root: Path, state: TrainingState, protected: Collection[Path]) -> tuple[str, ...]:
        self.is_saving = self.turns.saves(state.step + 1)
        return self.backend.save(root, state, protected) if self.is_saving else ()

    def saved(self, *, wait: bool) -> Checkpoint | None:
        return self.backend.saved(wait=wait) if self.is_saving else None


def main() -> int:
    first, turn, window, moments, *options = sys.argv[1:]
    turns = Turns(first=int(first), turn=int(turn), window=int(window))
    config = read_configuration(parse(COMMAND, options).options).config
    taken = list[BackendInTurns]()

    @contextmanager
    def in_turns(config: Config, inputs: RunInputs, checkpoint: Checkpoint | None) -> Iterator[Backend]:
        with in_this_process(config, inputs, checkpoint) as backend:
            taken.append(BackendInTurns(backend=backend, turns=turns))
            yield taken[-1]

    done = train(
        RunRequest(config=config, output_dir=Path(str(config.loop.output_dir))),
        prepare(config),
        console=Console(),
        make_backend=in_turns,
    )
    Path(moments).write_text(json.dumps(taken[-1].moments))
    return 0 if done else 1


if __name__ == "__main__":
    raise SystemExit(main())
