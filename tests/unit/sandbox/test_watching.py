"""What the zygote sees of a program's files while it runs: here the program is this process."""

import ctypes
import os

import pytest

from paceline.sandbox.inside.watching import MOST_BYTES, MOST_ENTRIES, bytes_without_a_name, is_overfull, listed


def test_names_and_bytes_are_counted_through_all_directories(tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    for number in range(MOST_ENTRIES - 2):
        (inner / str(number)).touch()
    assert not is_overfull(str(tmp_path), 0)
    (inner / "one more").touch()
    assert is_overfull(str(tmp_path), 0)


def test_bytes_without_a_name_count_where_there_are_no_names(tmp_path):
    assert not is_overfull(str(tmp_path), MOST_BYTES)
    assert is_overfull(str(tmp_path), MOST_BYTES + 1)


def test_nothing_is_listed_through_a_link_in_the_place_of_a_directory(tmp_path):
    (tmp_path / "outside" / "inner").mkdir(parents=True)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "link").symlink_to(tmp_path / "outside")
    assert [name for name, _ in listed(str(scratch), str(scratch))] == ["link"]
    for path in (scratch / "link", scratch / "link" / "inner"):
        with pytest.raises(NotADirectoryError):
            list(listed(str(path), str(scratch)))


def test_a_file_that_vanishes_hides_no_other(tmp_path):
    for number in range(10):
        (tmp_path / str(number)).touch()
    found = listed(str(tmp_path), str(tmp_path))
    first, _ = next(found)
    gone = {str(number) for number in range(5)}
    for name in gone:
        (tmp_path / name).unlink()
    assert {first, *(name for name, _ in found)} - gone == {str(number) for number in range(5, 10)}


def test_deleted_files_count_while_they_are_open_or_mapped(tmp_path):
    size, largest = 1 << 20, 1 << 40
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p

    def counted() -> int:
        return bytes_without_a_name(os.getpid(), [str(os.getpid())], os.path.realpath(tmp_path), largest) - before

    before = 0
    before = counted()
    descriptor = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    os.write(descriptor, bytes(size))
    assert counted() == 0  # it has a name
    place = libc.mmap(None, ctypes.c_size_t(4096), 1, 1, descriptor, ctypes.c_long(0))
    os.unlink(tmp_path / "file")
    assert counted() == size
    os.close(descriptor)
    assert counted() == largest  # nobody tells how big it is
    libc.munmap(ctypes.c_void_p(place), ctypes.c_size_t(4096))
    assert counted() == 0
