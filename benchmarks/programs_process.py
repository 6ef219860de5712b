"""Contender of bench_rewards.py: the same programs, a fresh `python -I` process for each, without any isolation."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from measuring import Channel
from reward_workloads import Run, runs

SECONDS = 10


def main(is_quick: str, threads: str) -> None:
    channel = Channel.open()
    with ThreadPoolExecutor(int(threads)) as pool:
        list(pool.map(output, [Run(source="print(input())", stdin="warm\n")] * 4))
        channel.reply({"isolation": "none"})
        for request in channel.requests():
            batch = runs(request["repetition"], is_quick=bool(int(is_quick)))
            started = time.perf_counter()
            outputs = list(pool.map(output, batch))
            seconds = time.perf_counter() - started
            channel.reply({"seconds": seconds, "programs": len(batch), "outputs": outputs})


def output(one: Run) -> str:
    """What the program prints."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", one.source], input=one.stdin, capture_output=True, text=True, timeout=SECONDS
    )
    return done.stdout if done.returncode == 0 else f"exit status {done.returncode}"


if __name__ == "__main__":
    main(*sys.argv[1:])
