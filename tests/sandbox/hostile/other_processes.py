"""Programs that go for other processes: the runner, the grader, a bystander."""

from tests.sandbox.corpus import Hostile

PROGRAMS = (
    Hostile(
        name="kill_the_parent",
        source=r"""
import signal
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGSTOP, signal.SIGSEGV, signal.SIGKILL):
    try:
        os.kill(os.getppid(), number)
        escaped(f"signal {number} to the parent")
    except OSError as error:
        print(error)
""",
    ),
    Hostile(
        name="kill_a_bystander",
        source=r"""
attempt("kill", os.kill, facts["bystander"], 9)
attempt("tgkill", syscall, "tgkill", facts["bystander"], facts["bystander"], 9)
attempt("tkill", syscall, "tkill", facts["bystander"], 9)
information = (ctypes.c_int * 32)(9, 0, -1)
attempt("rt_sigqueueinfo", syscall, "rt_sigqueueinfo", facts["bystander"], 9, information)
attempt("rt_tgsigqueueinfo", syscall, "rt_tgsigqueueinfo", facts["bystander"], facts["bystander"], 9, information)
""",
        bites=True,
    ),
    Hostile(
        name="kill_everybody",
        source=r"""
import signal
# SIGURG is ignored unless asked for: harmless where it arrives
attempt("kill -1", os.kill, -1, signal.SIGURG)
""",
        bites=True,
    ),
    Hostile(
        name="kill_the_first_process",
        source=r"""
import signal
if os.getppid() in (0, 1):
    # its parent is the first process: this is a namespace of its own, and the real signals are tried
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):
        attempt(f"signal {number} to 1", os.kill, 1, number)
else:
    attempt("signal 0 to 1", os.kill, 1, 0)
""",
    ),
    Hostile(
        name="every_process_number",
        source=r"""
for pid in [*range(2, 2000), facts["harness"]]:
    if pid == os.getpid():
        continue
    try:
        os.kill(pid, 0)
        escaped(f"process {pid} is within reach")
    except OSError:
        pass
""",
        bites=True,
    ),
    Hostile(
        name="trace_the_parent",
        source=r"""
for victim in (os.getppid(), facts["bystander"], facts["harness"], 1):
    for name, request in (("PTRACE_ATTACH", 16), ("PTRACE_SEIZE", 0x4206)):
        attempt(f"{name} {victim}", syscall, "ptrace", request, victim, 0, 0)
attempt("PTRACE_TRACEME", syscall, "ptrace", 0, 0, 0, 0)
""",
    ),
    Hostile(
        name="process_descriptors",
        source=r"""
for victim in (os.getppid(), facts["bystander"], facts["harness"], 1):
    fd = attempt(f"pidfd_open {victim}", syscall, "pidfd_open", victim, 0)
    if fd is not None:
        attempt(f"pidfd_send_signal {victim}", syscall, "pidfd_send_signal", fd, 9, 0, 0)
        for other in range(64):
            try:
                syscall("pidfd_getfd", fd, other, 0)
                escaped(f"took descriptor {other} of {victim}")
            except OSError:
                pass
""",
    ),
    Hostile(
        name="priorities_of_others",
        source=r"""
import resource
for victim in (os.getppid(), facts["bystander"], facts["harness"]):
    attempt(f"setpriority {victim}", os.setpriority, os.PRIO_PROCESS, victim, 19)
    attempt(f"affinity {victim}", os.sched_setaffinity, victim, {0})
    attempt(f"scheduler {victim}", os.sched_setscheduler, victim, os.SCHED_IDLE, os.sched_param(0))
    attempt(f"prlimit {victim}", resource.prlimit, victim, resource.RLIMIT_NOFILE, (5, 5))
    attempt(f"prlimit read {victim}", resource.prlimit, victim, resource.RLIMIT_NOFILE)
    attempt(f"ioprio {victim}", syscall, "ioprio_set", 1, victim, 3 << 13)
    attempt(f"migrate_pages {victim}", syscall, "migrate_pages", victim, 0, 0, 0)
    attempt(f"kcmp {victim}", syscall, "kcmp", os.getpid(), victim, 0, 0, 0)
    attempt(f"robust list {victim}", syscall, "get_robust_list", victim, ctypes.byref(ctypes.c_void_p()),
            ctypes.byref(ctypes.c_size_t()))
    attempt(f"setpgid {victim}", os.setpgid, victim, victim)
# 0 names the whole group, or all of a user: others are in it
for which in (os.PRIO_PGRP, os.PRIO_USER):
    try:
        os.setpriority(which, 0, 19)
    except OSError as error:
        print(error)
""",
    ),
    Hostile(
        name="real_time_priority",
        source=r"""
attempt("SCHED_FIFO", os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(50))
attempt("nice -20", os.setpriority, os.PRIO_PROCESS, 0, -20)
attempt("io real time", syscall, "ioprio_set", 1, 0, (1 << 13) | 0)
""",
    ),
    Hostile(
        name="terminal_of_the_host",
        source=r"""
import fcntl, termios
for fd in range(0, 64):
    try:
        fcntl.ioctl(fd, termios.TIOCSTI, b"x")
        escaped("typed into a terminal")
    except (OSError, ValueError):
        pass
    try:
        fcntl.ioctl(fd, termios.TIOCSCTTY, 1)
        escaped("took a terminal")
    except (OSError, ValueError):
        pass
attempt("controlling terminal", os.open, "/dev/tty", os.O_RDWR)
""",
    ),
    Hostile(
        name="become_somebody_else",
        source=r"""
for uid in (0, 1, 1000, 65534, os.getuid() + 1, os.getuid() - 1):
    if uid not in (os.getuid(), -1):
        attempt(f"setuid {uid}", os.setuid, uid)
        attempt(f"setresuid {uid}", os.setresuid, uid, uid, uid)
        attempt(f"setgid {uid}", os.setgid, uid)
attempt("setgroups", os.setgroups, [0, 4, 27])
for capability in range(41):
    if libc.prctl(24, capability, 0, 0, 0) == 0:
        escaped(f"dropped capability {capability} from the bounding set, so held CAP_SETPCAP")
        break
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
data = (ctypes.c_uint32 * 6)(0xFFFFFFFF, 0xFFFFFFFF, 0, 0xFFFFFFFF, 0xFFFFFFFF, 0)
attempt("capset", syscall, "capset", header, data)
held = (ctypes.c_uint32 * 6)()
if libc.capget(header, held) == 0 and (held[0] or held[1] or held[3] or held[4]):
    escaped(f"capabilities are held: {list(held)}")
if libc.prctl(39, 0, 0, 0, 0) == 0:
    escaped("no_new_privs is not set")
""",
    ),
)
