"""Contender of bench_rewards.py: Paceline's comparison of answers, in batches as a step of training has them."""

import sys
import time

from measuring import Channel
from reward_workloads import answers, fingerprint

from paceline.rewards.maths.verdicts import math_verdicts

BATCH = 256
"""32 prompts with 8 completions each."""
WARM_UP = [(f"(x+{number})(x-{number})", f"x^2-{number**2}") for number in range(101, 105)]
"""Imports and workers; none of these pairs is measured."""


def main(name: str, is_quick: str, threads: str) -> None:
    channel = Channel.open()
    math_verdicts(WARM_UP)
    channel.reply({})
    for request in channel.requests():
        batch = answers(name, request["repetition"], is_quick=bool(int(is_quick)))
        pairs = [(gold, answer) for gold, answer, _ in batch]
        started = time.perf_counter()
        verdicts = [one for start in range(0, len(pairs), BATCH) for one in math_verdicts(pairs[start : start + BATCH])]
        seconds = time.perf_counter() - started
        equal = [int(verdict.equal) for verdict in verdicts]
        channel.reply({"seconds": seconds, "verdicts": equal, "batch": fingerprint(batch)})


if __name__ == "__main__":
    main(*sys.argv[1:])
