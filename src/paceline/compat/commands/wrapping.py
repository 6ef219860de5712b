"""Words in front of a command that run it as it is: env, nohup, srun, uv run."""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from paceline.compat.commands.evaluating import ASSIGNMENT

WRAPPERS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("env",): ("-u", "--unset", "-C", "--chdir"),
    ("nohup",): (),
    ("time",): ("-f", "-o"),
    ("exec",): (),
    ("setsid",): (),
    ("nice",): ("-n",),
    ("sudo",): ("-u", "-g"),
    ("timeout",): ("-k", "-s"),
    ("taskset",): (),
    ("numactl",): ("-C", "-N", "-m"),
    ("stdbuf",): ("-i", "-o", "-e"),
    ("uv", "run"): (
        *("-p", "--python", "--with", "--with-editable", "--with-requirements", "--extra", "--group", "--env-file"),
        *("--package", "--project", "--directory", "--index", "--index-url", "--extra-index-url"),
    ),
    ("poetry", "run"): (),
    ("pipenv", "run"): (),
    ("pixi", "run"): ("-e", "--environment"),
    ("conda", "run"): ("-n", "--name", "-p", "--prefix", "--cwd"),
    ("srun",): (
        *("-N", "--nodes", "-n", "--ntasks", "-p", "--partition", "-c", "--cpus-per-task", "-t", "--time", "-J"),
        *("--job-name", "-w", "--nodelist", "-x", "--exclude", "-A", "--account", "-q", "--qos", "-o", "--output"),
        *("-e", "--error", "-G", "--gpus", "--gres", "--gpus-per-node", "--gpus-per-task", "--ntasks-per-node"),
        *("--mem", "--export", "--jobid", "-D", "--chdir", "--container-image", "--container-mounts", "--mpi"),
    ),
}
"""Words that start each wrapper, with its flags that take the next word as their value."""
WITH_OPERAND = ("timeout", "taskset")
"""Wrappers with a word between their flags and the command: a duration, the cores."""
OF_ONE_SHELL = ("env", "nohup", "time", "exec")
"""Wrappers that neither choose packages nor machines."""


def unwrapped(words: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Return a command with the assignments before it, without its wrappers, and the wrappers that a user may miss.

    >>> unwrapped(["A=1", "srun", "-N", "2", "env", "B=2", "trl", "grpo"])
    (('A=1', 'B=2', 'trl', 'grpo'), ['srun'])
    >>> unwrapped(["timeout", "-k", "9", "2h", "taskset", "-c", "0-3", "trl", "grpo"])
    (('trl', 'grpo'), ['timeout', 'taskset'])
    """
    assignments, missed, rest = list[str](), list[str](), list(words)
    while True:
        while rest and ASSIGNMENT.match(rest[0]):
            assignments.append(rest.pop(0))
        names = tuple(PurePosixPath(word).name for word in rest[:2])
        start = next((prefix for prefix in WRAPPERS if names[: len(prefix)] == prefix), None)
        if start is None:
            return (*assignments, *rest), missed
        rest = rest[len(start) :]
        while rest and rest[0].startswith("-"):
            rest = rest[2 if rest[0] in WRAPPERS[start] else 1 :]
        rest = rest[1 if start[0] in WITH_OPERAND else 0 :]
        missed += [] if start[0] in OF_ONE_SHELL else [" ".join(start)]
