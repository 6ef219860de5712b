"""Contender of bench_generate.py: Paceline's local engine. Text and logprobs of every token are part of its answer."""

import sys
import time

from figures import summary
from given import Given, Prompt
from loading import load_policy
from measuring import Channel, peak_mib
from transformers import PreTrainedTokenizerFast

from paceline.engines import Request, Sampling, sample_key
from paceline.engines.local import LocalEngine


def main(path: str, threads: str, device: str) -> None:
    channel, imported = Channel.open(), peak_mib()
    given = Given.read(path)
    workload = given.workload
    policy = load_policy(given, device=device)
    engine = LocalEngine(
        policy.model,
        PreTrainedTokenizerFast.from_pretrained(given.model),
        concurrent_sequences=workload.completions,
        compute_dtype=policy.compute_dtype,
        eos_token_ids=policy.eos_token_ids,
    )
    sampling = Sampling(max_completion_length=workload.max_new_tokens)
    dtype = str(policy.compute_dtype).removeprefix("torch.")
    channel.reply({"imported_mib": imported, "dtype": dtype, "path": f"{engine.path}: {engine.path_reason}"})
    for asked in channel.requests():
        requests = [_request(prompt, workload.num_generations) for prompt in given.repetitions[asked["repetition"]]]
        started = time.perf_counter()
        groups = engine.generate(requests, sampling)
        seconds = time.perf_counter() - started
        lengths = [len(one.token_ids) for group in groups for one in group]
        channel.reply({"seconds": seconds, "tokens": sum(lengths), "lengths": summary(lengths)})


def _request(prompt: Prompt, num_generations: int) -> Request:
    keys = tuple(sample_key(0, "bench", prompt.task_id, 0, sample) for sample in range(num_generations))
    return Request(prompt_ids=prompt.ids, keys=keys, limits=prompt.limits)


if __name__ == "__main__":
    main(*sys.argv[1:])
