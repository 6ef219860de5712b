"""Whole runs of a tiny model, in one process or on a cluster of this machine, and what they leave behind."""

import json
from pathlib import Path
from typing import Literal

from paceline.checkpoints.run_directory import RunDir
from paceline.cli.main import main
from tests.support.tiny import tiny_model, tiny_tokenizer

ROWS = [{"question": f"What is {n} + 1?", "answer": f"{n} and 1 make {n + 1}.\n#### {n + 1}"} for n in range(6)]
CLUSTER = ("--cluster", "--num-producers", "2")
CONVERSATIONS: dict[str, object] = {
    "environment": "guess:5",
    "max_turns": 3,
    "max_turn_length": 8,
    "max_prompt_length": 200,
    "max_completion_length": 160,
    "max_steps": 2,
}
"""Options more for two steps of short games."""
REWARD = """
import multiprocessing, os, pathlib, signal

def variety(completions, **columns):
    # only a sampler's share of a step has as many: not the trial before the first step
    if len(completions) >= 8:
        spring(pathlib.Path(__file__).with_name("trap"))
    return [len(set(completion)) / 10 for completion in completions]

def spring(trap):
    try:
        kind, whom, after, *later = trap.read_text().split()
        target = process(whom)
        if target is None or not (trap.parent / after).exists():
            return
        trap.unlink()
    except FileNotFoundError:
        return
    if later:
        trap.with_name("later").write_text(" ".join(later))
        trap.with_name("later").rename(trap)
    os.kill(target, getattr(signal, kind))

def process(whom):
    if whom == "self":
        return os.getpid()
    if whom == "child":
        return multiprocessing.active_children()[0].pid
    if whom.startswith("rank:"):
        return os.getpid() if os.environ.get("RANK") == whom.removeprefix("rank:") else None
    if whom.startswith("node:"):
        return os.getppid() if whom.removeprefix("node:") in os.environ else None
    return actor(whom)

def actor(name):
    # a worker of the same cluster, which bears its actor's name
    for entry in filter(str.isdigit, os.listdir("/proc")):
        status = pathlib.Path("/proc", entry, "status").read_text()
        title = pathlib.Path("/proc", entry, "cmdline").read_text()
        if f"PPid:\\t{os.getppid()}\\n" in status and title.startswith(f"ray::{name}"):
            return int(entry)
"""
"""Favours completions of many different letters. The first process that finds a file `trap` in which `SIGNAL WHOM FILE`
stands sends the signal once that file is there: to itself, to itself if it is a launcher's `rank:N`, to a process that
it started (`child`), to an actor by name, or to its node if its environment has a variable (`node:VARIABLE`). What
stands behind is for the next process that finds the file."""


def options_in(place: Path, *, kind: Literal["qwen2", "llama"] = "qwen2") -> dict[str, object]:
    """Four steps of 4 prompts with 4 completions, with everything that they need in a directory of its own."""
    place.mkdir()
    model, rows, reward = place / "model", place / "rows.jsonl", place / "reward.py"
    tiny_model(kind).save_pretrained(model)
    tiny_tokenizer().save_pretrained(model)
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    reward.write_text(REWARD)
    return {
        "model": str(model),
        "device": "cpu",  # where the same bits are promised without more ado
        "dataset": str(rows),
        "reward_funcs": f"{reward}:variety",
        "max_steps": 4,
        "prompts_per_step": 4,
        "num_generations": 4,
        "max_completion_length": 12,
        "learning_rate": 0.01,
        "system_prompt": "",
        # traps, and what is read again after a loss, wait for a checkpoint of the step before
        "background_save": False,
    }


def train(place: Path, *options: object, trap: str | None = None, kind: Literal["qwen2", "llama"] = "qwen2") -> RunDir:
    """The run of `options_in` with some options more; `trap`: what that file says."""
    fixed = [f"--{name}={value}" for name, value in options_in(place, kind=kind).items()]
    if trap is not None:
        (place / "trap").write_text(trap)
    assert main(["train", *fixed, f"--output-dir={place / 'run'}", *map(str, options)]) == 0
    assert not (place / "trap").exists()
    return RunDir(place / "run")


def weights(run: RunDir) -> bytes:
    """Of the final model."""
    return (run.path / "final" / "model.safetensors").read_bytes()


def completions(run: RunDir) -> list[list[dict]]:
    """All rollouts, step by step, without logprobs, which round otherwise in other batches, and without the seconds of
    environments; rewards without the function's name, which holds the directory."""
    steps = [run.rollouts(step) for step in run.rollout_steps()]
    return [[_comparable(one) for one in step] for step in steps]


def _comparable(rollout: dict) -> dict:
    kept = {name: value for name, value in rollout.items() if name != "logprobs"}
    for turn in kept["episode"]["turns"] if "episode" in kept else ():
        del turn["seconds"]
    return {**kept, "rewards": list(rollout["rewards"].values())}
