"""A plain program is judged rightly while noisy and hostile programs run beside it."""

import threading

import pytest

from paceline.sandbox.levels import open_sandbox
from paceline.sandbox.programs import Job, Limits
from tests.sandbox.corpus import SMALL, Hostile
from tests.sandbox.host import Host
from tests.sandbox.hostile import FAMILIES

NOISY = (
    "fork_bomb",
    "thread_bomb",
    "fork_chain_that_runs_away",
    "list",
    "anonymous_mmap",
    "pipes_full_of_bytes",
    "many_small_files",
    "many_middling_files",
    "scratch_filled_and_left",
    "shared_memory_and_queues",
    "write_loop",
    "signal_the_whole_group",
    "signals_by_owned_descriptors",
    "kill_the_parent",
    "every_process_number",
    "priorities_of_others",
    "forged_replies_on_every_descriptor",
    "stdio_made_non_blocking_and_locked",
    "process_state",
)
PLAIN = r"""
import heapq, threading
open("mine", "w").write("x" * 50_000)
print(sum(map(int, input().split())))
"""


def named(names: tuple[str, ...]) -> list[Hostile]:
    every = {program.name: program for family in FAMILIES.values() for program in family}
    return [every[name] for name in names]


@pytest.fixture(scope="module")
def neighbours(level):
    """What a plain program gives, over and over, while a noisy one runs in the slot beside it."""
    host = Host()
    sandbox = open_sandbox(level, slots=2)
    noise_is_over = threading.Event()

    def make_noise():
        try:
            for program in named(NOISY):
                sandbox.execute(Job(source=program.text, stdin=host.facts(program.name, "token") + "\n", limits=SMALL))
        finally:
            noise_is_over.set()

    noise = threading.Thread(target=make_noise)
    noise.start()
    results, number = [], 0
    while not noise_is_over.is_set():
        number += 1
        job = Job(
            source=PLAIN,
            stdin=f"{number} 1",
            limits=Limits(seconds=4.0, memory_mb=128),
        )
        results.append((number + 1, sandbox.execute(job)))
    noise.join()
    sandbox.close()
    host.close()
    return results


def test_a_plain_program_is_right_whatever_its_neighbour_does(neighbours):
    wrong = [found for right, found in neighbours if (found.status, found.output) != ("finished", f"{right}\n")]
    assert wrong == []


def test_the_noise_lasted_long_enough_to_be_heard(neighbours):
    assert len(neighbours) >= len(NOISY)
