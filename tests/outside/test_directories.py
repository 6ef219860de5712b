"""Relative names, a working directory that changes, and names of checkpoints, in programs of TRL's kind."""

import re
from pathlib import Path

import pytest

from tests.outside.desk import TORCHRUN, Desk

PAGE = Path(__file__).parents[2] / "docs/trl.md"

SCRIPT = """
    import os, shutil, sys, tempfile
    from pathlib import Path

    import paceline
    from datasets import Dataset
    from paceline import GRPOConfig, GRPOTrainer
    from transformers import TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint

    here = os.getcwd()
    score = 8.0


    def graded(completions, **columns):
        global score
        score /= 2  # the first checkpoint stays the best
        with tempfile.TemporaryDirectory() as gone:
            os.chdir(gone)
        return [score + len(completion) % 2 / 100 for completion in completions]


    class Newest(TrainerCallback):
        def on_save(self, args, state, control, **parts):
            folders = sorted(Path(here, "runs/mine").glob("checkpoint-*"), key=lambda one: int(one.name.split("-")[-1]))
            for old in folders[:-1]:
                if str(old) != os.path.join(here, state.best_model_checkpoint or ""):
                    shutil.rmtree(old)


    def train(output_dir, steps, resume):
        args = GRPOConfig(
            output_dir=output_dir, per_device_train_batch_size=4, per_device_eval_batch_size=4, num_generations=4,
            max_completion_length=8, max_steps=steps, save_strategy="steps", save_steps=1, save_total_limit=1,
            eval_strategy="steps", eval_steps=1, load_best_model_at_end=True, metric_for_best_model="eval_reward",
            report_to="none",
        )
        rows = Dataset.from_list([{"prompt": f"{number} + 2 ="} for number in range(4)])
        trainer = GRPOTrainer("embedded", [graded], args, rows, rows, callbacks=[Newest()])
        trainer.train(resume_from_checkpoint=resume)
        os.chdir(here)
        return trainer.state


    state = train("runs/mine", 1, None)
    assert state.best_model_checkpoint == "runs/mine/checkpoint-1", state.best_model_checkpoint
    os.chdir("runs")
    train("../runs/mine", 2, get_last_checkpoint("../runs/mine"))
    state = train(os.path.abspath("runs/mine"), 3, "runs/mine/checkpoint-2")
    assert state.best_global_step == 1
    print(sorted(place.name for place in Path("runs/mine").glob("checkpoint-*")))
    print(sorted(os.listdir("runs/mine/checkpoints")))

    # the same directory by the library, from inside
    os.chdir("runs/mine")
    run = paceline.TrainedRun(".")
    print(run.path.name, [record.step for record in run.metrics], (run.final_dir / "config.json").is_file())
"""


@pytest.mark.long
def test_a_trainer_whose_rewards_leave_the_directory_resumes_under_any_spelling(desk: Desk):
    desk.write("script.py", SCRIPT)

    done = desk.python("script.py")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == [
        "['checkpoint-1', 'checkpoint-3']",
        "['step-000001', 'step-000003']",
        "mine [1, 2, 3] True",
    ]


ROWS = """
    import json, os, shutil
    from pathlib import Path

    import paceline

    rows = [{"question": f"{n} + 2?", "answer": str(n + 2)} for n in range(8)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
    Path("own.py").write_text("def grade(completions, **columns):\\n    return [len(t) % 5 for t in completions]\\n")
    here = os.getcwd()
    small = {"max_completion_length": 8, "prompts_per_step": 2, "num_generations": 2, "save_steps": 1}
    first = paceline.train(
        model="embedded", dataset="rows.jsonl", eval_dataset="rows.jsonl", allow_overlap=True,
        reward_funcs=["own.py:grade", "accuracy"], lr_schedule="constant", max_steps=1, output_dir="runs/a", **small,
    )
    os.chdir("runs/a")
    paceline.train(resume=".", max_steps=2)
    os.chdir("/")
    run = f"{here}/runs/a"
    graders = [f"{here}/own.py:grade", "accuracy"]
    paceline.train(resume=run, dataset=f"{here}/rows.jsonl", reward_funcs=graders, max_steps=3)
    (result,) = paceline.evaluate(model=first)
    assert result.accuracy.value == first.evals[-1].accuracy
    shutil.move(here, f"{here}, moved")
    # code at another place is other code, and has to be named once
    graders = [f"{here}, moved/own.py:grade", "accuracy"]
    paceline.train(resume=f"{here}, moved/runs/a", reward_funcs=graders, max_steps=4)
    (result,) = paceline.evaluate(model=f"{here}, moved/runs/a")
    print(len(paceline.TrainedRun(f"{here}, moved/runs/a").metrics))
"""


@pytest.mark.long
def test_a_run_is_found_with_its_rows_from_anywhere_and_after_a_move(desk: Desk):
    desk.write("script.py", ROWS)

    done = desk.python("script.py")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "4"


@pytest.mark.long
def test_the_script_of_the_page_runs_on_two_ranks_in_an_empty_folder(desk: Desk):
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    desk.write("script.py", found[1])

    done = desk.python(*TORCHRUN, "script.py")

    assert done.returncode == 0, done.stderr
    assert (desk.path / "runs/trl/checkpoint-1/model.safetensors").is_file()
    assert (desk.path / "runs/trl/final/model.safetensors").is_file()
