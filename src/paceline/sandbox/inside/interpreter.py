"""Run one piece of code after another in one interpreter, which keeps its variables, as a notebook's kernel does."""

import ast
import contextlib
import linecache
import os
import random
import struct
import sys
import traceback
from typing import Any, NoReturn

from paceline.sandbox.inside.program import PROGRAM_FILE, new_module

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
