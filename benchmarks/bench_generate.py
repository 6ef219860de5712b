"""Generation: tokens per second of Paceline's local engine and of its peers, on one machine in one run.

    python benchmarks/bench_generate.py [--workload NAME] [--threads 2] [--device cpu] [--vllm-python FILE]
                                        [--contender NAME] [--repetitions N] [--quick] [--output DIR]

| contender              | what it is                                                                             |
|------------------------|----------------------------------------------------------------------------------------|
| paceline               | `LocalEngine.generate`, all completions in one call, in the precision that it chooses   |
| paceline-fp8           | the same with `--engine-quantization fp8` (on a GPU, where each has the machine alone)  |
| generate-DTYPE         | `model.generate(do_sample=True, num_return_sequences=G)`, all completions in one batch  |
| continuous-DTYPE-N     | transformers' continuous batching with N tokens a batch, its manager kept running       |
| vllm-DTYPE             | vLLM, all completions in one call, one process                                          |

All have the same weights, prompts, number of completions and threads, and sample at temperature 1 without truncation. A
call is timed from token ids in to token ids out; Paceline's also gives the text and the logprob of every token, which
the others' do not. Where the workload draws lengths, every completion has its own limit, the same for every contender,
and all make exactly the same number of tokens; with natural lengths (an end token ends a completion) the tokens that
exist are counted, and mean lengths must agree.

Each contender is a process of its own with one warm-up; then they take turns, in alternating order, while the others
sleep. The figure is the median over the repetitions; variants known to be much slower than another of the same peer
are measured once. A peer is as fast as its fastest variant. The seconds of a call are also those of its slowest
completion, as all begin together.
"""

from dataclasses import asdict
from pathlib import Path
from statistics import median

from figures import disagreements, fastest_of_each_peer, pooled, rates, ratio
from measuring import Entry, take_turns
from running import Conditions, run
from workloads import GENERATE, WITHOUT_WEIGHTS, Workload

TIMEOUT = 900.0
"""Seconds that a contender may take to load, or for one repetition."""
BATCHES = {
    "shipped": (32, 64),
    "30m": (64,),
    "smollm2": (128,),
    "qwen-0.5b": (256,),
    "qwen-1.5b": (512,),
    "qwen-7b": (),
}
"""Tokens in a batch of continuous batching, by size. 32 and 64 were the fastest of 16 to 1,024 on a CPU with the small
models: the attention mask spans all requests of a batch. Those of the large ones are chosen for longer prompts, not
measured against others."""
DTYPES = {
    "shipped": ("float32", "bfloat16"),
    "30m": ("float32", "bfloat16"),
    "smollm2": ("float32", "bfloat16"),
    "qwen-0.5b": ("bfloat16",),
    "qwen-1.5b": ("bfloat16",),
    "qwen-7b": ("bfloat16",),
}
"""Of the peers, by size. Decoding a large model is bound by its bytes, of which float32 has twice as many."""
VLLM_MODES = {"cpu": "eager", "cuda": "compiled"}
"""By device: on a GPU as vLLM is used there, with recorded graphs."""


def measure(name: str, workload: Workload, given: Path, conditions: Conditions) -> dict:
    """All contenders on one workload."""
    print(f"{name}: {workload.completions} completions of {workload.prompts} prompts", flush=True)
    answers = take_turns(
        conditions.chosen(entries(workload, given, conditions)),
        repetitions=workload.repetitions,
        threads=conditions.threads,
        timeout=TIMEOUT,
        together=workload.takes_turns,
    )
    if conditions.vllm_python is None:
        answers["vllm"] = {"not_measured": "not installed; `make vllm` installs it"}
    return {**asdict(workload), **compared(answers, exact=[] if workload.lengths == "natural" else ["tokens"])}


def entries(workload: Workload, given: Path, conditions: Conditions) -> dict[str, Entry]:
    """Who takes part."""
    usual = [str(given), str(conditions.threads), conditions.device]
    found = {"paceline": Entry(script="generate_paceline.py", arguments=usual)}
    if conditions.device == "cuda" and not workload.takes_turns:  # beside the others its cache would not fit
        found["paceline-fp8"] = Entry(script="generate_paceline.py", arguments=[*usual, "fp8"])
    for dtype in DTYPES[workload.size]:
        if workload.size not in WITHOUT_WEIGHTS:
            plain = [*usual, "generate", dtype]
            found[f"generate-{dtype}"] = Entry(script="generate_transformers.py", arguments=plain)
        for tokens in BATCHES[workload.size]:
            batched = [*usual, "continuous", dtype, str(tokens)]
            # many times slower than `generate` at these sizes, which one repetition shows
            seldom = None if workload.size == "shipped" else 1
            found[f"continuous-{dtype}-{tokens}"] = Entry(
                script="generate_transformers.py", arguments=batched, repetitions=seldom
            )
        if conditions.vllm_python is not None:
            found[f"vllm-{dtype}"] = Entry(
                script="generate_vllm.py",
                arguments=[*usual, dtype, VLLM_MODES[conditions.device]],
                python=str(conditions.vllm_python),
            )
    if workload.size == "shipped":
        # Paceline takes one thread for a model this small: its peer may have that too
        one = [str(given), "1", conditions.device, "generate", "float32"]
        found["generate-float32-1-thread"] = Entry(script="generate_transformers.py", arguments=one)
    return found


def compared(answers: dict[str, dict], *, exact: list[str]) -> dict:
    """The figures of each contender, Paceline's ratio to each peer, and whether the work was the same."""
    done = {name: one for name, one in answers.items() if one.get("repetitions")}
    for one in done.values():
        one["tokens_per_second"] = median(rates(one["repetitions"]))
        one["mean_length"] = pooled([repetition["lengths"] for repetition in one["repetitions"]])["mean"]
        one["peak_mib"] = max(repetition["peak_mib"] for repetition in one["repetitions"])
    peers = [name for name in done if not name.startswith("paceline")] if "paceline" in done else []
    mine = answers.get("paceline", {}).get("repetitions", [])
    factors = {
        peer: ratio(rates(mine[: len(done[peer]["repetitions"])]), rates(done[peer]["repetitions"])) for peer in peers
    }
    return {
        "contenders": answers,
        "paceline_faster_by": factors,
        "fastest": fastest_of_each_peer(
            {peer: [1 / rate for rate in rates(done[peer]["repetitions"])] for peer in peers}
        ),
        "unequal_work": [
            sentence for peer in peers for sentence in disagreements(peer, mine, done[peer]["repetitions"], exact=exact)
        ],
    }


if __name__ == "__main__":
    raise SystemExit(run("generate", GENERATE, measure, description=__doc__))
