"""Calls of the Linux kernel that Python does not offer, by ctypes. All raise OSError with the call's name."""

import ctypes
import os
import platform
import struct

from paceline.sandbox.inside.numbers import CONFINING, FREE, ON_CONDITION, ON_OWN_FILES

NUMBERS = FREE | ON_OWN_FILES | ON_CONDITION | CONFINING
MACHINES = ("x86_64", "aarch64")

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 16384, 1 << 18
MNT_DETACH = 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC = 1, 2, 4, 8

AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE = -100, 0x1000, 0x8000
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC = 1, 0o2000000
MOVE_MOUNT_FROM_EMPTY_PATH = 4

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER = 1, 4, 24, 36
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4

SECCOMP_SET_MODE_FILTER = 1
CAPABILITY_VERSION = 0x20080522
LAST_CAPABILITY = 63
M_ARENA_MAX = -8

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


def machine_column() -> int:
    """Return the column of the tables with this machine's numbers.

    Raises:
        OSError: neither does.
    """
    machine = platform.machine()
    if machine not in MACHINES:
        raise OSError(f"system calls are known for {' and '.join(MACHINES)}, this machine is {machine or 'unknown'}")
    return MACHINES.index(machine)


def call(name: str, *arguments: int | bytes | None) -> int:
    """Make one system call; bytes are passed by address."""
    number = NUMBERS[name][machine_column()]
    values = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result = int(_LIBC.syscall(ctypes.c_long(number or 0), *values))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def control_process(option: int, value: int = 0, third: int = 0) -> None:
    """Call `prctl`."""
    call("prctl", option, value, third, 0, 0)


def mount(kind: str, target: str, flags: int, options: str = "") -> None:
    """Mount a new file system of that kind at `target`; with MS_PRIVATE, change the existing mount."""
    call("mount", kind.encode(), target.encode(), kind.encode(), flags, options.encode())


def tree_of(path: str) -> int:
    """Return a descriptor of a private, unattached copy of the mounts at and below `path`."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE
    return call("open_tree", AT_FDCWD, path.encode(), flags)


def set_attributes(descriptor: int, path: str, attributes: int, *, recursive: bool) -> None:
    """Add restrictions to the mounts at `path`, or at the descriptor if it is empty."""
    flags = (AT_RECURSIVE if recursive else 0) | (0 if path else AT_EMPTY_PATH)
    wanted = struct.pack("QQQQ", attributes, 0, 0, 0)
    call("mount_setattr", descriptor, path.encode(), flags, wanted, len(wanted))


def attach(tree: int, target: str) -> None:
    """Attach the mounts of `tree` at `target`."""
    call("move_mount", tree, b"", AT_FDCWD, target.encode(), MOVE_MOUNT_FROM_EMPTY_PATH)


def bar_capabilities() -> None:
    """Bar programs started from here on from capabilities; a process without any needs no barring."""
    for capability in range(LAST_CAPABILITY + 1):
        try:
            control_process(PR_CAPBSET_DROP, capability)
        except OSError:  # beyond the kernel's last one, or not allowed
            break


def drop_capabilities() -> None:
    """Give up every capability held."""
    call("capset", struct.pack("Ii", CAPABILITY_VERSION, 0), bytes(24))
    control_process(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)


def share_one_heap() -> None:
    """Keep threads on one heap: glibc reserves 64 MiB of the limited address space for each further one."""
    tune = getattr(_LIBC, "mallopt", None)
    if tune is not None:
        tune(M_ARENA_MAX, 1)


def install_filter(program: bytes) -> None:
    """Install a seccomp program for this thread and all that it starts."""
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    call("seccomp", SECCOMP_SET_MODE_FILTER, 0, header)
