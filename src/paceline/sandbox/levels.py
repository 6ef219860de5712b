"""Levels of isolation, and the test of which one holds on this machine."""

import os
import sys
from dataclasses import dataclass
from typing import Literal

from paceline.errors import SandboxError
from paceline.sandbox.local import LocalSandbox
from paceline.sandbox.probing import breaches
from paceline.sandbox.programs import Sandbox

Level = Literal["auto", "namespaces", "landlock", "none"]

ISOLATING = ("namespaces", "landlock")
"""Isolating levels, strongest first; `auto` takes the first that holds."""

REMEDIES = (
    "give --sandbox-url of a judge service, run as an unprivileged user where namespaces are allowed "
    "(Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0; Docker: --security-opt seccomp=unconfined), "
    "or run programs without isolation by --sandbox none"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelReport:
    """Result of the test of one level on this machine."""

    level: str
    available: bool
    reason: str
    """Isolation in force, or the reason why it is not available."""


def open_sandbox(level: Level = "auto", *, url: str | None = None, slots: int | None = None) -> Sandbox:
    """Open the sandbox of that level, after hostile programs have run in it; `url`: the judge service there instead.

    Raises:
        SandboxError: the level does not hold here; for `auto`, none of those that isolate; the service does not answer.
    """
    if url is not None:
        from paceline.sandbox.remote import RemoteSandbox

        remote = RemoteSandbox(url)
        remote.check()
        return remote
    wanted = ISOLATING if level == "auto" else (level,)
    refused = []
    for name in wanted:
        sandbox, reason = _opened(name, slots or os.cpu_count() or 1)
        if sandbox is not None:
            return sandbox
        refused.append(f"{name}: {reason}")
    raise SandboxError(f"--sandbox {level} cannot be had on this machine ({'; '.join(refused)}); {REMEDIES}")


def probe_levels() -> tuple[LevelReport, ...]:
    """Test each level, the strongest first."""
    reports = []
    for level in (*ISOLATING, "none"):
        sandbox, reason = _opened(level, 1)
        if sandbox is not None:
            reason = sandbox.description
            sandbox.close()
        reports.append(LevelReport(level=level, available=sandbox is not None, reason=reason))
    return tuple(reports)


def _opened(level: str, slots: int) -> tuple[LocalSandbox | None, str]:
    """Open a sandbox that held against the probes, or return the reason why there is none."""
    if sys.platform != "linux":
        return None, "local sandboxes need Linux"
    sandbox = LocalSandbox(level, slots)
    try:
        found = breaches(sandbox, isolating=level in ISOLATING)
    except (SandboxError, OSError) as error:
        found = [str(error)]
    if not found:
        return sandbox, ""
    sandbox.close()
    return None, ", ".join(found).removeprefix(f"level {level} is not available: ")
