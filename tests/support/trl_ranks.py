"""A program that trains with `GRPOTrainer`, in one process or as the ranks of a launcher: every case of `CASES`."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from datasets import Dataset
from peft import LoraConfig
from safetensors.torch import load_file
from torch import Tensor

from paceline import GRPOConfig, GRPOTrainer
from tests.support.tiny import tiny_model, tiny_tokenizer
from tests.support.trainer_settings import SHORT

ROWS = Dataset.from_list([{"prompt": f"What is {number} + 1?"} for number in range(8)])
ZERO_3 = {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}, "gradient_clipping": "auto"}
CASES: dict[str, dict[str, Any]] = {
    "copies": {},
    "DeepSpeed": {"deepspeed": ZERO_3, "beta": 0.1},
    "FSDP": {"fsdp": "shard_grad_op auto_wrap", "beta": 0.1},
    "adapter": {"fsdp": "full_shard", "beta": 0.1},
}
BATCH, RANK = 8, int(os.environ.get("RANK", "0"))


def variety(completions: list[str], trainer_state: Any, log_metric: Any, **columns: object) -> list[float]:
    log_metric("updates_seen", trainer_state.global_step)
    log_metric("rank", RANK)
    if "DIES" in os.environ and str(RANK) == os.environ["DIES"] and trainer_state.global_step == 2:
        os._exit(9)
    return [len(set(text)) / 10 for text in completions]


def trained(place: Path, case: str) -> dict[str, Any]:
    """One case below `place`; what this process knows of it in the end."""
    own = {"output_dir": str(place / case), "max_steps": 3, **CASES[case]}
    batch = BATCH // int(os.environ.get("WORLD_SIZE", "1"))
    args = GRPOConfig(**{**SHORT, "per_device_train_batch_size": batch, **own})
    trainer = GRPOTrainer(
        model=tiny_model(seed=RANK),  # each rank draws its own; they train the first one's
        reward_funcs=variety,
        args=args,
        train_dataset=ROWS,
        eval_dataset=ROWS.select(range(4)),
        processing_class=tiny_tokenizer(),
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"]) if case == "adapter" else None,
    )
    before = trainer.evaluate()
    output = trainer.train()
    after = trainer.evaluate()
    trainer.save_model(str(place / case / "again"))
    trainer.save_metrics("eval", after)
    trainer.log({"mine": 1.0})
    return {
        "leads": trainer.is_world_process_zero(),
        "rewards": [before["eval_reward"], after["eval_reward"]],
        "updates": [output.global_step, trainer.state.global_step],
        "logged": [
            (line.get("updates_seen"), line.get("rank")) for line in trainer.state.log_history if "loss" in line
        ],
        "mine": sum("mine" in line for line in trainer.state.log_history),
    }


def weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a saved model or adapter."""
    return {name: one for file in folder.glob("*.safetensors") for name, one in load_file(file).items()}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    found = {case: trained(folder, case) for case in sys.argv[2:] or CASES}
    (folder / f"rank-{RANK}.json").write_text(json.dumps(found))
