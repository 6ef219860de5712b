"""Terminals and logs as they are found: windows of a few columns, ASCII alone, a log that a program reads."""

import json

import pytest

from tests.outside.desk import Desk

SMALL = (
    "--max-steps",
    1,
    "--dataset-size",
    8,
    "--eval-size",
    4,
    "--prompts-per-step",
    2,
    "--num-generations",
    2,
    "--output-dir",
    "runs/mine",
)


@pytest.mark.long
def test_a_run_in_an_8_column_ascii_window_comes_to_its_end(desk: Desk):
    # ASCII for what is written; names of files keep the umlaut, which transformers' tokenizers cannot write in ASCII
    crowded = {"COLUMNS": "8", "LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    done = desk.paceline("train", *SMALL, env={**crowded, "TTY_COMPATIBLE": "1", "FORCE_COLOR": "1", "TERM": "xterm"})
    assert done.returncode == 0, done.stderr
    assert "report  " in done.stdout
    assert (desk.path / "runs/mine/summary.json").is_file()


@pytest.mark.parametrize(
    ("rewards", "status"),
    [
        pytest.param("accuracy", 0, marks=pytest.mark.long),
        pytest.param("broken.py:broken", 1, marks=pytest.mark.long),
        ("nothing", 2),
    ],
)
def test_the_last_line_of_a_json_log_says_how_the_run_ended(desk: Desk, rewards: str, status: int):
    desk.write("broken.py", "def broken(completions, **columns):\n    raise RuntimeError('no such table')\n")
    done = desk.paceline(
        "train", *SMALL, "--reward-funcs", rewards, "--log-format", "json", env={"PYTHONIOENCODING": "ascii"}
    )
    assert done.returncode == status
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in events].count("end") == 1
    end = events[-1]
    assert (end["event"], end["status"]) == ("end", status)
    if status == 0:
        assert end["error"] is None
        assert end["finished"]
        assert end["final_step"] == 1
        assert [event["step"] for event in events if event["event"] == "evaluation"] == [0, 1]
        (plan,) = (event for event in events if event["event"] == "plan")
        assert (plan["prompts_per_step"], plan["steps"]) == (2, 1)
    else:
        assert end["error"] in done.stderr
