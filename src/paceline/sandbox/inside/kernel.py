"""Calls of the Linux kernel that Python does not offer, by ctypes. All raise OSError with the call's name."""

import ctypes
import os
import platform
import struct

SyscallNumbers = dict[str, tuple[int | None, int | None]]


def _table(rows: str) -> SyscallNumbers:
    """Read `name x86_64 aarch64, ...`: Linux system calls by number, `-` where a machine does not have the call.

    From the kernel's asm/unistd_64.h and asm-generic/unistd.h, whose numbers never change.
    """
    table: SyscallNumbers = {}
    for row in rows.split(", "):
        name, *numbers = row.split()
        x86_64, aarch64 = (None if number == "-" else int(number) for number in numbers)
        table[name] = (x86_64, aarch64)
    return table


# Calls allowed to every program.
FREE = _table(
    # Reading and writing open files.
    "read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69, pwritev 296 70, "
    "lseek 8 62, close 3 57, close_range 436 436, dup 32 23, dup2 33 -, dup3 292 24, pipe 22 -, pipe2 293 59, "
    "fstat 5 80, fstatfs 138 44, getdents64 217 61, fchdir 81 50, ftruncate 77 46, fsync 74 82, fdatasync 75 83, "
    "sendfile 40 71, copy_file_range 326 285, fadvise64 221 223, "
    # Files by name.
    "open 2 -, openat 257 56, creat 85 -, stat 4 -, lstat 6 -, newfstatat 262 79, statx 332 291, access 21 -, "
    "faccessat 269 48, faccessat2 439 439, statfs 137 43, getcwd 79 17, chdir 80 49, rename 82 -, renameat 264 38, "
    "renameat2 316 276, mkdir 83 -, mkdirat 258 34, rmdir 84 -, unlink 87 -, unlinkat 263 35, link 86 -, "
    "linkat 265 37, symlink 88 -, symlinkat 266 36, readlink 89 -, readlinkat 267 78, truncate 76 45, umask 95 166, "
    # Memory.
    "mmap 9 222, munmap 11 215, mremap 25 216, mprotect 10 226, madvise 28 233, msync 26 227, brk 12 214, "
    "membarrier 324 283, "
    # Waiting for files.
    "poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create 213 -, epoll_create1 291 20, "
    "epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, eventfd2 290 19, "
    # Pairs of sockets.
    "recvfrom 45 207, shutdown 48 210, getsockname 51 204, getpeername 52 205, getsockopt 55 209, "
    # Signals to oneself, and their handling.
    "rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136, "
    "rt_sigtimedwait 128 137, rt_sigsuspend 130 133, sigaltstack 131 132, pause 34 -, alarm 37 -, setitimer 38 103, "
    "getitimer 36 102, "
    # Threads and clocks.
    "futex 202 98, rseq 334 293, set_robust_list 273 99, set_tid_address 218 96, sched_yield 24 124, "
    "restart_syscall 219 128, nanosleep 35 101, clock_nanosleep 230 115, clock_gettime 228 113, "
    "clock_getres 229 114, gettimeofday 96 169, time 201 -, times 100 153, getrusage 98 165, arch_prctl 158 -, "
    "getcpu 309 168, "
    # What a process may ask of itself and the machine.
    "getrandom 318 278, uname 63 160, sysinfo 99 179, getpid 39 172, getppid 110 173, gettid 186 178, "
    "getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177, getresuid 118 148, getresgid 120 150, "
    "getgroups 115 158, getpgrp 111 -, getrlimit 97 163, wait4 61 260, waitid 247 95, exit 60 93, exit_group 231 94"
)
# Calls that Landlock does not cover: allowed only if every file in sight is the slot's own.
ON_OWN_FILES = _table(
    "chmod 90 -, fchmod 91 52, fchmodat 268 53, utime 132 -, utimes 235 -, utimensat 280 88, futimesat 261 -, "
    "flock 73 32"
)
# Calls allowed with some arguments only, or answered in a special way.
ON_CONDITION = _table(
    "clone 56 220, clone3 435 435, kill 62 129, tkill 200 130, tgkill 234 131, setrlimit 160 164, prlimit64 302 261, "
    "getpgid 121 155, getsid 124 156, getpriority 140 141, setpriority 141 140, sched_getaffinity 204 123, "
    "sched_getscheduler 145 120, sched_getparam 143 121, socketpair 53 199, sendto 44 206, ioctl 16 29, fcntl 72 25, "
    "prctl 157 167"
)
# Calls that the confinement itself needs, and the program never gets.
CONFINING = _table(
    "seccomp 317 277, capset 126 91, landlock_create_ruleset 444 444, landlock_add_rule 445 445, "
    "landlock_restrict_self 446 446, mount 165 40, mount_setattr 442 442, open_tree 428 428, move_mount 429 429, "
    "pivot_root 155 41, umount2 166 39, unshare 272 97"
)

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

PR_SET_DUMPABLE, PR_CAPBSET_DROP = 4, 24
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4

SECCOMP_SET_MODE_FILTER = 1
CAPABILITY_VERSION = 0x20080522
LAST_CAPABILITY = 63
M_ARENA_MAX = -8

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


def machine_column() -> int:
    """Return the column of the tables with this machine's numbers; raises OSError if there is none."""
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


def control_process(option: int, value: int = 0) -> None:
    """Call `prctl`."""
    call("prctl", option, value, 0, 0, 0)


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
