"""Right programs that use threads, signals, files and memory, or leave in an odd way."""

from tests.sandbox.corpus import Right

PROGRAMS = (
    Right(name="exit_built_in", source="print(1)\nexit()\nprint(2)\n", output="1"),
    Right(name="quit_built_in_with_zero", source="print(1)\nquit(0)\n", output="1"),
    Right(name="system_exit_without_a_code", source="import sys\nprint('a')\nsys.exit()\n", output="a"),
    Right(
        name="temporary_files",
        source=r"""
import os, tempfile
with tempfile.TemporaryDirectory() as directory:
    path = os.path.join(directory, "a")
    open(path, "w").write("text")
    with tempfile.NamedTemporaryFile("w+", suffix=".txt") as other:
        other.write(open(path).read() * 2)
        other.seek(0)
        print(other.read())
with tempfile.TemporaryFile() as file:
    file.write(b"x")
with open("beside.txt", "w") as file:
    file.write("beside")
print(open("beside.txt").read(), os.path.exists(directory))
""",
        output="texttext\nbeside False",
    ),
    Right(
        name="answer_at_exit",
        source="import atexit\natexit.register(print, 'second')\nprint('first')\n",
        output="first\nsecond",
    ),
    Right(
        name="exit_handlers_in_reverse",
        source=r"""
import atexit
@atexit.register
def a():
    print('a')
@atexit.register
def b():
    print('b')
""",
        output="b\na",
    ),
    Right(
        name="late_thread",
        source=r"""
import threading, time
threading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()
print('early')
""",
        output="early\nlate",
    ),
    Right(
        name="deep_recursion_in_a_thread",
        source=r"""
import sys, threading
sys.setrecursionlimit(1 << 20)
threading.stack_size(1 << 26)
def depth(n):
    return 0 if n == 0 else 1 + depth(n - 1)
def main():
    print(depth(int(input())))
thread = threading.Thread(target=main)
thread.start()
thread.join()
""",
        stdin="50000",
        output="50000",
    ),
    Right(
        name="recursion_limit_raised",
        source="import sys\nsys.setrecursionlimit(10**6)\nf = lambda n: n and 1 + f(n - 1)\nprint(f(9000))\n",
        output="9000",
    ),
    Right(
        name="asynchronous",
        source=r"""
import asyncio
async def square(n):
    await asyncio.sleep(0.001)
    return n * n
async def main():
    print(*await asyncio.gather(*map(square, range(5))))
    print(await asyncio.to_thread(lambda: "in a thread"))
asyncio.run(main())
""",
        output="0 1 4 9 16\nin a thread",
    ),
    Right(
        name="a_pool_of_threads",
        source=r"""
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as pool:
    print(sum(pool.map(len, ["a", "bb", "ccc"])))
""",
        output="6",
    ),
    Right(
        name="socket_pair",
        source="import socket\na, b = socket.socketpair()\na.sendall(b'hi')\nprint(b.recv(2))\n",
        output="b'hi'",
    ),
    Right(
        name="pipe_and_select",
        source=r"""
import os, select
r, w = os.pipe()
os.write(w, b'x')
print(select.select([r], [], [], 1)[0] == [r], os.read(r, 1))
""",
        output="True b'x'",
    ),
    Right(
        name="own_alarm",
        source=r"""
import signal, time
rang = []
signal.signal(signal.SIGALRM, lambda *details: rang.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.05)
signal.pause()
print(rang)
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.alarm(0)
""",
        output="[1]",
    ),
    Right(
        name="signal_to_itself",
        source=r"""
import os, signal
signal.signal(signal.SIGUSR1, lambda number, frame: print("got", number == signal.SIGUSR1))
os.kill(os.getpid(), signal.SIGUSR1)
signal.raise_signal(signal.SIGUSR1)
""",
        output="got True\ngot True",
    ),
    Right(
        name="keyboard_interrupt_caught",
        source=r"""
import signal
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print('caught')
""",
        output="caught",
    ),
    Right(name="switch_interval", source="import sys\nsys.setswitchinterval(1e-6)\nprint('ok')\n", output="ok"),
    Right(
        name="stack_limit_raised",
        source=r"""
import resource, sys
_, hard = resource.getrlimit(resource.RLIMIT_STACK)
resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))
sys.setrecursionlimit(10**7)
def depth(n):
    return 0 if n == 0 else 1 + depth(n - 1)
print(depth(100_000))
""",
        output="100000",
    ),
    Right(
        name="very_big_thread_stack",
        source=r"""
import threading
threading.stack_size(1 << 28)
thread = threading.Thread(target=print, args=("in a big stack",))
thread.start()
thread.join()
""",
        output="in a big stack",
    ),
    Right(
        name="thread_that_fails",
        source="import threading\nthreading.Thread(target=lambda: 1 / 0).start()\nprint('still right')\n",
        output="still right",
    ),
    Right(
        name="daemon_thread_at_the_end",
        source=r"""
import threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print('done')
""",
        output="done",
    ),
    Right(
        name="exit_in_a_thread",
        source="import sys, threading\nthreading.Thread(target=sys.exit, args=(3,)).start()\nprint('x')\n",
        output="x",
    ),
    Right(name="exit_status_of_256", source="import sys\nprint('zero')\nsys.exit(256)\n", output="zero"),
    Right(name="exit_false", source="import sys\nprint('zero')\nsys.exit(False)\n", output="zero"),
    Right(name="hard_exit_after_a_flush", source="import os\nprint('done', flush=True)\nos._exit(0)\n", output="done"),
    Right(
        name="exception_caught_and_reported",
        source=r"""
import traceback
try:
    1 / 0
except ZeroDivisionError:
    traceback.print_exc()
print('ok')
""",
        output="ok",
    ),
    Right(name="warnings", source="import warnings\nwarnings.warn('careful')\nx = '\\d'\nprint(len(x))\n", output="2"),
    Right(
        name="logging",
        source="import logging\nlogging.basicConfig(level=10)\nlogging.info('hidden')\nprint('shown')\n",
        output="shown",
    ),
    Right(name="a_lot_of_memory", source="a = [0] * (20 << 20)\nprint(len(a))\n", output=str(20 << 20)),
    Right(
        name="random_bytes",
        source=r"""
import os, random, secrets
print(len(os.urandom(4)), len(secrets.token_hex(2)), 0 <= random.random() < 1)
""",
        output="4 4 True",
    ),
    Right(
        name="memory_map",
        source="import mmap\nm = mmap.mmap(-1, 4096)\nm.write(b'abc')\nprint(m[:3])\n",
        output="b'abc'",
    ),
    Right(
        name="environment_may_be_used",
        source=r"""
import os
os.environ['ONLINE_JUDGE'] = '1'
print(os.environ.get('ONLINE_JUDGE'), os.getenv('NONE', 'd'))
""",
        output="1 d",
    ),
    Right(
        name="time_and_sleep",
        source="import time\na = time.perf_counter()\ntime.sleep(0.01)\nprint(time.perf_counter() > a)\n",
        output="True",
    ),
    Right(
        name="weak_references_and_collection",
        source=r"""
import gc, weakref
class A: pass
a = A()
w = weakref.ref(a)
del a
gc.collect()
print(w())
""",
        output="None",
    ),
    Right(
        name="finalizer_prints",
        source=r"""
class A:
    def __del__(self):
        print('gone')
a = A()
del a
""",
        output="gone",
    ),
)
