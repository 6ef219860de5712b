"""Runs the untrusted code: a program as `__main__`, a function of it, or one piece after another in an interpreter.

A program sees what a file run by Python sees, and ends as Python ends. An interpreter keeps its variables from one
piece to the next, as a notebook's kernel does.
"""

import ast
import atexit
import builtins
import contextlib
import gc
import io
import json
import linecache
import os
import random
import struct
import sys
import threading
import traceback
import types
from _sitebuiltins import Quitter
from collections.abc import Callable
from importlib import import_module
from typing import Any, NoReturn

PROGRAM_FILE = "main.py"
OUR_NAMES = "paceline"

NO_SYNTAX, NO_MEMORY, NO_FUNCTION, VALUE = b"S", b"M", b"N", b"V"  # First byte of a report; after VALUE, JSON follows
_FILE, _TEXT = io.IOBase.__mro__[1], io.TextIOBase.__mro__[1]
"""Base classes of files; the names in `io` are for `isinstance`, which a program can deceive."""
FLUSH_FAILED = 120  # Python's exit status for buffered output that could not be written


def run_main(source: str, report: int) -> NoReturn:
    """Run a whole program and exit with its status."""
    module = new_module("__main__")
    status = 0
    try:
        exec(compiled(source, report), module.__dict__)
    except BaseException as error:  # noqa: BLE001
        status = status_of(error, report)
    leave(status)


def new_module(name: str) -> types.ModuleType:
    """Make an empty module for the program, with nothing of ours in sight."""
    for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] == OUR_NAMES]:
        del sys.modules[loaded]
    directory = os.getcwd()
    module = types.ModuleType(name)
    module.__dict__.update(__builtins__=builtins, __file__=f"{directory}/{PROGRAM_FILE}")
    sys.modules[name] = module
    sys.argv = [PROGRAM_FILE]
    sys.path.insert(0, directory)
    builtins.exit = Quitter("exit", "Ctrl-D (i.e. EOF)")
    builtins.quit = Quitter("quit", "Ctrl-D (i.e. EOF)")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        mode = "rb" if name == "stdin" else "wb"
        raw = io.FileIO(number, mode, closefd=False)
        raw.name = f"<{name}>"
        buffer = io.BufferedReader(raw) if mode == "rb" else io.BufferedWriter(raw)
        errors = "backslashreplace" if name == "stderr" else "surrogateescape"
        stream = io.TextIOWrapper(buffer, encoding="utf-8", errors=errors, line_buffering=name == "stderr")
        stream.mode = mode[0]  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    return module


def compiled(source: str, report: int) -> types.CodeType:
    """Compile the program; exit after a report of a syntax error.

    A byte order mark belongs to the file, not to the program.
    """
    try:
        return compile(source.removeprefix("\ufeff"), f"{os.getcwd()}/{PROGRAM_FILE}", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        os.write(report, NO_SYNTAX)
        sys.excepthook(type(error), error, None)
        leave(1)


def status_of(error: BaseException, report: int) -> int:
    """Show an exception of the program and return its exit status."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    if isinstance(error, MemoryError):
        os.write(report, NO_MEMORY)
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next  # without our own frame
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as second:  # noqa: BLE001
        sys.__excepthook__(type(second), second, second.__traceback__)
    return 1


def leave(status: int) -> NoReturn:
    """End as Python does: threads, exit functions, buffers; but without taking the interpreter apart.

    That would take as long again as everything before it, and nobody could see it.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException as error:  # noqa: BLE001
        sys.__excepthook__(type(error), error, error.__traceback__)
    # Write out what is still in a buffer, also of files that the program never closed.
    for stream in (sys.stdout, sys.__stdout__):
        if stream is not None and not _flushed(stream):
            status = status or FLUSH_FAILED
    for file in _open_files():
        _flushed(file)
    os._exit(status)


def _open_files() -> list[object]:
    """Return every file object, text before the binary buffers below it.

    The list of all objects takes 8 bytes for each. A program that has left no room for it keeps its status, and only
    files that it never closed lose what is in their buffers.
    """
    kinds, waiting = set[type](), [_FILE]
    while waiting:
        kinds.add(kind := waiting.pop())
        waiting += type.__subclasses__(kind)
    try:
        files = [file for file in gc.get_objects() if type(file) in kinds]
    except MemoryError:
        return []
    return sorted(files, key=lambda file: _TEXT not in type(file).__mro__)


def _flushed(file: object) -> bool:
    try:
        if not getattr(file, "closed", False):
            file.flush()  # type: ignore[attr-defined]
    except BaseException:  # noqa: BLE001
        return False
    return True


MODULE = "solution"
"""Name of the program's module; under `__main__`, code below `if __name__ == "__main__"` would read stdin."""

GIVEN: dict[str, str] = {
    "typing": "Any Callable Deque DefaultDict Dict FrozenSet Generator Iterable Iterator List Optional Sequence Set "
    "Tuple Type TypeVar Union",
    "collections": "ChainMap Counter OrderedDict defaultdict deque namedtuple",
    "itertools": "accumulate chain combinations combinations_with_replacement count cycle groupby islice pairwise "
    "permutations product repeat starmap takewhile zip_longest",
    "functools": "cache cmp_to_key lru_cache partial reduce",
    "heapq": "heapify heappop heappush heappushpop heapreplace nlargest nsmallest",
    "bisect": "bisect bisect_left bisect_right insort insort_left insort_right",
    "math": "ceil comb factorial floor gcd inf isqrt lcm log log10 log2 pi prod sqrt",
    "string": "ascii_letters ascii_lowercase ascii_uppercase digits",
    "copy": "copy deepcopy",
    "dataclasses": "dataclass field",
    "random": "",
    "re": "",
    "operator": "",
    "json": "",
    "sys": "",
    "datetime": "",
}
"""Modules and names that programs with a function to call use without importing them. None is a built-in name."""


def call_function(source: str, name: str, arguments: str, report: int) -> NoReturn:
    """Define the program, call its function, write the value into the report and leave."""
    # Taken before the program can replace them; NaN and infinities are written as Python reads them.
    encode = json.JSONEncoder(ensure_ascii=True, check_circular=True, allow_nan=True).encode
    put = os.write
    values = json.loads(arguments)
    module = new_module(MODULE)
    try:
        names: dict[str, Any] = {library: import_module(library) for library in GIVEN}
        for library, members in GIVEN.items():
            names.update((member, getattr(names[library], member)) for member in members.split() if member != library)
        module.__dict__["__builtins__"] = {**vars(builtins), **names}  # beneath the program's own names
        exec(compiled(source, report), module.__dict__)
        function = _find(module, name)
        if function is None:
            os.write(report, NO_FUNCTION)
            leave(1)
        data = memoryview(VALUE + encode(function(*values)).encode())
        while data:
            data = data[put(report, data) :]
    except BaseException as error:  # noqa: BLE001
        leave(status_of(error, report) or 1)
    os._exit(0)


def _find(module: types.ModuleType, name: str) -> Callable[..., Any] | None:
    solution = module.__dict__.get("Solution")
    if isinstance(solution, type) and callable(getattr(solution, name, None)):
        return getattr(solution(), name)  # type: ignore[no-any-return]
    function = module.__dict__.get(name)
    return function if callable(function) else None


HEADER = struct.Struct(">QB")  # Bytes that follow, and 1 if the code failed
OUTPUT = 1  # Descriptor of both standard output and standard error, which are one file here
NOTHING_LEFT = 70  # Exit status of an interpreter whose own descriptors the code has closed


def run_interpreter(channel: int, seed: int, shown_bytes: int) -> NoReturn:
    """Take code from the channel and respond with what it wrote, at most `shown_bytes`, until the channel is closed."""
    module = new_module("__main__")
    names = module.__dict__
    del names["__file__"]
    os.unlink(PROGRAM_FILE)
    for name in ("stderr", "__stderr__"):
        setattr(sys, name, sys.stdout)  # so that both are written in the order of the code
    random.seed(seed)
    stdout: Any = sys.stdout
    number = 0
    try:
        while (source := _received(channel)) is not None:
            number += 1
            failed = _run(source, f"<call {number}>", names)
            for stream in (stdout, sys.stdout, sys.stderr):
                with contextlib.suppress(BaseException):  # the code has closed it, or put something else in its place
                    stream.flush()
            written = _written(shown_bytes)
            _send(channel, HEADER.pack(len(written), failed) + written)
    finally:
        os._exit(NOTHING_LEFT)


def _run(source: str, file: str, names: dict[str, Any]) -> bool:
    """Run the code and print the value of a last expression; returns True if it failed, with the reason printed."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    try:
        tree = ast.parse(source, file)
    except BaseException as error:  # noqa: BLE001
        traceback.print_exception(type(error), error, None, file=sys.stdout)
        return True
    try:
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr):
            tree.body.pop()
        exec(compile(tree, file, "exec", dont_inherit=True), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), file, "eval", dont_inherit=True), names)  # noqa: S307
            if value is not None:
                print(repr(value))
    except SystemExit as error:
        if error.code is not None and not isinstance(error.code, int):
            print(error.code)
        return bool(error.code)
    except BaseException as error:  # noqa: BLE001
        inner = None if error.__traceback__ is None else error.__traceback__.tb_next  # without our own frame
        try:
            traceback.print_exception(type(error), error, inner, file=sys.stdout)
        except BaseException:  # noqa: BLE001
            os.write(OUTPUT, type(error).__name__.encode())
        return True
    return False


def _written(shown_bytes: int) -> bytes:
    """Take what the code wrote out of the file: all of it, or its beginning and end with a line between them."""
    size = os.fstat(OUTPUT).st_size
    if size <= shown_bytes:
        text = os.pread(OUTPUT, size, 0)
    else:
        half = shown_bytes // 2
        left_out = f"\n[... {size - 2 * half} bytes left out ...]\n".encode()
        text = os.pread(OUTPUT, half, 0) + left_out + os.pread(OUTPUT, half, size - half)
    os.ftruncate(OUTPUT, 0)
    return text


def _received(channel: int) -> str | None:
    """Read the next code, after its length in eight bytes; None if the other end is closed."""
    header = _read(channel, 8)
    return None if len(header) < 8 else _read(channel, int.from_bytes(header, "big")).decode("utf-8", "surrogatepass")


def _read(channel: int, length: int) -> bytes:
    data = b""
    while len(data) < length and (part := os.read(channel, length - len(data))):
        data += part
    return data


def _send(channel: int, data: bytes) -> None:
    while data:
        data = data[os.write(channel, data) :]
