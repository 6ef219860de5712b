from paceline.rundir import RunDir
from paceline.summary import step_paces, unbroken_steps


def test_steps_after_an_evaluation_or_a_checkpoint_are_not_compared_with_a_forecast(tmp_path):
    run = RunDir(tmp_path)
    for step in range(1, 8):
        run.append_metrics({"step": step, "clock": {"total": float(step)}})
    for step in (0, 3):
        run.append_eval({"set": "held-out", "step": step})
    steps = unbroken_steps(run, save_steps=5)
    assert [record["step"] for record in steps] == [2, 3, 5, 7]
    assert step_paces(steps, foreseen_seconds=16.0) == {"predicted": 4.0, "measured": 17 / 4}
    assert [record["step"] for record in unbroken_steps(run, save_steps=0)] == [2, 3, 5, 6, 7]
