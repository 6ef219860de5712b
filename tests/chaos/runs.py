"""The short run that every fault is done to, and what it leaves behind: weights, numbers, completions."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.checkpoints.run_directory import RunDir
from tests.chaos.processes import start
from tests.chaos.sabotage import Trap
from tests.support.forked import Ended, Program
from tests.support.tiny import Kind, tiny_model, tiny_tokenizer

ROWS = [{"question": f"What is {n} + {n % 7}?", "answer": f"#### {n + n % 7}"} for n in range(48)]
STEPS = 6
OPTIONS: dict[str, object] = {
    "model": "model",
    "dataset": "rows.jsonl",
    "eval_dataset": "held_out=rows.jsonl",
    "allow_overlap": True,
    "eval_reward_func": "reward.py:variety",
    "eval_size": 8,
    "eval_steps": 3,
    "reward_funcs": "reward.py:variety",
    "max_steps": STEPS,
    "prompts_per_step": 4,
    "num_generations": 4,
    "max_completion_length": 16,
    "learning_rate": 0.01,
    "save_steps": 2,
    "system_prompt": "",
    "output_dir": "run",
}
"""Six steps, of which no two have a prompt in common; three checkpoints, of which two stay; three evaluations."""

REWARD = '''
"""Favours completions of many different letters, and notes every completion that it was asked to judge."""

import os, pathlib

PLACE = pathlib.Path(__file__).parent


def variety(prompts, completions, **columns):
    with open(PLACE / "scored", "ab", buffering=0) as file:
        file.write("".join(f"{pair!r}\\n" for pair in zip(prompts, completions)).encode())
    mischief(completions)
    return [len(set(completion)) / 10 for completion in completions]


def mischief(completions):
    pass
'''
CODE = ("reward_funcs", "eval_reward_func", "environment")
"""Options that name code of the place."""
MOMENTARY = ("clock", "seconds", "environment_seconds", "weights_bytes")
"""What is of the hour, or of the place where the run is done, and not of the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a run leaves behind, without clocks."""

    weights: str
    """SHA-256 of the final model."""
    metrics: tuple[str, ...]
    """A step's numbers each."""
    evals: tuple[str, ...]
    completions: tuple[str, ...]
    """A step's rollouts each, as a hash."""
    texts: tuple[str, ...]
    """The same without logprobs, which in a cluster's producers are of other batches, to rounding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A directory in which one run is done and harmed."""

    folder: Path
    options: Mapping[str, object] = field(default_factory=lambda: OPTIONS)

    @property
    def run(self) -> RunDir:
        """The run's own directory."""
        return RunDir(self.folder / "run")

    def words(self) -> list[str]:
        """The run's options."""
        return [f"--{name}={value}" for name, value in self.options.items()]

    def begin(
        self, *more: object, traps: Sequence[Trap] = (), umask: int | None = None, closed_output: bool = False
    ) -> Program:
        """Start the run, with some options more."""
        return start(
            self.folder, ["train", *self.words(), *more], traps=traps, umask=umask, closed_output=closed_output
        )

    def train(
        self, *more: object, traps: Sequence[Trap] = (), umask: int | None = None, closed_output: bool = False
    ) -> Ended:
        """The run to its end."""
        return self.begin(*more, traps=traps, umask=umask, closed_output=closed_output).end()

    def go_on(self, *more: object, traps: Sequence[Trap] = ()) -> Program:
        """Start to go on with it; the code is named, as that of a copied run is other code until it was."""
        own = [f"--{name}={self.options[name]}" for name in CODE if name in self.options]
        return start(self.folder, ["train", "--resume", "run", *own, *more], traps=traps)

    def resume(self, *more: object, traps: Sequence[Trap] = ()) -> Ended:
        """Go on with it to its end."""
        return self.go_on(*more, traps=traps).end()

    def checkpoints(self) -> list[Path]:
        """In the order of their steps."""
        return sorted((self.run.path / "checkpoints").glob("step-*"))

    def scored(self) -> list[str]:
        """The prompts and completions that were judged so far, in order."""
        file = self.folder / "scored"
        return file.read_text().splitlines() if file.exists() else []

    def outcome(self) -> Outcome:
        """What the finished run has left."""
        run = self.run
        weights = (run.path / "final" / "model.safetensors").read_bytes()
        rollouts = [run.rollouts(step) for step in run.rollout_steps()]
        return Outcome(
            weights=hashlib.sha256(weights).hexdigest(),
            metrics=tuple(_text(record) for record in run.metrics()),
            evals=tuple(_text(record) for record in run.evals()),
            completions=tuple(_hash(records) for records in rollouts),
            texts=tuple(_hash([_without_logprobs(one) for one in records]) for records in rollouts),
        )


def furnish(folder: Path, kind: Kind = "qwen3") -> Place:
    """A new directory with model, rows and reward function."""
    folder.mkdir(parents=True)
    tiny_model(kind).save_pretrained(folder / "model")
    tiny_tokenizer().save_pretrained(folder / "model")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "reward.py").write_text(REWARD)
    return Place(folder=folder)


def mischief(place: Place, *lines: str) -> None:
    """Have the reward function do something besides, each time it judges completions."""
    body = "".join(f"    {line}\n" for line in lines)
    text = REWARD.replace("def mischief(completions):\n    pass\n", f"def mischief(completions):\n{body}")
    (place.folder / "reward.py").write_text(text)


def behave(place: Place) -> None:
    """Have the reward function do its work alone again."""
    (place.folder / "reward.py").write_text(REWARD)


def committed(place: Place) -> set[str]:
    """The completions of the steps that the journal calls committed, with their prompts, as `scored` has them."""
    journal = place.run.path / "journal.jsonl"
    lines = journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []
    steps = [json.loads(line)["step"] for line in lines]
    return {repr((record["prompt"], record["completion"])) for step in steps for record in place.run.rollouts(step)}


def _hash(records: list[dict[str, Any]]) -> str:
    return hashlib.sha256("".join(map(_text, records)).encode()).hexdigest()


def _without_logprobs(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "logprobs"}


def _text(record: Any) -> str:
    return json.dumps(_lasting(record), sort_keys=True)


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _lasting(inner) for name, inner in value.items() if name not in MOMENTARY}
    return [_lasting(inner) for inner in value] if isinstance(value, list) else value
