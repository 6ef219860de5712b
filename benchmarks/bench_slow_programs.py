"""What programs that are slow on purpose cost a step whose reward is `code`: loops, sleepers, trees, floods.

    python benchmarks/bench_slow_programs.py [--workload NAME ...] [--quick] [--output DIR]

| workload | programs, one test each                                                             | `timeout` |
|----------|--------------------------------------------------------------------------------------|-----------|
| loops    | 200 endless loops, and 56 right programs spread among them                            | 10 s      |
| sleepers | 10 that sleep without end, and 10 right ones                                          | 1 s       |
| trees    | 6 that make directories in one another until they are ended, each before a right one  | 1 s       |
| floods   | 40 that print 1 MiB of empty lines, and 10 right ones                                 | 1 s       |

One batch each, as a step grades it. Its seconds on the clock hang on what else the machine does; the processor time of
the sandbox, of which half is the least that two cores need, does not.
"""

import argparse
import os
import resource
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from measuring import machine
from running import RESULTS, write_result

from paceline.rewards.builtin.code import code
from paceline.rewards.function import Grade, RewardContext
from paceline.sandbox.levels import open_sandbox
from paceline.sandbox.programs import Sandbox

SLOW = {
    "loops": "while True:\n    pass",
    "sleepers": "import threading\nthreading.Event().wait()",
    "trees": "import os\nwhile True:\n    os.mkdir('d')\n    os.chdir('d')",
    "floods": "import sys\nsys.stdout.write('\\n' * (1 << 20))",
}
COUNTS = {"loops": (200, 56, 10.0), "sleepers": (10, 10, 1.0), "trees": (6, 6, 1.0), "floods": (40, 10, 1.0)}
"""Slow programs, right ones, seconds of processor time for one test."""
ROW = {"inputs": ["20 22\n"], "outputs": ["42\n"]}


def main() -> int:
    """Measure, print, write; 1 where a right program lost its verdict or another one gained it."""
    given = arguments()
    with closing(open_sandbox("auto")) as sandbox:
        isolation = sandbox.description
    workloads = {name: measured(name, is_quick=given.quick) for name in given.workload or SLOW}
    wrong = [name for name, one in workloads.items() if one["right"] != one["right_programs"] or one["wrongly_right"]]
    if given.output is not None:
        result = {"benchmark": "rewards", "size": "slow", "quick": given.quick, "isolation": isolation}
        conditions = machine(os.cpu_count() or 1, packages=())
        print(write_result(given.output, {**result, "machine": conditions, "workloads": workloads}))
    print(f"wrong verdicts: {', '.join(wrong)}" if wrong else "every right program kept its verdict")
    return 1 if wrong else 0


def measured(name: str, *, is_quick: bool) -> dict[str, float]:
    """Seconds on the clock, and of the processor in this process and in the sandbox; what became of the programs."""
    children = children_seconds()
    with closing(open_sandbox("auto")) as sandbox:
        figures = graded(name, sandbox, is_quick=is_quick)
    figures["sandbox_seconds"] = children_seconds() - children  # known once its processes have ended
    print(f"  {name}: {', '.join(f'{key} {value:g}' for key, value in figures.items())}", flush=True)
    return figures


def children_seconds() -> float:
    """Processor time of processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def graded(name: str, sandbox: Sandbox, *, is_quick: bool) -> dict[str, float]:
    """One batch."""
    slow, right, timeout = COUNTS[name]
    if is_quick:
        slow, right = min(slow, 4), min(right, 4)
    function = code(RewardContext(open_sandbox=lambda: sandbox), timeout=timeout)
    programs = mixed([SLOW[name]] * slow, ["print(sum(map(int, input().split())))"] * right)
    completions = [f"```python\n{one}\n# {place}\n```" for place, one in enumerate(programs)]
    rows = [ROW] * len(programs)
    started, own = time.perf_counter(), time.process_time()
    grades = function(prompts=["?"] * len(programs), completions=completions, test_cases=rows)
    seconds, own = time.perf_counter() - started, time.process_time() - own
    assert all(isinstance(one, Grade) for one in grades), grades
    pairs = list(zip(programs, grades, strict=True))
    return {
        "seconds": seconds,
        "own_seconds": own,
        "slow_programs": slow,
        "right_programs": right,
        "timeout": timeout,
        "right": sum(grade.value == 1.0 for one, grade in pairs if one != SLOW[name]),
        "wrongly_right": sum(grade.value == 1.0 for one, grade in pairs if one == SLOW[name]),
        "cut_short": sum(grade.cut_short for grade in grades),
    }


def mixed(slow: Sequence[str], right: Sequence[str]) -> list[str]:
    """The right programs spread evenly among the slow ones."""
    places = {(2 * place + 1) * (len(slow) + len(right)) // (2 * len(right)) for place in range(len(right))}
    queues = {True: iter(right), False: iter(slow)}
    return [next(queues[place in places]) for place in range(len(slow) + len(right))]


def arguments() -> argparse.Namespace:
    """Workloads, quick, output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", nargs="+", choices=list(SLOW), help="default: all")
    parser.add_argument("--quick", action="store_true", help="4 programs of each kind; writes nothing without --output")
    parser.add_argument("--output", type=Path, help="directory of the JSON file (default benchmarks/results)")
    given = parser.parse_args()
    if given.output is None and not given.quick:
        given.output = RESULTS
    return given


if __name__ == "__main__":
    raise SystemExit(main())
