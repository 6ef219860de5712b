"""No text of a model, a file or a server steers the terminal, wherever it is printed."""

import io
import json
import sys

import pytest
from rich.console import Console
from rich.text import Text

from paceline.cli.main import TerminalStream, main
from paceline.reports.console import PlainConsole, open_console, tell
from paceline.runtime.shown_text import STEERING, OwnOutput, visible

STEERED = "a\x1b]0;title\x07b\x9b31mc\x08d\u202ee\u2066f\x00g\rh\x7f"


def test_what_steers_is_written_as_escapes_and_the_rest_as_it_is():
    said = visible(STEERED)
    assert said == "a\\x1b]0;title\\x07b\\u009b31mc\\x08d\\u202ee\\u2066f\\x00g\\x0dh\\u007f"
    for plain in ("naïve 😀 שלום\tx\r\ny\n", "👩\u200d💻", "汉字"):
        assert visible(plain) == plain
    said.encode()


@pytest.mark.parametrize("number", [*range(0x20), *range(0x7F, 0xA0), 0x202A, 0x202E, 0x2066, 0x2069, 0xD800])
def test_no_control_is_left_but_tabs_and_ends_of_lines(number):
    assert (visible(chr(number)) == chr(number)) == (chr(number) in "\t\n")


def test_a_streams_writes_are_made_visible_and_its_own_are_not():
    said = io.StringIO()
    stream = TerminalStream(said)
    print(STEERED, file=stream)
    stream.write_own("\x1b[1mown")
    assert STEERING.search(said.getvalue().removesuffix("\x1b[1mown")) is None


def test_a_console_draws_its_colours_and_nobody_elses(monkeypatch):
    said = io.StringIO()
    monkeypatch.setattr(sys, "stdout", TerminalStream(said))
    console = PlainConsole(force_terminal=True, color_system="standard", legacy_windows=False)
    console.print(Text(f"x{STEERED}", style="red"))
    tell(console, f"y{STEERED}")
    assert said.getvalue().startswith("\x1b[31mxa]0;titleb31mcdefg")
    assert STEERING.search(said.getvalue().replace("\x1b[31m", "").replace("\x1b[0m", "")) is None


def test_lines_of_json_stay_json(monkeypatch):
    said = io.StringIO()
    monkeypatch.setattr(sys, "stdout", TerminalStream(said))
    console = open_console(log_format="json")
    console.file.event("message", message=STEERED)
    assert json.loads(said.getvalue())["message"] == STEERED


def test_what_is_drawn_goes_past_a_live_display():
    said = io.StringIO()
    proxied = io.StringIO()
    proxied.rich_proxied_file = TerminalStream(said)
    before, sys.stdout = sys.stdout, proxied
    try:
        OwnOutput("stdout").write("\x1b[2K")
    finally:
        sys.stdout = before
    assert said.getvalue() == "\x1b[2K"
    assert isinstance(PlainConsole(), Console)


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--\x1b]0;x\x07"],
        ["train", "--model", "\x1b[2Jmodel"],
        ["\x1b[31mtrain"],
        ["train", "--dataset", "a\u202eb.jsonl", "--model", "embedded"],
        ["explain", "--stop", "\x1b[31m", "--model", "m", "--dataset", "d"],
        ["report", "\x9b31m"],
    ],
)
def test_names_in_refusals_and_tables_steer_nothing(words, capfd):
    main(words)
    said = "".join(capfd.readouterr())
    assert said
    assert STEERING.search(said) is None
