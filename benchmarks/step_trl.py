"""Contenders of bench_step.py: `GRPOTrainer` of TRL, with each of its generation backends that works here.

A step is timed from `on_step_begin` to `on_step_end`: tokenising, generating, rewards, loss and update lie between
them. The callback waits for its turn before the clock starts. Completions end where the workload says: `generate` gets
a logits processor that forces the end token, continuous batching and vLLM a limit per request.
"""

import os
import sys
import tempfile
import time
from itertools import chain

import torch
from datasets import Dataset
from device_memory import device_peak
from earning import REWARDS
from ends import ForcedEnds
from figures import summary
from given import Given, digest
from measuring import Channel, peak_mib
from peft import LoraConfig
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from transformers.generation import ContinuousBatchingManager

# read when vLLM is imported: TRL gives it weights in this process
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_NO_USAGE_STATS"] = "1"

from trl import GRPOConfig, GRPOTrainer
from workloads import EPSILONS, LEARNING_RATE, LORA_RANK, Workload

VLLM_SHARE = 0.3
"""Of the GPU's memory, for vLLM's weights and cache: TRL's own default."""

PAGE_SIZE = {"shipped": 32}
"""Tokens of a block of continuous batching's cache: the fastest for a small model; others take `LARGE_PAGE`."""
LARGE_PAGE = 256


class Watch(TrainerCallback):
    """Lets the parent start each step, and reports what the step did.

    It sees rewards from inside the reward function, and training from the model's forward calls with labels.
    """

    def __init__(self, channel: Channel, given: Given) -> None:
        self.channel, self.given = channel, given
        self.repetition = 0
        self._forget()

    def _forget(self) -> None:
        self.generate_seconds = 0.0
        self.tokens_trained = self.tokens_forwarded = 0
        self.prompts: list[str] = []
        self.lengths: list[int] = []
        self.rewards: list[float] = []

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        self.repetition = self.channel.request()["repetition"]
        self._forget()
        self.started = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs) -> None:
        seconds = time.perf_counter() - self.started
        size = self.given.workload.num_generations
        groups = [self.rewards[start : start + size] for start in range(0, len(self.rewards), size)]
        self.channel.reply(
            {
                "seconds": seconds,
                "generate_seconds": self.generate_seconds,
                "prompts": digest(self.prompts),
                "completions": len(self.lengths),
                "tokens": sum(self.lengths),
                "lengths": summary(self.lengths),
                "rewards": summary(self.rewards),
                "groups_without_signal": sum(len(set(group)) == 1 for group in groups),
                "tokens_trained": self.tokens_trained,
                "tokens_forwarded": self.tokens_forwarded,
                **device_peak(),
            }
        )

    def reward(self, prompts: list[str], completion_ids: list, **columns: object) -> list[float]:
        """The workload's reward function."""
        rewards = REWARDS[self.given.workload.reward](completion_ids=completion_ids, **columns)
        self.prompts += prompts
        self.lengths += [len(ids) for ids in completion_ids]
        self.rewards += rewards
        return rewards

    def forward(self, module, args, kwargs) -> None:
        """Before a forward call of the model; those of generation have no labels."""
        if "labels" in kwargs:
            self.tokens_forwarded += kwargs["input_ids"].numel()
            self.tokens_trained += int((kwargs["labels"] != -100).sum())


def main(path: str, threads: str, device: str, backend: str, dtype: str, rows: str, kind: str) -> None:
    """Args:
    path: of what is given.
    threads, device: torch's.
    backend: `generate`, `continuous` or `vllm`.
    dtype: `float32`, or `bfloat16` for autocast over float32 weights.
    rows: completions in a micro-batch.
    kind: `plain`, or with `checkpointing`, `lora` (an adapter) or both in it.
    """
    channel, imported = Channel.open(), peak_mib()
    torch.set_num_threads(int(threads))
    # torch 2.11 takes cuDNN's attention for bfloat16 with a mask, and its gradient of padded rows is no number: on an
    # H100 TRL's weights are nan after one step of completions of different lengths
    torch.backends.cuda.enable_cudnn_sdp(False)
    given = Given.read(path)
    watch = Watch(channel, given)
    # attention is transformers' own choice: sdpa, and its eager form for a family with sinks
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as directory:
        trainer = GRPOTrainer(
            model=model.to(device),
            reward_funcs=watch.reward,
            args=GRPOConfig(
                **fixed_settings(given.workload, directory),
                **backend_settings(given, backend),
                use_cpu=device == "cpu",
                bf16=dtype == "bfloat16",
                gradient_checkpointing="checkpointing" in kind,
                per_device_train_batch_size=int(rows),
                gradient_accumulation_steps=given.workload.completions // int(rows),
            ),
            train_dataset=Dataset.from_list(
                [{"prompt": one.text, "answer": one.answer} for prompts in given.repetitions for one in prompts]
            ),
            processing_class=PreTrainedTokenizerFast.from_pretrained(given.model),
            callbacks=[watch],
            peft_config=adapter() if "lora" in kind else None,
        )
        hold_lengths(trainer, watch, backend)
        trainer.model.register_forward_pre_hook(watch.forward, with_kwargs=True)
        channel.reply({"imported_mib": imported, "path": f"{backend}, {dtype}, {rows} rows, {kind}"})
        trainer.train()


def adapter() -> LoraConfig:
    """As Paceline's `--lora-rank`: on all linear layers, scaled by 2."""
    return LoraConfig(r=LORA_RANK, lora_alpha=2 * LORA_RANK, target_modules="all-linear")


def fixed_settings(workload: Workload, directory: str) -> dict:
    """What bench_step.py says is set alike on all sides; the rest is there to measure nothing but steps."""
    return {
        "output_dir": directory,
        "max_steps": workload.repetitions + 1,
        "num_generations": workload.num_generations,
        "num_iterations": 1,
        "max_completion_length": workload.max_new_tokens,
        "temperature": 1.0,
        "loss_type": "dapo",
        "beta": 0.0,
        "epsilon": EPSILONS[0],
        "epsilon_high": EPSILONS[1],
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 1.0,
        "weight_decay": 0.0,
        "shuffle_dataset": False,
        "dataloader_pin_memory": False,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 0,
    }


def backend_settings(given: Given, backend: str) -> dict:
    """Room for exactly this workload.

    Without `num_blocks` the cache of continuous batching is made for all free memory, which takes a minute. On a GPU
    vLLM sleeps during the update, as it does with Paceline.
    """
    if backend == "generate":
        return {}
    if backend == "vllm":
        return {
            "use_vllm": True,
            "vllm_mode": "colocate",
            "vllm_enable_sleep_mode": torch.cuda.is_available(),
            "vllm_gpu_memory_utilization": VLLM_SHARE,
            "vllm_max_model_length": given.longest + 1,
        }
    page = PAGE_SIZE.get(given.workload.size, LARGE_PAGE)
    room = {
        "page_size": page,
        "max_batch_tokens": 64 if given.workload.size != "qwen-0.5b" else 256,
        "num_blocks": given.workload.completions * (given.longest // page + 2),
    }
    return {"use_transformers_continuous_batching": True, "transformers_continuous_batching_config": room}


def hold_lengths(trainer: GRPOTrainer, watch: Watch, backend: str) -> None:
    """Where lengths are given, end every completion there; and clock generation."""
    natural = watch.given.workload.lengths == "natural"
    if backend == "vllm":
        hold_lengths_of_vllm(trainer, watch, natural=natural)
        return
    model, end = trainer.model, trainer.processing_class.eos_token_id
    generate, generate_batch = model.generate, model.generate_batch

    def forced_generate(input_ids, **others):
        limits, length = watch.given.limits(watch.repetition), input_ids.shape[1]
        forced = [] if natural else [ForcedEnds(limits, prompt_length=length, end=end, device=input_ids.device)]
        return generate(input_ids, **others, logits_processor=forced)

    def clocked(call):
        def timed(*args, **kwargs):
            started = time.perf_counter()
            output = call(*args, **kwargs)
            watch.generate_seconds += time.perf_counter() - started
            return output

        return timed

    model.generate, model.generate_batch = clocked(forced_generate), clocked(generate_batch)
    if backend == "continuous" and not natural:
        without_ends(trainer)
        ContinuousBatchingManager.add_requests = adding(watch)


def hold_lengths_of_vllm(trainer: GRPOTrainer, watch: Watch, *, natural: bool) -> None:
    """The same for TRL's vLLM, which TRL asks for all completions of a step in one call, in the dataset's order."""
    taking_part = trainer.vllm_generation
    generate, ask = taking_part.generate, taking_part.llm.generate

    def limited(prompts, sampling_params, **others):
        if not natural:
            sampling_params = [sampling_params.clone() for _ in prompts]
            for one, limit in zip(sampling_params, watch.given.limits(watch.repetition), strict=True):
                one.max_tokens, one.ignore_eos = limit, True
        return ask(prompts, sampling_params=sampling_params, **others)

    def timed(*args, **kwargs):
        started = time.perf_counter()
        output = generate(*args, **kwargs)
        watch.generate_seconds += time.perf_counter() - started
        return output

    taking_part.llm.generate, taking_part.generate = limited, timed


def without_ends(trainer: GRPOTrainer) -> None:
    """No token ends a completion of continuous batching."""
    model = trainer.model
    for config in (trainer.generation_config, model.generation_config, model.config):
        config.eos_token_id = None


def adding(watch: Watch):
    """`add_requests` with a limit per request; prompts come in the order of the dataset."""

    def add_requests(self, inputs, max_new_tokens=None, **others):
        limits = watch.given.limits(watch.repetition)
        calls = [
            self.add_request(input_ids=ids, max_new_tokens=limit, eos_token_id=-1)
            for ids, limit in zip(inputs, limits, strict=True)
        ]
        return list(chain(calls))

    return add_requests


if __name__ == "__main__":
    main(*sys.argv[1:])
