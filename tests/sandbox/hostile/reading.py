"""Programs that look for what they should not know: secrets, expected outputs, the host."""

from tests.sandbox.corpus import Hostile

PROGRAMS = (
    Hostile(
        name="environment",
        source=r"""
print(dict(os.environ))
libc.getenv.restype = ctypes.c_char_p
print(libc.getenv(b"PACELINE_CANARY"), libc.getenv(b"HOME"), libc.getenv(b"SSH_AUTH_SOCK"))
for pid in ("self", 1, os.getppid(), facts["harness"], facts["bystander"]):
    try:
        print(open(f"/proc/{pid}/environ", "rb").read())
    except OSError as error:
        print(error)
""",
    ),
    Hostile(
        name="canary_file",
        source=r"""
path = facts["canary"]
for way in (
    lambda: open(path).read(),
    lambda: open("/proc/self/root" + path).read(),
    lambda: open("/proc/1/root" + path).read(),
    lambda: open(f"/proc/{facts['harness']}/root" + path).read(),
    lambda: open(f"/proc/{facts['harness']}/cwd").read(),
    lambda: open("../" * 40 + path.lstrip("/")).read(),
    lambda: os.read(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), 100),
    lambda: open(os.open(path, os.O_PATH)).read(),
    lambda: open(f"/proc/self/fd/{os.open(path, os.O_PATH)}").read(),
    lambda: __import__("mmap").mmap(os.open(path, os.O_RDONLY), 0, access=1)[:],
    lambda: ctypes.CDLL(path),
    lambda: __import__("runpy").run_path(path),
    lambda: __import__("linecache").getlines(path),
    lambda: __import__("shutil").copy(path, "copy") and open("copy").read(),
):
    try:
        print(way())
    except Exception as error:
        sys.stderr.write(type(error).__name__ + "\n")
""",
        bites=True,
    ),
    Hostile(
        name="canary_through_links",
        source=r"""
path = facts["canary"]
for number, make in enumerate((os.symlink, os.link)):
    try:
        make(path, f"link{number}")
        print(open(f"link{number}").read())
    except OSError as error:
        print(error)
try:
    os.symlink(os.path.dirname(path), "dir")
    print(os.listdir("dir"))
    os.chdir("dir")
    print(open(os.path.basename(path)).read())
except OSError as error:
    print(error)
""",
        bites=True,
    ),
    Hostile(
        name="canary_by_handle",
        source=r"""
handle = (ctypes.c_byte * 136)()
ctypes.cast(handle, ctypes.POINTER(ctypes.c_uint))[0] = 128
mount = ctypes.c_int()
try:
    syscall("name_to_handle_at", -100, facts["canary"].encode(), handle, ctypes.byref(mount), 0)
except OSError as error:
    print(error)
for directory in range(-100, 64):
    try:
        fd = syscall("open_by_handle_at", directory, handle, 0)
        escaped("open_by_handle_at")
        print(os.read(fd, 100))
    except OSError as error:
        if error.errno not in HIDDEN + (errno.EBADF, errno.ESTALE, errno.EINVAL):
            print(error)
""",
    ),
    Hostile(
        name="password_files",
        source=r"""
for path in ("/etc/passwd", "/etc/shadow", "/etc/hosts", "/etc/machine-id", "/etc/ssh/ssh_host_rsa_key"):
    try:
        if open(path).read().strip():
            escaped(path)
    except OSError as error:
        print(error)
""",
        bites=True,
    ),
    Hostile(
        name="directories_of_the_host",
        source=r"""
for path in ("/root", "/home", "/tmp", "/var", "/etc", "/sys", facts["shared"], facts["repository"]):
    try:
        # the way to the interpreter, and the scratch directory, may be there
        names = set(os.listdir(path)) - {*sys.prefix.split("/"), *os.listdir("."), "ld.so.cache"}
        if names:
            escaped(f"{path} lists {sorted(names)[:5]}")
    except OSError as error:
        print(error)
for path in ("/proc/version", "/proc/cmdline", "/proc/kallsyms", "/proc/net/tcp", "/proc/mounts", "/proc/meminfo",
             "/dev/mem", "/dev/kmsg", "/dev/vda", "/dev/sda", "/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/tty"):
    try:
        if os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 10):
            escaped(path)
    except OSError as error:
        print(error)
""",
        bites=True,
    ),
    Hostile(
        name="devices_opened_for_writing",
        source=r"""
for path in ("/dev/mem", "/dev/kmsg", "/dev/vda", "/dev/sda", "/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/ptmx",
             "/dev/loop-control", "/dev/uinput", "/dev/vhost-net", "/dev/userfaultfd", "/dev/console", "/dev/tty"):
    try:
        os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY)
        escaped(path)
    except OSError as error:
        print(error)
""",
    ),
    Hostile(
        name="other_processes_in_proc",
        source=r"""
for pid in (facts["harness"], facts["bystander"], os.getppid(), 1):
    for name in ("cmdline", "status", "maps", "environ", "stat"):
        try:
            if open(f"/proc/{pid}/{name}", "rb").read():
                escaped(f"/proc/{pid}/{name}")
        except OSError as error:
            print(error)
""",
        bites=True,
    ),
    Hostile(
        name="inherited_descriptors",
        source=r"""
import stat
for fd in range(3, 1024):
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        continue
    os.write(2, f"fd {fd} is open: {mode:o}\n".encode())
    try:
        os.set_blocking(fd, False)
    except OSError:
        pass
    for way in (
        lambda: os.pread(fd, 4096, 0),
        lambda: os.read(fd, 4096),
        lambda: os.listdir(fd),
        lambda: os.listdir(os.open("..", os.O_RDONLY, dir_fd=fd)),
        lambda: os.read(os.open("../" * 30 + facts["canary"].lstrip("/"), os.O_RDONLY, dir_fd=fd), 100),
        lambda: os.fchdir(fd),
        lambda: open("../" * 30 + facts["canary"].lstrip("/")).read(),
    ):
        try:
            print(way())
        except (OSError, ValueError):
            pass
""",
    ),
    Hostile(
        name="walk_the_frames",
        source=r"""
import inspect
frame = sys._getframe()
while frame is not None:
    print({k: repr(v)[:300] for k, v in {**frame.f_globals, **frame.f_locals}.items() if k not in ("facts", "NUMBERS")})
    try:
        print(inspect.getsource(frame) if frame is not sys._getframe() else "")
    except (OSError, TypeError):
        pass
    frame = frame.f_back
for thread, frame in sys._current_frames().items():
    print(thread, frame.f_code.co_filename)
if any(name.startswith(("tests.", "paceline.rewards", "paceline.training")) for name in sys.modules):
    escaped("modules of the grader are loaded")
""",
    ),
    Hostile(
        name="scan_every_object",
        source=r"""
import gc
needle = "sec" + "ret-"
seen, queue = set(), list(gc.get_objects())
queue += [o for m in list(sys.modules.values()) for o in vars(m).values()]
while queue and len(seen) < 400_000:
    found = queue.pop()
    if id(found) in seen:
        continue
    seen.add(id(found))
    if isinstance(found, str) and needle in found or isinstance(found, bytes) and needle.encode() in found:
        print("found", repr(found)[:300])
    elif isinstance(found, (dict, list, tuple, set)):
        queue += gc.get_referents(found)
""",
        ends=("finished", "timeout"),
    ),
    Hostile(
        name="scan_own_memory",
        source=r"""
needle = b"sec" + b"ret-"
# a write into a pipe says whether there is memory at an address: no list of mappings is needed
out, into = os.pipe()
libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
libc.malloc.restype = ctypes.c_void_p
starts = {id(None), id(object()), id(sys.modules), id(needle * 1000), libc.malloc(10), libc.malloc(1 << 20)}
pages, seen = 0, set()
for start in sorted(page & ~4095 for page in starts):
    for step in (4096, -4096):
        address, missed = start, 0
        while missed < 64 and address not in seen and len(seen) < 100_000:
            seen.add(address)
            if libc.write(into, address, 4096) == 4096:
                data, missed, pages = os.read(out, 4096), 0, pages + 1
                at = data.find(needle)
                if at >= 0:
                    print(data[at : at + 60])
            else:
                missed += 1
            address += step
print(pages, "pages")
""",
        ends=("finished", "timeout", "runtime_error", "memory", "output_limit"),
    ),
    Hostile(
        name="memory_of_the_parent",
        source=r"""
buffer = ctypes.create_string_buffer(64)
class Range(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
local = Range(ctypes.addressof(buffer), 64)
# the parent has the same layout where this process is a copy of it
for victim in (os.getppid(), 1, facts["harness"], facts["bystander"]):
    for address in (id(None), ctypes.cast(libc.getpid, ctypes.c_void_p).value):
        remote = Range(address, 64)
        for name in ("process_vm_readv", "process_vm_writev"):
            try:
                moved = syscall(name, victim, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
                escaped(f"{name} of {victim} moved {moved} bytes")
            except OSError as error:
                print(error)
    attempt(f"/proc/{victim}/mem", open, f"/proc/{victim}/mem", "rb")
""",
    ),
    Hostile(
        name="source_of_the_caller",
        source=r"""
import glob
found = set()
for module in list(sys.modules.values()):
    path = getattr(module, "__file__", None)
    if path and "paceline" in path:
        found.add(path)
frame = sys._getframe()
while frame:
    found.add(frame.f_code.co_filename)
    frame = frame.f_back
for path in found:
    for other in glob.glob(os.path.join(os.path.dirname(path), "..", "..", "..", "*")):
        try:
            if open(other).read():
                escaped(f"a file of the project: {other}")
        except OSError:
            pass
""",
    ),
    Hostile(
        name="input_of_the_neighbours",
        source=r"""
# scratch directories and inputs of other jobs lie somewhere near
for start in ("..", "../..", "/tmp", "/scratch", "/work", "/job", "/run", "/dev/shm", os.path.dirname(os.getcwd())):
    for root, directories, files in os.walk(start):
        for name in files:
            try:
                text = open(os.path.join(root, name), errors="replace").read(10000)
            except OSError:
                continue
            if '"tok' + 'en": "tok' in text and facts["token"] not in text:
                escaped(f"{root}/{name}")
        if root.count("/") > 8:
            directories.clear()
""",
        ends=("finished", "timeout"),
    ),
    Hostile(
        name="log_of_the_kernel",
        source=r"""
buffer = ctypes.create_string_buffer(4096)
reachable("syslog", 3, buffer, 4096)
reachable("syslog", 10, 0, 0)
""",
    ),
    Hostile(
        name="function_reads_its_callers",
        source=r"""
import gc
def attack(facts):
    found, frame = [], sys._getframe()
    while frame:
        found.append({k: repr(v)[:200] for k, v in frame.f_locals.items() if k != "facts"})
        frame = frame.f_back
    held = [repr(o)[:5000] for o in gc.get_objects() if isinstance(o, (dict, list))]
    found += [text[:200] for text in held if "sec" + "ret-" in text]
    return found[:100]
""",
        function="attack",
        ends=("finished", "timeout", "runtime_error", "output_limit"),
    ),
)
