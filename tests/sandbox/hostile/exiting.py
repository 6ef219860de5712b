"""Programs that leave in a way that could look like success."""

from tests.sandbox.corpus import Hostile

FAILED = ("runtime_error",)

PROGRAMS = (
    Hostile(name="exit_at_once", source="raise SystemExit(0)\n", bare=True, right="secret"),
    Hostile(name="hard_exit_at_once", source="import os\nos._exit(0)\n", bare=True),
    Hostile(
        name="hard_exit_in_a_function", source="def attack(facts):\n    os._exit(0)\n", function="attack", ends=FAILED
    ),
    Hostile(name="exit_in_a_function", source="def attack(facts):\n    sys.exit(0)\n", function="attack", ends=FAILED),
    Hostile(
        name="exit_before_the_function",
        source="sys.exit(0)\ndef attack(facts):\n    return 1\n",
        function="attack",
        ends=("runtime_error", "no_function"),
    ),
    Hostile(
        name="exit_in_a_thread_of_a_function",
        source=r"""
import threading
def attack(facts):
    threading.Thread(target=os._exit, args=(0,)).start()
    time.sleep(20)
    return facts["token"]
""",
        function="attack",
        right="token",
        ends=FAILED,
    ),
    Hostile(
        name="status_three_after_the_answer",
        source="print(facts['token'], flush=True)\nsys.exit(3)\n",
        right="token",
        ends=FAILED,
    ),
    Hostile(
        name="hard_status_after_the_answer",
        source="print(facts['token'], flush=True)\nos._exit(1)\n",
        right="token",
        ends=FAILED,
    ),
    Hostile(
        name="exit_with_a_text",
        source="print(facts['token'], flush=True)\nsys.exit('something went wrong')\n",
        right="token",
        ends=FAILED,
    ),
    Hostile(
        name="odd_exit_class",
        source=r"""
print(facts["token"], flush=True)
class Odd(SystemExit):
    @property
    def code(self):
        raise ValueError("no code")
raise Odd(7)
""",
        right="token",
        ends=FAILED,
    ),
    Hostile(
        name="exit_code_that_equals_everything",
        source=r"""
print(facts["token"], flush=True)
class Zero(int):
    def __eq__(self, other):
        return True
    __hash__ = int.__hash__
sys.exit(Zero(5))
""",
        right="token",
        ends=FAILED,
    ),
    Hostile(
        name="exception_after_the_answer",
        source="print(facts['token'], flush=True)\nraise KeyboardInterrupt\n",
        right="token",
        ends=FAILED,
    ),
    Hostile(
        name="bare_base_exception",
        source="class Odd(BaseException):\n    pass\nprint(facts['token'], flush=True)\nraise Odd\n",
        right="token",
        ends=FAILED,
    ),
    Hostile(
        name="exception_hook_that_exits",
        source=r"""
print(facts["token"], flush=True)
sys.excepthook = lambda *details: os._exit(3)
raise ValueError
""",
        right="token",
        ends=FAILED,
    ),
    Hostile(
        name="exit_handler_that_fails_hard",
        source="import atexit\nprint(facts['token'], flush=True)\natexit.register(os._exit, 9)\n",
        right="token",
        ends=FAILED,
    ),
    Hostile(
        name="segmentation_fault",
        source="print(facts['token'], flush=True)\nctypes.string_at(0)\n",
        right="token",
        ends=FAILED,
    ),
    Hostile(
        name="segmentation_fault_at_exit",
        source="import atexit\nprint(facts['token'], flush=True)\natexit.register(ctypes.string_at, 0)\n",
        right="token",
        ends=FAILED,
    ),
    Hostile(name="abort", source="print(facts['token'], flush=True)\nos.abort()\n", right="token", ends=FAILED),
    Hostile(name="abort_in_a_function", source="def attack(facts):\n    os.abort()\n", function="attack", ends=FAILED),
    Hostile(
        name="stack_overflow_in_c",
        source=r"""
print(facts["token"], flush=True)
sys.setrecursionlimit(10**9)
f = None
for _ in range(10**6):
    f = [f]
def g(n):
    return g(n + 1)
import functools
h = lambda: None
for _ in range(10**5):
    h = functools.partial(h)
ctypes.pythonapi.PyObject_Repr.restype = ctypes.py_object
ctypes.pythonapi.PyObject_Repr(ctypes.py_object(h))
g(0)
""",
        right="token",
        ends=("runtime_error", "memory", "timeout"),
    ),
    Hostile(
        name="illegal_instruction",
        source=r"""
import mmap
print(facts["token"], flush=True)
page = mmap.mmap(-1, 4096, prot=7)
page.write(b"\x0f\x0b")
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
""",
        right="token",
        ends=FAILED,
    ),
    Hostile(
        name="answer_from_a_finalizer_of_a_failed_program",
        source=r"""
class Late:
    def __del__(self):
        os.write(1, facts["token"].encode())
        os._exit(0)
late = Late()
del late
""",
        right="other",
    ),
    Hostile(
        name="output_closed_before_the_answer",
        source="sys.stdout.close()\nos.close(1)\nprint(facts['token'])\n",
        right="token",
    ),
    Hostile(
        name="assertion_switched_off",
        source="print(facts['token'], flush=True)\nassert False\n",
        right="token",
        ends=FAILED,
    ),
)
