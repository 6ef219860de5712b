"""Engines sample completions. This file is the interface; `local/` is the default, `vllm/` the other one.

requests.py    shared by engines: checks of requests, end of completions, decoded text, policy versions
sampling.py    tokens drawn by counter-based random numbers
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.types import Completion, FinishReason, Media


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How completions are drawn: the same for all requests of a call; each request of a stream has its own."""

    max_completion_length: int
    """Tokens of a completion, at most."""
    temperature: float = 1.0
    """Divides the logits; 0 takes the most probable token."""
    top_p: float = 1.0
    """Sample among the most probable tokens with this total probability; 1 is off."""
    top_k: int = 0
    """Sample among this many most probable tokens; 0 is off."""
    min_p: float = 0.0
    """Sample among tokens of at least this share of the top token's probability; 0 is off."""
    stop: tuple[str, ...] = ()
    """A completion ends after any of these strings; the string stays in the text, but for special tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One tokenised prompt and the completions to sample of it."""

    prompt_ids: tuple[int, ...]
    media: tuple[Media, ...] = ()
    """Images of the prompt. Prompts are the same where tokens and images are."""
    keys: tuple[int, ...]
    """One 64-bit key per completion: key and position determine every random number of the completion."""
    limits: tuple[int, ...] | None = None
    """Tokens of each completion at most, in the order of `keys`; None: the sampling's limit for all."""
    continues: tuple[int, int] | None = None
    """An earlier completion of the same call, as indices of its request and within it: the prompt begins with that
    request's prompt and its tokens, so what is cached of them may be used. Such a request has one key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """A completion that has ended while others go on."""

    request: int
    """Index of its request in the call, further requests included."""
    sample: int
    """Index among the completions of its request."""
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason


OnFinished = Callable[[Finished], bool]
"""Called with a completion as soon as it has ended. True: a request may continue it, so its cache is kept if memory
allows."""


class FurtherRequests(Protocol):
    """Requests that come up while a call runs: the next turns of conversations."""

    def take(self, *, wait: bool) -> Sequence[Request] | None:
        """Take the requests that have come up since the last call; None: there will be no more.

        `wait` blocks until there is one, or will be no more; else the sequence may be empty. The wait is bounded by the
        deadlines of the callers of these requests.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """Tokens that one step of an engine has added to a completion."""

    request: int
    """Index of its request, counted over all that the engine has taken."""
    sample: int
    """Index among the completions of its request."""
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log-probability of each token in nats; not finite if the model's logits were not."""
    finish_reason: FinishReason | None
    """Why the completion has ended; None: it goes on."""


class RequestStream(Protocol):
    """Requests that come up at any time, each with its own sampling, and the listener to their tokens."""

    def take(self, *, wait: bool) -> Sequence[tuple[Request, Sampling]] | None:
        """Take the requests that have come up since the last call; None: there will be no more.

        `wait` blocks until there is one, or will be no more; else the sequence may be empty.
        """

    def tell(self, sampled: Sequence[Sampled]) -> Sequence[bool]:
        """Receive the tokens of one step, in the engine's thread. Returns True for each completion to end at once."""


TakeNewer = Callable[[], int | None]
"""Called between two tokens. Puts newer weights into the model, if there are any, and returns their policy version;
None: the weights are unchanged."""


class Engine(Protocol):
    """Samples completions. Knows nothing of rewards, losses or files."""

    takes_further: bool
    """True if `generate` calls `on_finished` and takes `further` requests; False: it does neither."""

    def generate(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        *,
        on_finished: OnFinished | None = None,
        further: FurtherRequests | None = None,
    ) -> list[tuple[Completion, ...]]:
        """Sample `len(request.keys)` completions of each request, in request order, then of each of `further`.

        `on_finished` is called in this call's thread, in the order in which completions end. `further` is polled
        between two tokens, and waited for once nothing else is left to do.
        """


class TrainedEngine(Engine, Protocol):
    """An engine on a model that is being trained."""

    path: str
    """Name of the decoder or engine in use."""
    path_reason: str
    """One sentence on why that path was chosen."""
    policy_version: int
    """Number of optimiser updates of the weights in use; copied into completions."""

    def take_weights(self, policy_version: int) -> None:
        """Sample from the model's changed weights from now on; `policy_version` is their number of updates.

        Raises:
            TrainingError: the engine then computes other logprobs than the trainer.
        """

    def stream(self, stream: RequestStream, *, length: int) -> None:
        """Sample the stream's requests until it ends, and send it each step's tokens at once.

        Stop strings of a request's sampling are left to the listener. A prompt and its
        completion have at most `length` tokens together, and no request continues another.
        """

    def rest(self) -> None:
        """Free the device's memory until the next `take_weights`."""
        return


def sample_key(seed: int, purpose: str, task_id: str, occurrence: int, sample: int, turn: int = 0) -> int:
    """Return the key of one completion, in [0, 2^64): a hash of its identity, not of when or where it is drawn.

    `purpose` is `train` or `eval`, so that the two do not draw alike. `occurrence` is how often the task was drawn
    before: the epoch, where each task is drawn once per epoch. `sample` is the index within the group. `turn` counts
    the engine's calls of a conversation from 0: positions start anew in each, so each needs a key of its own.
    """
    who = (seed, purpose, task_id, occurrence, sample)
    identity = repr((*who, "turn", turn) if turn else who).encode()
    return int.from_bytes(hashlib.blake2b(identity, digest_size=8).digest(), "little")
