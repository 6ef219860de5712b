"""The summary of a run states its gain with the test behind it."""

from io import StringIO

import pytest
from rich.console import Console

from paceline.checkpoints.run_directory import RunDir
from paceline.metrics.statistics import wilson
from paceline.reports.trained_run import step_paces, summarise, unbroken_steps


def summary_of(path, *rights: list[bool]) -> tuple[dict, str]:
    """The summary, and what is printed, of a run whose evaluations, a step apart, found these tasks right."""
    run, out = RunDir.create(path / "run", ""), StringIO()
    for step, right in enumerate(rights):
        found = wilson(sum(right), len(right))
        run.append_eval(
            {
                "set": "held-out",
                "step": step,
                "n": len(right),
                "tasks": len(right),
                "accuracy": found.value,
                "ci_low": found.low,
                "ci_high": found.high,
                "clock": {"seconds": 1.0},
            }
        )
        run.write_eval_completions(
            "held-out", step, [{"task_id": str(task), "correct": one} for task, one in enumerate(right)]
        )
    console = Console(file=out, width=200)
    return summarise(run, final_step=1, checkpoint_seconds=0.0, paces=None, console=console), out.getvalue()


def test_a_difference_comes_with_its_test(tmp_path):
    summary, printed = summary_of(tmp_path, [False] * 8 + [True], [True] * 8 + [False])
    assert (summary["test"]["gained"], summary["test"]["lost"]) == (8, 1)
    assert summary["test"]["mcnemar_p"] == pytest.approx(0.0390625)
    assert "test        8 tasks gained, 1 lost: exact McNemar p = 0.039; bootstrap [" in printed
    assert "looks" not in printed


def test_an_evaluation_that_was_higher_than_the_last_is_called_the_best_of_so_many(tmp_path):
    summary, printed = summary_of(tmp_path, [False] * 10, [True] * 8 + [False] * 2, [True] * 4 + [False] * 6)
    assert summary["looks"] == {"evaluations": 2, "best_step": 1, "best_accuracy": 0.8}
    assert "looks       best of 2 evaluations was step 1, 80.0 %; picking it needs p < 0.025" in printed
    assert "difference  +40.0 points" in printed


def test_steps_after_an_evaluation_or_a_checkpoint_are_not_compared_with_a_forecast(tmp_path):
    run = RunDir(tmp_path)
    for step in range(1, 8):
        run.append_metrics({"step": step, "clock": {"total": float(step)}})
    for step in (0, 3):
        run.append_eval({"set": "held-out", "step": step})
    steps = unbroken_steps(run, save_steps=5)
    assert [record["step"] for record in steps] == [2, 3, 5, 7]
    assert step_paces(steps, predicted_seconds=16.0) == {"predicted": 4.0, "measured": 17 / 4}
    assert [record["step"] for record in unbroken_steps(run, save_steps=0)] == [2, 3, 5, 6, 7]


def test_tasks_that_failed_are_said_with_the_number_of_the_others(tmp_path):
    run, out = RunDir.create(tmp_path / "run", ""), StringIO()
    for step, graded in ((0, 8), (1, 5)):
        record = {"set": "held-out", "step": step, "n": graded, "tasks": 8, "accuracy": 0.0}
        run.append_eval({**record, "ci_low": 0.0, "ci_high": 0.4, "clock": {"seconds": 1.0}})
        verdicts = [None] * (8 - graded) + [False] * graded
        run.write_eval_completions(
            "held-out", step, [{"task_id": str(task), "correct": one} for task, one in enumerate(verdicts)]
        )
    console = Console(file=out, width=200)
    summarise(run, final_step=1, checkpoint_seconds=0.0, paces=None, console=console)
    assert "held-out accuracy on held-out, n = 8, 95 % interval" in out.getvalue()
    assert "step 1, n = 5 of 8, 3 failed" in out.getvalue()
