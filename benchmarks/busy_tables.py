"""The page's part about a machine that others use too."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median

BUSY = """
## Beside other processes

A step's two phases alone, and what is left of their speed beside one and beside two processes that burn a core each.
The fair share is what a scheduler gives that treats all runnable threads alike. `spinning` is Paceline with the OpenMP
library's own way of waiting; vLLM samples only. `benchmarks/bench_busy.py` says how it is measured.
"""
HEAD = [
    "| contender | threads | sampling: tokens/s alone | beside one | beside two | update: seconds alone | beside one "
    "| beside two | fair share |",
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
]


def busy_parts(results: Sequence[Mapping], machine: Callable[[Mapping], str]) -> list[str]:
    """The part about busy machines, a table for each result; nothing where there is none."""
    parts = [BUSY, machine(results[0]), ""] if results else []
    for result in results:
        rows = [_row(name, one) for name, one in result["contenders"].items() if "error" not in one]
        counts = {len(one["runs"]) for one in result["contenders"].values() if "error" not in one}
        parts += [f"### `{result['size']}`, beside others\n", f"Repetitions: {max(counts)}.\n", *HEAD, *rows, ""]
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
