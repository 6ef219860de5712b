"""Contenders of bench_generate.py: `generate` of transformers in one batch, and its continuous batching.

The first argument is the number of tokens in a batch of continuous batching, 0 for `generate`.

`generate` gets the prompts padded on the left and makes `num_return_sequences` of each. Continuous batching gets the
prompts as they are; its manager runs on over all repetitions, which saves it the start of a new one each time.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from figures import summary
from materials import Materials, make_materials
from measuring import Channel, peak_mib
from transformers import GenerationConfig
from transformers.generation import ContinuousBatchingConfig
from workloads import GENERATE, Workload, find

PAGE_SIZE = {"shipped": 32, "30m": 256}
"""Tokens. With 32 and 64 tokens a batch, the two that bench_generate.py takes, the fastest of 16, 32, 64 and 256 on a
CPU; batches of 128 to 1,024 tokens are slower, since the attention mask spans all requests of a batch."""
DEADLINE = 600.0
"""Seconds without one finished completion before continuous batching is given up."""


def main(batch_tokens: str, name: str, is_quick: str, threads: str) -> None:
    channel, imported = Channel.open(), peak_mib()
    workload = find(GENERATE, name, is_quick=bool(int(is_quick)))
    materials = make_materials(workload, threads=int(threads))
    materials.model.eval()
    tokens = int(batch_tokens)
    generator = continuous(workload, materials, tokens) if tokens else one_batch(workload, materials)
    with generator as lengths_of:
        channel.reply({"imported_mib": imported})
        for request in channel.requests():
            prompts = [list(task.prompt_ids) for task in materials.tasks[request["repetition"]]]
            started = time.perf_counter()
            lengths = lengths_of(prompts)
            seconds = time.perf_counter() - started
            channel.reply({"seconds": seconds, "tokens": sum(lengths), "lengths": summary(lengths)})


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


@contextmanager
def one_batch(workload: Workload, materials: Materials) -> Iterator:
    config = settings(workload, materials)
    ends = torch.tensor(sorted(materials.eos_token_ids), dtype=torch.long)

    def lengths_of(prompts: list[list[int]]) -> list[int]:
        padded = materials.tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
        output = materials.model.generate(**padded, generation_config=config)
        ended = torch.isin(output[:, padded["input_ids"].shape[1] :], ends)
        return torch.where(ended.any(1), ended.int().argmax(1) + 1, ended.shape[1]).tolist()

    yield lengths_of


@contextmanager
def continuous(workload: Workload, materials: Materials, batch_tokens: int) -> Iterator:
    config = settings(workload, materials)
    longest = max(len(task.prompt_ids) for tasks in materials.tasks for task in tasks) + workload.max_new_tokens
    page = PAGE_SIZE[workload.size]
    room = ContinuousBatchingConfig(
        page_size=page,
        max_batch_tokens=batch_tokens,
        num_blocks=workload.completions * (longest // page + 2),
        max_requests_per_batch=batch_tokens,
    )
    with materials.model.continuous_batching_context_manager(
        generation_config=config, continuous_batching_config=room
    ) as manager:

        def lengths_of(prompts: list[list[int]]) -> list[int]:
            manager.add_requests(inputs=prompts, max_new_tokens=workload.max_new_tokens)
            lengths = []
            while len(lengths) < workload.completions:
                result = manager.get_result(timeout=DEADLINE)
                if result is None or result.error is not None:
                    raise SystemExit(result.error if result else f"no completion within {DEADLINE:.0f} s")
                if result.is_finished():
                    lengths.append(len(result.generated_tokens))
            return lengths

        yield lengths_of


if __name__ == "__main__":
    main(*sys.argv[1:])
