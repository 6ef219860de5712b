"""The endpoint of a program that brings its own loop: what it takes, what it refuses, and clients that others wrote."""

import asyncio
import functools
import http.client
import json
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest

from paceline.environments import ModelReply, ModelRequest, ToolCall
from paceline.environments.harness import Branches, Harness
from paceline.environments.hosting import Hosts, Outcome
from paceline.environments.resolving import specs
from paceline.errors import ConfigError
from paceline.http.server import MOST_BODY
from paceline.openai_api.requests import Refusal, messages_of, read_request
from tests.support.endpoint_client import Client, system, tool, user

LOOK = tool("look", key="string")
TASK = {"prompt": "Hello.", "messages": [user("Hello.")], "answer": "3"}


@dataclass
class Driver:
    """Plays an episode as a run does, with turns of a script; keeps what was asked for."""

    script: Callable[[int], dict[str, Any]] = lambda number: {"content": f"turn {number}"}
    most: int = 100
    asked: list[ModelRequest] = field(default_factory=list)

    def play(self, program: Callable[..., Any]) -> float | None:
        """Play until the program ends or as many turns are used up; return its reward."""
        harness = Harness(program)
        request = harness.begin(TASK, seed=11)
        for number in range(self.most):
            self.asked.append(request)
            given = {"finish_reason": "stop", "num_read": 5, "sampled_ids": (0, 0), **self.script(number)}
            turn = ModelReply(number=number, text=given["content"], is_last=number + 1 == self.most, **given)
            observation = harness.observe(turn)
            if observation.done or observation.request is None:
                break
            request = observation.request
        return harness.close()


def said_by_model(text: str) -> ModelReply:
    return ModelReply(
        number=0, text=text, content=text, finish_reason="stop", is_last=False, num_read=5, sampled_ids=(0, 0)
    )


def played(program: Callable[[Client], Any], **given: Any) -> tuple[float | None, list[ModelRequest]]:
    """Play a program that has a client; return its reward, and what it asked for."""
    driver = Driver(**given)
    return driver.play(lambda base_url, api_key: program(Client(base_url, api_key))), driver.asked


def calls_of(*calls: ToolCall, content: str = "") -> Callable[[int], dict[str, Any]]:
    """A script that calls tools in its first turn, and then says that it is done."""
    return lambda number: {"content": content, "calls": calls} if number == 0 else {"content": "done"}


HELLO = {"messages": [user("Hello.")]}


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b"{", None, "the body must be JSON, and is not"),
        (b'{"messages": NaN}', None, "the body must be JSON, and is not (NaN is no JSON)"),
        (b"\xff\xfe\xfd", None, "the body must be JSON, and is not"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', None, "the body must be JSON, and is not"),
        (b"[" * 100_000, None, "the body must be JSON, and is not"),
        ([], None, "the body must be a JSON object, got []"),
        ({}, "messages", "messages must hold at least one message"),
        ({"messages": "Hi."}, "messages", 'messages must be a list of messages, got "Hi."'),
        ({"messages": []}, "messages", "messages must hold at least one message"),
        (
            {"messages": ["Hi."]},
            "messages[0]",
            "messages[0] must be an object with a role among system, developer, user",
        ),
        (
            {"messages": [{"role": "function", "content": ""}]},
            "messages[0]",
            "messages[0] must be an object with a role",
        ),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "messages[0].content must be a text or a list of"),
        (
            {"messages": [user([{"type": "image_url", "image_url": {"url": "data:"}}])]},
            "messages[0].content",
            "messages[0].content must be a text or a list of parts of type text",
        ),
        (
            {"messages": [user("Hi."), {"role": "assistant", "content": "a"}]},
            "messages",
            "the last message must not be",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}]},
            "messages[0].tool_calls[0].function.arguments",
            "messages[0].tool_calls[0].function.arguments must be a JSON object in a text",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": {}, "function": {"name": "f"}}]}, user("Hi.")]},
            "messages[0].tool_calls",
            "messages[0].tool_calls must be a list of objects, an id of which is a text, got [{",
        ),
        (
            {"messages": [{"role": "tool", "tool_call_id": ["a"], "content": ""}]},
            "messages[0].tool_call_id",
            'messages[0].tool_call_id must be a text, got ["a"]',
        ),
        ({**HELLO, "tools": {}}, "tools", "tools must be a list, got {}"),
        ({**HELLO, "tools": [{"type": "web_search"}]}, "tools[0]", "tools[0] must be of type function and have a name"),
        ({**HELLO, "tools": [LOOK, LOOK]}, "tools[1]", "tools[1] must have a name of its own, and 'look' is"),
        ({**HELLO, "tool_choice": "required"}, "tool_choice", 'tool_choice must be "auto" or "none", got "required"'),
        ({**HELLO, "max_tokens": 0}, "max_tokens", "max_tokens must be a whole number from 1 on, got 0"),
        ({**HELLO, "max_tokens": 2.5}, "max_tokens", "max_tokens must be a whole number from 1 on, got 2.5"),
        ({**HELLO, "n": 65}, "n", "n must be a whole number from 1 to 64, got 65"),
        ({**HELLO, "n": True}, "n", "n must be a whole number from 1 to 64, got true"),
        ({**HELLO, "temperature": "hot"}, "temperature", 'temperature must be a number, got "hot"'),
        ({**HELLO, "stop": [1]}, "stop", "stop must be a text or a list of texts, got [1]"),
        ({**HELLO, "stream": "yes"}, "stream", 'stream must be true or false, got "yes"'),
        (
            {**HELLO, "logprobs": True},
            "logprobs",
            "logprobs is not taken: the record of the run has them; ask for token",
        ),
        ({**HELLO, "logit_bias": {"5": 1}}, "logit_bias", "logit_bias is not taken: it would change what is sampled"),
        ({**HELLO, "functions": [{}]}, "functions", "functions is not taken: it is of an older interface; send tools"),
        (
            {**HELLO, "response_format": {"type": "json_object"}},
            "response_format",
            'response_format must be text, got "json_object"',
        ),
        ({**HELLO, "model": 5}, "model", "model must be the name of a model, got 5"),
    ],
)
def test_what_cannot_be_taken_is_refused_in_one_sentence(body, param, message):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(Refusal) as refused:
        read_request("chat", data)
    assert str(refused.value).startswith(message)
    assert (refused.value.param, refused.value.status) == (param, 400)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        ("text", {"prompt": ["a", "b"]}, "prompt must be a text that is not empty"),
        ("text", {"prompt": "a", "echo": True}, "echo is not taken"),
        (
            "responses",
            {"input": "Hi.", "previous_response_id": "resp_1"},
            "previous_response_id is not taken: nothing is",
        ),
        ("responses", {"input": [{"type": "web_search_call"}]}, "input[0] must be a message or a function's call"),
    ],
)
def test_other_interfaces_refuse_what_they_cannot_take(kind, body, message):
    with pytest.raises(Refusal) as refused:
        read_request(kind, json.dumps(body).encode())
    assert str(refused.value).startswith(message)


def test_a_refused_request_is_an_error_of_openai_and_never_samples():
    def program(client):
        seen.append(client.ask("/chat/completions", {"messages": []}))
        seen.append(client.ask("/embeddings", {"input": "Hi."}))
        seen.append(client.ask("/chat/completions", b"", method="GET"))
        seen.append(client.ask("/models", b"", method="GET"))
        client.chat([user("Hello.")])

    seen = list[tuple[int, Any]]()
    _, asked = played(program)
    assert [status for status, _ in seen] == [400, 404, 405, 200]
    assert seen[0][1] == {
        "error": {
            "message": "messages must hold at least one message; send the conversation",
            "type": "invalid_request_error",
            "param": "messages",
            "code": None,
        }
    }
    assert seen[1][1]["error"]["message"].startswith("there is no POST /v1/embeddings; there are POST /v1/chat/compl")
    assert [model["id"] for model in seen[3][1]["data"]] == ["policy"]
    assert len(asked) == 1


def test_a_key_opens_its_own_episode_and_only_while_it_lasts():
    def first(base_url, api_key):
        client = Client(base_url, api_key)
        clients.append(client)
        client.chat([user("Hello.")])
        Driver().play(functools.partial(second, other=client))

    def second(base_url, api_key, other=None):
        client = Client(base_url, api_key)
        client.chat([user("Hello.")])
        for key in (other.api_key, "", "none", f"{api_key}x"):
            statuses.append(Client(base_url, key).ask("/chat/completions", HELLO)[0])
        statuses.append(client.ask("/chat/completions", HELLO, {"Authorization": api_key})[0])  # without `Bearer`

    clients, statuses, driver = list[Client](), list[int](), Driver()
    driver.play(first)
    assert statuses == [401] * 5
    assert len(driver.asked) == 1
    with pytest.raises(ConnectionError):  # nothing listens any more
        clients[0].chat([user("Hello.")])


def test_a_thread_that_outlives_its_program_is_refused():
    def program(base_url, api_key):
        clients.append(Client(base_url, api_key))
        clients[0].chat([user("Hello.")])

    clients, harness = list[Client](), Harness(program)
    harness.begin(TASK, seed=0)
    assert harness.observe(said_by_model("")).done
    status, body = clients[0].ask("/chat/completions", HELLO)
    assert (status, body["error"]["code"]) == (401, "invalid_api_key")
    harness.close()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "169.254.169.254", ""])
def test_another_host_is_refused_so_that_no_page_of_the_web_gets_in(host):
    def program(client):
        statuses.append(client.ask("/chat/completions", HELLO, {"Host": host})[0])
        statuses.append(client.ask("/chat/completions", HELLO, {"Host": "localhost:99"})[0])

    statuses = list[int]()
    _, asked = played(program)
    assert (statuses, len(asked)) == ([421, 200], 1)


def test_a_body_is_read_within_a_limit():
    def program(client):
        statuses.append(client.ask("/chat/completions", b" " * (MOST_BODY + 1))[0])
        statuses.append(client.ask("/chat/completions", HELLO, {"Content-Length": "many"})[0])
        statuses.append(client.ask("/chat/completions", HELLO, {"Content-Length": "9" * 20})[0])
        statuses.append(client.ask("/chat/completions", {"messages": [user("x" * (MOST_BODY // 2))]})[0])

    statuses = list[int]()
    played(program)
    assert statuses == [413, 400, 413, 200]


def test_garbage_on_the_line_harms_nobody():
    def program(client):
        where = urlsplit(client.base_url)
        for garbage in (b"\x16\x03\x01\x02\x00", b"POST\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
            with socket.create_connection((where.hostname, where.port)) as connection:
                connection.sendall(garbage)
        client.chat([user("Hello.")])
        return 1

    assert played(program)[0] == 1.0


def test_one_connection_serves_several_requests():
    def program(client):
        where = urlsplit(client.base_url)
        connection = http.client.HTTPConnection(where.hostname, where.port, timeout=30)
        for body in ({"messages": []}, HELLO, HELLO):
            connection.request(
                "POST", "/v1/chat/completions", json.dumps(body), {"Authorization": f"Bearer {client.api_key}"}
            )
            answer = connection.getresponse()
            statuses.append(answer.status)
            answer.read()
        connection.close()

    statuses = list[int]()
    played(program)
    assert statuses == [400, 200, 200]


def test_a_turn_comes_in_the_form_of_openai():
    call = ToolCall(name="look", arguments={"key": "é"})
    found = list[dict]()
    played(lambda client: found.append(client.chat([user("Hi.")], tools=[LOOK])), script=calls_of(call))
    assert found == [
        {
            "id": "chatcmpl-0",
            "object": "chat.completion",
            "created": 0,
            "model": "policy",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "tool_calls",
                    "logprobs": None,
                    "message": {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [
                            {
                                "id": "call_0_0",
                                "type": "function",
                                "function": {"name": "look", "arguments": '{"key": "é"}'},
                            }
                        ],
                    },
                }
            ],
            "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
        }
    ]


def test_a_function_gets_what_it_names():
    def all_of_it(task, base_url, api_key, model, seed):
        Client(base_url, api_key).chat(task["messages"])
        return float(seed) if model == "policy" else None

    def anything(**given):
        Client(given["base_url"], given["api_key"]).chat(given["task"]["messages"])
        return len(given)

    async def awaited(task, base_url, api_key):
        await asyncio.to_thread(Client(base_url, api_key).chat, task["messages"])
        return 0.5

    assert [Driver().play(one) for one in (all_of_it, anything, awaited)] == [11.0, 5.0, 0.5]


# --- clients that others wrote


def test_the_official_client_asks_and_calls_tools():
    openai = pytest.importorskip("openai")
    call = ToolCall(name="look", arguments={"key": "tea"})

    def program(base_url, api_key):
        client = openai.OpenAI(base_url=base_url, api_key=api_key)
        with pytest.raises(openai.BadRequestError, match="messages must hold at least one message"):
            client.chat.completions.create(model="policy", messages=[])
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=base_url, api_key="none").chat.completions.create(model="m", messages=[user("Hi.")])
        messages = [user("Find tea.")]
        answer = client.chat.completions.create(model="policy", messages=messages, tools=[LOOK], temperature=0.5)
        (made,) = answer.choices[0].message.tool_calls
        assert json.loads(made.function.arguments) == {"key": "tea"}
        messages += [answer.choices[0].message, {"role": "tool", "tool_call_id": made.id, "content": "3 francs"}]
        answer = client.chat.completions.create(model="policy", messages=messages, tools=[LOOK])
        assert answer.usage.total_tokens == 7
        return float(answer.choices[0].message.content == "done" and answer.choices[0].finish_reason == "stop")

    driver = Driver(script=calls_of(call))
    assert driver.play(program) == 1.0
    assert [request.after for request in driver.asked] == [None, 0]
    assert driver.asked[1].messages == ({"role": "tool", "tool_call_id": "call00000", "content": "3 francs"},)


def test_the_official_client_streams_and_gathers():
    openai = pytest.importorskip("openai")
    call = ToolCall(name="look", arguments={"key": "tea"})

    async def program(base_url, api_key):
        client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key)
        asked = {"model": "policy", "messages": [user("Hi.")], "tools": [LOOK], "stream": True}
        stream = await client.chat.completions.create(**asked, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        (made,) = chunks[0].choices[0].delta.tool_calls
        assert (made.index, made.function.name, chunks[0].choices[0].delta.content) == (0, "look", "So:")
        assert chunks[1].choices[0].finish_reason == "tool_calls"
        assert chunks[-1].usage.completion_tokens == 2
        texts = await asyncio.gather(*(text_of(client, number) for number in range(3)))
        return float(texts == ["done"] * 3)

    async def text_of(client, number):
        asked = {"model": "policy", "messages": [user(f"Part {number}.")], "n": 2}
        choices = (await client.chat.completions.create(**asked)).choices
        assert [choice.index for choice in choices] == [0, 1]
        return choices[1].message.content

    driver = Driver(script=calls_of(call, content="So:"))
    assert driver.play(program) == 1.0
    assert len(driver.asked) == 7


def test_the_official_client_continues_text_and_streams_it():
    openai = pytest.importorskip("openai")

    def program(base_url, api_key):
        client = openai.OpenAI(base_url=base_url, api_key=api_key)
        (choice,) = client.completions.create(model="policy", prompt="1 + 2 = ", max_tokens=5).choices
        texts = [one.choices[0].text for one in client.completions.create(model="p", prompt="1", stream=True)]
        return float([choice.text, *texts] == ["turn 0", "turn 1"])

    driver = Driver()
    assert driver.play(program) == 1.0
    assert [(request.text, request.max_tokens) for request in driver.asked] == [("1 + 2 = ", 5), ("1", None)]


def test_the_official_client_asks_for_responses():
    openai = pytest.importorskip("openai")
    call = ToolCall(name="look", arguments={"key": "tea"})
    flat = {"type": "function", "strict": True, **LOOK["function"]}

    def program(base_url, api_key):
        client = openai.OpenAI(base_url=base_url, api_key=api_key)
        items = [user([{"type": "input_text", "text": "Find tea."}])]
        given = {"model": "policy", "instructions": "Be brief.", "tools": [flat]}
        response = client.responses.create(input=items, **given)
        assert response.output_text == "So:"
        items += [one.model_dump(exclude_none=True) for one in response.output]
        items.append({"type": "function_call_output", "call_id": response.output[1].call_id, "output": "3 francs"})
        response = client.responses.create(input=items, max_output_tokens=9, **given)
        assert response.usage.total_tokens == 7
        return float(response.output_text == "done" and response.status == "completed")

    driver = Driver(script=calls_of(call, content="So:"))
    assert driver.play(program) == 1.0
    assert driver.asked[0].messages == (system("Be brief."), user("Find tea."))
    assert [request.tools for request in driver.asked] == [(LOOK,)] * 2
    assert (driver.asked[1].after, driver.asked[1].max_tokens) == (0, 9)
    assert driver.asked[1].messages == ({"role": "tool", "tool_call_id": "call00000", "content": "3 francs"},)


def test_the_official_client_ends_at_the_limit_by_an_error_that_it_does_not_repeat():
    openai = pytest.importorskip("openai")

    def program(base_url, api_key):
        client = openai.OpenAI(base_url=base_url, api_key=api_key)
        client.chat.completions.create(model="policy", messages=[user("Hi.")])
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="policy", messages=[user("Hi.")])
        return float(refused.value.code == "episode_over")

    driver = Driver(most=1)
    assert driver.play(program) == 1.0
    assert len(driver.asked) == 1


def test_an_agent_of_smolagents_is_trained_as_it_is():
    smolagents = pytest.importorskip("smolagents")
    pytest.importorskip("openai")
    scripted = [
        {"content": "", "calls": (ToolCall(name="price", arguments={"item": "tea"}),)},
        {"content": "", "calls": (ToolCall(name="final_answer", arguments={"answer": "3"}),)},
    ]

    class Price(smolagents.Tool):
        name, description, output_type = "price", "Looks up a price.", "string"
        inputs = {"item": {"type": "string", "description": "Name of the item."}}  # noqa: RUF012 - theirs

        def forward(self, item):
            return "3"

    def program(task, base_url, api_key):
        model = smolagents.OpenAIServerModel("policy", api_base=base_url, api_key=api_key, tool_choice="auto")
        agent = smolagents.ToolCallingAgent(tools=[Price()], model=model, max_steps=4, verbosity_level=0)
        return float(agent.run("What is the price of tea?") == task["answer"])

    driver = Driver(script=lambda number: scripted[number])
    assert driver.play(program) == 1.0
    names = [[one["function"]["name"] for one in request.tools] for request in driver.asked]
    assert names == [["price", "final_answer"]] * 2
    assert "stop" in driver.asked[0].settings


# --- branches


def branch_of(*messages: dict[str, Any], tools: tuple = ()) -> tuple[int, int] | None:
    """Where messages go on, after a turn that answered a greeting by a call, and one that answered its result."""
    branches = Branches()
    call = {"type": "function", "id": "c", "function": {"name": "look", "arguments": {"a": 1, "b": [2, None]}}}
    first = (system("S"), user("Hi."), {"role": "assistant", "content": "", "tool_calls": [call]})
    branches.add(0, first, [])
    branches.add(1, (*first, {"role": "tool", "content": "r"}, {"role": "assistant", "content": "done"}), [])
    return branches.find(messages_of(messages), tools)


CALLED = {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": '{"b": [2, null], "a": 1}'}}]}
RESULT, OK = {"role": "tool", "content": "r"}, {"role": "assistant", "content": " done\n", "reasoning_content": "hm"}


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ([system("S"), user("Hi."), CALLED, RESULT], (0, 3)),
        ([system("S"), user("Hi."), CALLED, RESULT, OK, user("More.")], (1, 5)),
        ([system("S"), user("Hi."), CALLED, RESULT, RESULT, user("More.")], (0, 3)),
        ([{"role": "developer", "content": "S"}, user("Hi."), CALLED, RESULT], (0, 3)),
        ([system("S"), user("Hi.")], None),  # the same again
        ([system("S"), user("Hi. "), CALLED, RESULT], None),  # another question
        ([user("Hi."), CALLED, RESULT], None),  # the system message is gone
        ([system("S"), user("Hi."), {**CALLED, "content": "So:"}, RESULT], None),
        ([system("S"), user("Hi."), CALLED, RESULT, {"role": "assistant", "content": "no"}, user("More.")], None),
        ([system("S"), user("Hi."), CALLED, RESULT, OK, system("T"), user("More.")], None),
    ],
)
def test_messages_go_on_from_the_latest_turn_that_they_begin_with(messages, found):
    assert branch_of(*messages) == found
    assert branch_of(*messages, tools=(LOOK,)) is None


# --- addresses


PROGRAM = """
import http.client, json, os, random, sys, urllib.parse

def chat(base_url, api_key, content="Hi."):
    where = urllib.parse.urlsplit(base_url)
    connection = http.client.HTTPConnection(where.hostname, where.port)
    body = json.dumps({"messages": [{"role": "user", "content": content}]})
    connection.request("POST", where.path + "/chat/completions", body, {"Authorization": "Bearer " + api_key})
    return connection.getresponse().status

def by_name(task, base_url, api_key):
    return chat(base_url, api_key, task["prompt"]) / 100

def by_variables(seed):
    print("noise")
    os.chdir("/")
    return chat(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], str(random.Random(seed).random())) / 100

def leaving():
    chat(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])
    os._exit(3)

def wrong(task, budget):
    pass

if __name__ == "__main__":
    task = json.load(sys.stdin)
    status = chat(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], task["prompt"])
    print("played")
    if task["answer"] == "exit":
        sys.exit("no more")
    print(status / 100 if task["answer"] == "3" else "judge it")
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "agent.py").write_text(PROGRAM)
    return tmp_path / "agent.py"


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts(step_seconds=30) as opened:
        yield opened


def outcomes(hosts: Hosts, address: str, task: dict[str, Any] = TASK) -> list[Outcome]:
    """Begin, answer and close an episode where a run would."""
    (spec,) = specs([address]).values()
    hosted, found = hosts.open(spec), list[Outcome]()
    turn = said_by_model("ok")
    for method, *given in (("begin", task, 7), ("observe", turn), ("close",)):
        arrived = asyncio.run(_called(hosted, method, *given))
        found.append(arrived)
    return found


async def _called(hosted: Any, method: str, *given: Any) -> Outcome:
    loop, future = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
    hosted.call(method, *given, then=lambda outcome: loop.call_soon_threadsafe(future.set_result, outcome))
    return await asyncio.wait_for(future, 60)


@pytest.mark.long
def test_a_function_runs_in_a_process_of_its_own_for_each_episode(hosts, program):
    begun, answered, closed = outcomes(hosts, f"harness:{program}:by_name")
    assert begun.value == ModelRequest(messages=(user("Hello."),))
    assert (answered.value.done, closed.value) == (True, 2.0)
    begun, _, closed = outcomes(hosts, f"harness:{program}:by_variables")
    assert begun.value.messages[0]["content"].startswith("0.32383")  # random.Random(7).random()
    assert closed.value == 2.0
    _, answered, _ = outcomes(hosts, f"harness:{program}:leaving")
    assert answered.failure == "its process ended with exit status 3"


@pytest.mark.long
def test_a_command_is_a_program_too(hosts, program):
    address = f"harness:command:{sys.executable} {program}"
    begun, _, closed = outcomes(hosts, address)
    assert (begun.value.messages, closed.value) == ((user("Hello."),), 2.0)
    assert outcomes(hosts, address, {**TASK, "answer": "4"})[2].value is None
    _, answered, _ = outcomes(hosts, address, {**TASK, "answer": "exit"})
    assert answered.failure == "the command ended with exit status 1: no more"


def test_an_address_says_what_it_leads_to(program):
    (spec,) = specs([f"harness:{program}:by_name"]).values()
    assert (spec.name, spec.own_process, spec.has_reward, spec.tools) == ("by_name", True, True, ())
    assert spec.digest != specs([f"harness:{program}:by_variables"])["by_variables"].digest
    program.write_text(PROGRAM + "\n")
    assert spec.digest != specs([f"harness:{program}:by_name"])["by_name"].digest


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("harness", "--environment harness: it needs a program: harness:file.py:FUNCTION, harness:module:FUNCTION"),
        ("harness:{}:none", "--environment {}:none: there is no 'none' in it; it defines chat, by_name, by_variables"),
        (
            "harness:{}:wrong",
            "--environment harness:{}:wrong: it takes 'budget', but a program is given task, base_url",
        ),
        ("harness:command:", "--environment harness:command:: there is no program ''"),
        ("harness:command:no-such-program x", "--environment harness:command:no-such-program x: there is no program"),
    ],
)
def test_a_wrong_address_is_refused_at_the_start(program, address, message):
    with pytest.raises(ConfigError) as refused:
        specs([address.format(program)])
    assert refused.value.message.startswith(message.format(program))
