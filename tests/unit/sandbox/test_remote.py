"""The client of a judge service, against a service on this machine that answers as the test says."""

import base64
import json
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from paceline.errors import SandboxError
from paceline.sandbox.programs import Job, Limits
from paceline.sandbox.remote import RemoteSandbox

JOB = Job(source="print(6)", stdin="1\n", limits=Limits(seconds=1.0, memory_mb=100, output_bytes=1000))


def ran(**run):
    """A service's response on a program that ended; `run` says how."""
    result = {"status": "Finished", "execution_time": 0.25, "return_code": 0, "stdout": "6\n", "stderr": "", **run}
    return {"status": "Failed" if result["return_code"] else "Success", "message": "", "run_result": result}


class Service:
    """Answers the n-th request with the n-th of `script` (the last for all after): a status and a body, or a function
    that gets the handler and the request."""

    def __init__(self, *script):
        self.script = script
        self.requests = []
        self.released = threading.Event()
        lock = threading.Lock()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with lock:
                    step = service.script[min(len(service.requests), len(service.script) - 1)]
                    service.requests.append((self.path, dict(self.headers), json.loads(body)))
                if callable(step):
                    step(self, json.loads(body))
                else:
                    reply(self, *step)

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.released.set()
        self.server.shutdown()
        self.server.server_close()


def reply(handler, status, body, **headers):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    handler.send_response(status)
    for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(data)


def client(url, **options):
    return RemoteSandbox(url, **{"timeout": 5.0, "pause": 0.001, **options})


def test_a_job_is_one_request_and_its_response_the_execution():
    with Service((200, ran())) as service:
        execution = client(service.url).execute(JOB)
        ((path, _, body),) = service.requests
    assert path == "/run_code"
    assert body == {
        "code": "print(6)",
        "language": "python",
        "stdin": "1\n",
        "run_timeout": 4.0,  # 1 second of processor time: at most max(2 * 1, 1 + 3) by the clock
        "memory_limit_MB": 164,
    }
    assert (execution.status, execution.output, execution.seconds) == ("finished", "6\n", 0.25)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("run", "status"),
    [
        ({"stdout": None, "stderr": None}, "finished"),
        ({"status": "TimeLimitExceeded", "return_code": None}, "timeout"),
        ({"return_code": 1, "stderr": "Traceback (most recent call last):\nValueError: x\n"}, "runtime_error"),
        ({"return_code": 3}, "runtime_error"),
        ({"return_code": 1, "stderr": '  File "a.py", line 1\n    x(\nSyntaxError: never closed\n'}, "syntax_error"),
        ({"return_code": 1, "stderr": "Traceback (most recent call last):\nSyntaxError: x\n"}, "runtime_error"),
        ({"return_code": 1, "stderr": "Traceback (most recent call last):\nMemoryError\n"}, "memory"),
        ({"return_code": 137}, "memory"),
        ({"stdout": "x" * 999}, "finished"),
        ({"stdout": "x" * 1000}, "output_limit"),
        ({"stdout": "é" * 500}, "output_limit"),
    ],
)
def test_how_a_program_ended_is_told_by_status_exit_code_and_last_words(run, status):
    with Service((200, ran(**run))) as service:
        assert client(service.url).execute(JOB).status == status


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("first", "why"),
    [
        ((500, b"oops"), "status 500"),
        ((429, b""), "status 429"),
        ((200, json.dumps(ran()).encode()[:40]), "a response that is no JSON"),
        ((200, b""), "a response that is no JSON"),
        ((200, b"[" * 100_000), "a response that is no JSON"),
        ((200, [1]), "a response without status and run_result"),
        ((200, {"status": "Success", "run_result": None}), "a response without status and run_result"),
        ((200, {"detail": "x"}), "a response without status and run_result"),
        ((200, {"status": "SandboxError", "message": "no\nworker"}), r"the service's own failure \(no worker\)"),
        ((200, ran(status="Error")), "a response whose run_result has another shape"),
        ((200, ran(return_code=None)), "a response whose run_result has another shape"),
        ((200, ran(stdout=5)), "a response whose run_result has another shape"),
    ],
)
def test_what_says_nothing_of_the_program_is_tried_again_and_then_raised(first, why):
    with Service(first, (200, ran())) as service:
        assert client(service.url, retries=1).execute(JOB).output == "6\n"
        assert len(service.requests) == 2
    with Service(first) as service, pytest.raises(SandboxError, match=rf"no result in 3 tries, the last: {why}"):
        client(service.url, retries=2).execute(JOB)
    assert len(service.requests) == 3


@pytest.mark.parametrize("status", [302, 400, 401, 404, 422])
def test_a_request_that_the_service_refuses_is_not_sent_again(status):
    with Service((status, b"")) as service, pytest.raises(SandboxError, match=rf"status {status} for /run_code"):
        client(service.url).execute(JOB)
    assert len(service.requests) == 1


def test_a_service_that_is_down_is_named_and_so_is_the_remedy():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(SandboxError, match=rf"judge service {url} failed: .*3 tries.*efused.*--sandbox"):
            client(url).execute(JOB)


def cut(handler, request):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"status": "Succ')


def dropped(handler, request):
    handler.connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("step", [cut, dropped])
def test_a_connection_that_breaks_off_is_tried_again(step):
    with Service(step, (200, ran())) as service:
        assert client(service.url).execute(JOB).output == "6\n"
        assert len(service.requests) == 2


def test_silence_ends_at_the_deadline():
    limits = Limits(seconds=0.05)  # 3.05 seconds by the clock

    def silent(handler, request):
        service.released.wait()

    with Service(silent) as service, pytest.raises(SandboxError, match=r"no response within 0\.05 seconds"):
        client(service.url, timeout=-3.0, retries=0).execute(Job(source="", limits=limits))


def test_a_response_that_never_ends_is_cut_off_and_not_asked_for_again():
    def endless(handler, request):
        handler.send_response(200)
        handler.end_headers()
        while not service.released.is_set():
            handler.wfile.write(b" " * 65536)

    with Service(endless) as service, pytest.raises(SandboxError, match="a response of more than 1060576 bytes"):
        client(service.url).execute(JOB)
    assert len(service.requests) == 1


def test_a_password_in_the_address_is_sent_as_a_header_and_shown_nowhere():
    with Service((200, ran()), (401, b"")) as service:
        sandbox = client(service.url.replace("//", "//ann:s%20t@") + "/judge/?key=k1", slots=1)
        sandbox.execute(JOB)
        path, headers, _ = service.requests[0]
        with pytest.raises(SandboxError) as caught:
            sandbox.execute(JOB)
    assert path == "/judge/run_code?key=k1"
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"ann:s t"
    for shown in (sandbox.description, str(caught.value)):
        assert not any(secret in shown for secret in ("ann", "s%20t", "s t", "k1"))


@pytest.mark.parametrize(
    "url",
    [
        *("judge", "ftp://host", "http://", "http://host:port", "http://ann:secret@:80"),
        *("http://[::1", "http://host/\xe9", "http://a host"),
    ],
)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(SandboxError, match="--sandbox must be the address of a judge service") as caught:
        RemoteSandbox(url)
    assert "secret" not in str(caught.value)


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with Service((200, ran())) as service:
        assert client(service.url).execute(JOB).output == "6\n"
        assert client(service.url.replace("127.0.0.1", "localhost")).execute(JOB).output == "6\n"


def test_no_more_requests_are_under_way_than_there_are_slots():
    together, lock, most = [0], threading.Lock(), [0]
    both = threading.Barrier(2)

    def counted(handler, request):
        with lock:
            together[0] += 1
            most[0] = max(most[0], together[0])
        both.wait(timeout=10)  # two at a time go on, so a third would be seen
        with lock:
            together[0] -= 1
        reply(handler, 200, ran())

    with Service(counted) as service:
        sandbox = client(service.url, slots=2)
        threads = [threading.Thread(target=sandbox.execute, args=(JOB,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
    assert (most[0], len(service.requests)) == (2, 6)


def test_a_closed_sandbox_runs_nothing():
    with Service((200, ran())) as service:
        sandbox = client(service.url)
        sandbox.close()
        with pytest.raises(SandboxError, match="closed"):
            sandbox.execute(JOB)
    assert not service.requests


def test_the_check_tells_a_service_that_runs_programs_from_one_that_does_not():
    with Service(run_here) as service:
        client(service.url).check()
    with Service((200, ran())) as service, pytest.raises(SandboxError, match="a program that reads and prints came to"):
        client(service.url).check()


def run_here(handler, request):
    """As the service does it: a process, its outputs and its exit code. The programs are those of this file."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", request["code"]],
        input=request["stdin"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    reply(handler, 200, ran(return_code=done.returncode, stdout=done.stdout, stderr=done.stderr))


def test_a_given_name_is_no_function_of_the_program_but_an_imported_one_is():
    with Service(run_here) as service:
        sandbox = client(service.url)
        assert sandbox.execute(Job(source="pass", function="gcd", arguments="[4, 6]")).status == "no_function"
        imported = Job(source="from math import gcd", function="gcd", arguments="[4, 6]")
        assert sandbox.execute(imported).output == "2"


TWICE = "def twice(values):\n    print('noise')\n    return [2 * value for value in values]"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("source", "status", "output"),
    [
        (TWICE, "finished", "[2, 4]"),
        ("class Solution:\n    def twice(self, v: List[int]):\n        return tuple(v)", "finished", "[1, 2]"),
        ("def twice(values):\n    return pow(2, 10, 1000) + Counter(values)[1]", "finished", "25"),
        ("from dataclasses import dataclass\n@dataclass\nclass A:\n    a: 'int'\ndef twice(v):\n    return A(1).a",
         "finished", "1"),
        ("\ufefffrom __future__ import annotations\ndef twice(values: list[int]):\n    return 0", "finished", "0"),
        ("def twice(values)", "syntax_error", ""),
        ("twice = 3", "no_function", ""),
        ("def twice(values):\n    return values[9]", "runtime_error", ""),
        ("def twice(values):\n    return {1, 2}", "runtime_error", ""),
        ("import os\ndef twice(values):\n    os._exit(0)", "runtime_error", ""),
        ("import sys\ndef twice(values):\n    sys.exit(0)", "runtime_error", ""),
        ("import atexit, os\natexit.register(os._exit, 3)\ndef twice(values):\n    return 1", "runtime_error", ""),
        ("def twice(values):\n    open(0).read()\n    return 1", "finished", "1"),
    ],
)  # fmt: skip
def test_a_function_is_called_by_a_program_that_prints_its_value_behind_a_mark(source, status, output):
    with Service(run_here) as service:
        execution = client(service.url).execute(Job(source=source, function="twice", arguments="[[1, 2]]"))
    assert (execution.status, execution.output) == (status, output)
