"""Programs that call the parts of the kernel that a plain program has no need of."""

from tests.sandbox.corpus import Hostile

PROGRAMS = (
    Hostile(
        name="program_the_kernel",
        source=r"""
reachable("bpf", 0, (ctypes.c_char * 128)(), 128)
reachable("bpf", 5, (ctypes.c_char * 128)(), 128)
reachable("perf_event_open", (ctypes.c_char * 128)(1, 0, 0, 0, 128), 0, -1, -1, 0)
reachable("io_uring_setup", 4, (ctypes.c_char * 120)())
reachable("userfaultfd", 1)
reachable("fanotify_init", 0, 0)
""",
    ),
    Hostile(
        name="namespaces",
        source=r"""
for name, flag in (("user", 0x10000000), ("mount", 0x20000), ("pid", 0x20000000), ("net", 0x40000000),
                   ("ipc", 0x08000000), ("uts", 0x04000000), ("cgroup", 0x02000000), ("time", 0x80)):
    attempt(f"unshare {name}", syscall, "unshare", flag)
    attempt(f"unshare user and {name}", syscall, "unshare", flag | 0x10000000)
for name in ("user", "mnt", "pid", "net", "ipc"):
    for pid in (1, os.getppid(), facts["harness"]):
        attempt(f"/proc/{pid}/ns/{name}", os.open, f"/proc/{pid}/ns/{name}", os.O_RDONLY)
reachable("setns", -1, 0)
""",
    ),
    Hostile(
        name="administration",
        source=r"""
reachable("kexec_load", 0, 0, 0, 0)
reachable("init_module", 0, 0, b"")
reachable("delete_module", b"paceline_no_such_module", 0)
reachable("reboot", 0xFEE1DEAD, 672274793, 0, 0)
reachable("swapon", b"/paceline-no-such-file", 0)
reachable("clock_settime", 0, 0)
reachable("settimeofday", 8, 0)
reachable("sethostname", b"planted", -1)
reachable("quotactl", 0x80000000, 0, 0, 0)
reachable("acct", b"/paceline-no-such-file")
reachable("iopl", 3)
""",
    ),
    Hostile(
        name="code_from_memory",
        source=r"""
fd = None
for way in (lambda: os.memfd_create("x"), lambda: os.open(".", os.O_TMPFILE | os.O_RDWR, 0o700),
            lambda: os.open("program", os.O_CREAT | os.O_RDWR, 0o700)):
    try:
        fd = way()
        os.write(fd, b"#!/bin/sh\necho ESCAPED from memory\n")
        read_only = fd
        try:
            syscall("execveat", fd, b"", (ctypes.c_char_p * 2)(b"x", None), (ctypes.c_char_p * 1)(None), 0x1000)
        except OSError as error:
            print(error)
        os.execve(fd, ["x"], {})
    except OSError as error:
        print(error)
try:
    os.execv(os.path.abspath("program"), ["program"])
except OSError as error:
    print(error)
""",
    ),
    Hostile(
        name="library_from_scratch",
        source=r"""
# a compiled file of one's own is no more than machine code, but it must not load from where others could plant it
import mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex("b8390000000f05c3"))  # mov eax, fork; syscall; ret
pid = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
if pid == 0:
    time.sleep(30)
    os._exit(0)
print(pid)
""",
    ),
    Hostile(
        name="filters_of_its_own",
        source=r"""
# a filter that lets a supervisor answer could answer for others; one that kills must kill only itself
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
allow = (ctypes.c_uint64 * 1)(0x7FFF0000 << 32 | 6)
program = Program(1, ctypes.addressof(allow))
libc.prctl(38, 1, 0, 0, 0)
attempt("seccomp listener", syscall, "seccomp", 1, 8, ctypes.byref(program))
trap = (ctypes.c_uint64 * 1)(0x80000000 << 32 | 6)
try:
    syscall("seccomp", 1, 1, ctypes.byref(Program(1, ctypes.addressof(trap))))
except OSError as error:
    print(error)
print("not killed")
""",
    ),
    Hostile(
        name="personality_and_layout",
        source=r"""
attempt("personality", syscall, "personality", 0x0040000)
attempt("modify_ldt", syscall, "modify_ldt", 0, (ctypes.c_char * 64)(), 64) if "modify_ldt" in NUMBERS else None
""",
        bites=True,
    ),
    Hostile(
        name="core_file",
        source=r"""
import resource, signal
try:
    resource.setrlimit(resource.RLIMIT_CORE, (1 << 30, 1 << 30))
except (OSError, ValueError) as error:
    print(error)
libc.prctl(4, 1, 0, 0, 0)
os.kill(os.getpid(), signal.SIGABRT)
""",
        ends=("runtime_error",),
    ),
    Hostile(
        name="asynchronous_input_output",
        source=r"""
context = ctypes.c_ulong()
reachable("io_setup", 1000, ctypes.byref(context))
reachable("process_madvise", -1, 0, 0, 4, 0)
reachable("move_pages", os.getppid(), 0, 0, 0, 0, 0)
""",
    ),
    Hostile(
        name="32_bit_and_x32_tables",
        source=r"""
import mmap, platform
if platform.machine() != "x86_64":
    sys.exit("another machine")
page = mmap.mmap(-1, 4096, prot=7)
# push rbx; mov eax, edi; mov ebx, esi; mov ecx, edx; int 0x80; pop rbx; ret
page.write(bytes.fromhex("5389f889f389d1cd805bc3"))
entry = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int)(
    ctypes.addressof(ctypes.c_char.from_buffer(page)))
low = 0x40000000
libc.mmap.restype = ctypes.c_void_p
room = libc.mmap(ctypes.c_void_p(low), ctypes.c_size_t(4096), 3, 0x32, -1, ctypes.c_long(0))
ctypes.memmove(low, facts["canary"].encode() + b"\0", len(facts["canary"]) + 1)
fd = entry(5, low, 0)
if fd >= 0:
    escaped("opened the canary through int 0x80")
    print(os.read(fd, 100))
fd = libc.syscall(ctypes.c_long(0x40000002), ctypes.c_long(low), ctypes.c_long(0))
if fd >= 0:
    escaped("opened the canary through x32")
    print(os.read(fd, 100))
for number, what in ((102, "socketcall"), (26, "ptrace"), (21, "mount"), (2, "fork")):
    if number != 2 and entry(number, 1, low) >= 0:
        escaped(f"{what} through int 0x80")
""",
        ends=("finished", "runtime_error"),
    ),
)
