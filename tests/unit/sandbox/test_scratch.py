"""A directory made empty, whatever is in it."""

import os

from paceline.processes.scratch import make_empty


def test_files_links_and_directories_go_and_the_directory_stays(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    scratch = tmp_path / "scratch"
    (scratch / "a" / "b").mkdir(parents=True)
    (scratch / "a" / "b" / "file").write_text("x")
    (scratch / "a" / "link").symlink_to(outside)
    (scratch / "link").symlink_to(outside)
    os.link(outside / "kept", scratch / "hard")
    os.mkfifo(scratch / "fifo")
    make_empty(str(scratch))
    assert list(scratch.iterdir()) == []
    assert (outside / "kept").read_text() == "kept"


def test_names_that_no_text_holds_go_too(tmp_path):
    os.mkdir(os.fsencode(tmp_path) + b"/\xff\n")
    make_empty(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_directories_without_rights_are_opened_first(tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "file").write_text("x")
    for path in (inner, inner.parent, tmp_path):
        path.chmod(0)
    make_empty(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_names_like_those_that_directories_are_moved_to_are_no_obstacle(tmp_path):
    for place in ("0/1/0", "0/0", "1/2", "2/3/4/0", "a/0/a"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "1").write_text("x")
    make_empty(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_a_tree_deeper_than_any_path_is_long_is_removed(tmp_path):
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        for _ in range(300):
            os.mkdir("a" * 20)
            os.chdir("a" * 20)
    finally:
        os.chdir(before)
    make_empty(str(tmp_path))
    assert os.listdir(tmp_path) == []
