"""A folder of pictures with questions, trained on by commands from elsewhere, twice, interrupted, and on two ranks."""

import json

from paceline.data.shapes import shape_rows
from tests.outside.desk import TORCHRUN, Desk

TRAIN = (
    "train --model embedded-vision --dataset ../Bilder/rows.jsonl --prompts-per-step 4 --num-generations 4 "
    "--eval-steps 0 --save-steps 1 --warmup-steps 0 --output-dir runs/mine"
)


def saved(desk: Desk) -> None:
    """Write what a user has: pictures in a folder of their own, and rows that name them relative to it."""
    lines = list[str]()
    for number, row in enumerate(shape_rows("train", 24)):
        file = desk.path / "Bilder" / "für alle" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(row["image"])
        lines.append(json.dumps({**row, "image": f"für alle/{number}.png"}) + "\n")
    desk.write("Bilder/rows.jsonl", "".join(lines))
    (desk.path / "work").mkdir()


def test_pictures_named_relative_to_their_rows_are_trained_on_from_elsewhere_stopped_and_gone_on_with(desk: Desk):
    saved(desk)
    run = desk.path / "work" / "runs" / "mine"
    words = ("-m", "paceline", *TRAIN.split(), "--max-steps", "60")

    stopped = desk.interrupt(*words, cwd="work", when=(run / "checkpoints" / "step-000001").exists)
    reached = len((run / "metrics.jsonl").read_text().splitlines())
    again = desk.paceline(*TRAIN.split(), "--max-steps", "60", cwd="work")
    done = desk.paceline("train", "--resume", "work/runs/mine", "--max-steps", reached + 1)

    assert stopped.returncode == 130, stopped.stdout + stopped.stderr
    assert again.returncode == 2
    assert "--resume" in again.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == list(range(1, reached + 2))
    assert all(step["images"] == 4 for step in steps)
    assert len(list((run / "images").iterdir())) <= 24


def test_a_program_of_trls_kind_trains_on_pictures_on_two_ranks(desk: Desk):
    saved(desk)
    desk.write(
        "work/train.py",
        """
        from datasets import Image, load_dataset

        from paceline import GRPOConfig, GRPOTrainer


        def short(completions, image, **columns):
            assert all(each.size == (48, 48) for each in image)
            return [-len(messages[0]["content"]) / 100 for messages in completions]


        if __name__ == "__main__":
            rows = load_dataset("json", data_files="../Bilder/rows.jsonl", split="train")
            rows = rows.map(lambda row: {
                "prompt": [{"role": "user", "content": row["question"]}], "image": "../Bilder/" + row["image"],
            })
            trainer = GRPOTrainer(
                model="embedded-vision",
                reward_funcs=short,
                args=GRPOConfig(
                    output_dir="runs/ranks", per_device_train_batch_size=4, num_generations=4, max_steps=1,
                    max_completion_length=16, report_to="none",
                ),
                train_dataset=rows.cast_column("image", Image()),
            )
            print("steps", trainer.train().global_step)
        """,
    )

    done = desk.python(*TORCHRUN, "train.py", cwd="work")

    assert done.returncode == 0, done.stderr[-3000:]
    assert "steps 1" in done.stdout
    assert (desk.path / "work" / "runs" / "ranks" / "images").is_dir()
