"""Generation: tokens per second of Paceline's local engine and of transformers, on one machine in one run.

    python benchmarks/bench_generate.py [--size shipped|30m|all] [--threads 2] [--quick] [--output DIR]

| contender     | what it is                                                                              |
|---------------|-----------------------------------------------------------------------------------------|
| paceline      | `LocalEngine.generate`, all completions in one call                                      |
| one-batch     | `model.generate(do_sample=True, num_return_sequences=G)`, all completions in one batch   |
| continuous-N  | transformers' continuous batching with N tokens a batch, its manager kept running        |

All have the same float32 weights, prompts, number of completions and threads, and sample at temperature 1 without
truncation. A call is timed from token ids in to token ids out; Paceline's also gives the text and the logprob of every
token, which the others' do not. With fixed lengths every contender makes exactly the same number of tokens. With
natural lengths (an end token ends a completion) the tokens that exist are counted, and mean lengths must agree.

Each contender is a process of its own with one warm-up; then they take turns, in alternating order, while the others
sleep. The figure is the median over the repetitions.
"""

from dataclasses import asdict
from statistics import median

from figures import disagreements, pooled, rates, ratio
from measuring import take_turns
from running import run
from workloads import GENERATE, Workload

PEERS = {"one-batch": "0", "continuous-32": "32", "continuous-64": "64"}
"""By name, the tokens in a batch of continuous batching, 0 for `generate`."""
TIMEOUT = 900.0
"""Seconds that a contender may take to load, or for one repetition."""


def measure(name: str, workload: Workload, *, is_quick: bool, threads: int) -> dict:
    """All contenders on one workload."""
    print(f"{name}: {workload.completions} completions of {workload.prompts} prompts", flush=True)
    given = [name, str(int(is_quick)), str(threads)]
    contenders = {"paceline": ("generate_paceline.py", given)}
    contenders |= {peer: ("generate_transformers.py", [tokens, *given]) for peer, tokens in PEERS.items()}
    answers = take_turns(contenders, repetitions=workload.repetitions, threads=threads, timeout=TIMEOUT)
    return {**asdict(workload), **compared(answers, exact=["tokens"] if workload.lengths == "fixed" else [])}


def compared(answers: dict[str, dict], *, exact: list[str]) -> dict:
    """The figures of each contender, Paceline's ratio to each peer, and whether the work was the same."""
    done = {name: one for name, one in answers.items() if "error" not in one}
    for one in done.values():
        one["tokens_per_second"] = median(rates(one["repetitions"]))
        one["mean_length"] = pooled([repetition["lengths"] for repetition in one["repetitions"]])["mean"]
    peers = [name for name in done if name != "paceline"] if "paceline" in done else []
    mine = answers["paceline"].get("repetitions", [])
    return {
        "contenders": answers,
        "paceline_faster_by": {peer: ratio(rates(mine), rates(done[peer]["repetitions"])) for peer in peers},
        "unequal_work": [
            sentence for peer in peers for sentence in disagreements(peer, mine, done[peer]["repetitions"], exact=exact)
        ],
    }


if __name__ == "__main__":
    raise SystemExit(run("generate", GENERATE, measure, description=__doc__))
