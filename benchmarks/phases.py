"""A step's phases against their floors: seconds measured, seconds that the machine needs at least.

    python benchmarks/machine.py
    python benchmarks/phases.py [--workload NAME] [--device cpu|cuda] [--threads 2] [--repetitions 3] [--quick]

Workloads are those of the step (default: all of the device's). The step is Paceline's own, as bench_step.py runs it;
its methods are timed from outside. Floors come from step_work.py and from a result of machine.py, which must have been
measured on the same machine with the same threads. docs/performance.md explains both.

Beside the phases: tokens forwarded in training over tokens that exist (each trained group's prompt once, the inputs of
its completions), and the same of prompts alone.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

import torch
from floors import Rates, rates_of
from given import Given, Prompt
from machine import described, result_file
from measuring import peak_mib
from phase_floors import PHASES, against_floors, phase_work, sampled_groups, summarised, trained_groups
from running import RESULTS, make_materials, write_result
from savings import layouts
from step_paceline import sampler_and_learner, step
from step_work import Group, Shape, tokens_that_exist
from stopwatch import Stopwatch
from workloads import ON_CPU, ON_CUDA, STEP

from paceline.training.learner.learner import PreparedBatch


class Watched:
    """A sampler and a learner with a stopwatch on them."""

    def __init__(self, given: Given, device: str) -> None:
        """Loads the model."""
        self.engine, self.sampler, self.learner = sampler_and_learner(given, device)
        self.watch = Stopwatch(synchronize=torch.cuda.synchronize if device == "cuda" else None)
        self.shape = Shape.of(self.learner.policy.model.config)
        self.dtype = self.learner.policy.compute_dtype
        self._groups: list = []
        self._batches: list = []
        self._watch_generation()
        self._watch_update()

    def _watch_generation(self) -> None:
        local = self.engine.engine
        self.watch.watch(local, "generate", "sampling")
        for method, phase in (("begin", "weights"), ("admit", "prefill"), ("step", "decode")):
            self.watch.watch(local._decoder, method, phase)

    def _watch_update(self) -> None:
        learner = self.learner
        self.watch.watch(learner, "step", "packing", told=lambda groups, **_: self._groups.extend(groups))
        self.watch.watch(learner, "_update", "optimiser")
        self.watch.watch(learner, "backward", "backward", told=self._note)
        self.watch.watch(learner, "_loss", "forward")
        self.watch.watch(learner.runner, "_values", "forward")

    def _note(self, parts: Sequence[PreparedBatch], **_: object) -> None:
        self._batches.extend(part.batch for part in parts)

    def step(self, prompts: Sequence[Prompt], rates: Rates) -> dict[str, object]:
        """One step: its seconds, its phases with their floors, its tokens."""
        self._groups.clear()
        self._batches.clear()
        started = time.perf_counter()
        with self.watch.phase("rewards"):
            step(self.engine, self.sampler, self.learner, prompts)
        whole = time.perf_counter() - started
        seconds, calls = self.watch.read()
        sampled, trained = sampled_groups(self._groups), trained_groups(self._groups)
        work = phase_work(
            self.shape, sampled, trained, size=self.dtype.itemsize, micro_batches=max(1, len(self._batches))
        )
        return {
            "seconds": whole,
            "phases": against_floors(seconds, work, rates),
            "calls": calls,
            "tokens": self._tokens(sampled, trained),
            "layouts": [asdict(one) for one in layouts(self.shape, sampled)],
        }

    def _tokens(self, sampled: Sequence[Group], trained: Sequence[Group]) -> dict[str, int]:
        return {
            "generated": sum(sum(group.completions) for group in sampled),
            "prompts": sum(group.prompt for group in sampled),
            "exist": tokens_that_exist(trained),
            "forwarded": sum(len(batch.input_ids) for batch in self._batches),
            "prompts_exist": sum(group.prompt for group in trained if group.completions),
            "prompts_forwarded": sum(sum(batch.prompt_lengths) for batch in self._batches),
            "micro_batches": len(self._batches),
        }


def measure(name: str, arguments: argparse.Namespace, machine: dict) -> dict[str, object]:
    """A warm-up and the repetitions of one workload."""
    with tempfile.TemporaryDirectory() as directory:
        path = make_materials("step", name, is_quick=arguments.quick, directory=directory)
        given = Given.read(path)
        halves_of_a_step = Watched(given, arguments.device)
    dtype = str(halves_of_a_step.dtype).removeprefix("torch.")
    rates = rates_of(machine, dtype)
    count = min(arguments.repetitions, len(given.repetitions) - 1)
    # the first one warms up, and is thrown away
    steps = [halves_of_a_step.step(prompts, rates) for prompts in given.repetitions[: count + 1]][1:]
    return {
        "benchmark": "phases",
        "size": name,
        "quick": arguments.quick,
        "machine": described(arguments.device, arguments.threads),
        "dtype": dtype,
        "threads_of_the_step": torch.get_num_threads(),
        "rates": asdict(rates),
        "parameters": halves_of_a_step.shape.parameters,
        "workload": asdict(given.workload),
        "seconds": median(one["seconds"] for one in steps),
        "peak_mib": peak_mib(),
        "phases": summarised([one["phases"] for one in steps]),
        "forwarded_over_exist": _ratio(steps, "forwarded", "exist"),
        "prompts_forwarded_over_exist": _ratio(steps, "prompts_forwarded", "prompts_exist"),
        "repetitions": steps,
    }


def _ratio(steps: Sequence[dict], above: str, below: str) -> float:
    return sum(one["tokens"][above] for one in steps) / max(1, sum(one["tokens"][below] for one in steps))


def table(result: dict) -> list[str]:
    """The measurements as lines of text."""
    lines = [f"{result['size']}, {result['dtype']}: {result['seconds']:.3f} s per step"]
    for name in PHASES:
        one = result["phases"][name]
        line = f"  {name:<10}{one['seconds']:>10.4f} s"
        if one["floor"]:
            line += f"   floor {one['floor']:>9.4f} s ({one['limit']})   {one['over']:>6.1f}x"
        lines.append(line)
    lines.append(f"  tokens forwarded / that exist: {result['forwarded_over_exist']:.3f}")
    lines.append(f"  of prompts alone:              {result['prompts_forwarded_over_exist']:.3f}")
    return lines


def main() -> None:
    asked = _arguments()
    file = asked.machine or result_file(asked.device)
    if not file.is_file():
        raise SystemExit(f"{file} is not there; run benchmarks/machine.py --device {asked.device} first")
    machine = json.loads(file.read_text())
    torch.set_num_threads(asked.threads)
    for name in asked.workload or (ON_CPU if asked.device == "cpu" else ON_CUDA):
        result = measure(name, asked, machine)
        print("\n".join(table(result)), flush=True)
        if asked.output is not None:
            print(write_result(asked.output, result, prefix="gpu-" if asked.device == "cuda" else ""))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=list(STEP), action="append", help="may be given again")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="at most, as many as machine.py had (default 2)")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--machine", type=Path, help="result of machine.py (default: the device's in results/)")
    parser.add_argument("--quick", action="store_true", help="a few tokens; writes nothing unless --output is given")
    parser.add_argument("--output", type=Path, help="directory of the JSON files (default benchmarks/results)")
    asked = parser.parse_args()
    if asked.output is None and not asked.quick:
        asked.output = RESULTS
    return asked


if __name__ == "__main__":
    main()
