"""Contender of bench_generate.py: Paceline's local engine. Text and logprobs of every token are part of its answer."""

import paceline  # noqa: F401, I001 - before torch, as the command does: threads that wait are to sleep

import sys
import time
from typing import Literal

from figures import summary
from given import Given, Prompt
from loading import load_policy, make_engine
from measuring import Channel, peak_mib

from paceline.engines import Request, Sampling, sample_key


def main(path: str, threads: str, device: str, quantization: Literal["none", "fp8"] = "none") -> None:
    channel, imported = Channel.open(), peak_mib()
    given = Given.read(path)
    workload = given.workload
    policy = load_policy(given, device=device)
    engine = make_engine(given, policy, quantization)
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
