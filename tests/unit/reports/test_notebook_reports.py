"""What a notebook's cell shows of a run."""

import json
import re

import paceline
from paceline.reports.trained_run import run_html


def run_of(directory, rewards, evals):
    directory.mkdir()
    lines = {
        "metrics.jsonl": [{"step": at, "reward_mean": reward, "clock": {}} for at, reward in enumerate(rewards, 1)],
        "evals.jsonl": [
            {"set": name, "step": 0, "n": 4, "accuracy": accuracy, "ci_low": 0.0, "ci_high": 1.0}
            for name, accuracy in evals
        ],
    }
    for name, records in lines.items():
        (directory / name).write_text("".join(json.dumps(one) + "\n" for one in records))
    return directory


def test_a_run_is_its_directory_its_curve_and_its_accuracies(tmp_path):
    run = run_of(tmp_path / "a<b", [0.0, None, 0.5, 1.0], [("x", 0.25), ("x", 0.75)])
    shown = paceline.TrainedRun(run)._repr_html_()
    assert "a&lt;b" in shown
    assert "reward, 0 to 1 in 3 steps" in shown
    assert 'points="0.0,80.0 180.0,40.0 360.0,0.0"' in shown
    assert "x: 25.0 % before, 75.0 % now" in shown


def test_a_run_without_steps_has_no_curve(tmp_path):
    shown = run_html(run_of(tmp_path / "new", [], []))
    assert "svg" not in shown
    assert re.fullmatch(r"<div><b>.*new</b></div>", shown)
