"""What a hostile and a right program are, and the words that hostile programs share.

Programs are data: text in `hostile/` and `right/`, one file per family. A hostile program is told everything that an
attacker could hope to know (`facts`: paths, ports and process ids of things that really exist on the host), tries its
attack, and says `ESCAPED` where it got through. What it should have left alone is also looked at from outside.

All of them are bounded: on a host without any isolation they make a mess of a few hundred processes or MiB and end.
"""

import platform
from dataclasses import dataclass

from paceline.sandbox.programs import ExecutionStatus, Limits

SMALL = Limits(seconds=0.5, memory_mb=128, output_bytes=1 << 16)

# (x86_64, the table that aarch64 and other new machines share); None: the machine has no such call
_SYSCALLS: dict[str, tuple[int, int | None]] = {
    "fork": (57, None),
    "vfork": (58, None),
    "clone": (56, 220),
    "clone3": (435, 435),
    "execveat": (322, 281),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "tgkill": (234, 131),
    "tkill": (200, 130),
    "setpriority": (141, 140),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "prlimit64": (302, 261),
    "ioprio_set": (251, 30),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "kcmp": (312, 272),
    "get_robust_list": (274, 100),
    "process_madvise": (440, 440),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "io_setup": (206, 0),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "unshare": (272, 97),
    "setns": (308, 268),
    "personality": (135, 92),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "mount": (165, 40),
    "umount2": (166, 39),
    "chroot": (161, 51),
    "pivot_root": (155, 41),
    "fsopen": (430, 430),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "mount_setattr": (442, 442),
    "fanotify_init": (300, 262),
    "inotify_init1": (294, 26),
    "seccomp": (317, 277),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "settimeofday": (164, 170),
    "sethostname": (170, 161),
    "syslog": (103, 116),
    "quotactl": (179, 60),
    "acct": (163, 89),
    "iopl": (172, None),
    "modify_ldt": (154, None),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "vmsplice": (278, 75),
    "setxattr": (188, 5),
    "fallocate": (285, 47),
    "timer_create": (222, 107),
    "setuid": (105, 146),
    "capset": (126, 91),
    "exit": (60, 93),
}
_COLUMN = 0 if platform.machine() == "x86_64" else 1
NUMBERS = {name: row[_COLUMN] for name, row in _SYSCALLS.items() if row[_COLUMN] is not None}

PRELUDE = f"""\
import ctypes, errno, json, os, sys, time
facts = json.loads(sys.stdin.readline() or "null")
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
NUMBERS = {NUMBERS!r}
HIDDEN = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ESRCH)

def escaped(what):
    sys.stdout.write(f"ESCAPED {{what}}\\n")
    sys.stdout.flush()

def attempt(what, function, *arguments, **options):
    try:
        result = function(*arguments, **options)
    except Exception as error:
        sys.stderr.write(f"refused {{what}}: {{error!r}}\\n")
        return None
    escaped(f"{{what}}: {{result!r:.200}}")
    return result

def syscall(name, *arguments):
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(NUMBERS[name]), *wide)
    if result == -1:
        raise OSError(ctypes.get_errno(), f"{{name}}: {{os.strerror(ctypes.get_errno())}}")
    return result

def reachable(name, *arguments):
    '''The kernel's own code behind the call was reached, whatever it then said.'''
    if name not in NUMBERS:
        return
    try:
        result = syscall(name, *arguments)
    except OSError as error:
        if error.errno in HIDDEN:
            sys.stderr.write(f"refused {{error}}\\n")
            return
        result = error
    escaped(f"{{name}} reached the kernel: {{result}}")
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hostile:
    """A program that must not get a pass, not reach anything, and not leave anything behind."""

    name: str
    source: str
    """After the `PRELUDE`, unless `bare`."""
    bare: bool = False
    function: str | None = None
    """Called with `facts`, or with `arguments`."""
    arguments: str | None = None
    right: str | None = None
    """The output that would be a pass; None: a text that no program is told."""
    ends: tuple[ExecutionStatus, ...] = ()
    """The only statuses that may be reported; empty: any."""
    limits: Limits = SMALL
    bites: bool = False
    """Gets through where there is no isolation, and does no harm there: shows that the checks can fail."""

    @property
    def text(self) -> str:
        """The whole source."""
        return self.source if self.bare else PRELUDE + self.source


@dataclass(frozen=True, kw_only=True, slots=True)
class Right:
    """A program in an odd style whose output is right."""

    name: str
    source: str
    output: str
    """Compared line by line without trailing white space; JSON where `function` is given."""
    stdin: str = ""
    function: str | None = None
    arguments: str = "[]"
