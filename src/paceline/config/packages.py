"""Optional packages: the versions that Paceline's own metadata asks for, and the commands that install them.

A command names the packages themselves, never an extra of Paceline, so it is right however Paceline was installed.
"""

import shlex
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import Requirement


def requirements(lines: Iterable[str] | None = None) -> dict[str, Requirement]:
    """Required version by package; if several extras name it, the first counts.

    None: Paceline's own requirements with extras, from its package metadata; none if it is not installed.

    >>> str(requirements(["ray<2.61,>=2.60; extra == 'ray'"])["ray"].specifier)
    '<2.61,>=2.60'
    """
    if lines is None:
        return _own()
    known: dict[str, Requirement] = {}
    for requirement in map(Requirement, lines):
        known.setdefault(requirement.name, requirement)
    return known


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
