"""Gradients and updates: one policy, its optimiser and, for `beta` above 0, the reference."""

import itertools
import json
import math
from array import array
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.config.objective import LossConfig, OptimConfig
from paceline.errors import TrainingError
from paceline.models.forward import PolicyForward
from paceline.models.loaded import Loaded
from paceline.models.parallel.pieces import piece_of
from paceline.models.parallel.ranks import ONE_RANK, Ranks
from paceline.models.routing import routing_of
from paceline.models.rows import on_device
from paceline.objective.cutting import cut, input_tokens, share_out, shortest, units
from paceline.objective.micro_batches import MicroBatch, Sample, pack, token_weights
from paceline.objective.own_loss import PolicyLoss
from paceline.objective.policy_loss import top_entropy_threshold
from paceline.objective.schedule import next_entropy_coef, within_bounds
from paceline.runtime.activity import ACTIVITY
from paceline.runtime.devices import is_out_of_memory
from paceline.training.learner.forward_backward import Budget, ForwardBackward, Pipelined, WholeModel
from paceline.training.learner.objective import token_losses
from paceline.training.learner.optimizers import make_optimizer
from paceline.training.learner.samples import minibatches, samples_of, trained_rows
from paceline.training.learner.stats import (
    UpdateStats,
    UpdateSums,
    merge_sums,
    mismatch_of_turns,
    read_sums,
    summarise_updates,
)
from paceline.types import RolloutGroup


@dataclass(frozen=True, kw_only=True, slots=True)
class Minibatch:
    """Rollouts of one update."""

    samples: tuple[Sample, ...]
    """Samples that count in its averages."""
    trained: tuple[int, ...]
    """Positions of those that one rank or another computes."""
    parts: tuple[MicroBatch, ...]
    """This rank's micro-batches."""
    cut_at: int
    """Tokens of the budget that they were cut by."""


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
        vision_learning_rate: float | None = None,
        image_cost: float = 0.0,
        policy_loss: PolicyLoss | None = None,
        ranks: Ranks = ONE_RANK,
    ) -> None:
        """Take the parts; `optimizer` None: as `optim` says; `policy_loss` None: the bound of `loss`.

        `vision_learning_rate`: peak rate of what encodes images; None: that of `optim`. `image_cost`: see `cut`.
        With several `ranks` each has a learner, all are given the same groups, and each computes its share of them.

        `temperature` must be the engine's: trainer logprobs are of the distribution that was sampled from. `reference`
        may be `policy` itself where it has an adapter: then the reference is the model without it.
        """
        self.policy, self.reference = policy, reference
        self.loss, self.optim, self.ranks = loss, optim, ranks
        self.max_completion_length, self._policy_loss = max_completion_length, policy_loss
        layout, stages = ranks.parallel_layout, ranks.parallel_layout.stages
        self.runner: ForwardBackward = (
            WholeModel(forward=forward, temperature=temperature, parallel_layout=layout)
            if stages is None
            else Pipelined(forward=forward, temperature=temperature, parallel_layout=layout, stages=stages)
        )
        self.optimizer = make_optimizer(policy, optim, vision_learning_rate) if optimizer is None else optimizer
        # the options' optimiser may have a group with a rate of its own; at a peak of 0 nothing moves
        groups, peak, self._image_cost = self.optimizer.param_groups, optim.learning_rate, image_cost
        self._rates = [1.0 if optimizer or not peak else group["lr"] / peak for group in groups]
        # ranks that share tokens or layers see a part of the routers' choices each
        is_shared = stages is not None or ranks.sizes.context > 1
        self._routing = None if is_shared else routing_of(policy.model)
        self.budget = Budget(
            tokens=optim.micro_batches(policy.model.device.type)[0], ranks=ranks, device=policy.model.device
        )
        self.policy_version = 0
        target = loss.entropy_target
        coef = loss.entropy_coef if target is None else within_bounds(loss.entropy_coef, control=target)
        self.entropy_control = (coef, math.inf)
        """Under `entropy_target`: the coefficient, and the mean entropy of the last update."""
        self._passed, self._passes_of_step = 0, 0

    def step(
        self,
        groups: Sequence[RolloutGroup],
        *,
        learning_rate: float | None,
        after_update: Callable[[], None] | None = None,
    ) -> UpdateStats:
        """Pass `num_iterations` times over the groups of one step, each time in `num_minibatches` updates.

        `learning_rate` None leaves the optimiser's own. `after_update` is called after each update that is made: one
        whose loss or gradient is not finite is skipped, and weights, moments and version stay as they were before it.

        Raises:
            TrainingError: memory ran out, and smaller micro-batches are no way out.
        """
        ACTIVITY.advance("update", 0, 1)
        # choose: which rows have a gradient, exactly zero without an advantage, and which update each belongs to
        samples, whole = samples_of(groups, over=self.loss.average_over), self.loss.reads_whole_completions
        trained = trained_rows(samples, every=self.loss.needs_every_token, whole=whole)
        runs = minibatches(samples, self.optim.num_minibatches)
        runs = [run for run in runs if any(at in run for at in trained)]
        # prepare: micro-batches, reference logprobs, and old logprobs where an earlier update moves the policy
        prepared = [self._minibatch(samples, run, trained, is_later=number > 0) for number, run in enumerate(runs)]
        # update: one gradient over all micro-batches of a minibatch, one optimiser step
        self._passed = 0
        self._passes_of_step = self.optim.num_iterations * sum(len(minibatch.parts) for minibatch in prepared)
        updates: list[UpdateSums] = []
        for iteration in range(self.optim.num_iterations):
            for number, minibatch in enumerate(prepared):
                prepared[number], sums = self._update(minibatch, first=iteration == 0, learning_rate=learning_rate)
                updates.append(sums)
                if after_update is not None and not sums.skipped:
                    after_update()
        ACTIVITY.advance("update", of := max(self._passes_of_step, 1), of)
        halved, self.budget.halved = self.budget.halved, 0
        return summarise_updates(updates, micro_batch_tokens=self.budget.tokens, halved=halved)

    def _minibatch(self, samples: Sequence[Sample], run: range, trained: Sequence[int], *, is_later: bool) -> Minibatch:
        """Prepare the samples of `run`; those in `trained` are computed. `is_later`: after another update."""
        counted = tuple(samples[position] for position in run)
        inside = tuple(at - run.start for at in trained if at in run)

        def work() -> list[MicroBatch]:
            parts = self._prepare(counted, inside)
            if not is_later:
                return parts
            old = self._logprobs(self.policy, parts)
            return [replace(part, old_logprobs=logprobs) for part, logprobs in zip(parts, old, strict=True)]

        parts = self.budget.fit(work, lambda: self._sizes(counted, inside))
        return Minibatch(samples=counted, trained=inside, parts=tuple(parts), cut_at=self.budget.tokens)

    def _prepare(self, counted: Sequence[Sample], inside: Sequence[int]) -> list[MicroBatch]:
        """Pack this rank's micro-batches; token weights are over `counted`, of which some rank computes `inside`."""
        cuts = self._cuts(counted, inside)
        share = cuts[self.ranks.share]
        idle = [[shortest(counted)] for _ in range(self.ranks.passes([len(cut) for cut in cuts]) - len(share))]
        model = self.policy.model
        weights = token_weights(counted, average=self.loss.average, max_completion_length=self.max_completion_length)
        batches = [
            on_device(pack(counted, weights, indices, dtype=model.dtype), model.device) for indices in [*share, *idle]
        ]
        references: list[Tensor | None] = [None] * len(batches)
        if self.reference is not None:
            with self.reference.without_adapter():
                references = self._logprobs(self.reference, [replace(batch, routes=None) for batch in batches])
        return [
            replace(batch, ref_logprobs=reference, is_idle=number >= len(share))
            for number, (batch, reference) in enumerate(zip(batches, references, strict=True))
        ]

    def _cuts(self, counted: Sequence[Sample], inside: Sequence[int]) -> list[list[list[int]]]:
        """Cut the micro-batches of every rank, as positions of their samples."""
        layout, whole = self.runner.forward.kind, self.loss.reads_whole_completions
        how: dict[str, Any] = {"layout": layout, "whole": whole, "image_cost": self._image_cost}
        shares = share_out(counted, trained=inside, ranks=self.ranks.shares, **how)
        tokens = self.budget.tokens * self.ranks.sizes.context  # of all ranks that compute a micro-batch together
        return [cut(counted, trained=share, micro_batch_tokens=tokens, **how) if share else [] for share in shares]

    def _sizes(self, counted: Sequence[Sample], inside: Sequence[int]) -> list[tuple[int, int]]:
        kind, whole, cost = self.runner.forward.kind, self.loss.reads_whole_completions, self._image_cost
        every = itertools.chain(*self._cuts(counted, inside))
        return [(len(units(counted, rows, whole=whole)), input_tokens(counted, rows, kind, cost)) for rows in every]

    def _logprobs(self, loaded: Loaded, batches: Sequence[MicroBatch]) -> list[Tensor | None]:
        return [None if values is None else values[0] for values in self.runner.values(loaded, batches)]

    def _update(
        self, minibatch: Minibatch, *, first: bool, learning_rate: float | None
    ) -> tuple[Minibatch, UpdateSums]:
        """Compute one gradient over the micro-batches of all ranks; step the optimiser if every number is finite."""
        threshold = None
        if self.loss.top_entropy_quantile < 1:
            minibatch, threshold = self._top_entropies(minibatch)

        def gradient() -> tuple[Minibatch, list[dict[str, Tensor]]]:
            self.optimizer.zero_grad(set_to_none=True)  # of passes before the one that ran out of memory
            whole = self._cut_again(minibatch)
            parts, sums = self.backward(whole.parts, first=first, threshold=threshold)
            return replace(whole, parts=tuple(parts)), sums

        # this rank's share, in micro-batches that memory has room for
        computed, sums = self.budget.fit(gradient, lambda: self._sizes(minibatch.samples, minibatch.trained))
        # the gradient of all ranks, clipped
        self.ranks.add_up_gradients(self.policy.model)
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        norm = self.ranks.clip_gradients(parameters, limit=self.optim.max_grad_norm or float("inf"))
        totals = self._sums(computed.parts, sums, norm, first=first)
        # one optimiser step, by numbers of all ranks, so that all decide alike
        if all(map(math.isfinite, totals.values.values())):
            if learning_rate is not None:
                for group, relative in zip(self.optimizer.param_groups, self._rates, strict=True):
                    group["lr"] = learning_rate * relative
            try:
                self.optimizer.step()
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                raise TrainingError(
                    f"memory ran out in the optimiser's update {self.policy_version + 1}, which cannot be done again "
                    "in parts",
                    remedies=["give --optimizer adamw_8bit, --offload optimizer or --lora-rank"],
                    then=f"start again ({str(error).partition(chr(10))[0]})",
                ) from None
            self.policy_version += 1
            self.policy.forget_features()
            if self.loss.entropy_target is not None and totals.values.get("bonus_tokens"):
                mean = totals.values["bonus_entropy"] / totals.values["bonus_tokens"]
                coef = next_entropy_coef(self.entropy_control[0], mean, control=self.loss.entropy_target)
                self.entropy_control = coef, mean
        else:
            totals = replace(totals, skipped=True)
        self.optimizer.zero_grad(set_to_none=True)
        return computed, totals

    def _top_entropies(self, minibatch: Minibatch) -> tuple[Minibatch, float | None]:
        """Compute the entropies of an update by a pass more, with the weights as they are, and their threshold.

        The ranks exchange them after the pass, once memory has sufficed on each: none is still in it then.
        """

        def work() -> tuple[Minibatch, list[tuple[Tensor, Tensor] | None]]:
            whole = self._cut_again(minibatch)
            return whole, self.runner.values(self.policy, whole.parts)

        whole, values = self.budget.fit(work, lambda: self._sizes(minibatch.samples, minibatch.trained))
        return whole, self.entropy_threshold(whole.parts, values)

    def entropy_threshold(
        self, parts: Sequence[MicroBatch], values: Sequence[tuple[Tensor, Tensor] | None]
    ) -> float | None:
        """Gather the entropies of all ranks; return that from which on tokens count. None without a token."""
        pairs = zip(parts, values, strict=True)
        of_parts = [
            of_part[1].detach() for part, of_part in pairs if of_part and not part.is_idle and self.ranks.speaks
        ]
        numbers = torch.cat(of_parts).cpu() if of_parts else torch.empty(0, dtype=self.policy.model.dtype)
        texts = self.ranks.all_gather_text(b64encode(numbers.double().numpy().tobytes()).decode())
        entropies = torch.cat([torch.tensor(array("d", b64decode(text)), dtype=numbers.dtype) for text in texts])
        return top_entropy_threshold(entropies, share=self.loss.top_entropy_quantile) if len(entropies) else None

    def _cut_again(self, minibatch: Minibatch) -> Minibatch:
        """Cut the minibatch by the current budget; its old logprobs stay, as the weights behind them may be gone."""
        if minibatch.cut_at == self.budget.tokens:
            return minibatch
        known = dict[int, Tensor]()
        for part in minibatch.parts:
            if part.old_logprobs is not None:
                of_samples = part.old_logprobs.split(part.row_lengths)
                known |= zip(part.samples, of_samples, strict=True)
        parts = self._prepare(minibatch.samples, minibatch.trained)
        if known:
            parts = [
                replace(part, old_logprobs=torch.cat([known[sample] for sample in part.samples])) for part in parts
            ]
        return replace(minibatch, parts=tuple(parts), cut_at=self.budget.tokens)

    def backward(
        self, parts: Sequence[MicroBatch], *, first: bool, threshold: float | None = None
    ) -> tuple[list[MicroBatch], list[dict[str, Tensor]]]:
        """Add the micro-batches' shares of the update's gradient; the first pass gives the old logprobs.

        `threshold`: the entropy from which on tokens count; None: all do.
        """
        sums, parts = list[dict[str, Tensor]](), list(parts)

        def loss(number: int, logprobs: Tensor, entropy: Tensor) -> Tensor:
            self._passed += 1  # more than planned where memory ran out and they were cut again
            ACTIVITY.advance("update", min(self._passed, self._passes_of_step), self._passes_of_step)
            if parts[number].is_idle:
                return 0.0 * logprobs.sum()
            value, parts[number], totals = self._loss(
                parts[number], logprobs, entropy, first=first, threshold=threshold
            )
            if first and self._routing is not None:
                totals |= self._routing.counts()
            sums.append(totals)
            return value

        self.runner.backward(self.policy, tuple(parts), loss)
        return parts, sums

    def _loss(
        self, batch: MicroBatch, logprobs: Tensor, entropy: Tensor, *, first: bool, threshold: float | None
    ) -> tuple[Tensor, MicroBatch, dict[str, Tensor]]:
        old = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
        batch = replace(batch, old_logprobs=old)
        chosen = None if threshold is None else entropy.detach() >= threshold
        losses, sums = token_losses(batch, logprobs, entropy, self._loss_now(), self._policy_loss, chosen=chosen)
        loss = (batch.weights * losses).sum()
        sums["loss"] = loss.detach()
        if first:
            mismatch = (batch.rollout_logprobs - old).abs()
            sums |= {"entropy": entropy.detach().sum(), "mismatch": mismatch.sum(), "mismatch_max": mismatch.max()}
            if batch.turns is not None:
                sums |= mismatch_of_turns(mismatch, batch.turns)
        return loss, batch, sums

    def _loss_now(self) -> LossConfig:
        """Return the options with the entropy's coefficient as it is in this update."""
        if self.loss.entropy_target is None:
            return self.loss
        coef, entropy = self.entropy_control
        return replace(self.loss, entropy_coef=coef if entropy <= self.loss.entropy_target[0] else 0.0)

    def _sums(
        self, parts: Sequence[MicroBatch], sums: Sequence[dict[str, Tensor]], norm: Tensor | None, *, first: bool
    ) -> UpdateSums:
        loads = [part.pop("loads") for part in sums if "loads" in part]
        mine = read_sums(sums if self.ranks.speaks else [], norm)
        if self.ranks.speaks:
            mine["tokens"] = float(sum(part.num_targets for part in parts if not part.is_idle))
            layout = self.runner.forward.kind
            mine["forwarded"] = float(sum(part.num_forwarded(layout) for part in parts))
        values = merge_sums(self.ranks.collect(mine))
        if not first or self._routing is None:
            return UpdateSums(first=first, values=values)
        text = json.dumps(torch.stack(loads).sum(0).tolist() if loads and self.ranks.speaks else [])
        counted = [of_rank for one in self.ranks.all_gather_text(text) if (of_rank := json.loads(one))]
        return UpdateSums(first=first, values=values, loads=np.array(counted).sum(0) if counted else None)

    def measure(self, groups: Sequence[RolloutGroup]) -> UpdateStats:
        """Report what one update would find in these groups, without an update; every completion is computed."""
        samples = samples_of(groups, over=self.loss.average_over)
        inside = [position for position, sample in enumerate(samples) if not sample.masked]
        with torch.no_grad():
            parts = self._prepare(samples, inside) if inside else []
            values = self.runner.values(self.policy, parts)
            threshold = self.entropy_threshold(parts, values) if self.loss.top_entropy_quantile < 1 else None
            sums = [
                self._loss(part, *computed, first=True, threshold=threshold)[2]
                for part, computed in zip(parts, values, strict=True)
                if computed is not None and not part.is_idle
            ]
        read = [self._sums(parts, sums, None, first=True)] if inside else []
        return replace(summarise_updates(read, micro_batch_tokens=self.budget.tokens), updates=0)

    def check_weights(self) -> None:
        """Refuse weights that are not finite, by one read of those that are trained.

        Raises:
            TrainingError: one is not finite, on this rank or another.
        """
        trained = [
            (name, parameter) for name, parameter in self.policy.model.named_parameters() if parameter.requires_grad
        ]
        pieces = {name: piece_of(parameter).tensor.detach() for name, parameter in trained}
        # the least and the largest are not finite where any number is not
        ends = {name: torch.aminmax(piece) for name, piece in pieces.items() if piece.numel()}
        not_finite = ""
        if ends:
            is_finite = torch.isfinite(torch.stack([end for pair in ends.values() for end in pair])).view(-1, 2).all(1)
            not_finite = next((name for name, sound in zip(ends, is_finite.tolist(), strict=True) if not sound), "")
        broken = [name for name in self.ranks.all_gather_text(not_finite) if name]
        if broken:
            raise TrainingError(
                f"a weight of {broken[0]} is not finite after update {self.policy_version}, so it is not saved",
                remedies=["lower --learning-rate"],
                then="--resume continues from the last checkpoint",
            )

    def sync_reference(self) -> None:
        """Move the reference towards the policy, by the soft update of TR-DPO, arXiv:2404.09656."""
        assert self.reference is not None  # the configuration asks for beta > 0
        assert self.loss.ref_sync is not None
        with torch.no_grad():
            for kept, moved in zip(self.reference.model.parameters(), self.policy.model.parameters(), strict=True):
                kept.lerp_(moved, self.loss.ref_sync[1])
