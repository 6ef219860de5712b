"""A busy machine: how much of its speed a step keeps beside processes that burn a core each, and how much TRL and vLLM.

    python benchmarks/bench_busy.py [--workload NAME] [--threads 2] [--repetitions 3] [--vllm-python FILE]
                                    [--output DIR]

| contender          | what it is                                                                                |
|--------------------|-------------------------------------------------------------------------------------------|
| paceline           | `Sampler.sample` and `Learner.step`, as in bench_step.py                                    |
| paceline-spinning  | the same with the OpenMP library's own spinning (GOMP_SPINCOUNT=300000)                    |
| trl                | `GRPOTrainer` of TRL in float32, generation by `generate`, all completions in a micro-batch |
| vllm               | vLLM's sampling of the same completions in float32                                         |

Contenders take turns: each repetition alone, then beside one and beside two processes that compute without end, while
the other contenders sleep. A share is the median of seconds alone over seconds beside, in the same repetition. The fair
share is what a scheduler gives that treats all runnable threads alike: cores / (threads + competitors), at most 1.
Paceline's threads are those that it chooses by itself.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from figures import disagreements
from measuring import Contender, Entry, machine
from running import RESULTS, VLLM_PYTHON, make_materials, write_result
from workloads import BUSY

COMPETITORS = (0, 1, 2)
TIMEOUT = 900.0
"""Seconds that a contender may take to load, or for one repetition."""
SPINNING = {"GOMP_SPINCOUNT": "300000"}


def main() -> int:
    """Measure, print, write; 1 where a contender did not end well or did other work."""
    asked = _arguments()
    complaints = []
    for name in asked.workload:
        where = machine(asked.threads)
        with tempfile.TemporaryDirectory() as directory:
            given = make_materials("busy", name, is_quick=False, directory=directory)
            measured = measure(name, _entries(name, given, asked), asked)
        complaints += [f"{name}: {one}: {found['error']}" for one, found in measured.items() if "error" in found]
        complaints += [sentence for found in measured.values() for sentence in found.get("unequal_work", [])]
        result = {"benchmark": "busy", "size": name, "machine": where, "contenders": measured}
        print(write_result(asked.output, result), flush=True)
    print("\n".join(complaints) or "every contender did the same work")
    return 1 if complaints else 0


def _entries(name: str, given: Path, asked: argparse.Namespace) -> dict[str, tuple[Entry, Mapping[str, str]]]:
    """Each contender with what its environment has besides."""
    usual = [str(given), str(asked.threads), "cpu"]
    mine = Entry(script="step_paceline.py", arguments=usual)
    trl = Entry(script="step_trl.py", arguments=[*usual, "generate", "float32", str(BUSY[name].completions), "plain"])
    found: dict[str, tuple[Entry, Mapping[str, str]]] = {"paceline": (mine, {})}
    found |= {"paceline-spinning": (mine, SPINNING), "trl": (trl, {})}
    if asked.vllm_python.is_file():
        arguments = [*usual, "float32", "eager"]
        found["vllm"] = (Entry(script="generate_vllm.py", arguments=arguments, python=str(asked.vllm_python)), {})
    return found


def measure(
    name: str, entries: Mapping[str, tuple[Entry, Mapping[str, str]]], asked: argparse.Namespace
) -> dict[str, dict]:
    """By contender: its threads, the seconds of each repetition by competitors, and the shares that it kept."""
    found: dict[str, dict] = {}
    answers: dict[str, list[dict]] = {}
    with ExitStack() as stack:
        running: dict[str, Contender] = {}
        for one, (entry, variables) in entries.items():
            with _environment(variables):
                running[one] = stack.enter_context(Contender.start(entry, threads=asked.threads))
            answer = running[one].read(timeout=TIMEOUT)
            answers[one] = []
            found[one] = answer if "error" in answer else {"threads": answer.get("threads", asked.threads), "runs": []}
        for repetition in range(asked.repetitions + 1):
            for one in [one for one in running if "error" not in found[one]]:
                run: dict[str, dict[str, float]] = {}
                for competitors in COMPETITORS if repetition else (0,):  # the first is a warm-up
                    with _burning(competitors):
                        answer = running[one].ask({"repetition": len(answers[one])}, timeout=TIMEOUT)
                    answers[one].append(answer)
                    if "error" in answer:
                        found[one]["error"] = answer["error"]
                        break
                    run[str(competitors)] = _seconds(answer)
                    print(f"  {name}, {one}, beside {competitors}: {run[str(competitors)]}", flush=True)
                if repetition:
                    found[one]["runs"].append(run)
    for one, kept in found.items():
        if "error" not in kept:
            kept["shares"] = shares(kept["runs"])
            cores = os.cpu_count() or 1
            kept["fair"] = {str(more): min(1.0, cores / (kept["threads"] + more)) for more in COMPETITORS[1:]}
            exact = [] if BUSY[name].lengths == "natural" else ["tokens"]
            mine = [
                {key: value for key, value in first.items() if key in answers[one][0]} for first in answers["paceline"]
            ]
            kept["unequal_work"] = disagreements(one, mine, answers[one], exact=exact)
    return found


def _seconds(answer: Mapping[str, float]) -> dict[str, float]:
    """Seconds per token sampled, and of the update where the contender makes one."""
    generating = answer.get("generate_seconds", answer["seconds"])
    found = {"sampling": generating / answer["tokens"]}
    return found | ({"update": answer["seconds"] - generating} if "generate_seconds" in answer else {})


def shares(runs: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """By phase and competitors: the median over the repetitions of seconds alone / seconds beside."""
    return {
        phase: {str(more): median(run["0"][phase] / run[str(more)][phase] for run in runs) for more in COMPETITORS[1:]}
        for phase in runs[0]["0"]
    }


@contextmanager
def _burning(count: int) -> Iterator[None]:
    """That many processes which compute, one thread each, until the end of the block."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=list(BUSY), action="append", help="may be given again (default: all)")
    parser.add_argument("--threads", type=int, default=2, help="of each contender (default 2)")
    parser.add_argument("--repetitions", type=int, default=3, help="after a warm-up (default 3)")
    parser.add_argument("--vllm-python", type=Path, default=VLLM_PYTHON, help="of the environment with vLLM")
    parser.add_argument("--output", type=Path, default=RESULTS, help="directory of the JSON files")
    asked = parser.parse_args()
    asked.workload = asked.workload or list(BUSY)
    return asked


if __name__ == "__main__":
    raise SystemExit(main())
