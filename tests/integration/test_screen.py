"""What a person sees who trains in a terminal: a process of its own behind a pseudo-terminal."""

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from pathlib import Path

from paceline.reports.console import REDRAWS_PER_SECOND

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
ROWS, COLUMNS = 24, 80
LIMIT_SECONDS = 300.0


def in_a_terminal(*words: object) -> tuple[int, str, float]:
    """Exit status, everything that was written to the terminal, and for how many seconds there was something."""
    process, terminal = pty.fork()
    if process == 0:
        os.environ |= {"TERM": "xterm-256color", "LINES": str(ROWS), "COLUMNS": str(COLUMNS)}
        os.execv(sys.executable, [sys.executable, "-m", "paceline", *map(str, words)])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    written, started = b"", time.monotonic()
    first: float | None = None
    while True:
        ready, _, _ = select.select([terminal], [], [], LIMIT_SECONDS - (time.monotonic() - started))
        assert ready, "the process writes nothing and does not end"
        try:
            found = os.read(terminal, 1 << 16)
        except OSError:  # Linux says so of a terminal that nobody has open any more
            break
        first, written = first or time.monotonic(), written + found
    os.close(terminal)
    seconds = time.monotonic() - (first or started)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status), written.decode(), seconds


def test_a_run_in_a_terminal_has_one_screen_with_sentences_above_it_and_ends_with_its_last_frame(tmp_path: Path):
    run = tmp_path / "run"
    status, written, seconds = in_a_terminal(
        "train", "--max-steps", 3, "--dataset-size", 100, "--eval-steps", 0, "--eval-size", 50, "--output-dir", run
    )
    text = ESCAPE.sub("", written).replace("\r\n", "\n")
    assert status == 0
    frames = [
        text[found.start() :].split("alarms", 1)[0].splitlines() for found in re.finditer(r"^steps +[━─]", text, re.M)
    ]
    assert max(len(line) for frame in frames for line in frame) <= COLUMNS
    # one at each end and for each of the few sentences, besides those in time
    assert 3 <= len(frames) <= REDRAWS_PER_SECOND * seconds + 8
    assert frames[-1][0].endswith("3 of 3, 0 s to go")
    above = "held-out accuracy after step 3"
    assert text.index("held-out accuracy after step 0") < text.index(above)
    last = text[text.index(above) :]
    assert re.search(r"^steps +━+  3 of 3", last, re.M)
    assert re.search(r" done$", last, re.M)
    assert "loading torch and transformers" in text[: text.index("held-out accuracy after step 0")]
    assert re.search(r"^`?paceline rollouts \S*run`?", last, re.M)
    assert re.search(r"^generate +━+╸?─*  50 of 50, [\d,]+ tokens/s", last, re.M)
    assert re.search(r"^held-out  \d+\.\d % \[.*\] after step 3, began with", last, re.M)
    assert "learning    too early, because 3 of the 18 steps" in last
    assert last.index("learning    too early") < last.index(
        "report.html"
    )  # what it came to stands below the last frame
    assert not re.search(r"^step +\d of 3", text, re.M)  # the lines are for a log file
