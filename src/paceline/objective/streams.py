"""What trains a token. Nothing else asks who wrote it: packing and weights read the stream of its span.

A stream is one term of the loss, a sum over its tokens with weights of its own, whose denominators are counted over all
tokens of the stream in the optimiser step (law 1).
"""

from collections.abc import Sequence
from typing import Literal

from paceline.types import Span

LossStream = Literal["policy", "cross_entropy"]
"""Terms of the loss: the policy gradient on what the policy sampled, cross-entropy on a given completion."""


def stream_of(span: Span) -> LossStream | None:
    """Return the stream that trains the tokens of a span; None: they are read and nothing is trained on them.

    >>> stream_of(Span(by="policy", tokens=(5,))), stream_of(Span(by="environment", tokens=(7,)))
    ('policy', None)
    """
    if span.by == "policy":
        return "policy"
    return "cross_entropy" if span.by == "demonstration" else None


def loss_mask(spans: Sequence[Span]) -> tuple[int, ...]:
    """Return 1 for each token of the spans that is trained on, 0 for each that is only read.

    >>> loss_mask([Span(by="policy", tokens=(5, 6)), Span(by="environment", tokens=(7,))])
    (1, 1, 0)
    """
    return tuple(int(stream_of(span) is not None) for span in spans for _ in span.tokens)
