"""Programs that never end, also after they have given the right answer."""

from tests.sandbox.corpus import Hostile

TIME = ("timeout",)

PROGRAMS = (
    Hostile(name="busy_loop", source="while True:\n    pass\n", bare=True, ends=TIME),
    Hostile(
        name="loop_that_catches_everything",
        source=r"""
while True:
    try:
        while True: pass
    except BaseException:
        pass
""",
        bare=True,
        ends=TIME,
    ),
    Hostile(name="loop_in_c", source="print(sum(range(10**13)))\n", bare=True, ends=TIME),
    Hostile(name="big_power", source="print((7**3_000_000) ** 40 % 10)\n", bare=True, ends=("timeout", "memory")),
    Hostile(
        name="regex_backtracking",
        source="import re\nprint(re.match(r'(a+)+$', 'a' * 40 + 'b'))\n",
        bare=True,
        ends=TIME,
    ),
    Hostile(
        name="slow_at_compile_time",
        source="x = " + "+".join(["(" * 60 + "1" + ")" * 60] * 20_000) + "\nwhile True:\n    pass\n",
        bare=True,
        ends=("timeout", "syntax_error", "memory", "runtime_error"),
    ),
    Hostile(name="sleep", source="import time\ntime.sleep(1000)\n", bare=True, ends=TIME),
    Hostile(
        name="blocked_on_a_pipe",
        source="import os\nread, write = os.pipe()\nos.read(read, 1)\n",
        bare=True,
        ends=TIME,
    ),
    Hostile(
        name="stdin_that_never_ends",
        source="import sys\nwhile True:\n    sys.stdin.seek(0) if sys.stdin.seekable() else 0\n    sys.stdin.read()\n",
        bare=True,
        ends=TIME,
    ),
    Hostile(
        name="wait_for_a_signal",
        source=r"""
import signal
print(facts["token"], flush=True)
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True:
    signal.pause()
""",
        right="token",
        ends=TIME,
    ),
    Hostile(
        name="deadlock",
        source="import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()\n",
        bare=True,
        ends=TIME,
    ),
    Hostile(
        name="thread_that_never_ends",
        source=r"""
import threading
print(facts["token"], flush=True)
threading.Thread(target=time.sleep, args=(1000,)).start()
""",
        right="token",
        ends=TIME,
    ),
    Hostile(
        name="busy_thread_while_main_is_done",
        source=r"""
import threading
print(facts["token"], flush=True)
def spin():
    while True:
        pass
threading.Thread(target=spin).start()
""",
        right="token",
        ends=TIME,
    ),
    Hostile(
        name="first_thread_gone_another_stays",
        source=r"""
import threading
print(facts["token"], flush=True)
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
libc.syscall(ctypes.c_long(NUMBERS["exit"]), ctypes.c_long(0))
""",
        right="token",
        ends=TIME,
    ),
    Hostile(
        name="many_busy_threads",
        source=r"""
import hashlib, threading
data = bytes(1 << 22)
def spin():
    while True:
        hashlib.sha256(data)
for _ in range(8):
    threading.Thread(target=spin).start()
""",
        ends=TIME,
    ),
    Hostile(
        name="exit_handler_that_hangs",
        source="import atexit\nprint(facts['token'], flush=True)\natexit.register(time.sleep, 1000)\n",
        right="token",
        ends=TIME,
    ),
    Hostile(
        name="flush_that_hangs",
        source=r"""
print(facts["token"], flush=True)
class Stuck:
    def write(self, text):
        return len(text)
    def flush(self):
        time.sleep(1000)
sys.stdout = Stuck()
""",
        right="token",
        ends=TIME,
    ),
    Hostile(
        name="exception_text_that_hangs",
        source=r"""
print(facts["token"], flush=True)
class Slow(Exception):
    def __str__(self):
        while True:
            pass
raise Slow
""",
        right="token",
        ends=("timeout", "runtime_error"),
    ),
    Hostile(
        name="exception_hook_that_hangs",
        source=r"""
print(facts["token"], flush=True)
sys.excepthook = lambda *details: time.sleep(1000)
raise ValueError
""",
        right="token",
        ends=("timeout", "runtime_error"),
    ),
    Hostile(
        name="exit_code_that_hangs",
        source=r"""
print(facts["token"], flush=True)
class Code(int):
    def __index__(self):
        time.sleep(1000)
    __int__ = __str__ = __repr__ = __eq__ = __bool__ = __index__
    __hash__ = None
raise SystemExit(Code(5))
""",
        right="token",
        ends=("timeout", "runtime_error"),
    ),
    Hostile(
        name="loop_in_a_function",
        source="def attack(facts):\n    while True:\n        pass\n",
        function="attack",
        ends=TIME,
    ),
    Hostile(
        name="loop_before_the_function",
        source="while True:\n    pass\ndef attack(facts):\n    return 1\n",
        bare=True,
        function="attack",
        ends=TIME,
    ),
    Hostile(
        name="thread_that_outlives_the_function",
        source=r"""
import threading
def attack(facts):
    threading.Thread(target=time.sleep, args=(1000,)).start()
    return 1
""",
        function="attack",
    ),
    Hostile(
        name="value_that_iterates_without_end",
        source=r"""
class Endless(list):
    def __iter__(self):
        while True:
            yield 1
    def __len__(self):
        return 1
    def __bool__(self):
        return True
class Items(dict):
    def items(self):
        while True:
            yield "a", 1
    def __len__(self):
        return 1
def attack(facts):
    return [Endless([1]), Items(a=1)]
""",
        function="attack",
        ends=("timeout", "memory", "output_limit", "runtime_error", "finished"),
    ),
    Hostile(
        name="import_that_hangs",
        source=r"""
import sys
open("zz_slow.py", "w").write("while True:\n    pass\n")
sys.path.insert(0, ".")
import zz_slow
""",
        bare=True,
        ends=TIME,
    ),
)
