"""The run directory says how a run ended, whoever started it and whatever ended it."""

import json

import pytest

from tests.outside.desk import Desk

SMALL = "max_steps=2, eval_size=4, prompts_per_step=2, num_generations=2, dataset_size=4"


def ending(desk: Desk, run: str) -> dict[str, object]:
    ended: dict[str, object] = json.loads((desk.path / run / "ended.json").read_text(encoding="utf-8"))
    return ended


@pytest.mark.long
def test_every_python_door_leaves_how_its_run_ended_and_a_resumed_run_forgets_it(desk: Desk):
    desk.write(
        "doors.py",
        f"""
        import os, signal
        import paceline
        from paceline.errors import PacelineError

        is_full = True

        def flaky(completions, **kwargs):
            if os.path.exists("runs/train/metrics.jsonl") and is_full:
                raise RuntimeError("the grader's disk is full")
            return [float(len(text) % 2) for text in completions]

        try:
            paceline.train(output_dir="runs/train", reward_funcs=[flaky], {SMALL})
        except PacelineError:
            print(open("runs/train/ended.json").read())
        is_full = False
        paceline.train(resume="runs/train", reward_funcs=[flaky])
        try:
            with paceline.Session(output_dir="runs/session", reward_funcs=[flaky], {SMALL}) as session:
                for step in session:
                    session.update(session.sample())
                    {{}}["no such key"]
        except KeyError:
            pass
        try:
            with paceline.Session(output_dir="runs/stopped", reward_funcs=[flaky], {SMALL}) as session:
                for step in session:
                    session.update(session.sample())
                    os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            pass
        with paceline.Session(output_dir="runs/killed", reward_funcs=[flaky], {SMALL}) as session:
            for step in session:
                session.update(session.sample())
                if step == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    ran = desk.python("doors.py")
    assert ran.returncode == -9, ran.stderr
    failed = json.loads(next(line for line in ran.stdout.splitlines() if line.startswith('{"time"')))
    assert (failed["status"], failed["step"], failed["resume"]) == (1, 1, "resume='runs/train'")
    assert "the grader's disk is full" in failed["sentence"]
    assert "doors.py" in failed["traceback"]
    assert ending(desk, "runs/train")["sentence"] == "finished after step 2"
    session = ending(desk, "runs/session")
    assert (session["status"], session["sentence"]) == (1, "KeyError: 'no such key'")
    assert "doors.py" in str(session["traceback"])
    assert "KeyError: &#x27;no such key&#x27;" in (desk.path / "runs/session/report.html").read_text(encoding="utf-8")
    assert ending(desk, "runs/stopped")["sentence"] == "SIGTERM after step 1, with a checkpoint"
    assert not (desk.path / "runs/killed/ended.json").exists()
    assert desk.paceline("report", "runs/killed").returncode == 0
    page = (desk.path / "runs/killed/report.html").read_text(encoding="utf-8")
    assert "broken off, step 1 of 2" in page
