"""The page's part about what a real model learns with either trainer."""

from collections.abc import Callable, Mapping, Sequence

LEARNING = """
## Learning

![Held-out accuracy over minutes of training and over sampled tokens, of both trainers](../../docs/learning-curve.svg)

One script, with the import of `GRPOTrainer` changed, trains SmolLM2-135M-Instruct on word problems of one step.
Model, prompts, reward function, sampling, loss and optimiser are the same, all in float32. There are
{settings[max_steps]} steps of {settings[prompts_per_step]} prompts x {settings[num_generations]} completions of at
most {settings[max_completion_length]} tokens. The picture has the mean of three seeds, and from the lowest to the
highest.

The table has how many of {settings[held_out]} held-out questions are right in the end. They are answered greedily
while the clock stands still. `sooner by` is how many times longer TRL took to the accuracy that both reached, the
lower of the two in the end. The method is in `benchmarks/bench_learning.py`.
"""


def learning_parts(results: Sequence[Mapping], machine: Callable[[Mapping], str]) -> list[str]:
    """The part about learning, a line per seed; nothing where there is no result."""
    parts = list[str]()
    for result in results:
        rows = [_row(seed, one, result["settings"]["held_out"]) for seed, one in result["compared"].items()]
        head = [
            "| seed | right: Paceline | TRL | seconds per step: Paceline | TRL | sooner by |",
            "|--:|--:|--:|--:|--:|--:|",
        ]
        parts += [LEARNING.format_map(result), machine(result), "", *head, *rows, ""]
    return parts


def _row(seed: str, one: Mapping, held_out: int) -> str:
    mine, theirs = one["seconds_per_step"]["paceline"], one["seconds_per_step"]["trl"]
    right = [f"{100 * one['right'][library] / held_out:.1f} %" for library in ("paceline", "trl")]
    return f"| {seed} | {right[0]} | {right[1]} | {mine:.1f} | {theirs:.1f} | {one['sooner_by']:.1f}x |"
