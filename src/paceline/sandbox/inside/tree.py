"""The root of the namespaces level: read-only libraries, four devices, the standard streams, scratch."""

import glob
import os
import stat
import sys

from paceline.sandbox.inside import kernel

SYSTEM = ("/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/local/lib", "/usr/local/lib64", "/lib", "/lib64", "/lib32")
SINGLE = ("/usr/share/zoneinfo", "/etc/ld.so.cache", "/nix/store", "/gnu/store")
PACKAGES = ("site-packages", "dist-packages")
DEVICES = ("null", "zero", "random", "urandom")


def readable() -> list[str]:
    """Return the absolute paths that a program may read, outermost first, the interpreter's as it knows them."""
    libraries = [os.path.dirname(os.path.dirname(path)) for path in sys.path if path.endswith("lib-dynload")]
    libraries.append(os.path.dirname(os.path.dirname(os.__file__)))
    paths = {*SYSTEM, *SINGLE, *libraries, *(os.path.realpath(path) for path in libraries)}
    return sorted(path for path in paths if os.path.exists(path))


def hidden() -> list[str]:
    """Return directories of installed packages below those: a program's abilities must not depend on them."""
    patterns = (f"{path}/python3*/{name}" for path in readable() for name in PACKAGES)
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
        for path in readable()
    ]
    packages = hidden()
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
