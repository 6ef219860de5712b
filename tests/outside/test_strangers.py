"""What a stranger sends, a run directory or requests, runs nothing and stops nobody."""

import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.outside.desk import Desk

SMALL = (
    *("--max-steps", 1, "--dataset-size", 8, "--eval-size", 4),
    *("--prompts-per-step", 2, "--num-generations", 2),
)
LONGEST = 2.0 * float(os.environ.get("PACELINE_TEST_SLOWNESS", "5"))
"""Seconds in which others are answered: two on a quiet machine."""


@contextmanager
def serving(desk: Desk) -> Iterator[int]:
    """Run `paceline serve` with few files to open; gives its port."""
    words = [sys.executable, "-m", "paceline", "serve", "--model", "embedded", "--port", "0", "--api-key", "k"]
    process = subprocess.Popen(
        words,
        cwd=desk.path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512)),
    )
    try:
        said = ""
        while "key: " not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        yield int(re.search(r"127\.0\.0\.1:(\d+)/v1", said)[1])
        assert process.poll() is None, "the server has ended"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def asked(port: int, **fields: object) -> int:
    """Ask for three tokens and return the status; the answer has to come soon."""
    client, began = http.client.HTTPConnection("127.0.0.1", port, timeout=60), time.monotonic()
    body = {"messages": [{"role": "user", "content": "What is 3 + 7?"}], "max_tokens": 3, **fields}
    client.request("POST", "/v1/chat/completions", json.dumps(body), {"Authorization": "Bearer k"})
    status = client.getresponse().status
    client.close()
    assert time.monotonic() - began < LONGEST
    return status


def sent(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        client.sendall(data)
        return client.recv(65536)


@pytest.mark.long
def test_serve_answers_others_whatever_strangers_send(desk: Desk):
    deep = {"a": 1}
    for _ in range(500):
        deep = {"a": deep}
    tools = [{"type": "function", "function": {"name": f"f{n}", "description": "x" * 1000}} for n in range(300)]
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer k\r\n"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096) if hard > 0 else 4096, hard))
    try:
        with serving(desk) as port:
            silent = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(2000)]
            assert asked(port) == 200

            assert [asked(port, temperature=value) for value in (1e-9, 1e-12, 1e-300)] == [200] * 3
            assert asked(port, tools=tools) == 400
            assert asked(port, tools=[{"type": "function", "function": {"name": "f", "parameters": deep}}]) == 400
            twice = head + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}"
            assert sent(port, twice).startswith(b"HTTP/1.1 400")
            assert asked(port) == 200
            for one in silent:
                one.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.long
def test_a_run_with_a_reward_of_ones_own_goes_on_and_a_received_one_runs_nothing(desk: Desk):
    desk.write(
        "mine.py",
        """
        open("ran", "a").write("x")

        def score(prompts, completions, **columns):
            return [float("1" in one) for one in completions]
        """,
    )
    state = {"XDG_STATE_HOME": str(desk.path / "state")}
    grader = ("--reward-funcs", "mine.py:score", "--eval-reward-func", "mine.py:score")
    trained = desk.paceline("train", *SMALL, *grader, "--output-dir", "runs/mine", env=state)
    assert trained.returncode == 0, trained.stderr
    resumed = desk.paceline("train", "--resume", "runs/mine", "--max-steps", 2, env=state)
    assert resumed.returncode == 0, resumed.stderr

    (desk.path / "ran").unlink()
    elsewhere = {"XDG_STATE_HOME": str(desk.path / "another user's")}
    received = desk.paceline("eval", "runs/mine", env=elsewhere)
    assert received.returncode == 2
    assert "a run directory may be another's" in received.stderr
    assert not (desk.path / "ran").exists()
    named = desk.paceline("eval", "runs/mine", "--eval-reward-func", "mine.py:score", env=elsewhere)
    assert named.returncode == 0, named.stderr
