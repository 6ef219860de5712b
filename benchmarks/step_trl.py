"""Contenders of bench_step.py: `GRPOTrainer` of TRL on a CPU, all rollouts of a step in `accumulation` micro-batches.

A step is timed from `on_step_begin` to `on_step_end`: tokenising, generating, rewards, loss and update lie between
them. The callback waits for its turn before the clock starts.
"""

import sys
import tempfile
import time

from datasets import Dataset
from figures import summary
from materials import REWARDS, Materials, digest, make_materials
from measuring import Channel, peak_mib
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from workloads import EPSILONS, LEARNING_RATE, STEP, Workload, find


class Watch(TrainerCallback):
    """Lets the parent start each step, and reports what the step did.

    It sees rewards from inside the reward function, and training from the model's forward calls with labels.
    """

    def __init__(self, channel: Channel, workload: Workload) -> None:
        self.channel, self.workload = channel, workload
        self.tokens_trained = self.tokens_forwarded = 0
        self.prompts: list[str] = []
        self.lengths: list[int] = []
        self.rewards: list[float] = []

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        self.channel.request()
        self.tokens_trained = self.tokens_forwarded = 0
        self.prompts, self.lengths, self.rewards = [], [], []
        self.started = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs) -> None:
        seconds = time.perf_counter() - self.started
        size = self.workload.num_generations
        groups = [self.rewards[start : start + size] for start in range(0, len(self.rewards), size)]
        self.channel.reply(
            {
                "seconds": seconds,
                "prompts": digest(self.prompts),
                "completions": len(self.lengths),
                "tokens": sum(self.lengths),
                "lengths": summary(self.lengths),
                "rewards": summary(self.rewards),
                "groups_without_signal": sum(len(set(group)) == 1 for group in groups),
                "tokens_trained": self.tokens_trained,
                "tokens_forwarded": self.tokens_forwarded,
            }
        )

    def reward(self, prompts: list[str], completion_ids: list, **columns: object) -> list[float]:
        """The workload's reward function."""
        rewards = REWARDS[self.workload.reward](completion_ids=completion_ids, **columns)
        self.prompts += prompts
        self.lengths += [len(ids) for ids in completion_ids]
        self.rewards += rewards
        return rewards

    def forward(self, module, args, kwargs) -> None:
        """Before a forward call of the model; those of generation have no labels."""
        if "labels" in kwargs:
            self.tokens_forwarded += kwargs["input_ids"].numel()
            self.tokens_trained += int((kwargs["labels"] != -100).sum())


def main(accumulation: str, name: str, is_quick: str, threads: str) -> None:
    channel, imported = Channel.open(), peak_mib()
    workload = find(STEP, name, is_quick=bool(int(is_quick)))
    materials = make_materials(workload, threads=int(threads))
    watch = Watch(channel, workload)
    with tempfile.TemporaryDirectory() as directory:
        trainer = GRPOTrainer(
            model=_with_ends(materials),
            reward_funcs=watch.reward,
            args=settings(workload, int(accumulation), directory),
            train_dataset=Dataset.from_list(
                [{"prompt": task.prompt, "answer": task.answer} for tasks in materials.tasks for task in tasks]
            ),
            processing_class=materials.tokenizer,
            callbacks=[watch],
        )
        trainer.model.register_forward_pre_hook(watch.forward, with_kwargs=True)
        channel.reply({"imported_mib": imported, "path": f"{accumulation} micro-batches"})
        trainer.train()


def settings(workload: Workload, accumulation: int, directory: str) -> GRPOConfig:
    """What bench_step.py says is set alike on all sides; the rest is there to measure nothing but steps."""
    fixed = {"min_new_tokens": workload.max_new_tokens} if workload.lengths == "fixed" else {}
    return GRPOConfig(
        output_dir=directory,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=workload.completions // accumulation,
        gradient_accumulation_steps=accumulation,
        max_steps=workload.repetitions + 1,
        num_generations=workload.num_generations,
        num_iterations=1,
        max_completion_length=workload.max_new_tokens,
        generation_kwargs=fixed,
        temperature=1.0,
        loss_type="dapo",
        beta=0.0,
        epsilon=EPSILONS[0],
        epsilon_high=EPSILONS[1],
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        weight_decay=0.0,
        shuffle_dataset=False,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=0,
    )


def _with_ends(materials: Materials):
    """TRL reads the end tokens from the model and adds the tokenizer's own."""
    materials.model.generation_config.eos_token_id = sorted(materials.eos_token_ids) or None
    return materials.model


if __name__ == "__main__":
    main(*sys.argv[1:])
