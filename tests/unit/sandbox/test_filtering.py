"""The filter, interpreted by hand for both machines: only one of them runs these tests."""

import errno
import struct

import pytest

from paceline.sandbox.inside.filtering import ALLOW, ARCHITECTURES, FAIL, KILL, for_process, template
from paceline.sandbox.inside.kernel import NUMBERS

PID = 4711
EPERM, ENOSYS = FAIL | errno.EPERM, FAIL | errno.ENOSYS
MACHINES = {"x86_64": 0, "aarch64": 1}


def verdict(machine: int, number: int, *arguments: int, architecture: int | None = None, own_files: bool = True) -> int:
    """What the filter answers to a call, by the rules of classic BPF."""
    data = struct.pack("=IIQ", number, architecture or ARCHITECTURES[machine], 0)
    data += b"".join(struct.pack("=Q", argument % 2**64) for argument in (*arguments, *[0] * (6 - len(arguments))))
    program = for_process(template(machine, on_own_files=own_files), PID)
    place, register = 0, 0
    while True:
        code, if_true, if_false, constant = struct.unpack_from("=HBBI", program, 8 * place)
        place += 1
        match code:
            case 0x20:
                (register,) = struct.unpack_from("=I", data, constant)
            case 0x54:
                register &= constant
            case 0x05:
                place += constant
            case 0x06:
                return constant
            case 0x15 | 0x35 | 0x45:
                holds = {0x15: register == constant, 0x35: register >= constant, 0x45: bool(register & constant)}
                place += if_true if holds[code] else if_false


def call(machine: str, name: str, *arguments: int, own_files: bool = True) -> int:
    number = NUMBERS[name][MACHINES[machine]]
    assert number is not None
    return verdict(MACHINES[machine], number, *arguments, own_files=own_files)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("read", (0,), ALLOW),
        ("openat", (), ALLOW),
        ("exit_group", (), ALLOW),
        ("unshare", (), EPERM),
        ("mount", (), EPERM),
        ("seccomp", (), EPERM),
        ("clone", (0x3D0F00,), ALLOW),  # the flags of a thread
        ("clone", (0x1200011,), EPERM),  # those of a fork
        ("clone", (0x4111,), EPERM),  # of a vfork
        ("clone", (0x3D0B00,), EPERM),  # a thread with descriptors of its own
        ("clone", (0x10010000,), EPERM),  # a thread in a new user namespace
        ("clone3", (), ENOSYS),
        ("kill", (PID, 9), ALLOW),
        ("kill", (1, 9), EPERM),
        ("kill", (-1, 9), EPERM),
        ("kill", (0, 9), EPERM),
        ("tgkill", (PID, PID, 6), ALLOW),
        ("tgkill", (1, 1, 6), EPERM),
        ("prlimit64", (0, 7), ALLOW),
        ("prlimit64", (1, 7), EPERM),
        ("prlimit64", (0, 3, 0x7FFF00001234), ALLOW),
        ("prlimit64", (0, 4, 0), ALLOW),  # asks for the limit of a core file
        ("prlimit64", (0, 4, 0x7FFF00001234), EPERM),
        ("prlimit64", (0, 4, 0x7FFF00000000), EPERM),
        ("setrlimit", (3,), ALLOW),
        ("setrlimit", (4,), EPERM),
        ("getpgid", (0,), ALLOW),
        ("getpgid", (1,), EPERM),
        ("getsid", (1,), EPERM),
        ("getpriority", (0, PID), ALLOW),
        ("getpriority", (0, 1), EPERM),
        ("setpriority", (0, 0, 5), ALLOW),
        ("setpriority", (0, 1, 5), EPERM),
        ("setpriority", (2, 0, 5), EPERM),
        ("socketpair", (1, 1 | 0x80000), ALLOW),
        ("socketpair", (1, 2), EPERM),  # datagrams
        ("socketpair", (2, 1), EPERM),  # the internet
        ("sendto", (5, 0, 0, 0, 0), ALLOW),
        ("sendto", (5, 0, 0, 0, 0x7FFF00001234), EPERM),
        ("sendto", (5, 0, 0, 0, 0x7FFF00000000), EPERM),
        ("ioctl", (0, 0x5401), ALLOW),
        ("ioctl", (0, 0x5412), EPERM),  # TIOCSTI: input for somebody else's terminal
        ("fcntl", (0, 1030), ALLOW),
        ("fcntl", (0, 8), EPERM),  # F_SETOWN
        ("prctl", (15,), ALLOW),
        ("prctl", (1,), EPERM),  # PR_SET_PDEATHSIG
    ],
)
def test_a_call_is_answered_by_its_rule(machine, name, arguments, answer):
    assert call(machine, name, *arguments) == answer


@pytest.mark.parametrize(
    ("machine", "number"),
    [
        ("x86_64", 57),
        ("x86_64", 58),
        ("x86_64", 59),
        ("x86_64", 41),
        ("x86_64", 101),
        ("aarch64", 221),
        ("aarch64", 198),
    ],
    ids=["fork", "vfork", "execve", "socket", "ptrace", "execve on aarch64", "socket on aarch64"],
)
def test_what_is_in_no_table_is_refused(machine, number):
    assert verdict(MACHINES[machine], number) == EPERM


def test_a_call_newer_than_the_tables_does_not_exist():
    assert verdict(0, 463) == verdict(1, 463) == ENOSYS


def test_calls_of_another_architecture_end_the_program():
    assert verdict(0, 1, architecture=0x40000003) == KILL  # 32 bits
    assert verdict(0, 0x40000000 | 1) == EPERM  # x32


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", ["fchmod", "fchmodat", "utimensat", "flock"])
def test_what_landlock_does_not_cover_is_refused_where_other_files_are_in_sight(machine, name):
    assert call(machine, name) == ALLOW
    assert call(machine, name, own_files=False) == EPERM


def test_the_process_number_is_written_where_it_belongs():
    plain = template(0, on_own_files=True)
    changed = [at for at in range(0, len(plain), 8) if plain[at : at + 8] != for_process(plain, PID)[at : at + 8]]
    assert len(changed) == 11  # kill, tkill, tgkill, prlimit64, getpgid, getsid, three sched_get*, two of priorities
