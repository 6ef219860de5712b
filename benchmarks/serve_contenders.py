"""Contenders of bench_serve.py: servers that clients ask all at once, and Paceline's engine alone on the same work.

A server is a child of this process, started on a free port. Its clients are threads here: each sends its next request
as soon as its last answer is whole. With streams every piece is read, and the first one's time is noted.
"""

import contextlib
import http.client
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from statistics import median

from figures import summary
from measuring import Channel

KEY = "bench"
READY_SECONDS = 600.0
"""Seconds that a server may take to load."""


def main(kind: str, path: str, python: str, dtype: str, mode: str) -> None:
    """Args:
    kind: `paceline`, `vllm`, `transformers`, or `engine`.
    path: of what is given, as bench_serve.py writes it.
    python: of the environment that has the server.
    dtype: of weights and computation; `auto`: Paceline's own choice.
    mode: `stream` or `whole`.
    """
    channel = Channel.open()
    with open(path) as file:
        given = json.load(file)
    if kind == "engine":
        work(channel, given, dtype)
        return
    with running(kind, given, python, dtype) as port:
        channel.reply({"dtype": dtype, "path": f"{kind}, {mode}"})
        for _ in channel.requests():
            seconds, tokens, firsts = asked(given, port, is_stream=mode == "stream")
            channel.reply(
                {"seconds": seconds, "tokens": sum(tokens), "lengths": summary(tokens), "first_token": median(firsts)}
            )


def work(channel: Channel, given: dict, dtype: str) -> None:
    """The same requests in one call of Paceline's engine, which has as many rows as there are clients."""
    import paceline  # noqa: F401 - before torch, as the command does: threads that wait are to sleep
    from paceline.engines import Request, Sampling, sample_key
    from paceline.serving.loading import load, read_options

    flags = {**options(given), "model": given["model"], "dtype": dtype}
    model = load(read_options(flags, file=None).config, say=lambda note: None)
    channel.reply({"dtype": dtype, "path": f"engine: {model.engine.path}"})
    assert model.tokens is not None
    sampling = Sampling(max_completion_length=max(given["limits"]))
    for _ in channel.requests():
        started = time.perf_counter()
        requests = [
            Request(
                prompt_ids=model.tokens.whole(messages),
                keys=(sample_key(number, "bench", "", 0, 0),),
                limits=(limit,),
            )
            for number, (messages, limit) in enumerate(zip(given["messages"], given["limits"], strict=True))
        ]
        groups = model.engine.generate(requests, sampling)
        seconds = time.perf_counter() - started
        lengths = [len(one.token_ids) for group in groups for one in group]
        channel.reply({"seconds": seconds, "tokens": sum(lengths), "lengths": summary(lengths)})


def options(given: dict) -> dict[str, str]:
    """Options of Paceline's that make the rooms alike."""
    return {
        "concurrent_sequences": str(given["clients"]),
        "max_prompt_length": str(given["room"] - max(given["limits"])),
        "max_completion_length": str(max(given["limits"])),
        "temperature": "1",
    }


@contextlib.contextmanager
def running(kind: str, given: dict, python: str, dtype: str) -> Iterator[int]:
    """Start a server and wait until it answers; gives its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model = given["model"]
    commands = {
        "paceline": [
            *("-m", "paceline", "serve", "--model", model, "--port", str(port), "--api-key", KEY, "--dtype", dtype),
            *(word for name, value in options(given).items() for word in (f"--{name.replace('_', '-')}", value)),
        ],
        "vllm": [
            # its command asks for the package `vllm`, which a build for CPUs has under another name
            *("-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port", str(port), "--host", "127.0.0.1"),
            *("--api-key", KEY, "--dtype", dtype, "--max-model-len", str(given["room"]), "--enforce-eager"),
            *("--max-num-seqs", str(given["clients"]), "--generation-config", "vllm", "--disable-log-stats"),
        ],
        "transformers": [
            *("-m", "transformers.cli.transformers", "serve", model, "--continuous-batching", "--device", "cpu"),
            *("--host", "127.0.0.1", "--port", str(port), "--dtype", dtype, "--attn-implementation", "sdpa"),
        ],
    }
    environment = os.environ | {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "2"}
    process = subprocess.Popen([python, *commands[kind]], env=environment, stdout=sys.stderr, stdin=subprocess.DEVNULL)
    try:
        until = time.monotonic() + READY_SECONDS
        while not answers(port):
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{kind} did not begin to answer (exit status {process.poll()})")
            time.sleep(0.5)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def answers(port: int) -> bool:
    """Whether the server is ready."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def asked(given: dict, port: int, *, is_stream: bool) -> tuple[float, list[int], list[float]]:
    """Seconds of all requests by all clients, tokens of each answer, and seconds until the first piece of each."""
    waiting, failures = queue.SimpleQueue[int](), list[str]()
    tokens, firsts = [0] * len(given["messages"]), [0.0] * len(given["messages"])
    for number in range(len(given["messages"])):
        waiting.put(number)

    def client() -> None:
        while not failures:
            try:
                number = waiting.get_nowait()
            except queue.Empty:
                return
            body = {
                "model": given["model"],
                "messages": given["messages"][number],
                "max_tokens": given["limits"][number],
                "temperature": 1.0,
                "seed": number,
            }
            if is_stream:
                body |= {"stream": True, "stream_options": {"include_usage": True}}
            try:
                tokens[number], firsts[number] = one(port, body)
            except (OSError, KeyError, ValueError, http.client.HTTPException) as error:
                failures.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=client) for _ in range(given["clients"])]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    if failures:
        raise SystemExit(f"a request failed: {failures[0]}")
    return seconds, tokens, firsts


def one(port: int, body: dict) -> tuple[int, float]:
    """Tokens of one answer, and seconds until its first piece, or until the whole of it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    started = time.perf_counter()
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    if answer.status != 200:
        raise ValueError(f"status {answer.status}: {answer.read()[:300]!r}")
    first, usage = None, None
    if body.get("stream"):
        for line in answer:
            if line.startswith(b"data: {"):
                first = time.perf_counter() - started if first is None else first
                usage = json.loads(line[6:]).get("usage") or usage
    else:
        usage = json.loads(answer.read())["usage"]
    connection.close()
    if usage is None:
        raise ValueError("the answer does not say how many tokens it has")
    return usage["completion_tokens"], time.perf_counter() - started if first is None else first


if __name__ == "__main__":
    main(*sys.argv[1:])
