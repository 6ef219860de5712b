"""Confinement of the zygote at one level: what it takes on once, and what is left for each child."""

import contextlib
import os
import random
import struct
from typing import NamedTuple

from paceline.sandbox.inside import filtering, kernel, landlock, tree

SEPARATE = (
    kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWCGROUP
)
OWNERS = (0x40000000, 0x70000000)
OWNERS_OF_CONTAINERS = (60000, 65000)
"""Range of user numbers that exist nowhere; containers often know the first 65536 only. Each zygote of root's draws
one, so that no two share the limit on threads."""
LANDLOCK_FOR_FILES = 3  # First version of Landlock that withholds truncation


class Identity(NamedTuple):
    """User as whom programs run."""

    user: int
    group: int
    drop: bool
    """True if root started the zygote and changes to that user."""
    threads_counted: bool
    """True if the kernel counts this user's threads by zygote, so that they can be limited."""


class Confinement(NamedTuple):
    """State that a child of the zygote needs, and restrictions it must still take on."""

    scratch: str
    streams: dict[str, int] | None
    """Descriptors behind /dev/stdin, stdout and stderr; None: files in memory, made for each job."""
    rules: int | None
    """Landlock rules that the child must take on."""
    filter: bytes | None
    threads_counted: bool
    watched: bool
    """True if threads and files must be counted while a job runs."""
    description: str


def separate(level: str) -> Identity:
    """Leave the host's namespaces, if the level requires it. The next fork is the first process of new ones.

    Raises:
        OSError: the host does not allow it.
    """
    user, group = os.getuid(), os.getgid()
    if level == "none":
        return Identity(user, group, drop=False, threads_counted=False)
    owner = _unused_owner() if user == 0 else None
    if level == "landlock":
        return Identity(owner or user, owner or group, drop=owner is not None, threads_counted=owner is not None)
    if owner is not None:
        with contextlib.suppress(PermissionError):
            kernel.call("unshare", SEPARATE)
            return Identity(owner, owner, drop=True, threads_counted=True)
    kernel.call("unshare", SEPARATE | kernel.CLONE_NEWUSER)
    for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{file}", "w") as opened:
            opened.write(text)
    return Identity(user, group, drop=False, threads_counted=True)


def _unused_owner() -> int | None:
    """Return a user that root may become here; None if this root is alone in its user namespace."""
    with open("/proc/self/uid_map") as file:
        ranges = [[int(word) for word in line.split()] for line in file]
    for low, high in (OWNERS, OWNERS_OF_CONTAINERS):
        if any(first <= low and high <= first + count for first, _, count in ranges):
            return random.SystemRandom().randrange(low, high)
    return None


def confine(level: str, scratch: str, identity: Identity) -> Confinement:
    """Take on the level's confinement, permanently; raises OSError where the host does not allow it."""
    if level == "none":
        return Confinement(scratch, None, None, None, threads_counted=False, watched=True, description="no isolation")
    if level == "landlock":
        return _confine_by_landlock(scratch, identity)
    streams = tree.enter_new_root(identity.user, identity.group)
    interface = 0
    with contextlib.suppress(OSError):
        interface = landlock.version()
    _renounce(identity)
    if interface >= 2:  # before, files could not change directories, which emptying the scratch directory does
        writable = ["/dev/null", *(f"/dev/{name}" for name in tree.STREAMS)]
        landlock.enforce(landlock.ruleset(["/"], writable, tree.SCRATCH, listed=[]))
    beside = f", Landlock {interface}" if interface >= 2 else ""
    return Confinement(
        tree.SCRATCH,
        streams,
        None,
        filtering.template(kernel.machine_column(), on_own_files=True),
        threads_counted=identity.threads_counted,
        watched=False,
        description=f"own mount, process, network and IPC namespaces, seccomp{beside}",
    )


def _confine_by_landlock(scratch: str, identity: Identity) -> Confinement:
    interface = landlock.version()
    if interface < LANDLOCK_FOR_FILES:
        raise OSError(f"the kernel has Landlock {interface}, at least {LANDLOCK_FOR_FILES} is needed (Linux 6.2)")
    if identity.drop:
        os.chown(scratch, identity.user, identity.group)
    _renounce(identity)
    directory = os.path.dirname(os.__file__)
    if not os.access(directory, os.R_OK | os.X_OK):
        raise OSError(
            f"programs run as a user of their own who cannot read {directory}: let others pass through its parent "
            f"directories (chmod o+x), or run as an unprivileged user"
        )
    paths, hidden = tree.readable(), tree.hidden()
    readable = landlock.readable_without(paths, hidden) + [f"/dev/{name}" for name in tree.DEVICES]
    rules = landlock.ruleset(readable, ["/dev/null"], scratch, [path for path in paths if os.path.isdir(path)])
    return Confinement(
        scratch,
        None,
        rules,
        filtering.template(kernel.machine_column(), on_own_files=False),
        threads_counted=identity.threads_counted,
        watched=True,
        description=f"Landlock {interface}, seccomp",
    )


def _renounce(identity: Identity) -> None:
    """Become the user of programs, without capabilities, and never gain any again."""
    for capability in range(kernel.LAST_CAPABILITY + 1):  # bars programs that are started from here on
        try:
            kernel.control_process(kernel.PR_CAPBSET_DROP, capability)
        except OSError:  # beyond the kernel's last one, or not allowed
            break
    if identity.drop:
        os.setgroups([])
        os.setresgid(identity.group, identity.group, identity.group)
        os.setresuid(identity.user, identity.user, identity.user)
    kernel.call("capset", struct.pack("Ii", kernel.CAPABILITY_VERSION, 0), bytes(24))
    kernel.control_process(kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_CLEAR_ALL)
    kernel.control_process(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.control_process(kernel.PR_SET_DUMPABLE, 0)
