"""What an environment's process prints is kept at its end: its last lines, without secrets, none of another's."""

import os

from paceline.processes.forking import MOST_KEPT, MOST_LINE, MOST_LINES, Tail, printed_lines


def kept(*parts: bytes) -> str:
    tail = Tail()
    for part in parts:
        os.write(tail.writes, part)
        tail.read()
    os.close(tail.writes)
    return tail.close()


def test_the_end_of_much_is_kept_from_the_start_of_a_line():
    text = kept(*[b"%05d\n" % number for number in range(MOST_KEPT)])
    assert len(text) <= MOST_KEPT
    assert text.splitlines()[-1] == f"{MOST_KEPT - 1:05d}"
    assert {len(line) for line in text.splitlines()} == {5}


def test_what_nobody_has_read_yet_is_in_it_and_bytes_that_are_no_text():
    tail = Tail()
    os.write(tail.writes, b"one\ntwo \xff")
    assert tail.close() == "one\ntwo \\xff"
    os.close(tail.writes)


def test_a_process_that_has_filled_its_pipe_can_go_on_once_it_is_read():
    tail = Tail()
    os.set_blocking(tail.writes, False)
    while True:
        try:
            os.write(tail.writes, b"x" * 4096)
        except BlockingIOError:
            break
    assert tail.read()
    assert os.write(tail.writes, b"\nend") == 4
    os.close(tail.writes)
    assert tail.close() == "end"


def test_the_last_lines_are_shown_each_within_its_length():
    lines = printed_lines("\n".join([*map(str, range(100)), "y" * 2 * MOST_LINE]))
    assert len(lines) == MOST_LINES
    assert lines[0] == str(100 - MOST_LINES + 1)
    assert lines[-1] == "y" * MOST_LINE + "..."


def test_no_key_is_shown(monkeypatch):
    monkeypatch.setenv("SHOP_TOKEN", "tok-4f9a77aa")
    assert printed_lines("it is tok-4f9a77aa\n") == ("it is (SHOP_TOKEN)",)
