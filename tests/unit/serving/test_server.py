"""The server of `paceline serve`: clients at once, streams, refusals, clients that leave, numbers, and its end."""

import asyncio
import http.client
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from paceline.engines import Request, Sampled, Sampling, sample_key
from paceline.errors import ConfigError, TrainingError
from paceline.http.events import EventStream
from paceline.openai_api.requests import Refusal
from paceline.serving.generations import FAULTY, Generation, Generations
from paceline.serving.server import STOPPING, ModelServer
from tests.support.endpoint_client import Client, tool, user
from tests.support.served import END, KEY, ScriptedEngine, served, server, texts_of, tiny_engine
from tests.support.tiny import tiny_tokenizer

LOOK = tool("look", key="string")
HELLO = {"messages": [user("Hello.")]}


def generation(on_sampled=lambda sampled: None, *, count: int = 1, at_once: bool = True) -> Generation:
    request = Request(prompt_ids=(1,), keys=tuple(range(count)), limits=(5,) * count)
    return Generation(request, Sampling(max_completion_length=5), at_once=at_once, on_sampled=on_sampled)


def client_of(one: ModelServer, key: str = KEY) -> Client:
    return Client(one.endpoint.base_url, key)


def page(one: ModelServer, path: str, **headers: str) -> tuple[int, str]:
    where = urlsplit(one.endpoint.base_url)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=30)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def numbers(one: ModelServer) -> dict[str, float]:
    lines = page(one, "/metrics")[1].splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def outcomes(one: ModelServer) -> dict[str, int]:
    found = {name.split('"')[1]: int(value) for name, value in numbers(one).items() if "requests_total" in name}
    return {name: count for name, count in found.items() if count}


# --- answers


def test_an_answer_is_what_the_engine_samples_with_the_key_of_the_seed():
    openai = pytest.importorskip("openai")
    engine = tiny_engine()
    with server(engine, length=256) as one:
        client = openai.OpenAI(base_url=one.endpoint.base_url, api_key=KEY)
        given = {"model": "tiny", "messages": [user("Hi.")], "seed": 5, "temperature": 0.5, "max_tokens": 9, "n": 2}
        answer = client.chat.completions.create(**given, logprobs=True, extra_body={"return_token_ids": True})
        again = client.chat.completions.create(**given)
        other = client.chat.completions.create(**{**given, "seed": 6})
        ids = one.model.tokens.whole([user("Hi.")])
    keys = tuple(sample_key(5, "serve", "", 0, sample) for sample in range(2))
    sampling = Sampling(max_completion_length=9, temperature=0.5)
    (wanted,) = engine.generate([Request(prompt_ids=ids, keys=keys)], sampling)
    assert [tuple(choice.token_ids) for choice in answer.choices] == [one.token_ids for one in wanted]
    assert [choice.finish_reason for choice in answer.choices] == [one.finish_reason for one in wanted]
    for choice, completion in zip(answer.choices, wanted, strict=True):
        got = [token.logprob for token in choice.logprobs.content]
        assert got == pytest.approx(completion.logprobs, abs=1e-4)
    assert (answer.model, answer.usage.prompt_tokens) == ("tiny", len(ids))
    assert answer.usage.completion_tokens == sum(len(one.token_ids) for one in wanted)
    texts = [[choice.message.content for choice in one.choices] for one in (answer, again, other)]
    assert texts[0] == texts[1] != texts[2]
    assert answer.created > 1_700_000_000
    assert len({answer.id, again.id, other.id}) == 3


def test_a_stream_adds_up_to_the_answer_by_every_interface():
    openai = pytest.importorskip("openai")
    with server(ScriptedEngine("  It is naïve. 😀 \n")) as one:
        client = openai.OpenAI(base_url=one.endpoint.base_url, api_key=KEY)
        chat = {"model": "tiny", "messages": [user("Hi.")]}
        whole = client.chat.completions.create(**chat).choices[0]
        chunks = list(client.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True}))
        text = client.completions.create(model="tiny", prompt="1 + 2 = ").choices[0]
        pieces = list(client.completions.create(model="tiny", prompt="1 + 2 = ", stream=True))
        response = client.responses.create(model="tiny", input="Hi.")
        events = list(client.responses.create(model="tiny", input="Hi.", stream=True))
        names = [model.id for model in client.models.list()]
    assert texts_of(chunks) == whole.message.content == response.output_text == "It is naïve. 😀"
    assert texts_of(pieces) == text.text == "  It is naïve. 😀 \n"
    assert len(chunks) > 10
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:-1]] == [whole.finish_reason] == ["stop"]
    assert chunks[-1].usage.completion_tokens == len("  It is naïve. 😀 \n".encode()) + 1
    assert response.status == events[-1].response.status == "completed"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == events[-1].response.output_text == response.output_text
    assert len(deltas) > 10
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert names == ["tiny"]


def test_tokens_are_told_as_they_are_sampled():
    openai = pytest.importorskip("openai")
    steps = threading.Semaphore(0)
    with server(ScriptedEngine("abc", steps=steps)) as one:
        client = openai.OpenAI(base_url=one.endpoint.base_url, api_key=KEY)
        steps.release()
        stream = iter(client.chat.completions.create(model="tiny", messages=[user("Hi.")], stream=True))
        for letter in "abc":
            # the engine waits for its next step until this piece is here
            assert next(stream).choices[0].delta.content == letter
            steps.release()
        assert next(stream).choices[0].finish_reason == "stop"


@pytest.mark.long
def test_requests_at_once_share_the_batch_and_get_their_own_answers():
    openai = pytest.importorskip("openai")
    engine = tiny_engine()
    with server(engine, length=256) as one:

        async def ask(client, number):
            given = {"messages": [user(f"Part {number}.")], "temperature": 0.5 + number % 3 / 4, "max_tokens": 12}
            answer = await client.chat.completions.create(model="tiny", seed=number, **given)
            return answer.choices[0].message.content

        async def all_of_them(count, together):
            client = openai.AsyncOpenAI(base_url=one.endpoint.base_url, api_key=KEY)
            if together:
                return await asyncio.gather(*(ask(client, number) for number in range(count)))
            return [await ask(client, number) for number in range(count)]

        together = asyncio.run(all_of_them(64, True))
        assert together[:16] == asyncio.run(all_of_them(16, False))
        assert outcomes(one) == {"done": 80}


def test_sixty_four_at_once_are_in_one_batch():
    engine = ScriptedEngine("Hello.", least=64)
    with server(engine) as one, ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(lambda number: client_of(one).chat([user(f"{number}")]), range(64)))
    assert engine.most == 64
    assert [answer["choices"][0]["message"]["content"] for answer in answers] == ["Hello."] * 64
    assert len({answer["id"] for answer in answers}) == 64


def test_a_batch_that_is_full_takes_the_next_in_the_order_of_arrival():
    generations = Generations(3)

    def add(count: int) -> Generation:
        one = generation(count=count, at_once=False)
        generations.add(one)
        return one

    given = [add(count) for count in (2, 2, 1, 9)]
    assert [request for request, _ in generations.take(wait=True)] == [given[0].request]
    assert generations.waiting == 3
    given[1].give_up()  # its client has left
    assert [request for request, _ in generations.take(wait=False)] == [given[2].request]


def test_a_call_a_thought_and_a_choice_of_tools():
    openai = pytest.importorskip("openai")
    call = '<tool_call>{"name": "look", "arguments": {"key": "tea"}}</tool_call>'
    with server(ScriptedEngine(f"<think>\nTea?\n</think>\nSo: {call}")) as one:
        client = openai.OpenAI(base_url=one.endpoint.base_url, api_key=KEY)
        given = {"model": "tiny", "messages": [user("Find tea.")], "tools": [LOOK], "max_tokens": 150}
        (whole,) = client.chat.completions.create(**given).choices
        (made,) = whole.message.tool_calls
        assert (whole.finish_reason, whole.message.content) == ("tool_calls", "So:")
        assert (made.function.name, json.loads(made.function.arguments)) == ("look", {"key": "tea"})
        assert whole.message.reasoning_content == "Tea?"
        chunks = list(client.chat.completions.create(**given, stream=True))
        calls = [one for chunk in chunks for choice in chunk.choices for one in choice.delta.tool_calls or ()]
        assert [(one.index, one.function.name) for one in calls] == [(0, "look")]
        assert texts_of(chunks) == "So:"
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
        flat = {"type": "function", **LOOK["function"]}
        with client.responses.stream(model="tiny", input="Find tea.", tools=[flat], max_output_tokens=150) as events:
            kinds = [event.type for event in events]
            said, asked = events.get_final_response().output
        assert (said.content[0].text, json.loads(asked.arguments)) == ("So:", {"key": "tea"})
        assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 2
        (text,) = client.chat.completions.create(**given, tool_choice="none").choices
        assert (text.finish_reason, text.message.content) == ("stop", f"So: {call}")
        # the result goes back
        messages = [*given["messages"], whole.message, {"role": "tool", "tool_call_id": made.id, "content": "3 francs"}]
        client.chat.completions.create(**{**given, "messages": messages})
    prompts = [tiny_tokenizer().decode(prompt) for prompt, _, _ in one.model.engine.taken]
    assert "3 francs" in prompts[-1]
    assert "look" in prompts[0]


def test_a_stop_string_ends_the_sampling_too():
    steps = threading.Semaphore(len("one two three"))
    engine = ScriptedEngine("one two three four five six", steps=steps)
    with server(engine) as one:
        answer = client_of(one).chat([user("Count.")], stop=["three"])
        steps.release()
        assert engine.was_cut.wait(30)
    (choice,) = answer["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("one two", "stop")
    assert answer["usage"]["completion_tokens"] == len("one two three")


def test_options_are_the_sampling_of_requests_that_do_not_say_otherwise():
    engine = ScriptedEngine("a" * 100)
    default = Sampling(max_completion_length=7, temperature=0.5, top_k=4, stop=("zz",))
    with server(engine, sampling=default, length=200) as one:
        client = client_of(one)
        short = client.chat([user("Hi.")])
        client.chat([user("Hi.")], temperature=0, top_k=-1, top_p=0.5, max_tokens=20)
        long = client.chat([user("Hi.")], max_tokens=10_000)
        first, second, _ = (sampling for _, sampling, _ in engine.taken)
        read = long["usage"]["prompt_tokens"]
    assert short["usage"]["completion_tokens"] == 7
    assert (first.temperature, first.top_k, first.top_p) == (0.5, 4, 1.0)
    assert (second.temperature, second.top_k, second.top_p) == (0, 0, 0.5)
    assert long["usage"]["total_tokens"] == min(200, read + 101)


def test_tokens_that_are_there_at_the_same_time_are_heard_at_once():
    heard = []
    one = generation(lambda news: heard.append([sampled.token_ids for sampled in news]))
    for token in range(3):
        one.add(Sampled(request=0, sample=0, token_ids=(token,), logprobs=(-1.0,), finish_reason=None))
        if token == 1:
            one.send()
    one.send()
    one.send()  # nothing is new
    assert heard == [[(0,), (1,)], [(2,)]]


def test_who_makes_a_stream_does_not_wait_for_its_client():
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    theirs.settimeout(30)
    events, parts = EventStream(), [bytes([number]) * 100_000 for number in range(40)]
    with ours, theirs, ThreadPoolExecutor(1) as pool:
        written = pool.submit(events.write_to, ours, lambda: False)
        for part in parts:  # 4 MB, which no socket takes before somebody reads
            events.add(part)
        events.add(b"", is_last=True)
        assert not written.done()
        got = b""
        while len(got) < 4_000_000:
            got += theirs.recv(1 << 20)
        written.result(30)
    assert got == b"".join(parts)


def test_a_fault_in_the_writing_of_one_answer_ends_that_one_alone(capsys):
    heard: tuple[list, list] = [], []

    def faulty(news):
        if not isinstance(news, Refusal):
            raise ValueError("no such piece")
        heard[0].append(news)

    generations = Generations(4)
    generations.add(generation(faulty))
    generations.add(generation(heard[1].extend))
    generations.close(STOPPING)
    generations.run(ScriptedEngine("abc", "xyz"), length=100)
    assert heard[0][0] is FAULTY
    assert tiny_tokenizer().decode([sampled.token_ids[0] for sampled in heard[1][:3]]) == "xyz"
    assert "no such piece" in capsys.readouterr().err


# --- refusals


@pytest.mark.parametrize("key", ["", "none", f"{KEY}x", KEY[:-1]])
def test_another_key_is_refused(key):
    with server(ScriptedEngine("Hi.")) as one:
        status, body = client_of(one, key).ask("/chat/completions", HELLO)
        assert (status, body["error"]["code"], body["error"]["type"]) == (
            401,
            "invalid_api_key",
            "authentication_error",
        )
        assert one.model.engine.taken == []
        assert outcomes(one) == {"refused": 1}


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        ("/chat/completions", b"{", 400, "the body must be JSON"),
        ("/chat/completions", {**HELLO, "model": "gpt"}, 404, "there is no model 'gpt'; name 'tiny', or leave"),
        ("/chat/completions", {**HELLO, "temperature": -1}, 400, "temperature must lie in [0, 100], got -1"),
        ("/chat/completions", {"messages": [user("x" * 300)]}, 400, "the prompt must have from 1 to 199 tokens"),
        ("/completions", {"prompt": "a", "logprobs": 3}, 400, "logprobs is not taken, got 3"),
        ("/embeddings", {"input": "a"}, 404, "there is no POST /v1/embeddings"),
    ],
)
def test_a_bad_request_gets_an_error_of_openai(path, body, status, sentence):
    with server(ScriptedEngine("Hi."), length=200) as one:
        got, answer = client_of(one).ask(path, body)
        assert (got, set(answer["error"])) == (status, {"message", "type", "param", "code"})
        assert answer["error"]["message"].startswith(sentence)
        assert client_of(one).chat([user("Hi.")])["choices"][0]["message"]["content"] == "Hi."


def test_another_host_is_refused_and_pages_need_no_key():
    with server(ScriptedEngine("Hi.")) as one:
        assert page(one, "/", Host="evil.example")[0] == 421
        assert page(one, "/health") == (200, "ok\n")
        status, text = page(one, "/")
        assert (status, KEY in text, "<h1>tiny</h1>" in text) == (200, False, True)
        assert page(one, "/v1/models")[0] == 401
        assert page(one, "/etc/passwd")[0] == 401


def test_an_address_that_is_taken_is_refused():
    with server(ScriptedEngine("Hi.")) as one, pytest.raises(ConfigError, match=r"--port \d+ cannot be listened on"):
        ModelServer(served(ScriptedEngine("")), host="127.0.0.1", port=one.endpoint.server_port, key=None)


# --- clients that leave, and garbage


def test_a_client_that_leaves_has_its_answer_cancelled():
    engine = ScriptedEngine("x" * 150)
    steps = threading.Semaphore(0)
    engine._steps = steps
    with server(engine) as one:
        connection = client_of(one).send("/chat/completions", {**HELLO, "stream": True, "max_tokens": 150})
        steps.release(2)
        answer = connection.getresponse()
        assert answer.readline().startswith(b"data: ")
        answer.close()
        connection.close()
        while not engine.was_cut.is_set():
            steps.release()
            engine.was_cut.wait(0.01)
        assert engine.cut[0] > 0
        steps.release(1000)
        assert client_of(one).chat([user("Hi.")])["choices"][0]["finish_reason"] == "length"
        assert outcomes(one) == {"gone": 1, "done": 1}


def test_a_client_that_leaves_before_the_first_token_has_its_answer_cancelled_too():
    steps = threading.Semaphore(0)
    engine = ScriptedEngine("x" * 30, steps=steps)
    with server(engine) as one:
        client_of(one).send("/chat/completions", HELLO).close()
        while outcomes(one) != {"gone": 1}:
            pass
        steps.release(1)
        assert engine.was_cut.wait(30)
        steps.release(1000)
        assert client_of(one).chat([user("Hi.")])["choices"][0]["message"]["content"] == "x" * 30


def test_garbage_on_the_line_harms_nobody():
    with server(ScriptedEngine("Hi.")) as one:
        where = urlsplit(one.endpoint.base_url)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n".encode()
        for garbage in (
            b"\x16\x03\x01\x02\x00",
            b"POST\r\n\r\n",
            head + b"Content-Length: 100\r\n\r\n{",
            b"\0" * 70_000,
        ):
            with socket.create_connection((where.hostname, where.port)) as connection:
                connection.sendall(garbage)
        assert client_of(one).chat([user("Hi.")])["choices"][0]["message"]["content"] == "Hi."


# --- the end


def test_a_stop_lets_answers_in_hand_end_and_refuses_new_ones():
    steps = threading.Semaphore(0)
    engine = ScriptedEngine("Hello.", steps=steps)
    with server(engine) as one, ThreadPoolExecutor(2) as pool:
        steps.release()
        in_hand = pool.submit(client_of(one).chat, [user("Hi.")])
        while not engine.taken:
            pass
        stopped = pool.submit(one.stop, 60.0)
        while one.endpoint.ended is None:
            pass
        assert page(one, "/health") == (503, "stopping\n")
        status, body = client_of(one).ask("/chat/completions", HELLO)
        assert (status, body["error"]["code"]) == (503, "stopping")
        steps.release(100)
        assert in_hand.result(30)["choices"][0]["message"]["content"] == "Hello."
        assert stopped.result(30) == 0
    with pytest.raises(ConnectionError):
        client_of(one).chat([user("Hi.")])


def test_a_stop_breaks_off_what_has_not_ended_in_time():
    steps = threading.Semaphore(0)
    engine = ScriptedEngine("x" * 100, steps=steps, least=2)
    with server(engine) as one, ThreadPoolExecutor(3) as pool:
        stream = client_of(one).send("/chat/completions", {**HELLO, "stream": True})
        whole = pool.submit(client_of(one).ask, "/chat/completions", HELLO)
        steps.release(5)
        events = stream.getresponse()
        assert events.readline().startswith(b"data: ")
        assert numbers(one)["paceline_requests_in_flight"] == 2
        stopped = pool.submit(one.stop, 0.0)
        status, body = whole.result(30)
        assert (status, body["error"]["message"]) == (
            503,
            "the server stopped before the response had ended; ask another one",
        )
        assert b'"code":"stopping"' in events.read()
        steps.release(1000)
        assert stopped.result(30) == 2


def test_an_engine_that_fails_ends_all_answers_by_an_error():
    engine = ScriptedEngine("Hello.", least=2)

    def fail():
        raise TrainingError("the policy's logits are not finite")

    engine.fails = fail
    with server(engine) as one, ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda number: client_of(one).ask("/chat/completions", HELLO), range(2)))
        assert [(status, body["error"]["type"]) for status, body in answers] == [(500, "server_error")] * 2
        assert one.wait(30)
        assert isinstance(one.failure, TrainingError)
        assert page(one, "/health")[0] == 503
        assert client_of(one).ask("/chat/completions", HELLO)[0] == 500
        assert outcomes(one) == {"failed": 3}


# --- numbers


def test_the_numbers_are_those_of_what_was_done():
    with server(ScriptedEngine("four")) as one:
        client = client_of(one)
        for fields in ({}, {"n": 3}, {"stream": True}):
            connection = client.send("/chat/completions", {**HELLO, **fields})
            connection.getresponse().read()
        client.ask("/chat/completions", b"{")
        read = len(one.model.tokens.whole([user("Hello.")]))
        found = numbers(one)
        text = page(one, "/metrics")[1]
    assert found['paceline_requests_total{outcome="done"}'] == 3
    assert found['paceline_requests_total{outcome="refused"}'] == 1
    assert found['paceline_tokens_total{kind="prompt"}'] == 3 * read
    assert found['paceline_tokens_total{kind="completion"}'] == (1 + 3 + 1) * len([*"four", END])
    assert found["paceline_request_seconds_count"] == 3
    assert found["paceline_first_token_seconds_count"] == 1
    assert found["paceline_requests_waiting"] == 0
    assert text.count("# TYPE ") == text.count("# HELP ") == 6
