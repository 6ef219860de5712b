"""The system calls that a program may make, as a seccomp filter: a list of what is allowed, everything else refused.

A refused call fails with EPERM; one that is newer than the list with ENOSYS, so that libraries fall back. Starting a
process is refused, a thread is allowed. Sockets exist as connected pairs only, which asyncio needs. Signals reach
nobody but the program itself, whose process number is written into the filter.
"""

import errno
import struct

from paceline.sandbox.inside.kernel import FREE, ON_CONDITION, ON_OWN_FILES, SyscallNumbers

Instruction = tuple[int, int, int, int]  # Instruction `struct sock_filter`: code, jump if true, jump if false, constant

ARCHITECTURES = (0xC000003E, 0xC00000B7)
X32_BIT = 0x40000000
FIRST_UNKNOWN = 440  # Number beyond which calls differ from kernel to kernel, and libraries only try them

LOAD, EQUAL, AT_LEAST, ANY_BIT, JUMP, RETURN, AND = 0x20, 0x15, 0x35, 0x45, 0x05, 0x06, 0x54
ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER, ARCHITECTURE = 0, 4

CLONE_FILES, CLONE_THREAD, CLONE_NEW_ANYTHING = 0x400, 0x10000, 0x7E020000
RLIMIT_CORE = 4
AF_UNIX, SOCK_STREAM, SOCK_TYPE_MASK = 1, 1, 0xF
IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS (is it a terminal?), TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
FCNTLS = (*range(8), 36, 37, 38, 1030, 1032)
"""Duplicates, flags and locks; F_DUPFD_CLOEXEC, F_GETPIPE_SZ. Not F_SETOWN: it sends signals to others."""
PRCTLS = (3, 15, 16, 39)  # PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_GET_NO_NEW_PRIVS

OWN_PID = 0x7EADBEE5  # Placeholder of the process number until it is known


def template(machine: int, *, on_own_files: bool) -> bytes:
    """Build the filter of a machine, for `for_process`; `on_own_files`: also chmod, utime and flock."""
    free = _present(FREE | (ON_OWN_FILES if on_own_files else {}), machine)
    code: list[Instruction] = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, ARCHITECTURES[machine]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, X32_BIT),
        _fail(errno.EPERM),
    ]
    # A jump reaches 255 instructions, so the calls that are free come in chunks.
    numbers = sorted(free.values())
    for start in range(0, len(numbers), 200):
        chunk = numbers[start : start + 200]
        code += [(EQUAL, len(chunk) - index, 0, number) for index, number in enumerate(chunk)]
        code += [(JUMP, 0, 0, 1), (RETURN, 0, 0, ALLOW)]
    for name, number in _present(ON_CONDITION, machine).items():
        rule = _CONDITIONS[name]
        code += [(EQUAL, 0, len(rule), number), *rule]
    code += [(AT_LEAST, 0, 1, FIRST_UNKNOWN), _fail(errno.ENOSYS), _fail(errno.EPERM)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def for_process(program: bytes, pid: int) -> bytes:
    """Return the template with the process number in place."""
    return program.replace(struct.pack("=I", OWN_PID), struct.pack("=I", pid))


def _present(numbers: SyscallNumbers, machine: int) -> dict[str, int]:
    return {name: row[machine] for name, row in numbers.items() if row[machine] is not None}  # type: ignore[misc]


def _fail(code: int) -> Instruction:
    return (RETURN, 0, 0, FAIL | code)


def _argument(index: int, *, high: bool = False) -> Instruction:
    """Build a load of 32 bits of an argument; both machines put the low half first."""
    return (LOAD, 0, 0, 16 + 8 * index + (4 if high else 0))


def _one_of(index: int, values: tuple[int, ...]) -> list[Instruction]:
    code = [_argument(index)]
    code += [(EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)]
    return [*code, _fail(errno.EPERM), (RETURN, 0, 0, ALLOW)]


_ONESELF = _one_of(0, (0, OWN_PID))
_OWN_PRIORITY = [_argument(0), (EQUAL, 1, 0, 0), _fail(errno.EPERM), *_one_of(1, (0, OWN_PID))]
_CONDITIONS: dict[str, list[Instruction]] = {
    "clone": [
        _argument(0),
        (ANY_BIT, 3, 0, CLONE_NEW_ANYTHING),
        (ANY_BIT, 0, 2, CLONE_THREAD),
        (ANY_BIT, 0, 1, CLONE_FILES),  # a thread with descriptors of its own could open as many again, unseen
        (RETURN, 0, 0, ALLOW),
        _fail(errno.EPERM),
    ],
    "clone3": [_fail(errno.ENOSYS)],  # its arguments are out of a filter's sight; libraries fall back to clone
    "kill": _one_of(0, (OWN_PID,)),
    "tkill": _one_of(0, (OWN_PID,)),
    "tgkill": _one_of(0, (OWN_PID,)),
    "setrlimit": [_argument(0), (EQUAL, 0, 1, RLIMIT_CORE), _fail(errno.EPERM), (RETURN, 0, 0, ALLOW)],
    "prlimit64": [
        _argument(1),
        (EQUAL, 0, 5, RLIMIT_CORE),
        _argument(2),  # the new limits, if any
        (EQUAL, 0, 2, 0),
        _argument(2, high=True),
        (EQUAL, 1, 0, 0),
        _fail(errno.EPERM),
        *_ONESELF,
    ],
    "getpgid": _ONESELF,
    "getsid": _ONESELF,
    "getpriority": _OWN_PRIORITY,
    "setpriority": _OWN_PRIORITY,
    "sched_getaffinity": _ONESELF,
    "sched_getscheduler": _ONESELF,
    "sched_getparam": _ONESELF,
    "socketpair": [
        _argument(0),
        (EQUAL, 0, 4, AF_UNIX),
        _argument(1),
        (AND, 0, 0, SOCK_TYPE_MASK),
        (EQUAL, 0, 1, SOCK_STREAM),  # a pair of datagram sockets can write to any other one
        (RETURN, 0, 0, ALLOW),
        _fail(errno.EPERM),
    ],
    "sendto": [
        _argument(4),
        (EQUAL, 0, 3, 0),
        _argument(4, high=True),
        (EQUAL, 0, 1, 0),
        (RETURN, 0, 0, ALLOW),
        _fail(errno.EPERM),
    ],
    "ioctl": _one_of(1, IOCTLS),
    "fcntl": _one_of(1, FCNTLS),
    "prctl": _one_of(0, PRCTLS),
}
