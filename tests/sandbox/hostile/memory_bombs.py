"""Programs that take memory without end."""

from tests.sandbox.corpus import Hostile

PROGRAMS = (
    Hostile(
        name="list", source="a = []\nwhile True:\n    a.append(' ' * 1000)\n", bare=True, ends=("memory", "timeout")
    ),
    Hostile(name="bytearray", source="a = bytearray(1 << 40)\n", bare=True, ends=("memory",)),
    Hostile(
        name="bytearray_in_steps",
        source="a = []\nfor _ in range(64):\n    a.append(bytearray(1 << 24))\nescaped('1 GiB')\n",
        ends=("memory",),
    ),
    Hostile(
        name="anonymous_mmap",
        source=r"""
import mmap
pages = []
for flags in (mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS):
    try:
        for _ in range(64):
            page = mmap.mmap(-1, 1 << 24, flags=flags)
            for at in range(0, 1 << 24, 4096):
                page[at] = 1
            pages.append(page)
    except (OSError, MemoryError) as error:
        print(error)
if len(pages) > 20:
    escaped(f"{len(pages) * 16} MiB of pages")
""",
    ),
    Hostile(
        name="memory_file",
        source=r"""
for name in ("memfd_create", "memfd_secret"):
    try:
        fd = syscall(name, b"x", 0) if name == "memfd_create" else syscall(name, 0)
        for _ in range(300):
            os.write(fd, bytes(1 << 20))
        escaped(f"300 MiB in {name}")
    except OSError as error:
        print(error)
""",
    ),
    Hostile(
        name="pipes_full_of_bytes",
        source=r"""
import fcntl
held = []
taken = 0
try:
    for _ in range(4000):
        ends = os.pipe()
        held.append(ends)
        try:
            fcntl.fcntl(ends[1], 1031, 1 << 20)
        except OSError:
            pass
        os.set_blocking(ends[1], False)
        taken += os.write(ends[1], bytes(1 << 20))
except OSError as error:
    print(error)
if taken > 256 << 20:
    escaped(f"{taken >> 20} MiB of kernel memory in pipes")
""",
    ),
    Hostile(name="huge_integer", source="x = 1 << (1 << 40)\n", bare=True, ends=("memory", "runtime_error")),
    Hostile(
        name="growing_integer",
        source="x = 3\nwhile True:\n    x = x * x\n",
        bare=True,
        ends=("memory", "timeout"),
    ),
    Hostile(name="string_doubling", source="s = 'ab'\nwhile True:\n    s += s\n", bare=True, ends=("memory",)),
    Hostile(
        name="format_width",
        source="print(len(f'{1:{10**10}}'))\nprint('%0999999999999d' % 1)\n",
        bare=True,
        ends=("memory", "runtime_error"),
    ),
    Hostile(
        name="python_recursion",
        source="def f(n):\n    return f(n + 1)\nf(0)\n",
        bare=True,
        ends=("runtime_error",),
    ),
    Hostile(
        name="recursion_without_limit",
        source=r"""
import sys
sys.setrecursionlimit(2**31 - 1)
def f(n):
    return f(n + 1) + 1
f(0)
""",
        bare=True,
        ends=("runtime_error", "memory", "timeout"),
    ),
    Hostile(
        name="c_recursion",
        source=r"""
import sys
sys.setrecursionlimit(10**9)
a = []
for _ in range(10**6):
    a = [a]
b = []
for _ in range(10**6):
    b = [b]
print(a == b)
repr(a)
""",
        bare=True,
        ends=("runtime_error", "memory", "timeout"),
    ),
    Hostile(
        name="caught_memory_error_then_the_answer",
        source=r"""
held = []
for size in (1 << 24, 1 << 16, 1 << 8):
    try:
        while len(held) < 200000:
            held.append(bytearray(size))
    except MemoryError:
        pass
while True:
    try:
        held.append(bytearray(64))
    except MemoryError:
        held.append(None)
""",
        ends=("memory", "timeout", "runtime_error"),
    ),
    Hostile(
        name="thread_stacks",
        source=r"""
import threading
threading.stack_size(1 << 30)
for _ in range(64):
    threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
escaped("64 GiB of stacks")
""",
    ),
    Hostile(
        name="locked_memory",
        source=r"""
import mmap, resource
page = mmap.mmap(-1, 64 << 20)
address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(page)))
if libc.mlock(address, ctypes.c_size_t(64 << 20)) == 0:
    escaped("64 MiB locked")
if libc.mlockall(3) == 0 and resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] < 0:
    escaped("everything locked")
""",
    ),
    Hostile(
        name="raise_own_limits",
        source=r"""
import resource
for name in ("AS", "CPU", "FSIZE", "NOFILE", "NPROC", "CORE", "DATA", "STACK", "MEMLOCK"):
    number = getattr(resource, "RLIMIT_" + name)
    hard = resource.getrlimit(number)[1]
    wanted = resource.RLIM_INFINITY if hard != resource.RLIM_INFINITY else None
    if wanted is not None:
        attempt(f"raise {name}", resource.setrlimit, number, (wanted, wanted))
    if name in ("AS", "CPU", "NOFILE", "FSIZE") and hard == resource.RLIM_INFINITY:
        escaped(f"{name} has no limit")
    if name == "CORE" and hard not in (0, 1):  # 1 byte: the kernel takes it for none at all
        escaped("core files are allowed")
""",
    ),
    Hostile(
        name="memory_in_a_function",
        source="def attack(facts):\n    return len([0] * (1 << 40))\n",
        function="attack",
        ends=("memory",),
    ),
    Hostile(
        name="memory_in_the_returned_value",
        source="def attack(facts):\n    row = [0] * 1000\n    return [row] * 10**6\n",
        function="attack",
        ends=("memory", "output_limit", "timeout"),
    ),
    Hostile(
        name="decompression_bomb",
        source=r"""
import zlib
data = zlib.compress(bytes(1 << 24), 9)
held = []
while True:
    held.append(zlib.decompress(data))
""",
        ends=("memory", "timeout"),
    ),
)
