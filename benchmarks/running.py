"""The command line of a benchmark: every workload of the chosen sizes, one result file per size."""

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from measuring import machine
from workloads import Workload, quick

RESULTS = Path(__file__).parent / "results"
Measure = Callable[..., dict]
"""Called as `measure(name, workload, is_quick=..., threads=...)`."""


def run(benchmark: str, table: Mapping[str, Workload], measure: Measure, *, description: str) -> int:
    """Measure, print, write.

    Returns:
        The exit status: 1 where a peer did not do the same work as Paceline or a contender did not end.
    """
    given = arguments(description)
    complaints = []
    for size in ("shipped", "30m") if given.size == "all" else (given.size,):
        conditions, measured = machine(given.threads), {}
        for name, workload in table.items():
            if workload.size == size:
                workload = quick(workload) if given.quick else workload
                measured[name] = measure(name, workload, is_quick=given.quick, threads=given.threads)
                complaints += [f"{name}: {sentence}" for sentence in _told(name, measured[name])]
        if given.output is not None:
            result = {"benchmark": benchmark, "size": size, "quick": given.quick, "machine": conditions}
            print(write_result(given.output, {**result, "workloads": measured}))
    print("\n".join(complaints) or "every contender did the same work")
    return 1 if complaints else 0


def _told(name: str, measured: dict) -> list[str]:
    """Print the ratios; give what is wrong with them."""
    for peer, ratio in measured["paceline_faster_by"].items():
        print(f"{name}: Paceline is {ratio:.2f} times as fast as {peer}", flush=True)
    ended = [f"{peer} ended: {one['error']}" for peer, one in measured["contenders"].items() if "error" in one]
    return ended + measured["unequal_work"]


def arguments(description: str) -> argparse.Namespace:
    """Size, threads, quick, output."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=["shipped", "30m", "all"], default="all")
    parser.add_argument("--threads", type=int, default=2, help="of each contender (default 2)")
    parser.add_argument("--quick", action="store_true", help="a few tokens; writes nothing unless --output is given")
    parser.add_argument("--output", type=Path, help="directory of the JSON files (default benchmarks/results)")
    given = parser.parse_args()
    if given.output is None and not given.quick:
        given.output = RESULTS
    return given


def write_result(directory: Path, result: Mapping[str, object]) -> Path:
    """One JSON file per benchmark and size."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{result['benchmark']}-{result['size']}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path
