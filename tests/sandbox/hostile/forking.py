"""Fork bombs, sub-processes, and processes that outlive their job."""

from paceline.sandbox.programs import Limits
from tests.sandbox.corpus import Hostile

PROGRAMS = (
    Hostile(
        name="fork_bomb",
        source=r"""
made = 0
for _ in range(300):
    try:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        made += 1
    except OSError:
        break
if made > 64:
    escaped(f"{made} processes")
""",
    ),
    Hostile(
        name="vfork_by_ctypes",
        source=r"""
for _ in range(3):
    pid = libc.vfork()
    if pid == 0:
        libc.execl(b"/bin/sh", b"sh", b"-c", b"echo ESCAPED by vfork", None)
        libc._exit(0)
print(pid)
""",
    ),
    Hostile(
        name="clone_by_number",
        source=r"""
pid = 0
try:
    pid = syscall("clone", 17, 0, 0, 0, 0)
    if pid == 0:
        time.sleep(30)
        os._exit(0)
except OSError as error:
    print(error)
try:
    arguments = (ctypes.c_uint64 * 11)(0, 0, 0, 0, 17)
    pid = syscall("clone3", arguments, 88)
    if pid == 0:
        time.sleep(30)
        os._exit(0)
except OSError as error:
    print(error)
""",
    ),
    Hostile(
        name="clone_into_new_namespaces",
        source=r"""
for flag in (0x10000000, 0x20000000, 0x40000000, 0x00020000, 0x08000000, 0x04000000, 0x02000000, 0x00000080):
    try:
        pid = syscall("clone", 0x10000000 | flag | 17, 0, 0, 0, 0)
        if pid == 0:
            os._exit(0)
        escaped(f"clone with {flag:#x}")
    except OSError as error:
        print(error)
""",
    ),
    Hostile(
        name="fork_through_32_bit_entry",
        source=r"""
import mmap, platform
if platform.machine() != "x86_64":
    sys.exit("another machine")
# fork is 2 in the 32-bit table, 57 in the 64-bit one
code = bytes.fromhex("53b802000000cd805bc3")
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(code)
run = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
pid = run()
if pid == 0:
    time.sleep(30)
    os._exit(0)
if pid > 0:
    escaped("int 0x80 is not filtered")
""",
    ),
    Hostile(
        name="fork_through_x32",
        source=r"""
import platform
if platform.machine() != "x86_64":
    sys.exit("another machine")
pid = libc.syscall(ctypes.c_long(0x40000000 | 57))
if pid == 0:
    time.sleep(30)
    os._exit(0)
if pid > 0:
    escaped("x32 is not filtered")
""",
    ),
    Hostile(
        name="subprocess_echo",
        source=r"""
import subprocess
attempt("subprocess", subprocess.run, ["/bin/sh", "-c", "echo hello"], check=True, timeout=5)
attempt("subprocess python", subprocess.run, [sys.executable, "-c", "print(1)"], check=True, timeout=5)
""",
        bites=True,
    ),
    Hostile(
        name="os_system",
        source=r"""
os.system("echo ESCAPED through the shell")
os.system(f"echo x > {facts['shared']}/os_system")
with os.popen("echo ESCAPED through popen") as pipe:
    print(pipe.read())
""",
        bites=True,
    ),
    Hostile(
        name="posix_spawn",
        source=r"""
for path in ("/bin/echo", "/usr/bin/echo", "/bin/sh", sys.executable, "/proc/self/exe"):
    attempt(f"posix_spawn {path}", os.posix_spawn, path, [path, "--version"], {})
    attempt(f"posix_spawnp {path}", os.posix_spawnp, path, [path, "--version"], {})
""",
        bites=True,
    ),
    Hostile(
        name="execve_shell",
        source=r"""
for path in ("/bin/sh", "/usr/bin/sh", "/bin/bash", "/bin/busybox"):
    try:
        os.execve(path, [path, "-c", "echo ESCAPED by execve"], {})
    except OSError as error:
        print(error)
""",
        bites=True,
    ),
    Hostile(
        name="execve_python_again",
        source=r"""
for path in (sys.executable, "/proc/self/exe", "/usr/bin/python3"):
    try:
        os.execve(path, [path, "-c", "print('ESCAPED into a fresh interpreter')"], {})
    except (OSError, ValueError, TypeError) as error:
        print(error)
""",
        bites=True,
    ),
    Hostile(
        name="execute_the_loader",
        source=r"""
import glob
loaders = glob.glob("/lib*/ld-linux*") + glob.glob("/lib/*/ld-linux*") + glob.glob("/usr/lib/*/ld-linux*")
for path in loaders:
    try:
        os.execv(path, [path, "/bin/echo", "ESCAPED", "through the loader"])
    except OSError as error:
        print(error)
""",
        bites=True,
    ),
    Hostile(
        name="multiprocessing_pool",
        source=r"""
import multiprocessing
def work(n):
    return n * n
for method in ("fork", "spawn", "forkserver"):
    try:
        process = multiprocessing.get_context(method).Process(target=time.sleep, args=(30,))
        process.start()
        print(process.pid)
    except Exception as error:
        print(error)
os._exit(0)
""",
    ),
    Hostile(
        name="double_fork_daemon",
        source=r"""
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3):
            os.close(fd)
        for _ in range(100):
            time.sleep(0.3)
            try:
                open(facts["shared"] + "/daemon", "a").write("alive")
            except OSError:
                pass
    os._exit(0)
""",
    ),
    Hostile(
        name="daemon_in_new_sessions",
        source=r"""
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            time.sleep(60)
        os._exit(0)
os._exit(0)
""",
    ),
    Hostile(
        name="fork_chain_that_runs_away",
        source=r"""
# every child forks the next and ends: no process lives long enough to be killed by its number
for _ in range(2000):
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.005)
""",
    ),
    Hostile(
        name="pty_fork",
        source=r"""
import pty
pid, fd = pty.fork()
if pid == 0:
    time.sleep(30)
    os._exit(0)
""",
    ),
    Hostile(
        name="thread_bomb",
        source=r"""
import threading
threading.stack_size(32768)
made = 0
try:
    for _ in range(3000):
        threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        made += 1
except Exception as error:
    print(error)
if made >= 3000:
    escaped(f"{made} threads")
time.sleep(30)
""",
        ends=("timeout", "runtime_error"),
        limits=Limits(seconds=0.5, memory_mb=512, output_bytes=1 << 16),
    ),
    Hostile(
        name="thread_bomb_by_number",
        source=r"""
# CLONE_VM | FS | FILES | SIGHAND | THREAD | SYSVSEM, in machine code: threads that only sleep, within milliseconds.
# So many, as at `landlock` a user without rights may have 256 more than the whole machine had at the start.
import mmap, platform
if platform.machine() != "x86_64":
    sys.exit("another machine")
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex(
    "5331dbb838000000bf000f05004889e631d20f0585c07410"
    "780affc381fbb80b000072df89d85bc3b8220000000f05ebf7"
))
made = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
if made >= 3000:
    escaped(f"{made} threads")
os._exit(0)
""",
    ),
    Hostile(
        name="fork_in_a_function",
        source=r"""
def attack(facts):
    children = 0
    for _ in range(100):
        try:
            if os.fork() == 0:
                time.sleep(30)
                os._exit(0)
            children += 1
        except OSError:
            break
    return "ESCAPED" if children > 64 else children
""",
        function="attack",
    ),
    Hostile(
        name="child_answers_for_a_parent_that_loops",
        source=r"""
def attack(facts):
    if os.fork() == 0:
        return facts["token"]
    while True:
        pass
""",
        function="attack",
        right="token",
        ends=("timeout", "runtime_error"),
    ),
)
