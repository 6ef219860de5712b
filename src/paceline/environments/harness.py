"""A program that brings its own loop, as an environment: its requests are turns, and what it returns is the reward.

| the program | becomes |
|---|---|
| sends the messages of an earlier turn, what it said, and more | that turn's tokens, and the new messages behind them |
| sends other messages, or other tools | a context of its own, rendered as a whole |
| sends several requests at once | turns one after the other, in the order of arrival |
| asks for `n` choices | `n` turns from one context, or as many as the episode has left |
| lost the connection, and sends the same again next | the same response, not another turn |
| returns a number, or None | the reward, or none |
| raises, and was refused a turn beyond the limits | an episode at its limit, without a reward of its own |
| raises, returns another value, or never asks | a failed episode |
"""

import asyncio
import contextlib
import inspect
import json
import os
import queue
import subprocess
import threading
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from http import HTTPStatus
from numbers import Real
from typing import IO, Any

from paceline.base_directory import base_directory
from paceline.environments import AgentTurn, ModelReply, ModelRequest, Observation
from paceline.environments.agent_program import endpoint_variables, keep_variables, refuse_all
from paceline.environments.hosting.results import awaited
from paceline.errors import ConfigError, EnvironmentFailure
from paceline.http.events import EventStream
from paceline.openai_api.endpoint import Endpoint, Pending
from paceline.openai_api.requests import Refusal
from paceline.openai_api.responses import body_of, events_of, message_of
from paceline.types import Message

ARGUMENTS = ("task", "base_url", "api_key", "model", "seed")
"""Arguments of a program's function, of which it takes those that it names."""
WRITTEN_SECONDS = 10.0
"""Seconds in which a response is written to a client of this machine."""
MOST_LINE = 500  # Characters of a command's last line in a failure
MOST_READ = 1 << 16  # Bytes of a line of its output that are read at once
OVER = Refusal(
    # many programs look for `maximum context length`, and end by themselves
    "the episode is over: its turns or tokens are used up (--max-turns, --max-completion-length, --max-prompt-length), "
    "or the model cannot be shown the request; end as at its maximum context length, and return the reward of what "
    "there is",
    code="episode_over",
)
ENDED = Refusal(
    "the key's episode has ended; ask while the program runs", code="invalid_api_key", status=HTTPStatus.UNAUTHORIZED
)


def check_program(function: Callable[..., Any], *, label: str) -> None:
    """Refuse a function that cannot be called with what a program is given (ConfigError)."""
    needed = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        and (parameter.name not in ARGUMENTS or parameter.kind is inspect.Parameter.POSITIONAL_ONLY)
    ]
    if needed:
        raise ConfigError(
            f"{label}: it takes {needed[0]!r}, but a program is given {', '.join(ARGUMENTS)} by name; "
            "take some of these"
        )


def run_command(words: Sequence[str], *, task: Mapping[str, Any], base_url: str, api_key: str) -> float | None:
    """Run a command as the program of an episode; returns the number in its last line, or None where it has none.

    It reads the task as JSON, and finds the endpoint in the variables OPENAI_BASE_URL and OPENAI_API_KEY.

    Raises:
        EnvironmentFailure: it cannot be started, or ended with another exit status than 0.
    """
    variables = os.environ | endpoint_variables(base_url, api_key)
    last = {1: b"", 2: b""}
    try:
        with subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=variables,
            cwd=base_directory(),
        ) as process:
            assert process.stdin is not None
            outputs = ((process.stdout, 1), (process.stderr, 2))
            readers = [threading.Thread(target=_pass_on, args=(*output, last), daemon=True) for output in outputs]
            for reader in readers:
                reader.start()
            with contextlib.suppress(BrokenPipeError):  # it need not read its task
                process.stdin.write(json.dumps(task).encode())
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            for reader in readers:
                reader.join()
    except OSError as error:
        raise EnvironmentFailure(f"the command cannot be started ({error})") from error
    output, errors = (last[stream].decode(errors="replace").strip() for stream in (1, 2))
    if process.returncode != 0:
        raise EnvironmentFailure(f"the command ended with exit status {process.returncode}: {errors[-MOST_LINE:]}")
    try:
        return float(output)
    except ValueError:
        return None


def _pass_on(stream: IO[bytes], descriptor: int, last: dict[int, bytes]) -> None:
    """Write what a command prints to this process's own output, and keep its last line that is not blank."""
    while line := stream.readline(MOST_READ):
        if line.strip():
            last[descriptor] = line
        os.write(descriptor, line)


class Branches:
    """The turns of an episode by the messages that lead up to each and those that it added."""

    def __init__(self) -> None:
        self._turns = dict[bytes, int]()

    def add(self, turn: int, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> None:
        """Note the messages of a turn: what it read, and what it said."""
        self._turns[_digests(messages, tools)[-1]] = turn

    def find(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> tuple[int, int] | None:
        """Return the turn that messages go on from, and the number of those that lead up to its end; None: no turn.

        What follows is of tools and users: a made-up turn of the model, or another system message, is none.
        """
        digests = _digests(messages, tools)
        for count in range(len(messages) - 1, 0, -1):
            if messages[count]["role"] not in ("tool", "user"):
                return None
            if (turn := self._turns.get(digests[count])) is not None:
                return turn, count
        return None


def _digests(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """Hash the tools with each number of messages, from none to all."""
    digests = [_digest(b"", list(tools))]
    for message in messages:
        content, calls = str(message["content"]), message.get("tool_calls")
        compared: dict[str, Any] = {"role": message["role"], "content": content}
        if message["role"] == "assistant":
            # clients leave thinking and blanks out, and give calls other ids
            compared["content"] = content.strip()
            compared["calls"] = [call["function"] for call in calls] if isinstance(calls, list) else []
        digests.append(_digest(digests[-1], compared))
    return digests


def _digest(before: bytes, value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return blake2b(before + text.encode(errors="surrogatepass"), digest_size=16).digest()


class Harness:
    """The environment of a program: a function that plays an episode against an endpoint, and returns its reward."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        variables: MutableMapping[str, str] | None = None,
        load: Callable[[], Callable[..., Any]] | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            function: the program.
            variables: where the endpoint's address and key are set too, those of a process of its own.
            load: returns the program once they are set; None: `function` is it.
        """
        self._function, self._variables, self._load = function, variables, load
        self._arrived = queue.SimpleQueue[Pending | None]()
        """Requests, and None once the program has ended."""
        self._endpoint: Endpoint | None = None
        self._branches = Branches()
        self._pending: Pending | None = None
        """The request that turns are sampled for."""
        self._request = ModelRequest()
        """Request to the model on its behalf."""
        self._choices: list[ModelReply] = []
        self._latest: tuple[Pending, list[ModelReply]] | None = None
        """The latest request that got a response, and its turns."""
        self._has_ended = False
        self._value: Any = None
        self._raised: BaseException | None = None

    def begin(self, task: Mapping[str, Any], seed: int) -> ModelRequest:
        """Start the program, and wait for its first request.

        Raises:
            EnvironmentFailure: it returned without one.
        """
        self._endpoint = Endpoint(refuse_all)
        self._endpoint.start()
        url, key = self._endpoint.base_url, self._endpoint.key
        if self._variables is not None:
            self._variables.update(endpoint_variables(url, key))
            if self._load is not None:
                keep_variables()
                self._function = self._load()
        self._endpoint.take = self._arrived.put
        arguments = {"task": task, "base_url": url, "api_key": key, "model": "policy", "seed": seed}
        takes = inspect.signature(self._function).parameters
        if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in takes.values()):
            arguments = {name: value for name, value in arguments.items() if name in takes}
        threading.Thread(target=self._play, args=(arguments,), name="program", daemon=True).start()
        request = self._next()
        if request is None:
            raise EnvironmentFailure(
                "the program returned without a request; let it ask POST {base_url}/chat/completions at least once"
            )
        return request

    def observe(self, turn: AgentTurn) -> Observation:
        """Respond to the program's request with a turn, and wait for the next one, or for the program's end."""
        assert self._pending is not None
        assert isinstance(turn, ModelReply)
        self._choices.append(turn)
        self._note(turn)
        if len(self._choices) < self._pending.request.choices and not turn.is_last:
            return Observation(request=self._request)
        self._respond(self._pending, self._choices)
        self._latest, self._pending = (self._pending, self._choices), None
        request = self._next()
        if request is None:
            return Observation(done=True)
        is_next = request.after == turn.number
        return Observation(
            request=request, calls=sum(message["role"] == "tool" for message in request.messages) if is_next else 0
        )

    def close(self) -> float | None:
        """End the episode: requests are refused from now on. Waits for the program, and returns its reward.

        Raises:
            EnvironmentFailure: it raised, though no turn was refused, or it returned something else.
        """
        if self._endpoint is None:
            return None
        self._refuse_all(self._endpoint)
        if self._raised is not None:
            if self._endpoint.has_refused:
                return None
            raise self._raised
        if self._value is not None and not isinstance(self._value, Real):
            kind = type(self._value).__name__
            raise EnvironmentFailure(f"the program returned a value of type {kind}, but a reward is a number or None")
        return None if self._value is None else float(self._value)

    def _refuse_all(self, endpoint: Endpoint) -> None:
        """Refuse requests until the program has ended, and then close its endpoint."""
        if not self._has_ended:
            endpoint.ended = OVER
        if self._pending is not None:
            endpoint.refuse(self._pending)
        while not self._has_ended:
            if (pending := self._arrived.get()) is None:
                self._has_ended = True
            else:
                endpoint.refuse(pending)
        endpoint.ended = ENDED
        endpoint.close()
        while not self._arrived.empty():  # of threads that the program has left behind
            if (pending := self._arrived.get()) is not None:
                pending.respond(ENDED)

    def _play(self, arguments: Mapping[str, Any]) -> None:
        try:
            value = self._function(**arguments)
            self._value = asyncio.run(awaited(value)) if inspect.isawaitable(value) else value
        except BaseException as error:  # noqa: BLE001 - the border: it is raised where the program is waited for
            self._raised = error
        finally:
            self._arrived.put(None)

    def _next(self) -> ModelRequest | None:
        """Wait for a request that asks for something new; None: the program has ended. Raises what it raised."""
        while (pending := self._arrived.get()) is not None:
            if not self._is_repeated(pending):
                self._pending, self._choices, self._request = pending, [], self._continued(pending.request.wanted)
                return self._request
        assert self._endpoint is not None
        self._has_ended, self._endpoint.ended = True, ENDED
        if self._raised is not None:
            raise self._raised
        return None

    def _is_repeated(self, pending: Pending) -> bool:
        """Return True for the latest request sent again, as its response was lost; it gets the same one."""
        if self._latest is None:
            return False
        before, choices = self._latest
        if pending.request.digest != before.request.digest:
            return False
        was_written = before.is_written.wait(WRITTEN_SECONDS)
        # one whose own client is gone was sent first, and has been overtaken by the same sent again
        if was_written and not before.was_lost and not pending.is_retry and not pending.is_gone():
            return False
        self._respond(pending, choices)
        self._latest = pending, choices
        return True

    def _continued(self, wanted: ModelRequest) -> ModelRequest:
        """Return a request with the turn that it goes on from, and only the messages behind that."""
        earlier = self._branches.find(wanted.messages, wanted.tools) if wanted.text is None else None
        if earlier is None:
            return wanted
        turn, num_messages = earlier
        return replace(wanted, after=turn, messages=wanted.messages[num_messages:])

    def _note(self, turn: ModelReply) -> None:
        assert self._pending is not None
        wanted = self._pending.request.wanted
        if wanted.text is None:
            self._branches.add(turn.number, (*wanted.messages, message_of(turn)), wanted.tools)

    def _respond(self, pending: Pending, choices: Sequence[ModelReply]) -> None:
        request = pending.request
        if not request.stream:
            pending.respond(body_of(request, choices))
            return
        events = EventStream()
        events.add(b"".join(events_of(request, choices)), is_last=True)
        pending.respond(events)
