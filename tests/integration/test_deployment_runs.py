"""The batch scripts of `examples/slurm`, run as they stand up to where their ranks meet; when a job is put back."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.forked import SERVER

ROOT = Path(__file__).parents[2]
SLURM = ROOT / "examples" / "slurm"
RECIPE = "recipes/qwen2.5-1.5b-gsm8k-1x80gb.yaml"
LONGEST_SECONDS = 200.0
SRUN = """#!{python}
# Writes down what it is asked to start, makes what a test wants of the run, and ends as the test wants.
import json, os, pathlib, sys
here = pathlib.Path(__file__).parent
names = [name for name in os.environ if name.startswith(("SLURM_", "PACELINE_", "SRUN_"))]
with open(here / "started", "a") as file:
    file.write(json.dumps([sys.argv[1:], {{name: os.environ[name] for name in names}}]) + "\\n")
for path in (here / "makes").read_text().split():
    pathlib.Path(path).mkdir(parents=True, exist_ok=True)
sys.exit(int((here / "status").read_text()))
"""
SCONTROL = """#!/bin/sh
if [ "$1" = requeue ]; then echo "$2" >> "$(dirname "$0")/requeued"; else echo localhost; fi
"""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A folder as a cluster's login node has it, with programs in the place of Slurm's own."""

    folder: Path
    number: str
    options: Mapping[str, str]

    def run(self, script: str, *, status: int, makes: str = "") -> None:
        (self.folder / "slurm" / "status").write_text(str(status))
        (self.folder / "slurm" / "makes").write_text(makes)
        variables = {
            "SLURM_JOB_NAME": "paceline",
            "SLURM_JOB_ID": self.number,
            "SLURM_JOB_NODELIST": "localhost",
            "SLURM_NNODES": self.options.get("nodes", "1"),
            "SLURM_CPUS_PER_TASK": self.options["cpus-per-task"],
        }
        path = f"{self.folder / 'slurm'}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", str(SLURM / script)],
            cwd=self.folder,
            env={**os.environ, **variables, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (status, "")

    @property
    def started(self) -> tuple[list[str], dict[str, str]]:
        """The words behind the last `srun`, and its variables."""
        words, variables = json.loads((self.folder / "slurm" / "started").read_text().splitlines()[-1])
        return words, variables

    @property
    def requeued(self) -> int:
        """How often the job was put back."""
        file = self.folder / "slurm" / "requeued"
        return len(file.read_text().splitlines()) if file.exists() else 0


def job(folder: Path, script: str) -> Job:
    for name, text in (("srun", SRUN.format(python=sys.executable)), ("scontrol", SCONTROL)):
        file = folder / "slurm" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "activate").write_text("")
    # what is moved must leave a device: the first rank alone says so, once all have met and before weights are read
    (folder / "recipes").mkdir()
    (folder / RECIPE).write_text(
        "model: embedded\ndataset: arithmetic\ndataset_size: 100\ndevice: cpu\noffload: [activations]\n"
        "max_completion_length: 16\n"
    )
    options = dict(re.findall(r"#SBATCH --([a-z-]+)=(\S+)", (SLURM / script).read_text()))
    return Job(folder=folder, number=str(os.getpid()), options=options)


def by_srun(started: Job) -> list[tuple[list[str], dict[str, str]]]:
    """Words and variables of each task, as srun has them."""
    words, variables = started.started
    # else srun kills the first rank while it writes, and its status is no longer that of a stop
    assert words[:2] == ["--kill-on-bad-exit=0", "--wait=120"]
    nodes, tasks = int(started.options["nodes"]), int(started.options["ntasks-per-node"])
    shared = {
        **variables,
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": str(nodes * tasks),
        "SLURM_STEP_TASKS_PER_NODE": f"{tasks}(x{nodes})",
        "SLURM_STEP_NODELIST": "localhost",
    }
    return [
        (
            words[3:],
            {
                **shared,
                "SLURM_PROCID": str(rank),
                "SLURM_LOCALID": str(rank % tasks),
                "SLURM_NODEID": str(rank // tasks),
            },
        )
        for rank in range(nodes * tasks)
    ]


def by_torchrun(started: Job) -> list[tuple[list[str], dict[str, str]]]:
    """Words and variables of each rank, as torchrun's own parser reads its words and its agents set them."""
    from torch.distributed.run import parse_args

    words, variables = started.started
    assert words[0] == "torchrun"
    given = parse_args(words[1:])
    assert (given.module, given.training_script) == (True, "paceline")
    nodes, ranks = int(given.nnodes), int(given.nproc_per_node)
    # each node has one task, which is no rank itself
    shared = {**variables, "SLURM_STEP_NUM_TASKS": str(nodes), "WORLD_SIZE": str(nodes * ranks)}
    shared |= {"LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}
    return [
        (given.training_script_args, {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank % ranks)})
        for rank in range(nodes * ranks)
    ]


def be_rank(folder: Path, rank: int, words: list[str], variables: Mapping[str, str]) -> None:
    """Be `paceline WORDS` as one rank."""
    from paceline.cli.main import main

    os.chdir(folder)
    os.environ.update(variables, OMP_NUM_THREADS="1")
    os.dup2(os.open(f"rank-{rank}", os.O_WRONLY | os.O_CREAT), 2)
    sys.exit(main(words))


@pytest.mark.long
@pytest.mark.skipif(shutil.which("openssl") is None, reason="the scripts make their secret with openssl")
@pytest.mark.parametrize(
    ("script", "ranks_of"), [("several-nodes.sbatch", by_srun), ("several-nodes-torchrun.sbatch", by_torchrun)]
)
def test_the_ranks_of_a_batch_script_meet(tmp_path, script, ranks_of):
    started = job(tmp_path, script)
    started.run(script, status=2)
    ranks = ranks_of(started)
    assert len(ranks) == 8
    processes = [
        SERVER.Process(target=be_rank, args=(tmp_path, rank, words[words.index("train") :], variables))
        for rank, (words, variables) in enumerate(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LONGEST_SECONDS)
    said = [(tmp_path / f"rank-{rank}").read_text() for rank in range(8)]
    assert "--offload must not name activations on a CPU" in said[0], said
    assert "".join(said[1:]) == ""  # none of them was refused by itself
    assert [process.exitcode for process in processes] == [2] * 8


@pytest.mark.parametrize("script", ["one-process.sbatch", "several-nodes.sbatch", "several-nodes-torchrun.sbatch"])
def test_a_job_is_put_back_after_a_stop_and_not_after_an_error(tmp_path, script):
    started, run = job(tmp_path, script), f"runs/paceline-{os.getpid()}"
    is_torchrun = "torchrun" in script  # which ends with 1 whatever its ranks end with
    started.run(script, status=1 if is_torchrun else 2)
    started.run(script, status=1)
    assert started.requeued == 0
    started.run(script, status=1 if is_torchrun else 130, makes=f"{run}/checkpoints/step-000010")
    assert started.requeued == 1
    # no checkpoint since: an error that comes each time
    started.run(script, status=1)
    assert started.requeued == 1


def test_the_ranks_of_a_batch_script_end_by_themselves(tmp_path):
    started = job(tmp_path, "several-nodes.sbatch")
    started.run("several-nodes.sbatch", status=0)
    assert len(by_srun(started)) == 8


def test_each_attempt_of_a_batch_script_has_a_secret_of_its_own(tmp_path):
    started = job(tmp_path, "several-nodes.sbatch")
    secrets = []
    for _ in range(2):
        started.run("several-nodes.sbatch", status=0)
        secrets.append(started.started[1]["PACELINE_RANKS_SECRET"])
    assert all(re.fullmatch("[0-9a-f]{64}", secret) for secret in secrets)
    assert secrets[0] != secrets[1]
