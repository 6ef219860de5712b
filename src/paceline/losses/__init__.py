"""Loss maths of group-relative policy optimisation: tensors in, tensors out.

N completion tokens of a micro-batch laid end to end (no padding). Log-probabilities are in nats. Every function is per
token; how tokens are averaged is in the weights that `batching` makes for the whole step, so a loss is always
`(weights * token_losses).sum()` and its gradient does not depend on how a step is cut.

logprobs.py    logprobs and entropy from hidden states in chunks
policy.py      ratio, clip, dual clip, CISPO, SAPO's gate
divergence.py  KL from a reference
correction.py  importance weights and masks for rollouts of another policy
sequences.py   sums and means over the sequences of a micro-batch
"""

from paceline.losses.correction import off_policy_sequences, rollout_weights, runaway_sequences
from paceline.losses.divergence import kl_estimate, kl_penalty
from paceline.losses.logprobs import LogitPasses, from_row_sums, row_sums, to_gradients, token_logprobs
from paceline.losses.policy import (
    cispo_policy_loss,
    clipped_policy_loss,
    gated_policy_loss,
    policy_ratio,
    unbounded_policy_loss,
)
from paceline.losses.sequences import each_token, sequence_means, sequence_sums

__all__ = [
    "LogitPasses",
    "token_logprobs",
    "row_sums",
    "from_row_sums",
    "to_gradients",
    "policy_ratio",
    "clipped_policy_loss",
    "cispo_policy_loss",
    "gated_policy_loss",
    "unbounded_policy_loss",
    "kl_penalty",
    "kl_estimate",
    "rollout_weights",
    "off_policy_sequences",
    "runaway_sequences",
    "sequence_sums",
    "sequence_means",
    "each_token",
]
