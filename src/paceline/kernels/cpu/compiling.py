"""Compile the C sources of this directory once per machine, load them into this process, call them with tensors.

A shared library is kept in the user's cache under a name that says everything it depends on: sources, flags, compiler,
processor, OpenMP runtime. Any of them changed gives another name, so a stale library is never loaded.
"""

import ctypes
import functools
import hashlib
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from paceline.kernels.cache import cache_directory

SOURCES = Path(__file__).parent
FLAGS = (
    "-O3",
    "-march=native",
    "-std=c11",
    "-fopenmp",
    "-ffp-contract=fast",
    # not -ffast-math: it forgets infinities, and linked into a shared library makes the whole process flush denormals
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wno-psabi",
    "-shared",
    "-fPIC",
)
COMPILE_SECONDS = 120
"""Seconds after which a compiler is given up on; torch's own operations do the work then."""
STORAGE = {torch.float32: 0, torch.bfloat16: 1}
"""Precisions that the kernels read and write, by their numbers in vectors.h; all compute in float32."""

_KINDS = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "f": ctypes.c_float, "d": ctypes.c_double}


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """The compiled kernels, or the reason why there are none."""

    functions: ctypes.CDLL | None
    reason: str
    """Compiler that made them, or what was missing."""


@functools.cache
def library() -> Library:
    """Return the kernels for this processor, compiled once per machine (which takes seconds) and then cached."""
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if platform.system() != "Linux":
        return Library(functions=None, reason=f"kernels are compiled on Linux only, this is {platform.system()}")
    if compiler is None:
        return Library(functions=None, reason="no C compiler (cc, gcc or clang) on the PATH")
    try:
        version = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
        path = _compiled(compiler, version)
        return Library(functions=ctypes.CDLL(str(path)), reason=version.splitlines()[0])
    except subprocess.CalledProcessError as error:
        words = (error.stderr or "").strip().splitlines() or ["it said nothing"]
        return Library(functions=None, reason=f"{compiler} failed: {words[0]}")
    except subprocess.TimeoutExpired:
        return Library(functions=None, reason=f"{compiler} took more than {COMPILE_SECONDS} s")
    except (OSError, RuntimeError, UnicodeDecodeError) as error:  # no home directory; words in another encoding
        return Library(functions=None, reason=str(error))


def _compiled(compiler: str, version: str) -> Path:
    sources = sorted(SOURCES.glob("*.c"))
    depends = [path.read_bytes() for path in (*sources, *sorted(SOURCES.glob("*.h")))]
    try:  # the processor as -march=native sees it
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
    except OSError:
        processor = platform.processor()
    depends += ["\0".join((compiler, version, processor, torch.__version__, *FLAGS)).encode()]
    digest = hashlib.blake2b(b"\0".join(depends), digest_size=12).hexdigest()
    directory = cache_directory()
    path = directory / f"native-{digest}.so"
    if path.is_file():
        return path
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        made = Path(scratch) / path.name
        subprocess.run(
            [compiler, *FLAGS, "-o", str(made), *map(str, sources), "-lm"],
            capture_output=True,
            text=True,
            timeout=COMPILE_SECONDS,
            check=True,
        )
        made.replace(path)  # whole or not at all: several processes may compile at the same time
    return path


def declared(functions: ctypes.CDLL, name: str, kinds: str) -> Callable[..., None]:
    """Return the C function of this name, which returns nothing.

    `kinds` has a letter per parameter: `p` pointer, `i` int64_t, `f` float, `d` double; blanks are for reading.
    """
    function: Callable[..., None] = getattr(functions, name)
    function.argtypes = [_KINDS[kind] for kind in kinds.replace(" ", "")]  # type: ignore[attr-defined]
    function.restype = None  # type: ignore[attr-defined]
    return function


@functools.cache
def kernel(name: str, kinds: str) -> Callable[..., None]:
    """Return this machine's function, which takes tensors (or None) for pointers and precisions for their numbers.

    The caller has checked that there are kernels.
    """
    functions = library().functions
    assert functions is not None
    function = declared(functions, name, kinds)

    def call(*arguments: Tensor | torch.dtype | float | None) -> None:
        function(*map(_in_c, arguments))

    return call


def _in_c(argument: Tensor | torch.dtype | float | None) -> float | None:
    if argument is None or isinstance(argument, Tensor):
        return address(argument)
    return STORAGE[argument] if isinstance(argument, torch.dtype) else argument


def address(tensor: Tensor | None) -> int | None:
    """Return the address of the tensor's contiguous elements; None (a null pointer) for None.

    The caller keeps the tensor alive during the call, and vouches for its precision.

    Raises:
        ValueError: the tensor is on another device than the CPU, or not contiguous.
    """
    if tensor is None:
        return None
    if tensor.is_cpu and tensor.is_contiguous():
        return tensor.data_ptr()
    raise ValueError(
        f"a kernel takes contiguous tensors on the CPU, got one of shape {tuple(tensor.shape)}, strides "
        f"{tensor.stride()}, on {tensor.device}; call contiguous() or take torch's path"
    )
