"""A policy loss of one's own is one loss per token, the same however a step is cut; anything else is refused."""

import pytest
import torch

from paceline.errors import ConfigError
from paceline.objective.own_loss import check_policy_loss
from paceline.objective.policy_loss import clipped_policy_loss, each_token, sequence_means


def plain(tokens):
    return -tokens.ratio * tokens.advantages


def clipped(tokens):
    return clipped_policy_loss(tokens.ratio, tokens.advantages, clip_eps_low=0.2, clip_eps_high=0.3)


def of_sequences(tokens):
    # GSPO by hand: the ratio of a sequence, for each of its tokens
    drift = sequence_means(tokens.logprobs - tokens.old_logprobs, tokens.lengths)
    return -each_token(drift.exp(), tokens.lengths, num_tokens=len(tokens.ratio)) * tokens.advantages


def with_entropy(tokens):
    gap = (tokens.old_logprobs - tokens.rollout_logprobs).exp().clamp(max=2.0)
    return -gap * tokens.ratio * tokens.advantages - 0.01 * tokens.entropy


@pytest.mark.parametrize("function", [plain, clipped, of_sequences, with_entropy])
def test_a_loss_of_each_token_or_of_its_own_sequence_is_taken(function):
    check_policy_loss(function, "mine.py:f")


LAST = []


def remembers(tokens):
    LAST.append(1)
    return len(LAST) * plain(tokens)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda t: plain(t).mean(),
            r"shape \[\] for 18 tokens, so it averages or sums itself; return one loss per tok",
        ),
        (lambda t: plain(t)[:-1], r"returns a tensor of shape \[17\] for 18 tokens; return one loss per token"),
        (lambda t: 0.5, "returns float for 18 tokens"),
        (lambda t: plain(t) / len(t.ratio), "divides by the number of tokens of a micro-batch; return one loss per"),
        (lambda t: plain(t) / len(t.lengths), "divides by the number of sequences of a micro-batch"),
        (lambda t: -t.ratio * (t.advantages - t.advantages.mean()), "so it mixes sequences; read other tokens of the"),
        (lambda t: plain(t) * torch.arange(len(t.ratio)), "where its sequence stands in another micro-batch or place"),
        # values agree, and the gradient alone tells
        (lambda t: plain(t) + t.logprobs.mean() - t.logprobs.mean().detach(), "so it mixes sequences"),
        (lambda t: plain(t).detach(), "has no gradient"),
        (lambda t: plain(t) / 0, "returns a loss that is not finite"),
        (remembers, "gives the same tokens two different losses; leave out what is random or remembered"),
        (lambda t: t.ratios, r"raises AttributeError \('PolicyTokens' object has no attribute 'ratios'\)"),
    ],
)
def test_what_hangs_on_the_cut_of_a_step_is_refused_with_what_it_did(function, message):
    with pytest.raises(ConfigError, match=message) as refusal:
        check_policy_loss(function, "mine.py:f")
    assert str(refusal.value).startswith("--bound mine.py:f must give each token the same loss however a step is cut")
