"""Programs that try to change what the next program meets.

What they leave is looked for by the program that runs next in the same sandbox.
"""

from tests.sandbox.corpus import Hostile

PROGRAMS = (
    Hostile(
        name="patched_builtins",
        source=r"""
import builtins
builtins.print = lambda *values, **options: None
builtins.open = builtins.input = builtins.sum = lambda *values: 1
builtins.planted = True
os.listdir = lambda *arguments: []
json.loads = json.dumps = lambda *arguments, **options: "planted"
sys.modules["math"] = sys.modules["re"] = sys
builtins.len = lambda value: 7
""",
    ),
    Hostile(
        name="interpreter_library",
        source=r"""
import site, sysconfig
directories = {sys.prefix, sys.base_prefix, os.path.dirname(os.__file__)}
directories |= set(sys.path) | set(sysconfig.get_paths().values())
for directory in sorted(directories - {"", ".", os.getcwd()}):
    for name in ("sitecustomize.py", "usercustomize.py", "zz-planted.pth", "json.py", "__pycache__/json.pyc"):
        path = os.path.join(directory, name)
        try:
            open(path, "a")
            escaped(path)
            os.unlink(path)
        except OSError as error:
            sys.stderr.write(f"{error}\n")
for module in ("json", "heapq", "random", "encodings"):
    for path in (sys.modules[module].__file__, sys.modules[module].__cached__) if module in sys.modules else ():
        attempt(path, open, path, "r+b")
        attempt(f"chmod {path}", os.chmod, path, 0o777)
        attempt(f"utime {path}", os.utime, path)
""",
    ),
    Hostile(
        name="modules_in_scratch",
        source=r"""
for name in ("json", "sys", "heapq", "collections", "sitecustomize", "solution", "__main__", "paceline"):
    open(name + ".py", "w").write("raise SystemExit('planted')\n")
    os.makedirs(f"__pycache__/{name}", exist_ok=True)
os.makedirs(".local/lib", exist_ok=True)
open(".pythonrc", "w").write("planted")
open("pyvenv.cfg", "w").write("home = .\n")
""",
    ),
    Hostile(
        name="files_everywhere_in_temporary_places",
        source=r"""
import tempfile
for directory in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm", os.getcwd(), os.path.expanduser("~")):
    try:
        open(directory + "/paceline-left-behind", "w").write("x")
    except OSError as error:
        print(error)
""",
    ),
    Hostile(
        name="traces_and_exit_handlers",
        source=r"""
import atexit, gc, threading
sys.settrace(lambda *details: None)
threading.settrace(lambda *details: None)
sys.setprofile(lambda *details: None)
atexit.register(print, "planted")
gc.disable()
gc.set_debug(gc.DEBUG_SAVEALL)
sys.setrecursionlimit(10**6)
sys.setswitchinterval(1000)
sys.path.insert(0, "/planted")
sys.meta_path.clear()
sys.path_hooks.clear()
sys.excepthook = sys.unraisablehook = sys.displayhook = None
os.environ["PYTHONSTARTUP"] = os.environ["LD_PRELOAD"] = "/planted"
libc.setenv(b"LD_PRELOAD", b"/planted", 1)
os.register_at_fork(before=lambda: print("planted"), after_in_child=lambda: print("planted"))
""",
    ),
    Hostile(
        name="process_state",
        source=r"""
import locale, resource, signal
os.umask(0o777)
os.nice(19)
for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
for name in ("AS", "CPU", "FSIZE", "NOFILE", "NPROC"):
    number = getattr(resource, "RLIMIT_" + name)
    try:
        resource.setrlimit(number, (1, 1))
    except (OSError, ValueError):
        pass
os._exit(0)
""",
    ),
    Hostile(
        name="shared_memory_and_queues",
        source=r"""
attempt("shmget", syscall, "shmget", facts["key"], 4096, 0o1666)
attempt("semget", syscall, "semget", facts["key"], 1, 0o1666)
attempt("msgget", syscall, "msgget", facts["key"], 0o1666)
if "mq_open" in NUMBERS:
    attempt("mq_open", syscall, "mq_open", facts["mark"].encode(), 0o102, 0o666, 0)
from multiprocessing import shared_memory
attempt("shared_memory", lambda: shared_memory.SharedMemory(facts["mark"], create=True, size=4096))
""",
    ),
    Hostile(
        name="keys_of_the_kernel",
        source=r"""
for ring in (-1, -2, -3, -4, -5):
    try:
        syscall("add_key", b"user", facts["mark"].encode(), b"x", 1, ring)
        escaped(f"added a key to ring {ring}")
    except OSError as error:
        print(error)
reachable("keyctl", 0, -5, 1)
""",
    ),
    Hostile(
        name="shared_mappings_overwritten",
        source=r"""
# memory shared with the runner would be a way into it
try:
    lines = open("/proc/self/maps").read().splitlines()
except OSError as error:
    sys.exit(str(error))
for line in lines:
    span, rights = line.split()[:2]
    if rights.endswith("s") and "w" in rights:
        start, end = (int(x, 16) for x in span.split("-"))
        escaped(f"shared writable memory: {line}")
        ctypes.memset(start, 0x41, end - start)
""",
    ),
    Hostile(
        name="libc_state",
        source=r"""
# the C library and the interpreter are copies of the runner's: writing to them must stay here
for name in (b"malloc", b"fork", b"write"):
    function = ctypes.cast(getattr(libc, name.decode()), ctypes.c_void_p).value
    page = function & ~4095
    if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(8192), 7) == 0 and name == b"fork":
        ctypes.memset(function, 0xC3, 1)
libc.srand(1)
ctypes.c_char.from_address(id("paceline") + 48).value = b"P"
""",
    ),
    Hostile(
        name="small_integers_changed",
        source=r"""
# 7 becomes 8 for every program that shares this memory
ctypes.memmove(id(7) + 24, (8).to_bytes(4, "little"), 4)
os._exit(0)
""",
    ),
    Hostile(
        name="scratch_filled_and_left",
        source=r"""
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
number = 0
try:
    while number < 2000:
        with open(f"fill{number}", "wb", buffering=0) as file:
            while file.write(bytes(1 << 18)) == 1 << 18:
                pass
        number += 1
except OSError:
    pass
os.kill(os.getpid(), 9)
""",
        ends=("runtime_error", "output_limit", "timeout", "memory"),
    ),
    Hostile(
        name="watch_the_next_program",
        source=r"""
fd = None
try:
    fd = syscall("inotify_init1", 0)
except OSError as error:
    print(error)
try:
    os.mkfifo("wait")
except OSError as error:
    print(error)
if os.fork() == 0:
    os.setsid()
    for _ in range(100):
        time.sleep(0.05)
        for name in os.listdir("."):
            try:
                open(name, "a").write("planted")
            except OSError:
                pass
    os._exit(0)
""",
    ),
    Hostile(
        name="function_that_plants",
        source=r"""
import builtins
def attack(facts):
    builtins.planted = True
    json.dumps = lambda *arguments, **options: "planted"
    json.loads = lambda *arguments, **options: ["planted"]
    sys.stdout = None
    open("planted", "w").write("x")
    return facts["token"]
""",
        function="attack",
    ),
)
