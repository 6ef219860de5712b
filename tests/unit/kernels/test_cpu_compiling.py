"""The CPU kernels are compiled once, in a private cache, and torch takes over where that fails."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.kernels.cache import cache_directory
from paceline.kernels.cpu import compiling
from paceline.kernels.cpu.compiling import library

needs_compiler = pytest.mark.skipif(library().functions is None, reason=f"no kernels here: {library().reason}")

UNOPTIMISED = tuple("-O0" if flag == "-O3" else flag for flag in compiling.FLAGS)


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A user without a cache, whose PATH holds nothing but what a test puts into `tmp_path / "bin"`.

    The compiler does not optimise, which takes a seventh of the time.
    """
    monkeypatch.setattr(compiling, "FLAGS", UNOPTIMISED)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "bin").mkdir()
    library.cache_clear()
    yield tmp_path
    library.cache_clear()


def compiler(directory: Path, script: str) -> None:
    path = directory / "bin" / "cc"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.long
@needs_compiler
def test_a_second_process_finds_what_the_first_has_compiled(fresh):
    first = library()
    made = list((fresh / "cache" / "paceline").glob("*.so"))
    changed = made[0].stat().st_mtime_ns
    library.cache_clear()
    assert library().reason == first.reason
    assert [path.stat().st_mtime_ns for path in (fresh / "cache" / "paceline").glob("*.so")] == [changed]


@pytest.mark.long
@needs_compiler
def test_only_the_user_may_read_or_write_the_cache(fresh):
    library()
    assert os.stat(fresh / "cache" / "paceline").st_mode & 0o777 == 0o700


@pytest.mark.long
@needs_compiler
def test_the_kernels_leave_the_processes_treatment_of_denormals_alone(fresh):
    assert isinstance(library().functions, ctypes.CDLL)
    smallest = 1e-310
    assert smallest / 2 > 0.0


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, "no C compiler (cc, gcc or clang) on the PATH"),
        ("exit 3", "failed: it said nothing"),
        ('[ "$1" = --version ] && echo "toy cc 1" || { echo "no such flag" >&2; exit 1; }', "failed: no such flag"),
    ],
    ids=["none", "broken", "too-old"],
)
def test_without_a_compiler_that_works_there_are_no_kernels_and_a_reason(fresh, monkeypatch, script, reason):
    if script is not None:
        compiler(fresh, script)
    monkeypatch.setenv("PATH", str(fresh / "bin"))
    got = library()
    assert got.functions is None
    assert reason in got.reason


def test_a_compiler_that_does_not_end_is_given_up(fresh, monkeypatch):
    compiler(fresh, '[ "$1" = --version ] && echo "slow cc 1" || exec /bin/sleep 60')
    monkeypatch.setenv("PATH", str(fresh / "bin"))
    monkeypatch.setattr(compiling, "COMPILE_SECONDS", 0.2)
    assert library().reason.endswith("took more than 0.2 s")


@pytest.mark.long
@needs_compiler
def test_a_cache_that_cannot_be_written_does_not_keep_the_kernels_away(fresh, monkeypatch):
    (fresh / "cache").write_text("a file stands where the directory should be")
    assert library().functions is not None


@pytest.mark.long
@needs_compiler
def test_processes_that_compile_at_the_same_time_get_one_library(fresh):
    script = (
        "from paceline.kernels.cpu import compiling\n"
        f"compiling.FLAGS = {UNOPTIMISED}\n"
        "assert compiling.library().functions is not None"
    )
    running = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(3)]
    assert [process.wait(timeout=120) for process in running] == [0, 0, 0]
    assert len(list((fresh / "cache" / "paceline").glob("*.so"))) == 1


@needs_compiler
def test_a_cache_that_others_may_write_to_is_left_alone(fresh):
    (fresh / "cache" / "paceline").mkdir(parents=True)
    (fresh / "cache" / "paceline").chmod(0o777)
    assert library().functions is not None
    assert not list((fresh / "cache" / "paceline").iterdir())
    assert cache_directory() == cache_directory()  # in its place one directory, not one for each who asks
