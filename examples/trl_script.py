"""A script written for TRL, with one line changed: the import. It trains an adapter on two reward functions.

python examples/trl_script.py --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct --output_dir runs/trl-script
"""

from dataclasses import dataclass

from datasets import Dataset
from peft import LoraConfig
from transformers import EarlyStoppingCallback, HfArgumentParser

from paceline import GRPOConfig, GRPOTrainer


@dataclass
class ScriptArguments:
    """What the script itself asks for."""

    model_name_or_path: str = "Qwen/Qwen2.5-0.5B-Instruct"


def numbers(count: int, start: int) -> Dataset:
    """Prompts that ask for sums, with the right answer in a column of its own."""
    pairs = [(number % 7, number % 5) for number in range(start, start + count)]
    return Dataset.from_list([{"prompt": f"{a} + {b} =", "total": a + b} for a, b in pairs])


def right(completions: list[str], total: list[int], **kwargs: object) -> list[float]:
    """1 where the sum stands in the completion."""
    return [float(str(answer) in text) for text, answer in zip(completions, total, strict=True)]


def brief(completions: list[str], **kwargs: object) -> list[float]:
    """1 for nothing at all, less with every character."""
    return [1 / (1 + len(text)) for text in completions]


def main() -> None:
    """Train, evaluate, save."""
    script, training = HfArgumentParser((ScriptArguments, GRPOConfig)).parse_args_into_dataclasses()
    trainer = GRPOTrainer(
        model=script.model_name_or_path,
        reward_funcs=[right, brief],
        args=training,
        train_dataset=numbers(256, start=0),
        eval_dataset=numbers(16, start=1000),
        peft_config=LoraConfig(r=8, task_type="CAUSAL_LM"),
        callbacks=[EarlyStoppingCallback(early_stopping_patience=20)] if training.metric_for_best_model else None,
    )
    trainer.train()
    print(trainer.evaluate())
    trainer.save_model(f"{training.output_dir}/adapter")


if __name__ == "__main__":
    main()
