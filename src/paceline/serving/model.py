"""A model that serves requests: from a request to the tokens of its prompt, and to the engine.

A prompt that can have no room is refused before anything is rendered.
"""

import itertools
import json
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from paceline.chat.escaping import ChatTokenizer
from paceline.chat.requests import ModelRequest, requested_context
from paceline.chat.turns import TurnTokens, plain_prompt
from paceline.data.pictures import Picture
from paceline.data.row_images import image_parts
from paceline.engines import Request, Sampling, TrainedEngine, sample_key
from paceline.errors import ConfigError, ModelError
from paceline.openai_api.requests import ApiRequest, Refusal
from paceline.serving.choices import Choice, OnParts, RunningResponse, TextReader
from paceline.serving.generations import Generation, Generations
from paceline.serving.images import ImagePrompts, ServedPrompt

DRAWN_BY = ("temperature", "top_p", "top_k", "min_p")
"""Settings of a request that say how its tokens are drawn."""
LEAST_TEMPERATURE = 1e-4
"""Below it the most probable token is taken: another one would need a logit that is less than 0.01 lower."""
TOOLS_SHARE = 2
"""Tools whose JSON has more tokens than this many prompts are refused: a template may show less than all of it."""


class PromptReader:
    """Makes prompts for any number of threads."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        tokens: TurnTokens | None,
        *,
        problem: str,
        length: int,
        images: ImagePrompts | None = None,
    ) -> None:
        """`tokens`: None where the model can hold no conversation, and `problem` says why; `length` is the number of
        tokens of a prompt and its completion, at most; `images`: None where the model reads text alone."""
        self._tokenizer, self._tokens, self._problem, self._length = tokenizer, tokens, problem, length
        self._images = images
        self._most_characters = length * max(map(len, tokenizer.get_vocab()), default=1)
        self._rendering, self._proving = threading.Lock(), threading.Lock()
        """Held while a prompt is made, as what renders it keeps what it has rendered; and while the template is tried
        with new tools, which takes longer, so that other requests do not wait."""

    def read(self, request: ModelRequest) -> tuple[ServedPrompt, TurnTokens | None]:
        """Return a prompt, and what reads its completion; raises Refusal."""
        tools, pictures = json.dumps(request.tools) if request.tools else "", tuple[Picture, ...]()
        if image_parts(request.messages):
            if self._images is None:
                raise Refusal("the messages hold images, and the model reads text alone; send text", "messages")
            messages, pictures = self._images.read(request.messages)
            request = replace(request, messages=messages)
        characters = len(request.text or "") + len(tools) + _characters(request.messages)
        if len(request.messages) > self._length or characters > self._most_characters:
            problem = f"the prompt is longer than the {self._length} tokens that there is room for"
            raise Refusal(f"{problem}; send a shorter one", "messages", code="context_length_exceeded")
        if request.text is not None:
            with self._rendering:
                return ServedPrompt(ids=plain_prompt(cast(ChatTokenizer, self._tokenizer), request.text)), None
        if self._tokens is None:
            raise Refusal(f"{self._problem}; ask /v1/completions", "messages")
        if tools:
            self._refuse_long_tools(tools)
        try:
            with self._proving if tools else nullcontext():
                tokens = self._tokens.with_tools(request.tools)
            with self._rendering:
                if not pictures:
                    return ServedPrompt(ids=requested_context(request, tokens).ids), tokens
                assert self._images is not None  # they have read the pictures
                text = tokens.text([tokens.plain.read_message(message)[0] for message in request.messages])
                return self._images.prompt(text, pictures, tokens.plain.encode), tokens
        except (ConfigError, ModelError) as error:
            raise Refusal(str(error), "messages") from error

    def _refuse_long_tools(self, tools: str) -> None:
        count = len(self._tokenizer(tools, add_special_tokens=False, verbose=False)["input_ids"])
        if count > TOOLS_SHARE * self._length:
            problem = f"the tools have {count} tokens as JSON, and there is room for {self._length} with the messages"
            raise Refusal(f"{problem}; send fewer, or say less of each", "tools", code="context_length_exceeded")


def _characters(value: object) -> int:
    """Characters of all texts in a value, at any depth: a template may show each, also a thought or an argument."""
    if isinstance(value, Mapping):
        return sum(_characters(key) + _characters(inner) for key, inner in value.items())
    return sum(map(_characters, value)) if isinstance(value, list | tuple) else len(str(value))


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedModel:
    """A model that responds to requests: its engine, and what reads prompts and writes text."""

    name: str
    engine: TrainedEngine
    tokenizer: PreTrainedTokenizerBase
    end_tokens: frozenset[int]
    tokens: TurnTokens | None
    """Tokens of conversations; None: the model can hold none."""
    chat_problem: str
    """Reason why it can hold none, in a sentence; empty where it can."""
    sampling: Sampling
    """Sampling of a request that does not say otherwise; its limit is that of a response."""
    length: int
    """Tokens of a prompt and its completion, at most."""
    vocabulary: int
    """Tokens that the model has weights for."""
    generations: Generations
    prompts: PromptReader
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(int(time.time() * 1000)))
    """Numbers of choices, which go on where those of an earlier process ended."""

    def run(self) -> None:
        """Let the engine sample until `generations` is closed.

        In the thread that has loaded the model it takes a tenth less time: OpenMP keeps threads for each thread that
        computes, and with more of them than cores they sleep between any two operations.
        """
        self.generations.run(self.engine, length=self.length)

    def start(self) -> threading.Thread:
        """`run` in a thread of its own, which is returned."""
        thread = threading.Thread(target=self.run, name="engine", daemon=True)
        thread.start()
        return thread

    def begin(self, request: ApiRequest, on_parts: OnParts | None = None) -> RunningResponse:
        """Ask the engine for the response to a request; raises Refusal.

        `on_parts` is called for each token where the request is for a stream.
        """
        wanted, settings = request.wanted, request.wanted.settings
        prompt, tokens = self.prompts.read(wanted)
        ids = prompt.ids
        if max(ids, default=0) >= self.vocabulary:
            problem = f"the tokenizer has token {max(ids)}, and the model weights for {self.vocabulary}"
            remedy = "put the model's own tokenizer beside it"
            raise Refusal(f"{problem}; {remedy}", status=HTTPStatus.INTERNAL_SERVER_ERROR)
        room = self.length - len(ids)
        if not ids or room < 1:
            problem = f"the prompt must have from 1 to {self.length - 1} tokens, and has {len(ids)}"
            raise Refusal(f"{problem}; send a shorter one", "messages", code="context_length_exceeded")
        stop = tuple(settings["stop"]) if "stop" in settings else self.sampling.stop
        limit = min(room, self.sampling.max_completion_length if wanted.max_tokens is None else wanted.max_tokens)
        seed = settings["seed"] if "seed" in settings else secrets.randbits(63)
        reader = TextReader(self.tokenizer, self.end_tokens, wanted, tokens, stop=stop, has_logprobs=request.logprobs)
        choices = [Choice(reader, next(self.numbers), ids) for _ in range(request.choices)]
        response = RunningResponse(choices, on_parts, has_stop=bool(stop))
        response.generation = Generation(
            Request(
                prompt_ids=ids,
                media=prompt.media,
                keys=tuple(sample_key(seed, "serve", "", 0, sample) for sample in range(request.choices)),
                limits=(limit,) * request.choices,
            ),
            self._sampling_of(settings),
            at_once=request.stream or bool(stop),
            on_sampled=response.add,
            pictures=prompt.pictures,
        )
        self.generations.add(response.generation)
        return response

    def _sampling_of(self, settings: Mapping[str, Any]) -> Sampling:
        """Return the sampling of a request, without limit and stop strings: those that are drawn alike are then equal.

        A temperature close to 0, by which logits would overflow, is 0.
        """
        drawn = {name: settings[name] for name in DRAWN_BY if name in settings}
        if "top_k" in drawn:
            drawn["top_k"] = max(0, int(drawn["top_k"]))
        sampling = replace(self.sampling, max_completion_length=self.length, stop=(), **drawn)
        return replace(sampling, temperature=0.0) if sampling.temperature < LEAST_TEMPERATURE else sampling
