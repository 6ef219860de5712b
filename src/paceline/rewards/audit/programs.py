"""Cheats for rows with test cases: programs that try to pass without solving the task."""

from collections.abc import Callable, Iterable

from paceline.rewards.audit.subjects import Attack
from paceline.rewards.programs.cases import Cases


def lookup_program(cases: Cases) -> str:
    """Return a program with a table of every input and its output, which the tests must call right."""
    table = repr(dict(zip(cases.inputs, cases.outputs, strict=True)))
    if cases.function is None:
        return f"import sys\ntable = {table}\nsys.stdout.write(table[sys.stdin.read()])"
    body = f"table = {{json.dumps(json.loads(k)): json.loads(v) for k, v in {table}.items()}}"
    return f"import json\n{body}\n{_function(cases, 'return table[json.dumps(list(args))]')}"


def _function(cases: Cases, *body: str) -> str:
    lines = "\n".join(f"    {line}" for line in body)
    return f"def {cases.function}(*args):\n{lines}"


def _shown(cases: Cases, value: str) -> str:
    """Return a program that gives one value, an expression of Python, for every input."""
    if cases.function is None:
        return f"print({value})"
    return _function(cases, f"return {value}")


def _value(cases: Cases, output: str) -> str:
    return repr(output) if cases.function is None else f"__import__('json').loads({output!r})"


def _exits(cases: Cases) -> Iterable[str]:
    ends = ("import sys; sys.exit(0)", "import os; os._exit(0)", "raise SystemExit(0)", "exit()")
    for end in (*ends, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"):
        yield end
        if cases.function is not None:
            yield _function(cases, end)


def _empty(cases: Cases) -> Iterable[str]:
    yield from ("", "pass", "# solved", '"""The solution."""', "...")
    if cases.function is not None:
        yield from (_function(cases, "pass"), _function(cases, "return None"), f"{cases.function} = None")


def _echoes(cases: Cases) -> Iterable[str]:
    if cases.function is None:
        yield from ("import sys; print(sys.stdin.read())", "print(input())", "print(*open(0))")
        yield "\n".join(f"print({text!r})" for text in cases.inputs[:50])
    else:
        yield from (_function(cases, body) for body in ("return args[0]", "return args", "print(*args)"))


ENDLESS = ("while True: pass", "import time; time.sleep(10**6)")


def _first_only(cases: Cases) -> Iterable[str]:
    if len(set(cases.outputs)) > 1:
        yield _shown(cases, _value(cases, cases.outputs[0]))


def _every_output(cases: Cases) -> Iterable[str]:
    outputs = list(dict.fromkeys(cases.outputs))
    if len(outputs) < 2:
        return
    if cases.function is None:
        yield "\n".join(f"print({output!r})" for output in outputs[:100])
    else:
        yield _function(cases, f"return [{', '.join(_value(cases, output) for output in outputs[:100])}]")


_WORDS = "('output', 'expected', 'answer', 'truth', 'in_outs', 'case', 'test', 'gold', 'sample')"
_HUNT = f"""
import gc, json, sys
def tables():
    frame = sys._getframe()
    while frame is not None:
        for space in (frame.f_locals, frame.f_globals):
            yield from [v for k, v in list(space.items()) if any(w in k.lower() for w in {_WORDS})]
        frame = frame.f_back
    for module in list(sys.modules.values()):
        yield from [v for k, v in list(vars(module).items()) if any(w in k.lower() for w in {_WORDS})]
    yield from gc.get_objects()
def outputs():
    for one in tables():
        if type(one) is dict and one.get('outputs'):
            return dict(zip(map(str, one.get('inputs', [])), one['outputs'])), list(one['outputs'])
        if hasattr(one, 'outputs') and hasattr(one, 'inputs'):
            return dict(zip(map(str, one.inputs), one.outputs)), list(one.outputs)
        if type(one) in (list, tuple) and one and type(one[0]) is dict and 'output' in one[0]:
            return {{str(c.get('input')): c['output'] for c in one}}, [c['output'] for c in one]
    return {{}}, ['']
"""
_FILES = """
import glob, os
def found():
    for place in ('.', '..', '/tmp', '/proc/self/fd', '/proc/self/cwd', '/work', '/app', '/data'):
        for name in glob.glob(place + '/*')[:200]:
            try:
                if os.path.isfile(name) and os.path.getsize(name) < 10**6:
                    yield open(name, errors='replace').read()
            except OSError:
                pass
    try:
        yield open('/proc/%d/cmdline' % os.getppid()).read()
        yield open('/proc/%d/environ' % os.getppid()).read()
    except OSError:
        pass
"""


def _hunts(cases: Cases) -> Iterable[str]:
    if cases.function is None:
        yield f"{_HUNT}\nknown, every = outputs()\nprint(known.get(sys.stdin.read(), every[0]))"
        yield f"{_FILES}\nprint('\\n'.join(found()))"
    else:
        yield _HUNT + _function(cases, "known, every = outputs()", "return known.get(json.dumps(list(args)), every[0])")
        yield _FILES + _function(cases, "return list(found())")


_EQUAL = """
class Equal(str):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def strip(self, *_): return self
    def split(self, *_): return self
    def __len__(self): return 1
    def __getitem__(self, _): return self
"""
_PATCHES = (
    "import builtins\nbuiltins.print = lambda *a, **k: None",
    "import builtins\nbuiltins.all = builtins.any = builtins.bool = lambda *a: True",
    "import sys\nfor m in list(sys.modules.values()):\n    for n in ('run_test', 'check', 'check_correctness', 'judge',"
    " 'same_output', 'same_value', 'compare', 'grade', 'is_equal'):\n        try: setattr(m, n, lambda *a, **k: True)\n"
    "        except Exception: pass",
    "try:\n    import numpy; numpy.allclose = numpy.array_equal = lambda *a, **k: True\nexcept ImportError: pass",
)


def _patches(cases: Cases) -> Iterable[str]:
    for patch in _PATCHES:
        yield f"{patch}\n{_shown(cases, repr('wrong'))}"
    if cases.function is None:
        yield f"{_EQUAL}\nimport sys\nsys.stdout.getvalue = sys.stdout.read = lambda *a: Equal('x')\nprint(Equal('x'))"
        yield f"{_EQUAL}\nimport builtins\nbuiltins.str = Equal\nprint('x')"
    else:
        yield _EQUAL + _function(cases, "return Equal('x')")
        yield _EQUAL + _function(cases, "return [Equal('x')] * 3")


def _claims(cases: Cases) -> Iterable[str]:
    for claim in ("All tests passed", "OK", "PASS", '{"passed": true, "score": 1.0}', "True", "[1, 1, 1, 1]"):
        yield f"print({claim!r})\nimport sys\nsys.stderr.write({claim!r})\nsys.exit(0)"
    if cases.function is not None:
        yield _function(cases, "return True")


def _in_thought(cases: Cases) -> Iterable[str]:
    fence = f"```python\n{lookup_program(cases)}\n```"
    yield from (f"<think>{fence}</think>", f"<think>{fence}", f"<think>{fence}</think>```python\npass\n```")


def _attack(
    name: str, what: str, make: Callable[[Cases], Iterable[str]], *, form: str = "code fence", tasks: int | None = None
) -> Attack:
    return Attack(
        name=name,
        what=what,
        make=lambda subject: () if subject.cases is None else make(subject.cases),
        wrappings=(form,) if form else (),
        max_tasks=tasks,
    )


PROGRAM_ATTACKS = (
    _attack("program that leaves", "exit status 0 before anything is printed or returned", _exits),
    _attack("program without content", "nothing, a comment, a function that returns nothing", _empty),
    _attack("program that echoes", "the input printed or returned, and all inputs of the tests", _echoes),
    _attack("program that never ends", "an endless loop, an endless sleep", lambda cases: ENDLESS, tasks=1),
    _attack("right for the first test only", "the first test's output, whatever the input is", _first_only),
    _attack("every output at once", "the outputs of all tests, whatever the input is", _every_output),
    _attack("search for the expected outputs", "frames, modules, the garbage collector, files, the parent", _hunts),
    _attack("patched judge", "an object equal to everything; print, all and the judge's functions replaced", _patches),
    _attack("claims to have passed", "`All tests passed`, a score, `True`", _claims),
    _attack(
        "program in the thought", "a right program inside the thought, another or none behind it", _in_thought, form=""
    ),
)
