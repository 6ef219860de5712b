"""A run directory as a real run writes it, made of smooth curves and a fixed seed: for tests and for looking at."""

import math
import random
from pathlib import Path
from typing import Any

from paceline.checkpoints.run_directory import RunDir
from paceline.metrics.statistics import paired_difference, wilson

CONFIG = """# written by paceline
paceline_version: 0.1.0
# model
model: embedded
dtype: auto
# data
dataset: arithmetic
max_prompt_length: 512
# rewards
reward_funcs: [accuracy, format]
# sampling
num_generations: 8
max_completion_length: 96
temperature: 1.0
# loop
prompts_per_step: 16
max_steps: 100
seed: 0
"""

SET = "arithmetic:test"
SYSTEM = "<|im_start|>system\nThink first, then give the answer in <answer> tags.<|im_end|>\n<|im_start|>user\n"


def write_synthetic_run(
    path: Path, *, steps: int = 100, finished: bool = True, eval_every: int = 20, tasks: int = 500, prompts: int = 16
) -> RunDir:
    """Write `steps` steps, evaluations every `eval_every`, and a summary if `finished`."""
    draw = random.Random(0)
    run = RunDir.create(path, CONFIG)
    evaluated = {0: _evaluate(run, 0, 100, tasks)}
    for step in range(1, steps + 1):
        skill = _skill(step, 100)
        records = [record for index in range(prompts) for record in _group(draw, step, index, skill)]
        run.write_rollouts(step, records)
        run.append_metrics(_metrics(draw, step, skill, records))
        if step % eval_every == 0:
            evaluated[step] = _evaluate(run, step, 100, tasks)
    if finished:
        run.write_summary(_summary(run, evaluated))
        run.close()  # of another the writer lives on
    return run


def _skill(step: int, steps: int) -> float:
    return 0.25 + 0.72 / (1 + math.exp(-9 * (step / steps - 0.38)))


def _question(draw: random.Random) -> tuple[str, int]:
    a, b = draw.randint(10, 99), draw.randint(2, 30)
    name, fruit = draw.choice(["Ada", "Emil", "Noor", "Tomas"]), draw.choice(["apples", "plums", "figs"])
    return f"{name} has {a} {fruit} and buys {b} more. How many {fruit} does {name} have now?", a + b


def _answer(draw: random.Random, total: int, right: bool, tidy: bool) -> str:
    said = total if right else total + draw.choice([-10, -1, 1, 10])
    thought = f"I add the two numbers. That gives {said}." if tidy else "We have to add add the numbers & so on < so"
    return f"<think>{thought}</think>\n<answer>{said}</answer>" if tidy or right else f"{thought} {said} {said}"


def _group(draw: random.Random, step: int, index: int, skill: float) -> list[dict[str, Any]]:
    question, total = _question(draw)
    ease = min(1.0, max(0.0, skill + draw.gauss(0, 0.25)))
    rights = [draw.random() < ease for _ in range(8)]
    tidy = [draw.random() < 0.3 + 0.7 * skill for _ in range(8)]
    rewards = [float(r) + 0.2 * t for r, t in zip(rights, tidy, strict=True)]
    mean = sum(rewards) / 8
    std = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / 7)
    dropped = None if std > 0 else "zero_deviation"
    return [
        {
            "task_id": f"arithmetic:{step}-{index}",
            "sample": sample,
            "prompt": f"{SYSTEM}{question}<|im_end|>\n<|im_start|>assistant\n",
            "answer": str(total),
            "completion": _answer(draw, total, rights[sample], tidy[sample]),
            "prompt_tokens": 48,
            "completion_tokens": min(96, int(34 + 40 * (1 - skill) + abs(draw.gauss(0, 14)))),
            "rewards": {"accuracy": float(rights[sample]), "format": 0.2 * tidy[sample]},
            "reward": rewards[sample],
            "advantage": (rewards[sample] - mean) / std if std else 0.0,
            "finish_reason": "stop" if draw.random() < 0.9 + 0.1 * skill else "length",
            "policy_version": step - 1,
            "weight_changes": [],
            "dropped": dropped,
        }
        for sample in range(8)
    ]


def _metrics(draw: random.Random, step: int, skill: float, records: list[dict[str, Any]]) -> dict[str, Any]:
    groups = [records[start : start + 8] for start in range(0, len(records), 8)]
    lengths = [record["completion_tokens"] for record in records]
    generate, reward, update, other = (draw.uniform(0.9, 1.1) * s for s in (0.9, 0.05, 0.7, 0.04))
    return {
        "step": step,
        "epoch": step * 16 / 10_000,
        "prompts": len(groups),
        "rollouts": len(records),
        "policy_version": step,
        "updates": 1,
        **_reward_metrics(records),
        "completion_length_mean": sum(lengths) / len(lengths),
        "completion_length_max": max(lengths),
        "truncated_fraction": sum(r["finish_reason"] == "length" for r in records) / len(records),
        "groups_zero_deviation": sum(group[0]["dropped"] == "zero_deviation" for group in groups),
        "groups_no_reward": int(draw.random() < 0.05),
        "rollouts_without_reward": 0,
        "tokens_generated": sum(lengths),
        "staleness_mean": 0.0,
        "staleness_max": 0,
        "tokens_trained": sum(lengths),
        "tokens_forwarded": sum(lengths) + 48 * len(records),
        "loss": draw.gauss(0, 0.01),
        "entropy": 0.12 + 1.1 * math.exp(-step / 45) + abs(draw.gauss(0, 0.03)),
        "kl": 0.0004 * step + abs(draw.gauss(0, 0.002)),
        "grad_norm": 0.3 + 0.6 * math.exp(-step / 30) + abs(draw.gauss(0, 0.08)),
        "learning_rate": 1e-5 * min(1.0, step / 10),
        "clip_low_fraction": abs(draw.gauss(0, 0.0008)),
        "clip_high_fraction": abs(draw.gauss(0, 0.0016)),
        "logprob_mismatch_mean": 2e-7 * math.exp(draw.gauss(0, 0.3)),
        "logprob_mismatch_max": 6e-6 * math.exp(draw.gauss(0, 0.5)),
        "clock": {
            "generate": generate,
            "reward": reward,
            "update": update,
            "other": other,
            "total": generate + reward + update + other,
            "tokens_per_second": sum(lengths) / generate,
        },
    }


def _reward_metrics(records: list[dict[str, Any]]) -> dict[str, Any]:
    def spread(values: list[float]) -> tuple[float, float]:
        mean = sum(values) / len(values)
        return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))

    mean, std = spread([record["reward"] for record in records])
    rewards = {}
    for name, failures in (("accuracy", 0), ("format", 1)):
        one_mean, one_std = spread([record["rewards"][name] for record in records])
        rewards[name] = {"mean": one_mean, "std": one_std, "failures": failures, "seconds": 0.02}
    return {"reward_mean": mean, "reward_std": std, "rewards": rewards}


def _evaluate(run: RunDir, step: int, steps: int, tasks: int) -> list[bool]:
    questions, draw = random.Random(1), random.Random(step + 7)
    records = []
    for index in range(tasks):
        question, total = _question(questions)
        right = draw.random() < _skill(step, steps)
        records.append(
            {
                "task_id": f"{SET}:{index}",
                "prompt": f"{SYSTEM}{question}<|im_end|>\n<|im_start|>assistant\n",
                "answer": str(total),
                "completion": _answer(draw, total, right, step > 30 or draw.random() < 0.4),
                "reward": float(right),
                "correct": right,
                "completion_tokens": int(60 - 0.25 * step + draw.gauss(0, 5)),
                "finish_reason": "stop",
            }
        )
    rights = [record["correct"] for record in records]
    accuracy = wilson(sum(rights), tasks)
    run.write_eval_completions(SET, step, records)
    run.append_eval(
        {
            "set": SET,
            "step": step,
            "n": tasks,
            "correct": sum(rights),
            "accuracy": accuracy.value,
            "ci_low": accuracy.low,
            "ci_high": accuracy.high,
            "generations": 1,
            "ungraded": 0,
            "completion_length_mean": 60 - 0.25 * step,
            "truncated_fraction": 0.0,
            "clock": {"seconds": 2.4},
        }
    )
    return rights


def _summary(run: RunDir, evaluated: dict[int, list[bool]]) -> dict[str, Any]:
    first, last = min(evaluated), max(evaluated)
    sides = {}
    for name, step in (("before", first), ("after", last)):
        side = wilson(sum(evaluated[step]), len(evaluated[step]))
        sides[name] = {
            "accuracy": side.value,
            "ci_low": side.low,
            "ci_high": side.high,
            "n": len(evaluated[step]),
        }
    gain = paired_difference(evaluated[first], evaluated[last])
    clock = {
        name: math.fsum(r["clock"][name] for r in run.metrics()) for name in ("generate", "reward", "update", "other")
    }
    clock |= {"evaluate": 2.4 * len(evaluated), "checkpoint": 1.9}
    return {
        **sides,
        "difference": {"value": gain.value, "ci_low": gain.low, "ci_high": gain.high},
        "clock": {**clock, "total": sum(clock.values())},
        "finished": True,
    }
