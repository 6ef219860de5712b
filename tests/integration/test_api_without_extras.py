"""`GRPOTrainer` needs nothing that an installation without extras does not bring."""

import subprocess
import sys

from tests.support.tiny import tiny_model, tiny_tokenizer

SCRIPT = """
import sys

for name in ("accelerate", "peft", "tensorboard", "trl"):
    sys.modules[name] = None  # as if it were not installed

from datasets import Dataset, IterableDataset
from paceline import GRPOConfig, GRPOTrainer

model, place = sys.argv[1:]
rows = [{"prompt": f"What is {number} + 1?"} for number in range(8)]
streamed = IterableDataset.from_generator(lambda: iter(rows))
for name, dataset in (("rows", Dataset.from_list(rows)), ("streamed", streamed)):
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **columns: [len(set(text)) / 10 for text in completions],
        args=GRPOConfig(
            output_dir=f"{place}/{name}", per_device_train_batch_size=4, num_generations=4, max_completion_length=8,
            max_steps=2, beta=0.1, dataloader_num_workers=2, disable_tqdm=True,
        ),
        train_dataset=dataset,
    )
    print("updates", trainer.train().global_step)
"""


def test_a_trainer_trains_without_accelerate_peft_and_trackers(tmp_path):
    tiny_model().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "model"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("updates 2") == 2
