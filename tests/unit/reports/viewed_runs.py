"""Run directories of a few completions whose every number a test knows, hostile ones among them."""

import base64
import hashlib
import json
from array import array
from pathlib import Path
from typing import Any

from paceline.checkpoints.run_directory import RunDir

HOSTILE = (
    "<script>document.title = 'broken'</script>",
    "</script><img src=x onerror=\"document.title = 'broken'\">",
    "line\u2028separator\u2029and \u202ereversed\u202c \x00\x07",
    "lone \ud83d surrogate and \udc00",
    'back\\slash "quotes" ${x} `y` </style> &amp; &lt;',
)
PROMPT = "<|user|>How much is {} + 1?<|end|><|assistant|>"


def rollout(task: int, sample: int, completion: str, **changes: Any) -> dict[str, Any]:
    """A rollout's record with one token per character, -0.5 nats each."""
    tokens = [ord(character) % 256 for character in completion]
    return {
        "task_id": f"rows.jsonl:{task}",
        "sample": sample,
        "prompt": PROMPT.format(task),
        "answer": str(task + 1),
        "completion": completion,
        "completion_tokens": len(tokens),
        "rewards": {"accuracy": 0.0},
        "reward": 0.0,
        "notes": {},
        "advantage": 0.0,
        "finish_reason": "stop",
        "policy_version": 0,
        "dropped": None,
        "token_ids": tokens,
        "logprobs": floats([-0.5] * len(tokens)),
    } | changes


def paid(task: int, sample: int, completion: str, **changes: Any) -> dict[str, Any]:
    """One with reward 1."""
    return rollout(
        task, sample, completion, **{"reward": 1.0, "rewards": {"accuracy": 1.0}, "advantage": 1.0} | changes
    )


def floats(values: list[float]) -> dict[str, str]:
    """As the journal packs them, on a little-endian machine."""
    return {"float32": base64.b64encode(array("f", values).tobytes()).decode()}


def write_run(path: Path, steps: dict[int, list[dict[str, Any]]], evals: dict[int, float] | None = None) -> RunDir:
    """A run with these rollouts by step, and the accuracies of one held-out task by step."""
    run = RunDir.create(path, "model: embedded\n")
    for step, records in steps.items():
        run.write_rollouts(step, records)
    for step, accuracy in (evals or {}).items():
        run.append_eval({"set": "held:out", "step": step, "accuracy": accuracy})
        held_out = {
            "task_id": "held:1",
            "prompt": PROMPT.format(9),
            "answer": "10",
            "completion": f"it is {step}",
            "reward": accuracy,
            "note": "as text",
            "completion_tokens": 3,
            "finish_reason": "stop",
        }
        run.write_eval_completions("held:out", step, [held_out])
    run.close()
    return run


def write_tokens(run: RunDir, step: int) -> None:
    """What a replay writes: logprobs -0.5 before and -0.25 after, entropies 1.5."""
    rows = run.rollouts(step)
    counts = [len(row["token_ids"]) for row in rows]
    content = (run.path / "rollouts" / f"step-{step:06d}.jsonl").read_bytes()
    about = {"step": step, "sha256": hashlib.sha256(content).hexdigest(), "weights": "those before", "is_exact": True}
    values = {"before": -0.5, "entropy": 1.5, "after": -0.25}
    run.write_tokens(step, about, [{name: floats([v] * n) for name, v in values.items()} for n in counts])


def hostile_run(path: Path) -> RunDir:
    """Two steps of a group of hostile texts each, the second's with what a replay wrote of its tokens."""
    records = [
        (rollout if sample else paid)(1, sample, text, dropped="zero_deviation" if sample == 2 else None)
        for sample, text in enumerate(HOSTILE)
    ]
    run = write_run(path, {1: records, 2: [paid(1, 0, "It is 2"), rollout(1, 1, "It is 3")]}, {0: 0.0, 2: 1.0})
    write_tokens(run, 2)
    return run


def loaded(document: dict[str, object]) -> dict[str, Any]:
    """A document as a page reads it."""
    found: dict[str, Any] = json.loads(json.dumps(document))
    return found
