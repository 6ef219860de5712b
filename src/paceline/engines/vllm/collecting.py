"""What vLLM has sampled so far of each completion of a call, and which of them have ended by a stop string."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.engines import Request, Sampling
from paceline.engines.requests import limits_of
from paceline.engines.stopping import Stopping


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """One completion to sample."""

    request: int
    """Index of its request in the call."""
    prompt_ids: tuple[int, ...]
    key: int
    limit: int


@dataclass(frozen=True, kw_only=True, slots=True)
class News:
    """What vLLM tells of a completion: its tokens since it was last told of."""

    index: int
    """Index of the completion in the call."""
    tokens: Sequence[int]
    logprobs: Sequence[float]
    versions: Sequence[int]
    """By token: how many updates the weights had seen that sampled it."""
    has_ended: bool


@dataclass(kw_only=True, slots=True)
class Collected:
    """Tokens of one completion as they come, each with its logprob and the version of its weights."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def take(self, news: News, stopping: Stopping) -> bool:
        """Add what was sampled since; whether a stop string ends it, and then without what came after."""
        for token, logprob, version in zip(news.tokens, news.logprobs, news.versions, strict=True):
            self.tokens.append(token)
            self.logprobs.append(logprob)
            self.versions.append(version)
            if stopping.completes_string(self.tokens):
                return True
        return False


def orders_of(requests: Sequence[Request], sampling: Sampling) -> list[Order]:
    """One per completion, in the order of requests and keys."""
    return [
        Order(request=index, prompt_ids=request.prompt_ids, key=key, limit=limit)
        for index, request in enumerate(requests)
        for key, limit in zip(request.keys, limits_of(request, sampling), strict=True)
    ]
