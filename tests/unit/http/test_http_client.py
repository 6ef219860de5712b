"""One call over a real socket: its deadline, its bounds, redirects and proxies."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from paceline.errors import ConfigError
from paceline.http.client import HttpCallError, HttpClient, HttpTimeout

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@contextmanager
def answering(*parts: bytes, pause: float = 0.0) -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers each connection by these parts, with a pause before each; the requests that came."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        requests = list[bytes]()

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    requests.append(connection.recv(65536))
                    try:
                        for part in parts:
                            time.sleep(pause)
                            connection.sendall(part)
                    except OSError:
                        continue

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
        listener.shutdown(socket.SHUT_RDWR)


def called(url, *, seconds=5.0, limit=1000, **options):
    return HttpClient(url).call(f"{url}/path?a=b", seconds=seconds, limit=limit, **options)


def test_each_call_has_a_connection_of_its_own():
    with answering(OK) as (url, requests):
        client = HttpClient(url)
        for _ in range(2):
            reply = client.call(f"{url}/path?a=b", data=b"{}", headers={"X-Key": "k"}, seconds=5.0, limit=10)
            assert (reply.status, reply.body, reply.is_success) == (200, b"ok", True)
    assert len(requests) == 2
    assert all(request.startswith(b"POST /path?a=b HTTP/1.1\r\n") for request in requests)
    assert all(b"x-key: k\r\n" in request.lower() for request in requests)


def test_no_redirect_is_followed_unless_asked_for():
    away = b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"
    with answering(away) as (url, requests):
        reply = called(url, data=b"secret")
        assert (reply.status, reply.is_success, len(requests)) == (302, False, 1)
        with pytest.raises(HttpCallError, match="TooManyRedirects"):
            called(url, follow_redirects=True)
    assert b"GET /elsewhere" in requests[2]


def test_a_body_has_a_limit_and_one_that_breaks_off_is_there_as_far_as_it_came():
    with answering(b"HTTP/1.1 200 OK\r\n\r\n", b" " * 100_000) as (url, _):
        assert called(url, limit=99_999).body is None
        assert called(url, limit=100_000).body == b" " * 100_000
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf") as (url, _):
        assert called(url).body == b"half"


def test_a_body_that_trickles_ends_at_the_deadline():
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", *[b"."] * 100, pause=0.05) as (url, _):
        with pytest.raises(HttpTimeout, match=r"no response within 0\.3 seconds") as error:
            called(url, seconds=0.3)
        assert error.value.was_sent


def test_a_failure_tells_whether_the_server_knows_of_the_request():
    with answering() as (url, _), pytest.raises(HttpCallError, match="disconnected") as error:
        called(url)
    assert error.value.was_sent
    with pytest.raises(HttpCallError, match="refused") as error:
        called(url)
    assert not error.value.was_sent
    with pytest.raises(HttpCallError) as error:
        HttpClient(url).call("http://[::1", seconds=1.0, limit=1)
    assert not error.value.was_sent


def test_a_proxy_is_asked_for_others_than_this_machine(monkeypatch):
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with answering(OK) as (url, requests):
        monkeypatch.setenv("http_proxy", url.removeprefix("http://"))
        assert called("http://judge.example").body == b"ok"
        assert requests[0].startswith(b"GET http://judge.example/path?a=b ")
        assert called(url).body == b"ok"
        assert requests[1].startswith(b"GET /path")
        monkeypatch.setenv("no_proxy", "judge.example")
        with pytest.raises(HttpCallError):
            called("http://judge.example", seconds=2.0)
        monkeypatch.setenv("no_proxy", "")
        monkeypatch.setenv("http_proxy", "socks9://user:word@127.0.0.1:1")
        with pytest.raises(ConfigError, match=r"proxy for http addresses cannot be used .* NO_PROXY") as refusal:
            called("http://judge.example")
        assert "word" not in str(refusal.value)
