"""Contender of bench_rewards.py: math-verify as it is documented, `verify(parse(gold), parse(answer))`, one by one.

Both texts stand between `$` signs: of the ways to mark mathematics (as it is, `$`, a box) the one with most verdicts
right on these pairs. Its own time limits of five seconds hold; memory is limited, as some answers ask for all of it.
"""

import logging
import resource
import sys
import time

from math_verify import parse, verify
from measuring import Channel
from reward_workloads import answers, fingerprint

MEMORY = 6 << 30
"""Bytes of address space."""


def main(name: str, is_quick: str, threads: str) -> None:
    channel = Channel.open()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for library in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    equal("(x+101)(x-101)", "x^2-10201")
    channel.reply({})
    for request in channel.requests():
        batch = answers(name, request["repetition"], is_quick=bool(int(is_quick)))
        started = time.perf_counter()
        verdicts = [int(equal(gold, answer)) for gold, answer, _ in batch]
        seconds = time.perf_counter() - started
        channel.reply({"seconds": seconds, "verdicts": verdicts, "batch": fingerprint(batch)})


def equal(gold: str, answer: str) -> bool:
    """Its verdict; what it raises on odd texts counts as no, as every caller of it has to decide."""
    try:
        return bool(verify(parse(f"${gold}$"), parse(f"${answer}$")))
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError):
        return False


if __name__ == "__main__":
    main(*sys.argv[1:])
