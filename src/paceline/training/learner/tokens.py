"""What the policy, as it is, says of every token of given completions: for a person who looks at them."""

from collections.abc import Sequence

from paceline.models.records import on_device
from paceline.objective.micro_batches import cut, pack
from paceline.training.learner.forward_backward import TokenValues
from paceline.training.learner.learner import Learner
from paceline.training.learner.samples import sample_of
from paceline.types import RolloutGroup


def token_values(learner: Learner, groups: Sequence[RolloutGroup]) -> list[TokenValues]:
    """Of every rollout, in order and also of those that are not trained on; nothing moves. In one process alone."""
    samples = [sample_of(number, group, rollout) for number, group in enumerate(groups) for rollout in group.rollouts]
    model, nothing = learner.policy.model, [0.0] * len(samples)  # no average is taken
    everything = range(len(samples))
    cuts = cut(
        samples, trained=everything, micro_batch_tokens=learner.budget.tokens, layout=learner.runner.forward.kind
    )
    batches = [on_device(pack(samples, nothing, indices, dtype=model.dtype), model.device) for indices in cuts]
    found = dict[int, TokenValues]()
    for batch, values in zip(batches, learner.runner.values(learner.policy, batches), strict=True):
        assert values is not None  # one process has the whole model
        lengths = batch.lengths.tolist()
        parts = zip(values.logprobs.split(lengths), values.entropy.split(lengths), strict=True)
        found |= {at: TokenValues(*part) for at, part in zip(batch.samples, parts, strict=True)}
    return [found[at] for at in everything]
