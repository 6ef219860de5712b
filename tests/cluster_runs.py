"""Whole runs of a tiny model, in one process or on a cluster of this machine, and what they leave behind."""

import json
from pathlib import Path
from typing import Literal

from paceline.cli.main import main
from paceline.rundir import RunDir
from tests.tiny import tiny_model, tiny_tokenizer

ROWS = [{"question": f"What is {n} + 1?", "answer": f"{n} and 1 make {n + 1}.\n#### {n + 1}"} for n in range(6)]
CLUSTER = ("--cluster", "--num-producers", "2")
REWARD = """
import multiprocessing, os, pathlib, signal

def variety(completions, **columns):
    # only a producer's share of a step has as many: not the trial before the first step
    if len(completions) >= 8:
        trap = pathlib.Path(__file__).with_name("trap")
        try:
            kind = trap.read_text()
            trap.unlink()
            if kind == "VLLM":
                multiprocessing.active_children()[0].kill()
            else:
                os.kill(os.getpid(), getattr(signal, kind))
        except FileNotFoundError:
            pass
    return [len(set(completion)) / 10 for completion in completions]
"""
"""Favours completions of many different letters; the process that finds a file `trap` sends itself the signal in it, or
kills a process of its vLLM."""


def train(place: Path, *options: object, trap: str | None = None, kind: Literal["qwen2", "llama"] = "qwen2") -> RunDir:
    """Four steps of 4 prompts with 4 completions, in a directory of its own."""
    place.mkdir()
    model, rows, reward = place / "model", place / "rows.jsonl", place / "reward.py"
    tiny_model(kind).save_pretrained(model)
    tiny_tokenizer().save_pretrained(model)
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    reward.write_text(REWARD)
    if trap is not None:
        (place / "trap").write_text(trap)
    fixed = (
        f"--model {model} --dataset {rows} --reward-funcs {reward}:variety --output-dir {place / 'run'} --max-steps 4 "
        "--prompts-per-step 4 --num-generations 4 --max-completion-length 12 --learning-rate 0.01 --system-prompt="
    )
    assert main(["train", *fixed.split(), *map(str, options)]) == 0
    assert not (place / "trap").exists()
    return RunDir(place / "run")


def weights(run: RunDir) -> bytes:
    """Of the final model."""
    return (run.path / "final" / "model.safetensors").read_bytes()


def completions(run: RunDir) -> list[list[dict]]:
    """All rollouts, step by step, rewards without the function's name, which holds the directory."""
    files = sorted((run.path / "rollouts").glob("step-*.jsonl"))
    steps = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    return [[{**one, "rewards": list(one["rewards"].values())} for one in step] for step in steps]
