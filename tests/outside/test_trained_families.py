"""Programs that train a windowed model, a hybrid, and an adapter on a model that reads images, from directories."""

import json

import pytest
import torch

from paceline.models.loaded import save_model
from tests.outside.desk import Desk
from tests.support.families import family, make_model
from tests.support.multimodal import multimodal_model
from tests.support.tiny import tiny_tokenizer

ROWS = "".join(json.dumps({"question": f"What is {n} and {n + 2}?", "answer": str(2 * n + 2)}) + "\n" for n in range(8))
GRADE = """
    def grade(completions, **columns):
        return [len(set(text)) / 10 for text in completions]
"""


def saved(desk: Desk, name: str) -> None:
    """What a user has: a model's directory, and rows and a reward function in another one."""
    save_model(make_model(family(name)), tiny_tokenizer(), desk.path / "models" / "mine", torch.float32)
    desk.write("work/rows.jsonl", ROWS)
    desk.write("work/grade.py", GRADE)


WINDOWED = """
    import os
    from pathlib import Path

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import paceline

    options = {"prompts_per_step": 2, "num_generations": 4, "max_completion_length": 24, "learning_rate": 1e-3}
    paceline.train(
        model="../models/mine", dataset="rows.jsonl", reward_funcs="grade.py:grade", max_steps=1, output_dir="runs/a",
        **options,
    )
    os.chdir("runs")
    run = paceline.train(resume="a", max_steps=2)
    print([record.step for record in run.metrics])

    folder = Path("a/final")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    print(type(model).__name__, model.config.sliding_window)
    begun = AutoModelForCausalLM.from_pretrained("../../models/mine")
    print(torch.equal(model.lm_head.weight, begun.lm_head.weight))
    inputs = tokenizer("What is 1 and 3?", return_tensors="pt")
    print(model.generate(**inputs, max_new_tokens=12, do_sample=False).shape[1] > inputs["input_ids"].shape[1])
"""


def test_a_windowed_model_is_trained_resumed_and_opened(desk: Desk):
    saved(desk, "gemma3_text")
    desk.write("work/train.py", WINDOWED)

    done = desk.python("train.py", cwd="work")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-4:] == ["[1, 2]", "Gemma3ForCausalLM 8", "False", "True"]


HYBRID = (
    "train --model ../models/mine --dataset rows.jsonl --reward-funcs grade.py:grade --prompts-per-step 2 "
    "--num-generations 4 --max-completion-length 24 --save-steps 1 --output-dir runs/b"
)


def test_a_hybrid_is_trained_by_commands_stopped_and_gone_on_with_elsewhere(desk: Desk):
    saved(desk, "qwen3_5_text")
    run = desk.path / "work" / "runs" / "b"
    words = ("-m", "paceline", *HYBRID.split(), "--max-steps", "60")

    stopped = desk.interrupt(*words, cwd="work", when=(run / "checkpoints" / "step-000001").exists)
    reached = len((run / "metrics.jsonl").read_text().splitlines())
    done = desk.paceline("train", "--resume", "work/runs/b", "--max-steps", reached + 1)

    assert stopped.returncode == 130, stopped.stdout + stopped.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, reached + 2))
    assert json.loads((run / "final" / "config.json").read_text())["architectures"] == ["Qwen3_5ForCausalLM"]


ADAPTER = """
    import sys

    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from safetensors.torch import load_file

    from paceline import GRPOConfig, GRPOTrainer


    def varied(completions, **columns):
        return [len(set(text)) / 10 for text in completions]


    trainer = GRPOTrainer(
        model="../models/reads images",
        reward_funcs=varied,
        args=GRPOConfig(
            output_dir="runs/lora", per_device_train_batch_size=4, num_generations=4, max_completion_length=16,
            max_steps=int(sys.argv[1]), save_steps=1, learning_rate=1e-3, report_to="none",
        ),
        train_dataset=Dataset.from_list([{"prompt": f"{number} + 2 ="} for number in range(8)]),
        peft_config=LoraConfig(r=2, target_modules="all-linear"),
    )
    result = trainer.train(resume_from_checkpoint=len(sys.argv) > 2)
    trainer.save_model("saved")
    weights = load_file("saved/adapter_model.safetensors")
    print(result.global_step, len(weights), sum("vision" in name for name in weights))
    print(max(float(tensor.abs().max()) for name, tensor in weights.items() if "lora_B" in name) > 0)
"""


@pytest.mark.long
def test_an_adapter_on_a_model_that_reads_images_is_trained_by_a_script_of_trls_kind(desk: Desk):
    pytest.importorskip("peft")
    place = desk.path / "models" / "reads images"
    multimodal_model("gemma3").save_pretrained(place)
    tiny_tokenizer().save_pretrained(place)
    desk.write("work/train.py", ADAPTER)

    first = desk.python("train.py", 1, cwd="work")
    second = desk.python("train.py", 2, "resume", cwd="work")

    # six layers of seven products with two matrices each
    for done, step in ((first, 1), (second, 2)):
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.splitlines()[-2:] == [f"{step} {6 * 7 * 2} 0", "True"]
