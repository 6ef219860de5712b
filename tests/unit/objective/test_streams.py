"""What trains a token is decided by who wrote it; each stream has denominators of its own."""

import pytest

from paceline.objective.micro_batches import Sample, token_weights
from paceline.objective.streams import loss_mask, stream_of
from paceline.types import Span

PROMPT = Span(by="prompt", tokens=(1, 2))
SAMPLED = Span(by="policy", tokens=(3, 4), logprobs=(-1.0, -1.0))
READ = Span(by="environment", tokens=(5,))
GIVEN = Span(by="demonstration", tokens=(6, 7, 8))


def row(*spans: Span) -> Sample:
    trained = sum(stream_of(span) is not None for span in spans)
    return Sample(group=0, prompt_ids=PROMPT.tokens, spans=spans, advantages=(1.0,) * trained)


def test_a_token_is_trained_by_the_stream_of_its_writer():
    assert [stream_of(span) for span in (PROMPT, SAMPLED, READ, GIVEN)] == [None, "policy", None, "cross_entropy"]
    assert loss_mask([PROMPT, SAMPLED, READ, GIVEN]) == (0, 0, 1, 1, 0, 1, 1, 1)


@pytest.mark.parametrize(
    ("average", "weight"),
    # two completions have 2 + 4 tokens of the policy, and the longest may have 9
    [("token", 1 / 6), ("sequence", 1 / 4), ("constant", 1 / 18), ("prompt", 1 / 6), ("sequence_sum", 1 / 2)],
)
def test_a_given_completion_changes_no_weight_of_the_policys_tokens(average, weight):
    rows = [row(SAMPLED), row(SAMPLED, READ, SAMPLED)]
    options = {"average": average, "max_completion_length": 9}
    alone, beside = token_weights(rows, **options), token_weights([*rows, row(GIVEN)], **options)
    assert beside == [*alone, 0.0]
    assert alone[0] == pytest.approx(weight)


def test_a_stream_counts_its_own_tokens():
    rows = [row(SAMPLED), row(GIVEN), row(GIVEN)]
    weights = token_weights(rows, average="token", max_completion_length=9, stream="cross_entropy")
    assert weights == [0.0, 1 / 6, 1 / 6]
