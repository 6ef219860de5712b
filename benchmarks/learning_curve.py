"""One run of bench_learning.py: python learning_curve.py trl|paceline WORK SEED THREADS

The same script for both, with the import of the trainer changed. What is held out is answered greedily by transformers'
own `generate` in both, while the clock of training stands still.
"""

import json
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

import torch
from datasets import Dataset
from measuring import Channel
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from first_equation import first_equation

EVALUATED = 100
"""Held-out questions that are answered at once."""


class Curve(TrainerCallback):
    """Answers the parent after each step: seconds of training until then, tokens sampled, what was right."""

    def __init__(self, channel: Channel, work: dict, tokenizer) -> None:
        self.channel, self.work, self.tokenizer = channel, work, tokenizer
        self.tokens, self.rewards = 0, list[float]()
        self.started, self.stood_still = 0.0, 0.0

    def reward(self, completions: list[str], completion_ids: list, answer: list[str], **columns: object) -> list[float]:
        """The reward of the step, counted."""
        found = first_equation(completions, answer)
        self.tokens += sum(map(len, completion_ids))
        self.rewards += found
        return found

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.tokens = 0  # Paceline has tried the reward on made-up completions
        self.rewards.clear()
        self.started = time.perf_counter()

    def on_step_end(self, args, state, control, model=None, **kwargs) -> None:
        seconds = time.perf_counter() - self.started - self.stood_still
        is_due = state.global_step % self.work["eval_steps"] == 0
        self.channel.reply(
            {
                "step": state.global_step,
                "seconds": seconds,
                "tokens": self.tokens,
                "reward": sum(self.rewards) / len(self.rewards),
                "right": self.right(model) if is_due else None,
            }
        )
        self.rewards.clear()
        self.stood_still = time.perf_counter() - self.started - seconds

    def right(self, model) -> int:
        """Number of held-out questions whose greedy answer is right."""
        was_training, found = model.training, 0.0
        model.eval()
        for start in range(0, len(self.work["test"]), EVALUATED):
            rows = self.work["test"][start : start + EVALUATED]
            given = self.tokenizer(
                [row["prompt"] for row in rows],
                return_tensors="pt",
                padding=True,
                padding_side="left",
                add_special_tokens=False,
            )
            with torch.inference_mode():
                ids = model.generate(
                    **given,
                    max_new_tokens=self.work["max_completion_length"],
                    do_sample=False,
                    pad_token_id=self.tokenizer.pad_token_id,
                )
            texts = self.tokenizer.batch_decode(ids[:, given["input_ids"].shape[1] :], skip_special_tokens=True)
            found += sum(first_equation(texts, [row["answer"] for row in rows]))
        model.train(was_training)
        return int(found)


def main(library: str, path: str, seed: str, threads: str) -> None:
    """Args:
    library: what the trainer is imported from.
    path: JSON file of the work: the model, prompts with answers, and what is set alike.
    seed: of sampling and of which prompts are taken.
    threads: torch's.
    """
    channel = Channel.open()
    torch.set_num_threads(int(threads))
    work, module = json.loads(Path(path).read_text()), import_module(library)
    tokenizer = AutoTokenizer.from_pretrained(work["model"])
    curve = Curve(channel, work, tokenizer)
    prompts, completions = (
        work["prompts_per_step"] * work["max_steps"],
        work["prompts_per_step"] * work["num_generations"],
    )
    with tempfile.TemporaryDirectory() as directory:
        trainer = module.GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(work["model"], dtype=torch.float32),
            processing_class=tokenizer,
            reward_funcs=curve.reward,
            train_dataset=Dataset.from_list(work["train"][int(seed) * prompts : (int(seed) + 1) * prompts]),
            callbacks=[curve],
            args=module.GRPOConfig(
                output_dir=directory,
                seed=int(seed),
                max_steps=work["max_steps"],
                num_generations=work["num_generations"],
                per_device_train_batch_size=work["rows"],
                gradient_accumulation_steps=completions // work["rows"],
                max_completion_length=work["max_completion_length"],
                temperature=work["temperature"],
                learning_rate=work["learning_rate"],
                lr_scheduler_type="linear",
                warmup_steps=work["warmup_steps"],
                loss_type="dapo",
                beta=0.0,
                max_grad_norm=1.0,
                weight_decay=0.0,
                gradient_checkpointing=False,
                shuffle_dataset=False,
                use_cpu=True,
                bf16=False,
                dataloader_pin_memory=False,
                logging_strategy="no",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
        )
        trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
