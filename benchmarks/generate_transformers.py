"""Contenders of bench_generate.py: `generate` of transformers in one batch, and its continuous batching.

`generate` gets the prompts padded on the left and makes `num_return_sequences` of each; where lengths are given, a
logits processor forces the end token there. Continuous batching gets the prompts as they are, with a limit per request;
its manager runs on over all repetitions, which saves it the start of a new one each time.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from ends import ForcedEnds, made_lengths
from figures import summary
from given import Given
from measuring import Channel, peak_mib
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.generation import ContinuousBatchingConfig
from workloads import Workload

SMALL_PAGE = 32
"""Tokens of a block of the cache: of 16, 32, 64 and 256 the fastest for the shipped model; 256 is for larger ones."""
LARGE_PAGE = 256
DEADLINE = 600.0
"""Seconds without one finished completion before continuous batching is given up."""
LengthsOf = Callable[[int], list[int]]
"""From the number of a repetition to the tokens of each completion."""


def main(path: str, threads: str, device: str, backend: str, dtype: str, batch_tokens: str = "0") -> None:
    """Args:
    path: of what is given.
    threads, device, dtype: torch's.
    backend: `generate` or `continuous`.
    batch_tokens: of continuous batching.
    """
    channel, imported = Channel.open(), peak_mib()
    torch.set_num_threads(int(threads))
    given = Given.read(path)
    # attention is transformers' own choice: sdpa, and its eager form for a family with sinks
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=getattr(torch, dtype)).to(device)
    model.eval()
    generator = one_batch(given, model) if backend == "generate" else continuous(given, model, int(batch_tokens))
    with generator as lengths_of:
        channel.reply({"imported_mib": imported, "dtype": dtype, "path": backend})
        for request in channel.requests():
            started = time.perf_counter()
            lengths = lengths_of(request["repetition"])
            seconds = time.perf_counter() - started
            channel.reply({"seconds": seconds, "tokens": sum(lengths), "lengths": summary(lengths)})


def settings(workload: Workload, **others: object) -> GenerationConfig:
    """The sampled distribution is the model's own."""
    return GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        num_return_sequences=workload.num_generations,
        max_new_tokens=workload.max_new_tokens,
        **others,
    )


@contextmanager
def one_batch(given: Given, model: PreTrainedModel) -> Iterator[LengthsOf]:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(given.model)
    ends = _ends(model)
    config = settings(given.workload, eos_token_id=ends, pad_token_id=tokenizer.pad_token_id)

    def lengths_of(repetition: int) -> list[int]:
        prompts = [list(prompt.ids) for prompt in given.repetitions[repetition]]
        padded = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt").to(model.device)
        length = padded["input_ids"].shape[1]
        limits, forced = given.limits(repetition), []
        if given.workload.lengths != "natural":
            forced = [ForcedEnds(limits, prompt_length=length, end=ends[0], device=model.device)]
        output = model.generate(**padded, generation_config=config, logits_processor=forced)
        return made_lengths(output[:, length:], ends)

    yield lengths_of


@contextmanager
def continuous(given: Given, model: PreTrainedModel, batch_tokens: int) -> Iterator[LengthsOf]:
    workload = given.workload
    natural = workload.lengths == "natural"
    ends = _ends(model) if natural else None
    if not natural:
        # a missing end token is taken from the model, so that one also has none
        model.generation_config.eos_token_id = model.config.eos_token_id = None
    config = settings(workload, eos_token_id=ends)
    if not natural:
        config.num_return_sequences = 1  # completions of one prompt have limits of their own
    page = SMALL_PAGE if workload.size == "shipped" else LARGE_PAGE
    room = ContinuousBatchingConfig(
        page_size=page,
        max_batch_tokens=batch_tokens,
        num_blocks=workload.completions * (given.longest // page + 2),
        max_requests_per_batch=batch_tokens,
    )
    with model.continuous_batching_context_manager(
        generation_config=config, continuous_batching_config=room
    ) as manager:

        def lengths_of(repetition: int) -> list[int]:
            for prompt in given.repetitions[repetition]:
                if prompt.limits is None:
                    manager.add_requests(inputs=[list(prompt.ids)], max_new_tokens=workload.max_new_tokens)
                for limit in prompt.limits or ():
                    manager.add_request(input_ids=list(prompt.ids), max_new_tokens=limit, eos_token_id=-1)
            lengths: list[int] = []
            while len(lengths) < workload.completions:
                result = manager.get_result(timeout=DEADLINE)
                if result is None or result.error is not None:
                    raise SystemExit(result.error if result else f"no completion within {DEADLINE:.0f} s")
                if result.is_finished():
                    lengths.append(len(result.generated_tokens))
            return lengths

        yield lengths_of


def _ends(model: PreTrainedModel) -> list[int]:
    ends = model.generation_config.eos_token_id
    return ends if isinstance(ends, list) else [ends]


if __name__ == "__main__":
    main(*sys.argv[1:])
