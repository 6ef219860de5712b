"""`paceline chat`: a conversation with a model, also with tools, in the terminal or by lines of standard input."""

import itertools
import queue
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from paceline.cli.arguments import CONFIG, Command, parse
from paceline.cli.libraries import loading_libraries
from paceline.cli.serve import OPTIONS
from paceline.config.reading import options
from paceline.config.sections import Config
from paceline.environments import AgentTurn, EnvironmentSpec, ModelReply, ModelRequest, Observation
from paceline.environments.hosting import Hosts, Outcome
from paceline.errors import DONE, ConfigError, EnvironmentFailure
from paceline.openai_api.requests import ApiRequest, Refusal
from paceline.openai_api.responses import message_of
from paceline.serving.loading import load, read_options
from paceline.types import Message

if TYPE_CHECKING:
    from paceline.serving.choices import ResponsePart
    from paceline.serving.model import ServedModel

MOST_SHOWN = 500  # Characters of a tool's observation on the screen
ENDED = Refusal("the conversation has ended")
CONVERSATION_OPTIONS = ("system_prompt", "environment", "environment_timeout", "max_turns", "sandbox", "seed")
CODE_OPTIONS = ("trust_remote_code", "environment", "sandbox")
"""Options that may name code, which is run."""
COMMAND = Command(
    name="chat",
    usage="paceline chat --model MODEL [--environment TOOL ...] [--option value ...]",
    summary="Talk with a model: a line is a message, and its response is printed as it is sampled. /reset starts a new "
    "conversation, /exit or the end of the input ends it; Ctrl-C stops a response. With --environment the model may "
    "call tools (calculator, python, search:FOLDER, mcp:COMMAND, file.py:FUNCTION), and reads their results before it "
    "responds. With --seed the same lines get the same responses.",
    flags=(CONFIG,),
    options=(*OPTIONS, *(option for option in options() if option.name in CONVERSATION_OPTIONS)),
)


def run(argv: list[str]) -> int:
    """Talk until the input ends; returns the exit status."""
    arguments = parse(COMMAND, argv)
    configuration = read_options(arguments.options, file=arguments.flags.get("config"), runs=CODE_OPTIONS)
    config = configuration.config
    spec = _tools(config)
    system = config.data.system_prompt or ""
    if config.data.system_prompt_file is not None:
        raise ConfigError(f"--system-prompt {system} must be a text, as chat reads no file; give the text itself")
    model = load(config, say=lambda note: print(note, file=sys.stderr), loading=loading_libraries)
    if model.tokens is None:
        raise ConfigError(f"--model {config.model.model} cannot hold a conversation: {model.chat_problem}")
    thread, step_seconds = model.start(), config.environment.environment_timeout[0]
    with Hosts(step_seconds=step_seconds) as hosts:
        try:
            seed = config.loop.seed if "seed" in arguments.options else None
            make_tools = None if spec is None else partial(ChatTools, hosts, spec)
            _converse(Chat(model, make_tools, system=system, most_turns=config.environment.max_turns, seed=seed))
        finally:
            model.generations.break_off(ENDED)
            thread.join(10.0)
    if model.generations.failure is not None:
        raise model.generations.failure
    return DONE


def _tools(config: Config) -> EnvironmentSpec | None:
    """Return the environment of the tools that the options name; ConfigError for a game."""
    if not config.environment.environment:
        return None
    from paceline.environments.resolving import specs

    environments = specs(config.environment.environment, sandbox=config.rewards.sandbox)
    games = [name for name, spec in environments.items() if not spec.tools]
    if games or len(environments) > 1:
        reason = f"{games[0]} is a game" if games else f"{', '.join(environments)} are several environments"
        raise ConfigError(
            f"--environment must name tools for a conversation in the terminal, and {reason}; leave it out"
        )
    (spec,) = environments.values()
    spec.check()
    return spec


def _converse(chat: "Chat") -> None:
    for line in _lines():
        if line == "/exit":
            break
        if line == "/reset":
            chat.reset()
            print("(a new conversation)", flush=True)
        elif line.startswith("/"):
            print(
                "(there are /reset and /exit; begin a message with a blank to send one that starts with /)", flush=True
            )
        elif line.strip():
            try:
                chat.say(line.strip())
            except KeyboardInterrupt:
                print("\n(stopped)", flush=True)
            except Refusal as refusal:
                print(f"\n({refusal})", flush=True)


def _lines() -> Iterator[str]:
    """Yield the lines of standard input; Ctrl-C at the prompt discards the line."""
    is_terminal = sys.stdin.isatty()
    while True:
        try:
            if is_terminal:
                print("> ", end="", flush=True)
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            print(flush=True)
            continue
        if not line:
            return
        yield line.rstrip("\r\n")


class Chat:
    """The current conversation: its messages, and the tools that the model may call."""

    def __init__(
        self,
        model: "ServedModel",
        make_tools: Callable[[], "ChatTools"] | None,
        *,
        system: str,
        most_turns: int | None,
        seed: int | None,
    ) -> None:
        self._model, self._most_turns, self._seed = model, most_turns, seed
        self._make_tools = make_tools
        self._tools = None if make_tools is None else make_tools()
        self._start: tuple[Message, ...] = ({"role": "system", "content": system},) if system else ()
        self._messages: tuple[Message, ...] = self._start
        self._turns_sampled = 0

    def reset(self) -> None:
        """Begin a new conversation, with new tools."""
        self._messages = self._start
        if self._tools is not None and self._make_tools is not None:
            self._tools.close()
            self._tools = self._make_tools()

    def say(self, text: str) -> None:
        """Send a message, and print the reply and the tool calls on the way; a stopped reply is dropped.

        Tools with an interrupted call are replaced, as their state is unknown.

        Raises:
            Refusal: there is no reply.
            EnvironmentFailure: a tool has failed.
        """
        before, tools = self._messages, self._tools
        self._messages = (*before, {"role": "user", "content": text})
        try:
            for number in itertools.count(1):
                turn = self._sample(() if tools is None else tools.schemas)
                self._messages = (*self._messages, message_of(turn))
                observations = () if tools is None else tools.observe(turn, is_last=number == self._most_turns)
                if not observations:
                    return
                self._messages = (*self._messages, *observations)
        except (KeyboardInterrupt, Refusal):
            if tools is not None and tools.was_stopped:
                self.reset()
            self._messages = before
            raise

    def _sample(self, schemas: Sequence[Mapping[str, Any]]) -> ModelReply:
        """Sample a turn, and print its text as it arrives."""
        settings = {} if self._seed is None else {"seed": self._seed + self._turns_sampled}
        self._turns_sampled += 1
        model_request = ModelRequest(messages=self._messages, tools=tuple(schemas), settings=settings)
        request = ApiRequest(kind="chat", wanted=model_request, model="", stream=True, digest=b"")
        arrived: queue.SimpleQueue[Sequence[ResponsePart] | Refusal] = queue.SimpleQueue()
        response = self._model.begin(request, lambda _, event: arrived.put(event))
        turn: ModelReply | None = None
        try:
            while turn is None:
                event = arrived.get()
                if isinstance(event, Refusal):
                    raise event
                for _, part in event:
                    if isinstance(part, ModelReply):
                        turn = part
                    elif "content" in part:
                        print(part["content"], end="", flush=True)
        finally:
            response.generation.give_up()
        print("" if turn.finish_reason == "stop" else " (cut at --max-completion-length)", flush=True)
        return turn


class ChatTools:
    """The tools of one conversation, which may keep state from call to call."""

    def __init__(self, hosts: Hosts, spec: EnvironmentSpec) -> None:
        self._spec, self._hosted = spec, hosts.open(spec)
        self.was_stopped = False
        """True once Ctrl-C has interrupted a call."""
        self.schemas = spec.tools
        self._call("begin", {"prompt": "", "messages": [], "answer": None}, 0)

    def observe(self, turn: AgentTurn, *, is_last: bool) -> tuple[Message, ...]:
        """Run and print the calls of a turn; returns the messages for the model, empty without calls."""
        if is_last or not (turn.calls or turn.malformed):
            return ()
        observed = self._call("observe", turn)
        assert isinstance(observed, Observation)
        for call in turn.calls:
            print(f"[{call.name} {dict(call.arguments)}]", flush=True)
        for message in observed.messages:
            print(f"[-> {str(message['content'])[:MOST_SHOWN]}]", flush=True)
        return observed.messages

    def close(self) -> None:
        """Close the tools without waiting."""
        self._hosted.call("close", then=lambda outcome: None)

    def _call(self, method: Any, *arguments: object) -> object:
        arrived = queue.SimpleQueue[Outcome]()
        try:
            self._hosted.call(method, *arguments, then=arrived.put)  # Ctrl-C may come before this returns
            outcome = arrived.get()
        except KeyboardInterrupt:
            self.was_stopped = True
            raise
        if outcome.failure is not None:
            raise EnvironmentFailure(f"--environment {self._spec.name} failed: {outcome.failure}")
        return outcome.value
