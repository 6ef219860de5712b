"""Strangers cannot close a server to others, and a request that could be read in two ways is read in none."""

import re
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from paceline.http import server
from paceline.http.server import HttpResponse
from paceline.openai_api.endpoint import Endpoint

PAGE = {"/health": lambda: HttpResponse(body=b"ok\n")}


@contextmanager
def listening() -> Iterator[Endpoint]:
    endpoint = Endpoint(lambda pending: pending.respond({"answer": "yes"}))
    endpoint.pages = PAGE
    endpoint.start()
    try:
        yield endpoint
    finally:
        endpoint.close()


def connected(endpoint: Endpoint) -> socket.socket:
    return socket.create_connection((endpoint.server_name, endpoint.server_port), 10)


def sent(endpoint: Endpoint, data: bytes) -> bytes:
    """Return all that is answered to these bytes until the server closes, or says nothing for a while."""
    with closing(connected(endpoint)) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        answer = b""
        while read := client.recv(65536):
            answer += read
        return answer


def answer_on(client):
    """One answer of a connection that stays open, however it comes in pieces."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += client.recv(65536)
    head, _, body = answer.partition(b"\r\n\r\n")
    length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
    while len(body) < length:
        body += client.recv(65536)
    return head


def test_silent_connections_leave_room_for_others():
    with listening() as endpoint:
        endpoint.most_connections = 8
        silent = [connected(endpoint) for _ in range(40)]
        assert sent(endpoint, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").startswith(b"HTTP/1.1 200")
        assert silent[0].recv(1) == b"", "the oldest is closed"
        assert len(endpoint._connections) <= 8
        for one in silent:
            one.close()


def test_whoever_has_shown_the_key_is_not_closed_for_strangers():
    with listening() as endpoint, closing(connected(endpoint)) as known:
        endpoint.most_connections = 4
        head = f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {endpoint.key}\r\n\r\n".encode()
        known.sendall(head)
        assert answer_on(known).startswith(b"HTTP/1.1 200")
        silent = [connected(endpoint) for _ in range(20)]
        known.sendall(head)
        assert answer_on(known).startswith(b"HTTP/1.1 200")
        for one in silent:
            one.close()


@pytest.mark.parametrize(
    "start", [b"", b"GET /health HT", b"POST /v1/responses HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"]
)
def test_a_stranger_has_a_deadline_however_it_trickles(monkeypatch, start):
    monkeypatch.setattr(server, "STRANGER_SECONDS", 0.5)
    monkeypatch.setattr(server, "LOOK_SECONDS", 0.05)
    with listening() as endpoint, closing(connected(endpoint)) as slow:
        began = time.monotonic()
        slow.sendall(start)
        while slow.recv(65536):
            pass
        assert time.monotonic() - began < 5


def test_a_server_accepts_again_once_there_are_descriptors():
    """At EMFILE `accept` fails until something is closed: the oldest stranger is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with listening() as endpoint:
        silent = [connected(endpoint) for _ in range(3)]
        while len(endpoint._connections) < 3:
            time.sleep(0.01)  # the kernel accepts before the server does
        last = connected(endpoint)
        while len(endpoint._connections) < 4:
            time.sleep(0.01)
        with socket.socket() as free:
            lowest = free.fileno()  # what the next one would get
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
            with pytest.raises(OSError, match="Too many open files"):
                socket.socket()
            another = silent.pop()
            another.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert another.recv(65536).startswith(b"HTTP/1.1 200")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for one in [*silent, another, last]:
            one.close()


HEAD = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "request_text",
    [
        HEAD + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        HEAD + "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        HEAD + "Host: evil.example\r\nContent-Length: 2\r\n\r\n{}",
        HEAD + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        HEAD + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + "Content-Length: +2\r\n\r\n{}",
        HEAD + "Content-Length: 2, 2\r\n\r\n{}",
        HEAD + "Content-Length: -1\r\n\r\n",
        HEAD + "Content-Length: " + "0" * 20 + "2\r\n\r\n{}",
        HEAD + "Content-Length: " + "9" * 5000 + "\r\n\r\n{}",
        HEAD + "Content-Length : 2\r\n\r\n{}",
        HEAD + "Content-Length\r\n\r\n",
        HEAD + "X: a\r\n b\r\nContent-Length: 2\r\n\r\n{}",
        HEAD + " Content-Length: 2\r\n\r\n{}",
        HEAD + "X: " + "a" * 70_000 + "\r\n\r\n",
        HEAD + "X: a\r\n" * 200 + "\r\n",
        "GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /" + "a" * 70_000 + " HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /health\r\n\r\n",
        "GET /health HTTP/x\r\n\r\n",
        "\x16\x03\x01\x02\r\n\r\n",
    ],
)
def test_what_two_readers_could_read_otherwise_is_refused(request_text):
    with listening() as endpoint:
        answer = sent(endpoint, request_text.encode("latin-1") + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400"), answer[:100]
        assert answer.count(b"HTTP/1.1") == 1, "what stands behind it is no request"


def test_requests_behind_one_another_are_answered_in_their_order():
    with listening() as endpoint:
        one = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        two = one.replace("/health", "/v1/models")
        answer = sent(endpoint, (one + two + one).encode())
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"401", b"200"]


def test_a_fault_in_one_answer_is_that_answers_alone(capsys):
    def take(pending):
        raise ZeroDivisionError

    with listening() as endpoint:
        endpoint.take = take
        body = b'{"messages": [{"role": "user", "content": "Hello."}]}'
        head = f"{HEAD}Authorization: Bearer {endpoint.key}\r\nContent-Length: {len(body)}\r\n\r\n"
        assert sent(endpoint, head.encode() + body).startswith(b"HTTP/1.1 500")
        assert sent(endpoint, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").startswith(b"HTTP/1.1 200")
    assert "ZeroDivisionError" in capsys.readouterr().err
