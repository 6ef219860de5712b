"""Gradients and updates: one policy, its optimiser and, for `beta` above 0, the reference."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paceline.batching import MicroBatch, Sample, cut, pack, share_out, token_weights
from paceline.config import LossConfig, OptimConfig
from paceline.errors import TrainingError
from paceline.learner.objective import Logprobs, token_losses
from paceline.learner.optimizers import make_optimizer
from paceline.learner.samples import minibatches, samples_of
from paceline.learner.stats import UpdateStats, UpdateSums, merge_sums, read_sums, summarise_updates
from paceline.losses import token_logprobs
from paceline.models import Loaded, PolicyForward, is_recomputing, on_device, return_free_memory
from paceline.native.logits import logit_passes
from paceline.parallel import ONE_RANK, Ranks
from paceline.types import RolloutGroup


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A micro-batch on the device with what stays fixed over the step's updates."""

    batch: MicroBatch
    old_logprobs: Tensor | None
    """Policy at the start of the step; None before its first forward pass."""
    ref_logprobs: Tensor | None


class Learner:
    """Holds the policy, its optimiser and, for `beta` above 0, the reference."""

    def __init__(  # noqa: PLR0913 - a policy, a reference and how to train: fewer names would hide some of it
        self,
        policy: Loaded,
        forward: PolicyForward,
        *,
        reference: Loaded | None,
        loss: LossConfig,
        optim: OptimConfig,
        temperature: float,
        max_completion_length: int,
        optimizer: torch.optim.Optimizer | None = None,
        ranks: Ranks = ONE_RANK,
    ) -> None:
        """Take the parts; `optimizer` None: as `optim` says.

        With several `ranks` each has a learner, all are given the same groups, and each computes its share of them.

        `temperature` must be the engine's: trainer logprobs are of the distribution that was sampled from. `reference`
        may be `policy` itself where it has an adapter: then the reference is the model without it.
        """
        self.policy, self.forward, self.reference = policy, forward, reference
        self.loss, self.optim, self.ranks = loss, optim, ranks
        self.temperature, self.max_completion_length = temperature, max_completion_length
        self.optimizer = make_optimizer(policy, optim) if optimizer is None else optimizer
        self.policy_version = 0

    def step(
        self,
        groups: Sequence[RolloutGroup],
        *,
        learning_rate: float | None,
        after_update: Callable[[], None] | None = None,
    ) -> UpdateStats:
        """`num_iterations` passes over the groups of one step, each in `num_minibatches` updates.

        `learning_rate` None leaves the optimiser's own. `after_update` is called after each update.

        Raises:
            TrainingError: a gradient that is not finite; the weights are as before that update.
        """
        samples = samples_of(groups)
        runs = minibatches(len(samples), self.optim.num_minibatches)
        trained = [position for position, sample in enumerate(samples) if self._has_gradient(sample)]
        prepared = [
            self._prepare(samples, run, trained=trained) for run in runs if any(position in run for position in trained)
        ]
        # the first update moves the policy: whatever is trained on after it must remember the policy before
        prepared[1:] = [[self._with_old_logprobs(part) for part in parts] for parts in prepared[1:]]
        updates: list[UpdateSums] = []
        for iteration in range(self.optim.num_iterations):
            for number, parts in enumerate(prepared):
                prepared[number], sums = self._update(parts, first=iteration == 0, learning_rate=learning_rate)
                updates.append(sums)
                if after_update is not None:
                    after_update()
        return summarise_updates(updates)

    def measure(self, groups: Sequence[RolloutGroup]) -> UpdateStats:
        """What one update would report of these groups, every completion computed; nothing moves."""
        samples = samples_of(groups)
        with torch.no_grad():
            parts = self._prepare(samples, range(len(samples)), trained=range(len(samples)))
            sums = [self._loss(part, first=True)[2] for part in parts]
        read = [self._sums(parts, sums, None, first=True)] if samples else []
        return replace(summarise_updates(read), updates=0)

    def sync_reference(self) -> None:
        """Move the reference towards the policy: `ref_sync_mix` of the policy and the rest of itself.

        Source: TR-DPO, arXiv:2404.09656 (soft update).
        """
        assert self.reference is not None  # the configuration asks for beta > 0
        with torch.no_grad():
            pairs = zip(self.reference.model.parameters(), self.policy.model.parameters(), strict=True)
            for kept, moved in pairs:
                kept.lerp_(moved, self.loss.ref_sync_mix)

    def logprobs(self, loaded: Loaded, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Logprob of each target [N] and entropy of its distribution [N], at the sampling temperature."""
        half = loaded.compute_dtype != loaded.model.dtype
        with torch.autocast(batch.input_ids.device.type, dtype=loaded.compute_dtype, enabled=half):
            hidden = self.forward(loaded.model, batch)
        if half:
            hidden = hidden.to(loaded.compute_dtype)
        head = loaded.model.get_output_embeddings()
        matrix = head.weight
        if head.bias is not None:  # the bias is one more column, read by a constant 1
            hidden = torch.cat([hidden, torch.ones_like(hidden[:, :1])], dim=1)
            matrix = torch.cat([matrix, head.bias[:, None]], dim=1)
        passes = logit_passes(hidden.device, hidden.dtype)
        return token_logprobs(hidden, matrix, batch.targets, temperature=self.temperature, passes=passes)

    def backward(self, part: Prepared, *, first: bool) -> tuple[Prepared, dict[str, Tensor]]:
        """Add a micro-batch's share of the update's gradient; old logprobs come out of the first pass."""
        loss, part, sums = self._loss(part, first=first)
        if is_recomputing(self.policy.model):  # then memory is short
            return_free_memory(loss.device)
        loss.backward()
        return part, sums

    def _loss(self, part: Prepared, *, first: bool) -> tuple[Tensor, Prepared, dict[str, Tensor]]:
        batch = part.batch
        policy, entropy = self.logprobs(self.policy, batch)
        old = policy.detach() if part.old_logprobs is None else part.old_logprobs
        terms = Logprobs(policy=policy, entropy=entropy, old=old, reference=part.ref_logprobs)
        losses, sums = token_losses(batch, terms, self.loss)
        loss = (batch.weights * losses).sum()
        sums["loss"] = loss.detach()
        if first:
            mismatch = (batch.rollout_logprobs - old).abs()
            sums |= {"entropy": entropy.detach().sum(), "mismatch": mismatch.sum(), "mismatch_max": mismatch.max()}
        return loss, replace(part, old_logprobs=old), sums

    def _prepare(self, samples: Sequence[Sample], run: range, *, trained: Sequence[int]) -> list[Prepared]:
        """This rank's micro-batches of one update: weights over all samples of `run`, of which those in `trained` are
        computed by one rank or another."""
        counted, inside = [samples[position] for position in run], [at - run.start for at in trained if at in run]
        own = share_out(counted, trained=inside, ranks=self.ranks.size)[self.ranks.rank]
        if not own:
            return []
        model = self.policy.model
        weights = token_weights(counted, average=self.loss.average, max_completion_length=self.max_completion_length)
        cuts = cut(counted, trained=own, micro_batch_tokens=self.optim.micro_batch_tokens)
        batches = [on_device(pack(counted, weights, indices, dtype=model.dtype), model.device) for indices in cuts]
        return [Prepared(batch=batch, old_logprobs=None, ref_logprobs=self._reference(batch)) for batch in batches]

    def _has_gradient(self, sample: Sample) -> bool:
        """A zero advantage has a gradient of exactly zero, unless divergence or entropy have one of their own."""
        return sample.advantage != 0.0 or self.loss.beta > 0 or self.loss.entropy_coef > 0

    def _reference(self, batch: MicroBatch) -> Tensor | None:
        if self.reference is None:
            return None
        with torch.no_grad(), self.reference.without_adapter():
            return self.logprobs(self.reference, batch)[0]

    def _with_old_logprobs(self, part: Prepared) -> Prepared:
        with torch.no_grad():
            return replace(part, old_logprobs=self.logprobs(self.policy, part.batch)[0])

    def _update(
        self, parts: Sequence[Prepared], *, first: bool, learning_rate: float | None
    ) -> tuple[list[Prepared], UpdateSums]:
        """One gradient over all micro-batches of all ranks, and one optimiser step."""
        passes = [self.backward(part, first=first) for part in parts]
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self.ranks.add_up_gradients(parameters)
        limit = self.optim.max_grad_norm or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
        found = self._sums(parts, [sums for _, sums in passes], norm, first=first)
        if not torch.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise TrainingError(
                f"the gradient's norm is {found.values['grad_norm']} after update {self.policy_version}; lower "
                "--learning-rate, or look for a reward or logprob that is not finite in the last step's rollouts"
            )
        if learning_rate is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.policy_version += 1
        return [part for part, _ in passes], found

    def _sums(
        self, parts: Sequence[Prepared], sums: Sequence[dict[str, Tensor]], norm: Tensor | None, *, first: bool
    ) -> UpdateSums:
        """One update's numbers, of all ranks."""
        own = read_sums(sums, norm) | {
            "tokens": float(sum(part.batch.num_targets for part in parts)),
            "forwarded": float(sum(len(part.batch.input_ids) for part in parts)),
        }
        return UpdateSums(first=first, values=merge_sums(self.ranks.collect(own)))
