"""A served model whose engine says what it is told, step by step, and one on a tiny model: both need no download."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle

from paceline.chat.turns import TurnTokens
from paceline.engines import RequestStream, Sampled, Sampling, TrainedEngine
from paceline.engines.local.engine import LocalEngine
from paceline.serving.generations import Generations
from paceline.serving.model import PromptReader, ServedModel
from paceline.serving.server import ModelServer
from tests.support.tiny import VOCAB_SIZE, local_engine, tiny_model, tiny_tokenizer

END = 258
LENGTH = 4000
"""Tokens of a prompt and its answer; a tiny model reaches 512."""
KEY = "a-key"
SAMPLING = Sampling(max_completion_length=40)


class ScriptedEngine(TrainedEngine):
    """Says one of these texts for each completion, a byte in each step, and then an end token."""

    path, path_reason, policy_version, takes_further = "scripted", "it says what it is told", 0, False

    def __init__(self, *texts: str, steps: threading.Semaphore | None = None, least: int = 1):
        """`steps`: one is taken for each step; `least`: requests that must be there before the first step."""
        tokenizer = tiny_tokenizer()
        self._tokens = cycle([tokenizer.encode(text, add_special_tokens=False) for text in texts])
        self._steps, self._least = steps, least
        self.most = 0
        """Completions at the same time, at most."""
        self.taken: list[tuple[tuple[int, ...], Sampling, tuple[int, ...]]] = []
        """Prompt, sampling and keys of each request."""
        self.cut: list[int] = []
        """Tokens of each completion that somebody wanted no more of."""
        self.was_cut = threading.Event()
        self.fails: Callable[[], None] = lambda: None

    def let_go(self) -> None:
        """Take as many steps as there are from now on."""
        self._least = 0
        if self._steps is not None:
            self._steps.release(1_000_000)

    def stream(self, stream: RequestStream, *, length: int) -> None:
        left, is_open, first = dict[tuple[int, int], list[int]](), True, len(self.taken)
        while is_open or left:
            wait = not left or (is_open and len(self.taken) < self._least)
            more = stream.take(wait=wait) if is_open else ()
            is_open = more is not None
            for request, sampling in more or ():
                for sample, limit in enumerate(request.limits):
                    left[len(self.taken) - first, sample] = [*next(self._tokens), END][:limit]
                self.taken.append((request.prompt_ids, sampling, request.keys))
            if not left or len(self.taken) < self._least:
                continue
            if self._steps is not None:
                self._steps.acquire()
            self.fails()
            self.most = max(self.most, len(left))
            self._step(stream, left)

    def _step(self, stream: RequestStream, left: dict[tuple[int, int], list[int]]) -> None:
        told = []
        for (request, sample), tokens in left.items():
            token = tokens.pop(0)
            reason = None if tokens else "stop" if token == END else "length"
            told.append(
                Sampled(request=request, sample=sample, token_ids=(token,), logprobs=(-0.5,), finish_reason=reason)
            )
        for one, is_unwanted in zip(told, stream.tell(told), strict=True):
            rest = left[one.request, one.sample]
            if is_unwanted or one.finish_reason is not None:
                del left[one.request, one.sample]
            if is_unwanted and one.finish_reason is None:
                self.cut.append(len(rest))
                self.was_cut.set()


def served(
    engine: TrainedEngine, *, capacity: int = 64, sampling: Sampling = SAMPLING, length: int = LENGTH, **given
) -> ServedModel:
    tokenizer = tiny_tokenizer(**given)
    has_template = tokenizer.chat_template is not None
    tokens = TurnTokens(tokenizer, stop_ids={END}) if has_template else None
    problem = "" if has_template else "it has no chat template"
    return ServedModel(
        name="tiny",
        engine=engine,
        tokenizer=tokenizer,
        end_tokens=frozenset({END}),
        tokens=tokens,
        chat_problem=problem,
        sampling=sampling,
        length=length,
        vocabulary=VOCAB_SIZE,
        generations=Generations(capacity),
        prompts=PromptReader(tokenizer, tokens, problem=problem, length=length),
    )


def tiny_engine(*, slots: int = 64) -> LocalEngine:
    return local_engine(tiny_model(), slots=slots, eos=(END,))


@contextmanager
def server(engine: TrainedEngine, **given) -> Iterator[ModelServer]:
    """A server on a free port, stopped at the end."""
    one = ModelServer(served(engine, **given), host="127.0.0.1", port=0, key=KEY)
    one.model.start()
    try:
        yield one
    finally:
        if isinstance(engine, ScriptedEngine):
            engine.let_go()
        one.stop(0.0)


def texts_of(chunks: Sequence) -> str:
    """The text of a stream's chunks, of chat or not."""
    choices = [choice for chunk in chunks for choice in chunk.choices]
    return "".join((one.text if hasattr(one, "text") else one.delta.content) or "" for one in choices)
