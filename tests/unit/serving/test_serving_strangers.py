"""What one client asks for is answered or refused, and the others are answered meanwhile."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from paceline.chat.messages import MOST_DEPTH
from paceline.config.building import build_config
from paceline.engines import Sampled
from paceline.errors import ConfigError
from paceline.serving.loading import read_options
from tests.support.endpoint_client import Client, user
from tests.support.served import KEY, ScriptedEngine, server, tiny_engine

HELLO = {"messages": [user("Hello.")], "max_tokens": 3}


def client_of(one) -> Client:
    return Client(one.endpoint.base_url, KEY)


def test_a_temperature_near_zero_takes_the_most_probable_token():
    with server(tiny_engine(), length=256) as one:

        def said(temperature):
            status, body = client_of(one).ask("/chat/completions", {**HELLO, "temperature": temperature, "seed": 1})
            return status, body["choices"][0]["message"]["content"]

        greedy = said(0)
        assert [said(value) for value in (1e-5, 1e-9, 1e-12, 1e-300, 5e-324)] == [greedy] * 5
        assert said(100)[0] == 200


def test_the_option_may_be_greedy_where_nothing_is_trained(tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text("model: some\ntemperature: 0\n")
    for flags, named in (({"temperature": 0, "model": "some"}, None), ({"temperature": 0}, None), ({}, str(file))):
        assert read_options(flags, file=named, runs=()).config.sampling.temperature == 0
    with pytest.raises(ConfigError, match=r"--temperature must be at least 0, got -1\.0"):
        read_options({"temperature": -1}, file=None, runs=())
    with pytest.raises(ConfigError, match=r"--temperature must be above 0, got 0\.0; greedy completions"):
        build_config({"model": "some", "dataset": "arithmetic", "temperature": 0})


NUMBERS = (-1, -1e-9, 0, 1e-12, 1e300, 10**400, -(10**400), 2**63, "1", True, [1], {"a": 1}, None, 1e-320)
FIELDS = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "max_completion_tokens", "n", "stop", "stream"),
    *("presence_penalty", "frequency_penalty", "logprobs", "top_logprobs", "tools", "messages", "tool_choice", "model"),
    *("response_format", "stream_options", "unknown", "user", "return_token_ids", "logit_bias"),
)


@pytest.mark.long
def test_any_value_of_any_field_is_answered_or_refused():
    with server(tiny_engine(), length=64) as one:
        for field in FIELDS:
            for value in NUMBERS:
                connection = client_of(one).send("/chat/completions", {**HELLO, field: value})
                answer = connection.getresponse()
                assert answer.status in (200, 400, 404), (field, value)
                answer.read()
                connection.close()
        assert client_of(one).ask("/chat/completions", HELLO)[0] == 200


@pytest.mark.parametrize("text", ['{"temperature": 1e999}', '{"temperature": NaN}', '{"seed": ' + "9" * 5000 + "}"])
def test_numbers_that_json_has_not_are_refused(text):
    body = (json.dumps(HELLO)[:-1] + ", " + text[1:]).encode()
    with server(ScriptedEngine("x")) as one:
        assert client_of(one).ask("/chat/completions", body)[0] == 400


def nested(depth: int, opening: str = '{"a": ', closing: str = "}") -> str:
    return opening * depth + "1" + closing * depth


@pytest.mark.parametrize("depth", [MOST_DEPTH, 900, 100_000])
@pytest.mark.parametrize(
    "form",
    [
        '{{"messages": [{{"role": "user", "content": "x"}}], "metadata": {}}}',
        '{{"messages": [{{"role": "user", "content": "x"}}], "unknown": {}}}',
        '{{"messages": [{{"role": "user", "content": {}}}]}}',
        '{{"messages": [{{"role": "user", "content": "x"}}], "tools": [{{"type": "function", "function": '
        '{{"name": "f", "parameters": {}}}}}]}}',
        "{}",
    ],
)
def test_what_is_nested_deeply_is_refused_in_a_sentence(form, depth):
    with server(ScriptedEngine("x")) as one:
        for opening, closing in (('{"a":', "}"), ("[", "]")):
            body = form.format(nested(depth, opening, closing)).encode()
            status, said = client_of(one).ask("/chat/completions", body)
            assert status == 400
            assert "nested deeper than 64" in said["error"]["message"]


def test_arguments_that_are_nested_deeply_are_refused():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": nested(100_000)}}
    messages = [user("x"), {"role": "assistant", "tool_calls": [call]}, user("x")]
    with server(ScriptedEngine("x")) as one:
        status, said = client_of(one).ask("/chat/completions", {"messages": messages})
    assert (status, said["error"]["param"]) == (400, "messages[1].tool_calls[0].function.arguments")


def tools(count: int, *, length: int = 10) -> list[dict]:
    named = ({"name": f"f{number}", "description": "x" * length} for number in range(count))
    return [{"type": "function", "function": one} for one in named]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (tools(5000), "tools must be at most 512, got 5000"),
        (tools(300, length=1000), "the prompt is longer than the 256 tokens"),
        (tools(1, length=1000), "the tools have 11"),
    ],
)
def test_tools_beyond_the_prompts_room_are_refused_unseen(given, sentence):
    with server(ScriptedEngine("x"), length=256) as one:
        status, said = client_of(one).ask("/chat/completions", {**HELLO, "tools": given})
    assert status == 400
    assert said["error"]["message"].startswith(sentence)


LONG = "ab " * 300_000


@pytest.mark.parametrize(
    "turn",
    [
        {"content": "", "reasoning_content": LONG},
        {"content": "", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": [LONG]}}}]},
        {"content": "", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {LONG: 1}}}]},
        {"content": "", "tool_calls": [{"type": "function", "function": {"name": LONG, "arguments": {}}}]},
    ],
)
def test_a_turn_beyond_the_prompts_room_is_refused_unseen_whatever_is_long_in_it(turn):
    given = {"messages": [user("x"), {"role": "assistant", **turn}, user("x")]}
    with server(ScriptedEngine("x"), length=256) as one:
        one.model.prompts._rendering.acquire()  # nothing is rendered
        status, said = client_of(one).ask("/chat/completions", given)
    assert (status, said["error"].get("code")) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/chat/completions", {"response_format": "json_object"}),
        ("/chat/completions", {"response_format": ["json_object"]}),
        ("/chat/completions", {"response_format": {"type": "json_object"}}),
        ("/responses", {"text": "json"}),
        ("/responses", {"text": {"format": "json_object"}}),
        ("/responses", {"text": {"format": {"type": "json_schema"}}}),
    ],
)
def test_a_form_that_no_answer_keeps_to_is_refused_in_every_spelling(path, fields):
    prompt = {"input": "x"} if path == "/responses" else {"messages": [user("x")]}
    with server(ScriptedEngine("x")) as one:
        assert client_of(one).ask(path, {**prompt, "max_tokens": 3})[0] == 200
        status, said = client_of(one).ask(path, {**prompt, **fields})
    assert (status, said["error"]["message"].split()[0] in ("response_format", "text", "format")) == (400, True)


@pytest.mark.parametrize(
    "parameters",
    [
        *({"properties": one} for one in (None, 5, [], "x", {"key": None}, {"key": {"type": [{}]}})),
        *({"properties": {"key": {name: 5}}} for name in ("type", "anyOf", "oneOf", "enum")),
    ],
)
def test_a_call_of_a_tool_without_a_clean_schema_is_answered(parameters):
    call = '<tool_call>{"name": "look", "arguments": {"key": "tea"}}</tool_call>'
    tool = {"type": "function", "function": {"name": "look", "parameters": parameters}}
    with server(ScriptedEngine(call)) as one:
        given = {"messages": [user("x")], "tools": [tool], "max_tokens": 150}
        status, said = client_of(one).ask("/chat/completions", given)
    assert status == 200, said
    (made,) = said["choices"][0]["message"]["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == {"key": "tea"}


def test_others_are_answered_while_tools_are_tried():
    with server(ScriptedEngine("x")) as one, ThreadPoolExecutor(1) as pool:
        one.model.prompts._proving.acquire()  # as if the template took long
        try:
            waiting = pool.submit(client_of(one).ask, "/chat/completions", {**HELLO, "tools": tools(1)})
            assert client_of(one).ask("/chat/completions", HELLO)[0] == 200
            assert not waiting.done()
        finally:
            one.model.prompts._proving.release()
        waiting.result(30)


class OneRowFails(ScriptedEngine):
    """Says numbers that are none for the first request."""

    def _step(self, stream, left):
        class Broken:
            def tell(self, sampled):
                return stream.tell([self.of(one) for one in sampled])

            def of(self, one: Sampled) -> Sampled:
                bad = (float("nan"),) if one.request == 0 else one.logprobs
                return Sampled(
                    request=one.request,
                    sample=one.sample,
                    token_ids=one.token_ids,
                    logprobs=bad,
                    finish_reason=one.finish_reason,
                )

        super()._step(Broken(), left)


@pytest.mark.parametrize("stream", [False, True])
def test_a_row_whose_logits_are_no_numbers_ends_its_own_request(stream):
    engine = OneRowFails("Hello.", least=2)
    with server(engine) as one, ThreadPoolExecutor(1) as pool:
        first = pool.submit(client_of(one).ask, "/chat/completions", {**HELLO, "n": 2, "stream": stream})
        while not engine.taken:
            time.sleep(0.01)  # the engine takes requests in its own thread
        assert client_of(one).ask("/chat/completions", HELLO)[0] == 200
        status, said = first.result(30)
        assert (status, said["error"]["message"][:35]) == (500, "the model's logits are not finite n")
        assert client_of(one).ask("/chat/completions", HELLO)[0] == 200


def test_a_fault_of_the_engine_ends_the_requests_at_hand_and_no_others(capsys):
    engine = ScriptedEngine("Hello.")
    faults = iter([ZeroDivisionError("a row")])

    def fail():
        for fault in faults:
            raise fault

    engine.fails = fail
    with server(engine) as one:
        assert client_of(one).ask("/chat/completions", HELLO)[0] == 500
        assert client_of(one).ask("/chat/completions", HELLO)[0] == 200
    assert "ZeroDivisionError: a row" in capsys.readouterr().err


def test_an_engine_that_only_fails_ends_the_server():
    engine, fault = ScriptedEngine("Hello."), threading.Event()

    def fail():
        fault.set()
        raise ZeroDivisionError("each time")

    engine.fails = fail
    with server(engine) as one:
        statuses = [client_of(one).ask("/chat/completions", HELLO)[0] for _ in range(3)]
        assert statuses == [500] * 3
        assert one.wait(30)
        assert "failed 3 times in a row (each time)" in str(one.failure)
