"""The root of the namespaces level: read-only libraries, four devices, the standard streams, scratch."""

import os
import stat

from paceline.sandbox.inside import kernel
from paceline.sandbox.inside.libraries import DEVICES, hidden, readable

ASSEMBLY = "/tmp"
"""Directory in which the new root is assembled: every system has it."""
SCRATCH = "/program"
"""Scratch directory as the program sees it; `/tmp` leads there, unless the interpreter lies below `/tmp`."""
STREAMS = ("stdin", "stdout", "stderr")
READ_ONLY = kernel.ATTR_RDONLY | kernel.ATTR_NOSUID


def enter_new_root(owner: int, group: int) -> dict[str, int]:
    """Change to a root of our own; return descriptors of the files behind /dev/stdin, stdout and stderr.

    They were opened before, so that this process can write into /dev/stdin and nobody else can.
    """
    kernel.call("mount", b"none", b"/", None, kernel.MS_REC | kernel.MS_PRIVATE, None)
    libraries = [(path, _source(path)) for path in readable()]
    packages = hidden()
    devices = [(name, kernel.tree_of(f"/dev/{name}")) for name in DEVICES]
    kernel.mount("tmpfs", ASSEMBLY, kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,nr_inodes=4k,mode=755")
    os.chdir(ASSEMBLY)
    for path, source in libraries:
        _place(path, source)
    _hide(packages)
    os.makedirs("dev", exist_ok=True)
    for name, tree in devices:
        _bind_file(tree, f"dev/{name}", READ_ONLY | kernel.ATTR_NOEXEC)
    streams = _streams()
    _scratch(owner, group)
    _leave_old_root()
    return streams


def _source(path: str) -> int | str:
    """Return a copy of the mounts below a directory or file, or the target of a symbolic link."""
    return os.readlink(path) if os.path.islink(path) and path.count("/") == 1 else kernel.tree_of(path)


def _place(path: str, source: int | str) -> None:
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


def _hide(packages: list[str]) -> None:
    """Cover directories of installed packages by an empty one."""
    os.mkdir("empty")
    for path in packages:
        if os.path.isdir(path.lstrip("/")):
            cover = kernel.tree_of(f"{ASSEMBLY}/empty")
            kernel.set_attributes(cover, "", READ_ONLY | kernel.ATTR_NODEV, recursive=True)
            kernel.attach(cover, ASSEMBLY + path)
            os.close(cover)


def _bind_file(tree: int, inner: str, attributes: int) -> None:
    os.close(os.open(inner, os.O_CREAT, 0o444))
    kernel.set_attributes(tree, "", attributes, recursive=True)
    kernel.attach(tree, f"{ASSEMBLY}/{inner}")
    os.close(tree)


def _streams() -> dict[str, int]:
    """Make the files behind /dev/stdin, stdout and stderr, in a file system whose own place disappears."""
    os.mkdir("streams")
    restricted = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("tmpfs", f"{ASSEMBLY}/streams", restricted, "size=512m,nr_inodes=8,mode=700")
    opened = {}
    for name in STREAMS:
        opened[name] = os.open(f"streams/{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.fchmod(opened[name], 0o444 if name == "stdin" else 0o666)
        attributes = kernel.ATTR_RDONLY if name == "stdin" else kernel.ATTR_NOEXEC
        _bind_file(kernel.tree_of(f"{ASSEMBLY}/streams/{name}"), f"dev/{name}", attributes)
    kernel.call("umount2", f"{ASSEMBLY}/streams".encode(), kernel.MNT_DETACH)
    os.rmdir("streams")
    return opened


def _scratch(owner: int, group: int) -> None:
    os.mkdir(SCRATCH.lstrip("/"))
    restricted = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    options = f"size=64m,nr_inodes=16k,mode=700,uid={owner},gid={group}"
    kernel.mount("tmpfs", ASSEMBLY + SCRATCH, restricted, options)
    if not os.path.lexists("tmp"):
        os.symlink(SCRATCH, "tmp")


def _leave_old_root() -> None:
    """Make the assembled directory the root, by giving old and new root the same place."""
    kernel.call("pivot_root", b".", b".")
    kernel.call("umount2", b".", kernel.MNT_DETACH)
    os.chdir("/")
    kernel.set_attributes(kernel.AT_FDCWD, "/", READ_ONLY | kernel.ATTR_NODEV, recursive=False)
