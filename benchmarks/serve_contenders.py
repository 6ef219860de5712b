"""Contenders of bench_serve.py: servers that clients ask all at once, and Paceline's engine alone on the same work.

A server is a child of this process, started on a free port. Its clients are connections here: a new one sends the next
request as soon as a response is whole. With streams every piece is read as it comes, and the first one's time is noted.
One thread reads all of them and makes nothing of a piece before the end, as clients and server share the processor.
"""

import contextlib
import ctypes
import http.client
import io
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from figures import summary
from measuring import Channel

KEY = "bench"
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
READY_SECONDS = 600.0
"""Seconds that a server may take to load."""
RESPONSE_SECONDS = 600.0
"""Seconds in which nothing at all comes, at most."""
CACHE_BLOCK, BATCH_TOKENS = 256, 128
"""Of continuous batching in transformers, as `bench_generate.py` has them. Without them its cache on a CPU is laid out
for 60 % of the machine's memory, with an attention mask over all of it."""


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
    """Start a server and wait until it responds; gives its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model = given["model"]
    blocks = given["clients"] * (given["room"] // CACHE_BLOCK + 2)
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
            *("--cb-num-blocks", str(blocks), "--cb-max-batch-tokens", str(BATCH_TOKENS)),
        ],
    }
    environment = os.environ | {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "2"}
    process = subprocess.Popen(
        [python, *commands[kind]],
        env=environment,
        stdout=sys.stderr,
        stdin=subprocess.DEVNULL,
        preexec_fn=end_with_parent,
    )
    try:
        until = time.monotonic() + READY_SECONDS
        while not responds(port):
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{kind} did not begin to respond (exit status {process.poll()})")
            time.sleep(0.5)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def end_with_parent() -> None:
    """Let the server end when this process does: a contender is killed once it has been measured."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def responds(port: int) -> bool:
    """Whether the server is ready."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@dataclass(kw_only=True, slots=True)
class Asked:
    """A request under way."""

    number: int
    begun: float
    first: float | None = None
    """Seconds until its first piece; None: it is not here, or the response is asked for as a whole."""
    response: bytes = b""


def asked(given: dict, port: int, *, is_stream: bool) -> tuple[float, list[int], list[float]]:
    """Seconds of all requests by all clients, tokens of each response, and seconds until the first piece of each, or
    until the whole of it."""
    numbers = iter(range(len(given["messages"])))
    tokens, firsts = [0] * len(given["messages"]), [0.0] * len(given["messages"])
    started = time.perf_counter()
    with selectors.DefaultSelector() as arriving:

        def ask_next() -> None:
            if (number := next(numbers, None)) is not None:
                begun = time.perf_counter()
                connection = socket.create_connection(("127.0.0.1", port))
                connection.sendall(request(given, number, is_stream=is_stream))
                arriving.register(connection, selectors.EVENT_READ, Asked(number=number, begun=begun))

        for _ in range(given["clients"]):
            ask_next()
        while arriving.get_map():
            ready = arriving.select(RESPONSE_SECONDS)
            if not ready:
                raise SystemExit(f"no response within {RESPONSE_SECONDS:.0f} s")
            for key, _ in ready:
                one, piece = key.data, key.fileobj.recv(1 << 16)
                one.response += piece
                if one.first is None and is_stream and b"data: {" in piece:
                    one.first = time.perf_counter() - one.begun
                if not piece:
                    arriving.unregister(key.fileobj)
                    key.fileobj.close()
                    firsts[one.number] = time.perf_counter() - one.begun if one.first is None else one.first
                    tokens[one.number] = tokens_of(one.response, is_stream=is_stream)
                    ask_next()
    return time.perf_counter() - started, tokens, firsts


def request(given: dict, number: int, *, is_stream: bool) -> bytes:
    """One request as it is sent; the server closes the connection behind its response."""
    body = {
        "model": given["model"],
        "messages": given["messages"][number],
        "max_tokens": given["limits"][number],
        "temperature": 1.0,
        "seed": number,
    }
    if is_stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    data = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {KEY}",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        "Connection: close",
    )
    return "\r\n".join([*head, "", ""]).encode() + data


def tokens_of(received: bytes, *, is_stream: bool) -> int:
    """Tokens of a response, as it says itself."""
    response = http.client.HTTPResponse(Received(received))
    response.begin()
    body = response.read()
    if response.status != 200:
        raise SystemExit(f"a request failed with status {response.status}: {body[:300]!r}")
    if is_stream:  # the number is in the last event but the one that says that it is done
        body = [line for line in body.splitlines() if line.startswith(b"data: {")][-1].removeprefix(b"data: ")
    usage = json.loads(body).get("usage")
    if usage is None:
        raise SystemExit(f"a response does not say how many tokens it has: {body[:300]!r}")
    return usage["completion_tokens"]


@dataclass(frozen=True, slots=True)
class Received:
    """What came over a connection, for the library that reads responses."""

    data: bytes

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self.data)


if __name__ == "__main__":
    main(*sys.argv[1:])
