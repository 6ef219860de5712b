"""The page's part about a machine that others use too."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median

BUSY = """
## On a busy machine

The speed of a step's two phases alone, and the share of it that remains when one or two other processes each use a
core. The fair share is what a scheduler would give if it treated all runnable threads alike. `spinning` is Paceline
with the OpenMP library's own way of waiting. vLLM only samples. For `30m` the work is 4 prompts with 8 completions of
exactly 24 tokens. The method is in `benchmarks/bench_busy.py`.
"""
HEAD = [
    "| contender | threads | sampling: tokens/s alone | one other | two others | update: seconds alone | one other "
    "| two others | fair share |",
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
]


def busy_parts(results: Sequence[Mapping], machine: Callable[[Mapping], str]) -> list[str]:
    """The part about busy machines, a table for each result; nothing where there is none."""
    parts = [BUSY] if results else []
    for result in results:
        rows = [_row(name, one) for name, one in result["contenders"].items() if "error" not in one]
        counts = {len(one["runs"]) for one in result["contenders"].values() if "error" not in one}
        heading, repetitions = f"### `{result['size']}`, on a busy machine\n", f"Repetitions: {max(counts)}.\n"
        parts += [heading, repetitions, machine(result), "", *HEAD, *rows, ""]
    return parts


def _row(name: str, one: Mapping) -> str:
    """Medians over the repetitions."""
    rate = 1 / median(run["0"]["sampling"] for run in one["runs"])
    cells = [
        name,
        f"{one['threads']}",
        f"{rate:,.0f}",
        *(f"{share:.2f}" for share in one["shares"]["sampling"].values()),
    ]
    if "update" in one["shares"]:
        alone = median(run["0"]["update"] for run in one["runs"])
        cells += [f"{alone:.2f}", *(f"{share:.2f}" for share in one["shares"]["update"].values())]
    else:
        cells += ["", "", ""]
    return f"| {' | '.join([*cells, ', '.join(f'{share:.2f}' for share in one['fair'].values())])} |"
