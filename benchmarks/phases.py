"""A step's phases against their floors: seconds measured, seconds that the machine needs at least.

    python benchmarks/machine.py
    python benchmarks/phases.py [--workload NAME] [--device cpu|cuda] [--threads 2] [--repetitions 3] [--profile]
                                [--quick]

Workloads are those of the step (default: all of the device's). The step is Paceline's own, as bench_step.py runs it;
its methods are timed from outside. Floors come from step_work.py and from a result of machine.py, which must have been
measured on the same machine with the same threads. docs/performance.md explains both.

With --profile a step runs under torch's profiler first, its two halves apart, and some decoding steps with 256, 64, 16
and 1 rows: kernels by name, launches, the share of the wall clock in which the device computes, bytes over seconds.

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
from profiling import ROWS, decoding, profiled
from running import RESULTS, make_materials, write_result
from savings import layouts
from step_paceline import Limited, sampler_and_learner, step, task_of
from step_work import Group, Shape, tokens_that_exist
from stopwatch import Stopwatch
from workloads import LEARNING_RATE, ON_CPU, ON_CUDA, STEP

from paceline.objective.micro_batches import MicroBatch
from paceline.training.learner.learner import Learner
from paceline.training.rollouts.sampler import Sampler


class Watched:
    """A sampler and a learner with a stopwatch on them."""

    def __init__(self, engine: Limited, sampler: Sampler, learner: Learner, device: str) -> None:
        """Takes them over: from now on every call of theirs is timed."""
        self.engine, self.sampler, self.learner = engine, sampler, learner
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

    def _note(self, parts: Sequence[MicroBatch], **_: object) -> None:
        self._batches.extend(parts)

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
        parts = sampler_and_learner(given, arguments.device)
    profiles = profiles_of(*parts, given, arguments) if arguments.profile else None
    halves_of_a_step = Watched(*parts, arguments.device)
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
        **({} if profiles is None else {"profile": profiles}),
    }


def profiles_of(
    engine: Limited, sampler: Sampler, learner: Learner, given: Given, arguments: argparse.Namespace
) -> dict[str, object]:
    """The two halves of a step and single decoding steps, under the profiler and without it.

    The step is that of repetition 1, after the warm-up and once without the profiler, whose seconds count.
    """
    device, prompts = arguments.device, given.repetitions[1]
    shape, size = Shape.of(learner.policy.model.config), learner.policy.compute_dtype.itemsize
    step(engine, sampler, learner, given.repetitions[0])
    plain = step(engine, sampler, learner, prompts)
    seconds = float(plain["seconds"])
    sampling_seconds = float(plain["generate_seconds"])
    sampled: list = []
    tasks = [(task_of(prompt), 0) for prompt in prompts]
    engine.limits = [prompt.limits for prompt in prompts]
    sampling = profiled(lambda: sampled.append(sampler.sample(lambda count: tasks[:count], len(tasks))), device)
    update = profiled(lambda: learner.step(sampled[0].groups, learning_rate=LEARNING_RATE), device)
    engine.engine.policy_version = learner.policy_version
    rows = [count for count in ROWS if count <= given.workload.completions]
    return {
        "seconds": seconds,
        "busy_share": (sampling.busy + update.busy) / seconds,
        "sampling": sampling.told(wall=sampling_seconds),
        "update": update.told(wall=seconds - sampling_seconds),
        "decoding": [decoding(engine.engine, shape, device, size=size, rows=count) for count in rows],
    }


def profile_table(profiles: dict) -> list[str]:
    """The profiles as lines of text."""
    lines = [f"  a step: {profiles['seconds']:.3f} s, the device computes in {profiles['busy_share']:.1%} of it"]
    for name in ("sampling", "update"):
        one = profiles[name]
        lines.append(
            f"  {name}: {one['seconds']:.3f} s, computing {one['busy_share']:.1%}, {one['launches']:,} launches"
        )
        lines += [f"    {k['seconds']:>9.4f} s {k['calls']:>8,} x {k['name']}" for k in one["kernels"]]
    for one in profiles["decoding"]:
        lines.append(
            f"  decoding {one['rows']} rows: {one['seconds'] * 1e3:.3f} ms a step, "
            f"{one['bytes_per_second'] / 1e9:,.0f} GB/s, computing {one['busy_share']:.1%}, "
            f"{one['launches']:,} launches"
        )
        lines += [f"    {k['seconds'] * 1e6:>9.1f} us {k['calls']:>6,} x {k['name']}" for k in one["kernels"][:8]]
    return lines


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
        if asked.profile:
            print("\n".join(profile_table(result["profile"])), flush=True)
        if asked.output is not None:
            print(write_result(asked.output, result, prefix="gpu-" if asked.device == "cuda" else ""))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=list(STEP), action="append", help="may be given again")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="at most, as many as machine.py had (default 2)")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="also a step under torch's profiler")
    parser.add_argument("--machine", type=Path, help="result of machine.py (default: the device's in results/)")
    parser.add_argument("--quick", action="store_true", help="a few tokens; writes nothing unless --output is given")
    parser.add_argument("--output", type=Path, help="directory of the JSON files (default benchmarks/results)")
    asked = parser.parse_args()
    if asked.output is None and not asked.quick:
        asked.output = RESULTS
    return asked


if __name__ == "__main__":
    main()
