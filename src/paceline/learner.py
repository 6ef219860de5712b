"""The consumer half: takes scored groups, computes logprobs and loss, steps the optimiser. Knows no engine or file.

groups -> samples -> micro-batches -> logprobs -> loss -> gradients -> new weights
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.batching import MicroBatch, Sample, cut, pack, token_weights
from paceline.config import LossConfig, OptimConfig
from paceline.errors import TrainingError
from paceline.losses import clipped_policy_loss, kl_estimate, kl_penalty, token_logprobs
from paceline.models import Loaded, PolicyForward, on_device
from paceline.types import RolloutGroup


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateStats:
    """What the updates of one step did; means are over trained tokens of all updates unless said otherwise."""

    updates: int
    """Optimiser updates made; 0 when no completion carried signal."""
    tokens_trained: int
    """Completion tokens with a gradient, per update."""
    tokens_forwarded: int
    """Tokens that went through the model, per update."""
    loss: float
    """Sum over the step's tokens of weight times loss, averaged over updates."""
    grad_norm: float
    """Before clipping, averaged over updates."""
    entropy: float | None
    """Nats per token, of the policy at the start of the step; None when nothing was trained."""
    kl: float | None
    """Nats per token, KL(policy || reference) by k3; None without a reference."""
    clip_low_fraction: float
    """Share of tokens whose ratio stood below `1 - clip_eps_low` with a negative advantage."""
    clip_high_fraction: float
    """Share of tokens whose ratio stood above `1 + clip_eps_high` with a positive advantage."""
    logprob_mismatch_mean: float | None
    """Nats, absolute difference between `rollout_logprobs` and the trainer's at the start of the step."""
    logprob_mismatch_max: float | None
    """The largest of those."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Prepared:
    """A micro-batch on the device with what stays fixed over the step's updates."""

    batch: MicroBatch
    old_logprobs: Tensor | None
    """Policy at the start of the step; None before its first forward pass."""
    ref_logprobs: Tensor | None


class Learner:
    """Holds the policy, its optimiser and, for `beta` above 0, the reference."""

    def __init__(
        self,
        policy: Loaded,
        forward: PolicyForward,
        *,
        reference: Loaded | None,
        loss: LossConfig,
        optim: OptimConfig,
        temperature: float,
        max_completion_length: int,
    ) -> None:
        """`temperature` must be the engine's: trainer logprobs are of the distribution that was sampled from."""
        self.policy, self.forward, self.reference = policy, forward, reference
        self.loss, self.optim = loss, optim
        self.temperature, self.max_completion_length = temperature, max_completion_length
        self.optimizer = make_optimizer(policy, optim)
        self.policy_version = 0

    def step(self, groups: Sequence[RolloutGroup], *, learning_rate: float) -> UpdateStats:
        """`num_iterations` updates on the groups of one step.

        Raises:
            TrainingError: a gradient that is not finite; the weights are as before that update.
        """
        samples = samples_of(groups)
        # with beta = 0 a zero advantage has a gradient of exactly zero: it counts in the averages, not in the work
        trained = [i for i, sample in enumerate(samples) if sample.advantage != 0.0 or self.loss.beta > 0]
        prepared = self._prepare(samples, trained)
        totals = []
        for iteration in range(self.optim.num_iterations if prepared else 0):
            prepared, total = self._update(prepared, first=iteration == 0, learning_rate=learning_rate)
            totals.append(total)
        return self._stats(prepared, totals)

    def _prepare(self, samples: Sequence[Sample], trained: Sequence[int]) -> list[_Prepared]:
        if not trained:
            return []
        model = self.policy.model
        weights = token_weights(samples, average=self.loss.average, max_completion_length=self.max_completion_length)
        cuts = cut(samples, trained=trained, micro_batch_tokens=self.optim.micro_batch_tokens)
        batches = [on_device(pack(samples, weights, indices, dtype=model.dtype), model.device) for indices in cuts]
        return [_Prepared(batch=batch, old_logprobs=None, ref_logprobs=self._reference(batch)) for batch in batches]

    def _reference(self, batch: MicroBatch) -> Tensor | None:
        if self.reference is None:
            return None
        with torch.no_grad():
            return self.logprobs(self.reference, batch)[0]

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
        return token_logprobs(hidden, matrix, batch.targets, temperature=self.temperature)

    def _update(
        self, prepared: Sequence[_Prepared], *, first: bool, learning_rate: float
    ) -> tuple[list[_Prepared], dict[str, float]]:
        """One gradient over all micro-batches and one optimiser step; old logprobs come out of the first pass."""
        passes = [self._backward(part, first=first) for part in prepared]
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        limit = self.optim.max_grad_norm or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
        total = _read([sums for _, sums in passes], norm)
        if not torch.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise TrainingError(
                f"the gradient's norm is {total['grad_norm']} after update {self.policy_version}; lower "
                "--learning-rate, or look for a reward or logprob that is not finite in the last step's rollouts"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.policy_version += 1
        return [part for part, _ in passes], total

    def _backward(self, part: _Prepared, *, first: bool) -> tuple[_Prepared, dict[str, Tensor]]:
        batch = part.batch
        logprobs, entropy = self.logprobs(self.policy, batch)
        old = logprobs.detach() if part.old_logprobs is None else part.old_logprobs
        losses = clipped_policy_loss(
            logprobs,
            old,
            batch.advantages,
            clip_eps_low=self.loss.clip_eps_low,
            clip_eps_high=self.loss.clip_eps_high,
        )
        if part.ref_logprobs is not None:
            losses = losses + self.loss.beta * kl_penalty(logprobs, old, part.ref_logprobs, kl=self.loss.kl)
        loss = (batch.weights * losses).sum()
        loss.backward()
        sums = self._clip_sums(logprobs.detach(), old, batch) | {"loss": loss.detach()}
        if part.ref_logprobs is not None:
            sums["kl"] = kl_estimate(logprobs, part.ref_logprobs).sum()
        if first:
            mismatch = (batch.rollout_logprobs - old).abs()
            sums |= {"entropy": entropy.sum(), "mismatch": mismatch.sum(), "mismatch_max": mismatch.max()}
        return _Prepared(batch=batch, old_logprobs=old, ref_logprobs=part.ref_logprobs), sums

    def _clip_sums(self, logprobs: Tensor, old: Tensor, batch: MicroBatch) -> dict[str, Tensor]:
        ratio = torch.exp(logprobs - old)
        low = (ratio < 1 - self.loss.clip_eps_low) & (batch.advantages < 0)
        high = (ratio > 1 + self.loss.clip_eps_high) & (batch.advantages > 0)
        return {"clip_low": low.sum(), "clip_high": high.sum()}

    def _stats(self, prepared: Sequence[_Prepared], totals: Sequence[dict[str, float]]) -> UpdateStats:
        tokens = sum(part.batch.num_targets for part in prepared)
        updates = len(totals)

        def per_token(name: str) -> float:
            return sum(total[name] for total in totals) / (tokens * updates) if updates else 0.0

        def mean(name: str) -> float:
            return sum(total[name] for total in totals) / updates if updates else 0.0

        start = totals[0] if totals else None
        return UpdateStats(
            updates=updates,
            tokens_trained=tokens,
            tokens_forwarded=sum(len(part.batch.input_ids) for part in prepared),
            loss=mean("loss"),
            grad_norm=mean("grad_norm"),
            entropy=start["entropy"] / tokens if start else None,
            kl=per_token("kl") if self.reference is not None else None,
            clip_low_fraction=per_token("clip_low"),
            clip_high_fraction=per_token("clip_high"),
            logprob_mismatch_mean=start["mismatch"] / tokens if start else None,
            logprob_mismatch_max=start["mismatch_max"] if start else None,
        )


def samples_of(groups: Sequence[RolloutGroup]) -> list[Sample]:
    """Every completion that has a reward, in order: all of them count in the step's averages."""
    return [
        Sample(
            group=number,
            prompt_ids=group.task.prompt_ids,
            completion_ids=rollout.completion.token_ids,
            rollout_logprobs=rollout.completion.logprobs,
            advantage=rollout.advantage,
        )
        for number, group in enumerate(groups)
        for rollout in group.rollouts
        if rollout.reward is not None
    ]


def make_optimizer(policy: Loaded, optim: OptimConfig) -> torch.optim.AdamW:
    """AdamW over the trainable parameters; weight decay reaches matrices only, not norms and biases."""
    parameters = [parameter for parameter in policy.model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": optim.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=optim.learning_rate,
        betas=(optim.adam_beta1, optim.adam_beta2),
        eps=optim.adam_eps,
        fused=True,
    )


def _read(parts: Sequence[dict[str, Tensor]], norm: Tensor) -> dict[str, float]:
    """All of an update's numbers in one device read: sums over micro-batches, the largest for names in `_max`."""
    names = list(parts[0])
    stacked = torch.stack([torch.stack([part[name].double() for name in names]) for part in parts])
    values = torch.cat([stacked.sum(0), stacked.max(0).values, norm.double()[None]]).tolist()
    sums, largest = values[: len(names)], values[len(names) : -1]
    read = {
        name: high if name.endswith("_max") else total for name, total, high in zip(names, sums, largest, strict=True)
    }
    return read | {"grad_norm": values[-1]}
