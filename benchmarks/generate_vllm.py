"""Contender of bench_generate.py: vLLM in one process. Runs in vLLM's own environment, and knows nothing of Paceline.

Every completion is a request of its own where its length is given, as vLLM has one limit per request; the cache of
prefixes, on by default, computes their common prompt once.
"""

import os
import sys
import time

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_NO_USAGE_STATS"] = "1"
# `auto` leaves one of two cores to a second process that is not there
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"

from figures import summary
from given import Given
from measuring import Channel, peak_mib
from vllm import LLM, SamplingParams
from workloads import WITHOUT_WEIGHTS

CACHE_PART = 0.5
"""On a GPU, of its memory."""
ROOM = 2
"""Times the tokens of all completions that the cache holds: blocks are filled in part, and prefixes are kept."""


def main(path: str, threads: str, device: str, dtype: str, mode: str) -> None:
    """Args:
    path: of what is given.
    threads: as OMP_NUM_THREADS says, which the parent sets.
    device: `cpu` or `cuda`, which the installed build decides.
    dtype: of weights and computation.
    mode: `eager` or `compiled`.
    """
    channel, imported = Channel.open(), peak_mib()
    given = Given.read(path)
    workload = given.workload
    engine = LLM(
        model=given.twin,
        skip_tokenizer_init=True,
        load_format="dummy" if workload.size in WITHOUT_WEIGHTS else "auto",
        dtype=dtype,
        enforce_eager=mode == "eager",
        max_model_len=given.longest + 1,
        max_num_seqs=workload.completions,
        disable_log_stats=True,
        seed=0,
        **_room(given, device),
    )
    channel.reply({"imported_mib": imported, "dtype": dtype, "path": mode})
    for request in channel.requests():
        prompts, params = asked(given, request["repetition"])
        started = time.perf_counter()
        outputs = engine.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - started
        lengths = [len(completion.token_ids) for output in outputs for completion in output.outputs]
        channel.reply({"seconds": seconds, "tokens": sum(lengths), "lengths": summary(lengths)})


def _room(given: Given, device: str) -> dict:
    if device == "cuda":
        return {"gpu_memory_utilization": CACHE_PART}
    # a token of the largest model here: 24 layers x 2 (keys, values) x 2 heads x 64 x 4 bytes = 24 KiB
    gib = ROOM * given.workload.completions * given.longest * 24 // 2**20
    return {"kv_cache_memory_bytes": max(1, gib) << 30}


def asked(given: Given, repetition: int) -> tuple[list[dict], list[SamplingParams]]:
    """Prompts and parameters of a repetition; the text is not made, as others do not make it either."""
    prompts, params = [], []
    alike = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "detokenize": False}
    for prompt in given.repetitions[repetition]:
        tokens = {"prompt_token_ids": list(prompt.ids)}
        if prompt.limits is None:
            workload = given.workload
            prompts.append(tokens)
            params.append(SamplingParams(n=workload.num_generations, max_tokens=workload.max_new_tokens, **alike))
        for limit in prompt.limits or ():
            prompts.append(tokens)
            params.append(SamplingParams(n=1, max_tokens=limit, ignore_eos=True, **alike))
    return prompts, params


if __name__ == "__main__":
    main(*sys.argv[1:])
