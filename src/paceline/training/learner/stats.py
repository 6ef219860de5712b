"""Statistics of a step's updates, from sums that each micro-batch leaves on the device."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

TURNS = ("1", "2", "3", "4", "5", "6", "7", "8+")
"""Turns whose mismatch is measured apart; the last stands for all from there on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateStats:
    """Statistics of a step's updates; means are over trained tokens of all updates unless noted."""

    updates: int
    """Optimiser updates made; 0 when no completion carried signal."""
    updates_skipped: int
    """Updates that were not made, as a number of theirs was not finite. They count in none of the means."""
    skipped_in_a_row: int
    """Skipped updates since the last one that was made."""
    micro_batch_tokens: int
    """Tokens forwarded at once at most: the option's, or fewer once memory had run out."""
    micro_batches_halved: int
    """Number of times that memory ran out in this step."""
    tokens_trained: int
    """Completion tokens with a gradient, per pass over the step's rollouts."""
    tokens_forwarded: int
    """Tokens that went through the model, padding included, per pass over the step's rollouts."""
    loss: float
    """Sum over an update's tokens of weight times loss, averaged over updates."""
    policy_loss: float
    """Share of the policy term in the loss, without KL and entropy."""
    grad_norm: float
    """Before clipping, averaged over updates."""
    entropy: float | None
    """Nats per token, of the policy when it first saw the rollouts; None when nothing was trained."""
    kl: float | None
    """Nats per token, KL(policy || reference) by k3; None without a reference."""
    clip_low_fraction: float
    """Share of tokens whose ratio stood below `1 - clip_eps_low` with a negative advantage."""
    clip_high_fraction: float
    """Share of tokens whose ratio stood above its upper bound (`clip`: with a positive advantage)."""
    correction_masked_fraction: float | None
    """Share of tokens that `rollout_correction` held at its bound or masked; None without it."""
    off_policy_fraction: float | None
    """Share of tokens in sequences that `off_policy_threshold` left out; None without it."""
    skipped_fraction: float | None
    """Share of tokens in sequences that `skip_threshold` left out; None without it."""
    logprob_mismatch_mean: float | None
    """Nats, absolute difference between `rollout_logprobs` and the trainer's at the start of the step."""
    logprob_mismatch_max: float | None
    """Largest mismatch of a token, in nats."""
    logprob_mismatch_by_turn: Mapping[str, float] | None
    """The mean over the tokens of each turn, by its number from 1; None where no turn is a second one."""
    router_disagreement: float | None
    """Share of the known routes of trained tokens where the trainer's routers chose another set of experts."""
    expert_load_max: float | None
    """Trained tokens of the expert that has the most, over the mean of its layer; None: there are no experts."""
    experts_unused: int | None
    """Number of experts, over all layers, that no trained token took."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateSums:
    """One update's numbers, off the device."""

    first: bool
    """True for the first pass over these rollouts."""
    values: Mapping[str, float]
    """Sums over tokens; the largest for names that end in `_max`; `loss`, `policy_loss` and `grad_norm`; `tokens`, the
    update's targets, and `forwarded`, its tokens that went through the model."""
    loads: np.ndarray | None = None
    """Trained tokens that took each expert of each layer, [R, E] over all ranks; None: there are no experts, or this is
    a later pass over these rollouts."""
    skipped: bool = False
    """True if a number is not finite, so that nothing was updated."""


def mismatch_of_turns(mismatch: Float[Tensor, " N"], turns: Int[Tensor, " N"]) -> dict[str, Tensor]:
    """Sums of the tokens' mismatch, and their number, for each turn that is measured apart."""
    places = torch.arange(len(TURNS), device=turns.device)
    members = turns.clamp(max=len(TURNS) - 1)[:, None] == places
    sums = torch.where(members, mismatch[:, None], 0.0).sum(0), members.sum(0)
    return {
        f"{name}_of_turn_{turn}": values[index]
        for name, values in zip(("mismatch", "tokens"), sums, strict=True)
        for index, turn in enumerate(TURNS)
    }


def read_sums(parts: Sequence[Mapping[str, Tensor]], norm: Tensor | None) -> dict[str, float]:
    """All of an update's numbers in one device read: sums over micro-batches, the largest for names in `_max`.

    `norm` None: there is no gradient, and its norm is 0. Without micro-batches there is nothing but the norm.
    """
    if not parts:
        return {"grad_norm": 0.0 if norm is None else float(norm)}
    names = list(parts[0])
    # by name, whose parts are of one type: a conversion for each number would be a kernel for each
    stacked = torch.stack([torch.stack([part[name] for part in parts]).double() for name in names], dim=1)
    norm = stacked.new_zeros(()) if norm is None else norm.double()
    values = torch.cat([stacked.sum(0), stacked.max(0).values, norm[None]]).tolist()
    sums, largest = values[: len(names)], values[len(names) : -1]
    read = {
        name: high if name.endswith("_max") else total for name, total, high in zip(names, sums, largest, strict=True)
    }
    return read | {"grad_norm": values[-1]}


def merge_sums(ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """One update's numbers from those of all ranks. The norm is of the whole gradient, and the same on each."""
    merged: dict[str, float] = {}
    for name in dict.fromkeys(name for values in ranks for name in values):
        numbers = [values[name] for values in ranks if name in values]
        if name.endswith("_max") or name == "grad_norm":  # what is not a number is larger than all
            merged[name] = max(numbers, key=lambda value: math.inf if math.isnan(value) else value)
        else:
            merged[name] = sum(numbers)
    return merged


def summarise_updates(updates: Sequence[UpdateSums], *, micro_batch_tokens: int, halved: int = 0) -> UpdateStats:
    """Compute a step's statistics from its updates; there may be none."""
    made = [update for update in updates if not update.skipped]
    first = [update for update in made if update.first]
    return UpdateStats(
        updates=len(made),
        updates_skipped=len(updates) - len(made),
        skipped_in_a_row=len(list(itertools.takewhile(lambda update: update.skipped, reversed(updates)))),
        micro_batch_tokens=micro_batch_tokens,
        micro_batches_halved=halved,
        tokens_trained=round(sum(update.values["tokens"] for update in first)),
        tokens_forwarded=round(sum(update.values["forwarded"] for update in updates if update.first)),
        loss=_mean(made, "loss") or 0.0,
        policy_loss=_mean(made, "policy_loss") or 0.0,
        grad_norm=_mean(made, "grad_norm") or 0.0,
        entropy=_per_token(first, "entropy"),
        kl=_per_token(made, "kl"),
        clip_low_fraction=_per_token(made, "clip_low") or 0.0,
        clip_high_fraction=_per_token(made, "clip_high") or 0.0,
        correction_masked_fraction=_per_token(made, "correction_masked"),
        off_policy_fraction=_per_token(made, "off_policy"),
        skipped_fraction=_per_token(made, "skipped"),
        logprob_mismatch_mean=_per_token(first, "mismatch"),
        logprob_mismatch_max=max((update.values["mismatch_max"] for update in first), default=None),
        logprob_mismatch_by_turn=_by_turn([update.values for update in first]),
        **_of_experts(first),
    )


def _of_experts(updates: Sequence[UpdateSums]) -> dict[str, Any]:
    """Return the numbers of routers and experts over a step's updates."""
    loads = [update.loads for update in updates if update.loads is not None]
    known, differ = (
        sum(update.values.get(name, 0.0) for update in updates) for name in ("routes_known", "routes_differ")
    )
    total: np.ndarray | None = np.stack(loads).sum(0) if loads else None
    return {
        "router_disagreement": differ / known if known else None,
        "expert_load_max": None if total is None else float((total / total.mean(-1, keepdims=True)).max()),
        "experts_unused": None if total is None else int((total == 0).sum()),
    }


def _by_turn(updates: Sequence[Mapping[str, float]]) -> dict[str, float] | None:
    """Return the mean mismatch of each turn that has tokens."""
    having = [values for values in updates if f"tokens_of_turn_{TURNS[0]}" in values]
    tokens = {turn: sum(values[f"tokens_of_turn_{turn}"] for values in having) for turn in TURNS}
    sums = {turn: sum(values[f"mismatch_of_turn_{turn}"] for values in having) for turn in TURNS}
    return {turn: sums[turn] / tokens[turn] for turn in TURNS if tokens[turn]} or None


def _per_token(updates: Sequence[UpdateSums], name: str) -> float | None:
    if not updates or name not in updates[0].values:
        return None
    return sum(update.values[name] for update in updates) / sum(update.values["tokens"] for update in updates)


def _mean(updates: Sequence[UpdateSums], name: str) -> float | None:
    return sum(update.values[name] for update in updates) / len(updates) if updates else None
