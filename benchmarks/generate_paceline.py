"""Contender of bench_generate.py: Paceline's local engine. Text and logprobs of every token are part of its answer."""

import sys
import time

import torch
from figures import summary
from materials import make_materials
from measuring import Channel, peak_mib
from workloads import GENERATE, find

from paceline.engines import Request, Sampling, sample_key
from paceline.engines.local import LocalEngine


def main(name: str, is_quick: str, threads: str) -> None:
    channel, imported = Channel.open(), peak_mib()
    workload = find(GENERATE, name, is_quick=bool(int(is_quick)))
    materials = make_materials(workload, threads=int(threads))
    engine = LocalEngine(
        materials.model,
        materials.tokenizer,
        concurrent_sequences=workload.completions,
        compute_dtype=torch.float32,
        eos_token_ids=materials.eos_token_ids,
    )
    sampling = Sampling(max_completion_length=workload.max_new_tokens)
    channel.reply({"imported_mib": imported, "path": f"{engine.path}: {engine.path_reason}"})
    for request in channel.requests():
        repetition = request["repetition"]
        requests = [
            Request(
                prompt_ids=task.prompt_ids,
                keys=tuple(sample_key(0, "bench", task.task_id, 0, i) for i in range(workload.num_generations)),
            )
            for task in materials.tasks[repetition]
        ]
        started = time.perf_counter()
        groups = engine.generate(requests, sampling)
        seconds = time.perf_counter() - started
        lengths = [len(one.token_ids) for group in groups for one in group]
        channel.reply({"seconds": seconds, "tokens": sum(lengths), "lengths": summary(lengths)})


if __name__ == "__main__":
    main(*sys.argv[1:])
