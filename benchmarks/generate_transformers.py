"""Contenders of bench_generate.py: `generate` of transformers in one batch, and its continuous batching.

`generate` gets the prompts padded on the left and makes `num_return_sequences` of each. Continuous batching gets the
prompts as they are; its manager persists over repetitions, which saves it the start of a new one each time.
"""

import sys
import time

import torch
from materials import Materials, make_materials
from measuring import Channel, peak_mib
from transformers import GenerationConfig
from transformers.generation import ContinuousBatchingConfig
from workloads import GENERATE, Workload, find

CONTINUOUS = {"page_size": 32, "max_batch_tokens": 1024}
"""The fastest of the page sizes and batch sizes tried on a CPU; without CUDA nothing is inferred from free memory."""


def main(kind: str, name: str, is_quick: str, threads: str) -> None:
    channel, imported = Channel.open(), peak_mib()
    workload = find(GENERATE, name, is_quick=bool(int(is_quick)))
    materials = make_materials(workload, threads=int(threads))
    materials.model.eval()
    config = settings(workload, materials)
    generate = {"one-batch": one_batch, "continuous": continuous}[kind]
    channel.reply({"imported_mib": imported})
    for request in channel.requests():
        prompts = [list(task.prompt_ids) for task in materials.tasks[request["repetition"]]]
        started = time.perf_counter()
        lengths = generate(materials, prompts, config)
        channel.reply({"seconds": time.perf_counter() - started, "lengths": lengths})


def settings(workload: Workload, materials: Materials) -> GenerationConfig:
    """The sampled distribution is the model's own."""
    # a missing end token is taken from the model, so that one also has none where lengths are fixed
    ends = sorted(materials.eos_token_ids) or None
    materials.model.generation_config.eos_token_id = materials.model.config.eos_token_id = ends
    return GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        num_return_sequences=workload.num_generations,
        max_new_tokens=workload.max_new_tokens,
        eos_token_id=ends,
        pad_token_id=materials.tokenizer.pad_token_id,
    )


def one_batch(materials: Materials, prompts: list[list[int]], config: GenerationConfig) -> list[int]:
    padded = materials.tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
    output = materials.model.generate(**padded, generation_config=config)
    completions = output[:, padded["input_ids"].shape[1] :]
    if not materials.eos_token_ids:
        return [completions.shape[1]] * len(completions)
    ended = torch.isin(completions, torch.tensor(sorted(materials.eos_token_ids)))
    width = completions.shape[1]
    first = torch.where(ended.any(1), ended.int().argmax(1) + 1, width)
    return first.tolist()


def continuous(materials: Materials, prompts: list[list[int]], config: GenerationConfig) -> list[int]:
    pages = sum(-(-(len(prompt) + config.max_new_tokens) // CONTINUOUS["page_size"]) + 1 for prompt in prompts)
    outputs = materials.model.generate_batch(
        prompts,
        generation_config=config,
        continuous_batching_config=ContinuousBatchingConfig(
            **CONTINUOUS, num_blocks=pages * config.num_return_sequences
        ),
        persistent_manager=True,
        progress_bar=False,
    )
    failed = [output.error for output in outputs.values() if output.error is not None]
    if failed or len(outputs) != len(prompts) * config.num_return_sequences:
        raise SystemExit(failed[0] if failed else f"{len(outputs)} completions came back")
    return [len(output.generated_tokens) for output in outputs.values()]


if __name__ == "__main__":
    main(*sys.argv[1:])
