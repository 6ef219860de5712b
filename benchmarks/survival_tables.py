"""The page's parts about what surviving costs and how fast a wrong command is refused."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median

SURVIVAL = """
## The cost of crash safety

Throughput of steps with rollouts on disk and a checkpoint every few steps, relative to the same steps without any
writing, with its 95 % interval. A repetition is two runs of the same steps that switch writing on and off in turns of a
few steps. So differences between processes, or between times of day, cancel out; the method is in
`benchmarks/bench_survival.py`. The default is `background`. The embedded model's steps are among the shortest there
are, and write 256 rollouts each.
"""
HEAD = ["| what is written | throughput | a step |", "|---|--:|--:|"]
REFUSALS = """
## Refusing a wrong command

Each of the {count} wrong commands of `tests/support/wrong_inputs.py` runs as a process of its own. The time is from the
start of Python to its exit with status 2 and one sentence. The limit is {limit:g} s.
"""
SLOWEST = 5
"""Rows of the table."""


def survival_parts(results: Sequence[Mapping], machine: Callable[[Mapping], str]) -> list[str]:
    """The part about surviving, a table for each result; nothing where there is none."""
    parts = [SURVIVAL] if results else []
    for result in results:
        every, turn = result["window"], result["turn"]
        setting = f"A checkpoint every {every} steps; runs of {result['steps']} steps, turns of {turn}.\n"
        table = [*HEAD, *survival_rows(result["rows"])]
        parts += [f"### `{result['size']}`\n", setting, machine(result), "", *table, ""]
    return parts


def survival_rows(rows: Mapping[str, Mapping]) -> list[str]:
    """A line for each row of a result."""
    return [
        f"| {name} | {one['throughput']['value']:.3f} "
        f"({one['throughput']['low']:.3f}-{one['throughput']['high']:.3f}) | {one['step']:.3f} s |"
        for name, one in rows.items()
    ]


def refusal_parts(result: Mapping) -> list[str]:
    """How long refusals take, and which take longest."""
    seconds = {name: one["seconds"] for name, one in result["cases"].items()}
    slowest = sorted(seconds, key=lambda name: -seconds[name])[:SLOWEST]
    within = sum(one <= result["limit"] for one in seconds.values())
    right = sum(not one["wrong"] for one in result["cases"].values())
    return [
        REFUSALS.format(count=len(seconds), limit=result["limit"]),
        f"{right} of {len(seconds)} were refused correctly, {within} within {result['limit']:g} s; the median "
        f"took {median(seconds.values()):.2f} s.",
        "",
        "| the slowest | seconds | processor seconds |",
        "|---|--:|--:|",
        *(f"| {name} | {seconds[name]:.2f} | {result['cases'][name]['processor_seconds']:.2f} |" for name in slowest),
        "",
    ]
