"""Confinement of the zygote at one level: what it takes on once, and what is left for each child.

The namespaces level has a root directory of its own: read-only libraries, four devices, the standard streams, scratch.
"""

import contextlib
import glob
import os
import random
import stat
import struct
import sys
from typing import NamedTuple

from paceline.sandbox.inside import filtering, kernel, landlock

SYSTEM = ("/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/local/lib", "/usr/local/lib64", "/lib", "/lib64", "/lib32")
SINGLE = ("/usr/share/zoneinfo", "/etc/ld.so.cache", "/nix/store", "/gnu/store")
PACKAGES = ("site-packages", "dist-packages")
DEVICES = ("null", "zero", "random", "urandom")


def program_paths() -> list[str]:
    """Return the absolute paths that a program may read, outermost first, the interpreter's as it knows them."""
    libraries = [os.path.dirname(os.path.dirname(path)) for path in sys.path if path.endswith("lib-dynload")]
    libraries.append(os.path.dirname(os.path.dirname(os.__file__)))
    paths = {*SYSTEM, *SINGLE, *libraries, *(os.path.realpath(path) for path in libraries)}
    return sorted(path for path in paths if os.path.exists(path))


def package_paths() -> list[str]:
    """Return directories of installed packages below those: a program's abilities must not depend on them."""
    patterns = (f"{path}/python3*/{name}" for path in program_paths() for name in PACKAGES)
    return sorted({os.path.realpath(directory) for pattern in patterns for directory in glob.glob(pattern)})


ASSEMBLY = "/tmp"  # Directory in which the new root is assembled: every system has it
SCRATCH = "/program"
"""Scratch directory as the program sees it; `/tmp` leads there, unless the interpreter lies below `/tmp`."""
STREAMS = ("stdin", "stdout", "stderr")
READ_ONLY = kernel.ATTR_RDONLY | kernel.ATTR_NOSUID
RESTRICTED = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC


def enter_new_root(owner: int, group: int) -> dict[str, int]:
    """Change to a root of our own; return descriptors of the files behind /dev/stdin, stdout and stderr.

    They were opened before, so that this process can write into /dev/stdin and nobody else can.
    """
    kernel.call("mount", b"none", b"/", None, kernel.MS_REC | kernel.MS_PRIVATE, None)
    libraries = [
        (path, os.readlink(path) if os.path.islink(path) and path.count("/") == 1 else kernel.tree_of(path))
        for path in program_paths()
    ]
    packages = package_paths()
    devices = [(name, kernel.tree_of(f"/dev/{name}")) for name in DEVICES]
    kernel.mount("tmpfs", ASSEMBLY, kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,nr_inodes=4k,mode=755")
    os.chdir(ASSEMBLY)
    for path, source in libraries:
        _attach_library(path, source)
    # Directories of installed packages are covered by an empty one.
    os.mkdir("empty")
    for path in packages:
        if os.path.isdir(path.lstrip("/")):
            cover = kernel.tree_of(f"{ASSEMBLY}/empty")
            kernel.set_attributes(cover, "", READ_ONLY | kernel.ATTR_NODEV, recursive=True)
            kernel.attach(cover, ASSEMBLY + path)
            os.close(cover)
    os.makedirs("dev", exist_ok=True)
    for name, tree in devices:
        _bind_file(tree, f"dev/{name}", READ_ONLY | kernel.ATTR_NOEXEC)
    # The files behind /dev/stdin, stdout and stderr lie in a file system whose own path disappears.
    os.mkdir("streams")
    kernel.mount("tmpfs", f"{ASSEMBLY}/streams", RESTRICTED, "size=512m,nr_inodes=8,mode=700")
    streams = {}
    for name in STREAMS:
        streams[name] = os.open(f"streams/{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.fchmod(streams[name], 0o444 if name == "stdin" else 0o666)
        attributes = kernel.ATTR_RDONLY if name == "stdin" else kernel.ATTR_NOEXEC
        _bind_file(kernel.tree_of(f"{ASSEMBLY}/streams/{name}"), f"dev/{name}", attributes)
    kernel.call("umount2", f"{ASSEMBLY}/streams".encode(), kernel.MNT_DETACH)
    os.rmdir("streams")
    os.mkdir(SCRATCH.lstrip("/"))
    options = f"size=64m,nr_inodes=16k,mode=700,uid={owner},gid={group}"
    kernel.mount("tmpfs", ASSEMBLY + SCRATCH, RESTRICTED, options)
    if not os.path.lexists("tmp"):
        os.symlink(SCRATCH, "tmp")
    # Make the assembled directory the root, by putting the old root and the new one at the same path.
    kernel.call("pivot_root", b".", b".")
    kernel.call("umount2", b".", kernel.MNT_DETACH)
    os.chdir("/")
    kernel.set_attributes(kernel.AT_FDCWD, "/", READ_ONLY | kernel.ATTR_NODEV, recursive=False)
    return streams


def _attach_library(path: str, source: int | str) -> None:
    """Show a library directory at its own path, unless it lies in one that is there already."""
    inner = path.lstrip("/")
    if isinstance(source, str):
        os.symlink(source, inner)
        return
    if not os.path.lexists(inner):
        if stat.S_ISDIR(os.fstat(source).st_mode):  # by now another file system may cover its path
            os.makedirs(inner)
        else:
            os.makedirs(os.path.dirname(inner), exist_ok=True)
            os.close(os.open(inner, os.O_CREAT, 0o444))
        kernel.set_attributes(source, "", READ_ONLY | kernel.ATTR_NODEV, recursive=True)
        kernel.attach(source, f"{ASSEMBLY}/{inner}")
    os.close(source)


def _bind_file(tree: int, inner: str, attributes: int) -> None:
    os.close(os.open(inner, os.O_CREAT, 0o444))
    kernel.set_attributes(tree, "", attributes, recursive=True)
    kernel.attach(tree, f"{ASSEMBLY}/{inner}")
    os.close(tree)


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
    streams = enter_new_root(identity.user, identity.group)
    interface = 0
    with contextlib.suppress(OSError):
        interface = landlock.version()
    _renounce(identity)
    if interface >= 2:  # before, files could not change directories, which emptying the scratch directory does
        writable = ["/dev/null", *(f"/dev/{name}" for name in STREAMS)]
        landlock.enforce(landlock.ruleset(["/"], writable, SCRATCH, listed=[]))
    beside = f", Landlock {interface}" if interface >= 2 else ""
    return Confinement(
        SCRATCH,
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
    paths, hidden = program_paths(), package_paths()
    readable = landlock.readable_without(paths, hidden) + [f"/dev/{name}" for name in DEVICES]
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
