"""Optional packages: the versions that Paceline's own metadata asks for, and the commands that install them.

A command names the packages themselves, never an extra of Paceline, so it is right however Paceline was installed.
"""

import shlex
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import Requirement

TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow")
"""Names that `--report-to` takes; each is also that of the tracker's module and package."""


def requirements(lines: Iterable[str] | None = None) -> dict[str, Requirement]:
    """Required version by package; if several extras name it, the first counts.

    None: Paceline's own requirements with extras, from its package metadata; none if it is not installed.

    >>> str(requirements(["ray<2.61,>=2.60; extra == 'ray'"])["ray"].specifier)
    '<2.61,>=2.60'
    """
    if lines is None:
        return _own()
    by_name: dict[str, Requirement] = {}
    for requirement in map(Requirement, lines):
        by_name.setdefault(requirement.name, requirement)
    return by_name


@cache
def _own() -> dict[str, Requirement]:
    try:
        return requirements(requires("paceline") or [])
    except PackageNotFoundError:
        return {}


def install_command(*names: str) -> str:
    """Return the command that installs packages in the versions that Paceline needs."""
    known = requirements()
    wanted = [f"{name}{known[name].specifier}" if name in known else name for name in names]
    return shlex.join(["pip", "install", *wanted])
