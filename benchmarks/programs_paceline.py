"""Contender of bench_rewards.py: small programs in Paceline's sandbox, at the level that `auto` takes here."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from measuring import Channel
from reward_workloads import runs

from paceline.sandbox.levels import open_sandbox
from paceline.sandbox.programs import Job


def main(is_quick: str, threads: str) -> None:
    channel = Channel.open()
    sandbox = open_sandbox("auto", slots=int(threads))
    with ThreadPoolExecutor(int(threads)) as pool:
        list(pool.map(sandbox.execute, [Job(source="print(input())", stdin="warm\n")] * 4))
        channel.reply({"isolation": sandbox.description})
        for request in channel.requests():
            batch = runs(request["repetition"], is_quick=bool(int(is_quick)))
            jobs = [Job(source=one.source, stdin=one.stdin) for one in batch]
            started = time.perf_counter()
            done = list(pool.map(sandbox.execute, jobs))
            seconds = time.perf_counter() - started
            outputs = [one.output if one.status == "finished" else one.status for one in done]
            channel.reply({"seconds": seconds, "programs": len(jobs), "outputs": outputs})
    sandbox.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
