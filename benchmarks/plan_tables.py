"""The page's part about what `paceline plan` says of memory."""

from collections.abc import Callable, Mapping

PLAN = """
## Planned memory

The peak memory that `paceline plan` predicts, against the measured peak: main memory of the process `paceline train`.
`benchmarks/bench_plan.py` has the options and every part of each plan. Shapes are as above, and `100m` is Qwen2 with 12
layers, width 768 and a vocabulary of 32,768.

The planner's constants, for libraries and for memory that the C library holds besides activations, were fitted to these
runs, except the two marked with a star. Those two were off by +20 % and -3 % at first. The first error came from a step
that is trained on in parts, which the plan had not counted and now does.
"""
HEAD = ["| run | measured | planned | off by |", "|---|--:|--:|--:|"]
HELD_OUT = ("30m, four updates a step", "100m, adapter, micro-batches of 1,024")
"""Runs that were made when the constants stood."""


def plan_parts(result: Mapping, machine: Callable[[Mapping], str]) -> list[str]:
    """The part, with a table of all runs."""
    marked = {f"{name} *" if name in HELD_OUT else name: one for name, one in result["cases"].items()}
    return [PLAN, machine(result), "", *HEAD, *plan_rows(marked), ""]


def plan_rows(cases: Mapping[str, Mapping]) -> list[str]:
    """A line for each run."""
    return [
        f"| {name} | {one['measured'] / 2**20:,.0f} MiB | {one['planned']['peak'] / 2**20:,.0f} MiB "
        f"| {one['off']:+.1%} |"
        for name, one in cases.items()
    ]
