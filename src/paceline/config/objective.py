"""Options for what a step optimises: advantages, loss and optimiser."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from paceline.config.algorithms import BOUNDS, AdvantageName, BoundName
from paceline.config.presets import PresetName
from paceline.config.rules import (
    ABOVE_0,
    AT_LEAST_0,
    AT_LEAST_1,
    FROM_0_BELOW_1,
    FROM_0_TO_1,
    Bound,
    check_bounds,
    check_unused,
    require,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class AdvantageConfig:
    """Advantages within a step, and the completions that are trained on."""

    preset: PresetName | None = None
    """A published objective: sets the options of this and the next two sections that are not given themselves."""
    advantage: AdvantageName | str = "group"
    """Baseline and scale of the reward: group mean and standard deviation (GRPO), or one of its relatives. Or a
    function of one group's rewards, as file.py:function or module:function."""
    reward_aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = "sum_then_normalize"
    """Several rewards: summed as they are, or each normalised within its group first (GDPO)."""
    overlong_share: Annotated[float, FROM_0_TO_1] = 0.0
    """Soft length penalty (DAPO), added to the reward: over this last share of max_completion_length it falls from 0 to
    -1; 0: off."""
    mask_truncated: bool = False
    """Completions cut at max_completion_length count in their group's baseline but get no gradient."""
    filter_range: Annotated[
        tuple[float, ...] | None,
        Bound(
            lambda value: len(value) == 2 and value[0] < value[1], "be two numbers, the lower first", "DAPO's is 0 1"
        ),
    ] = None
    """Train only on groups whose mean of `filter_func` lies strictly between these two numbers, such as 0 1 (DAPO)."""
    filter_func: str | None = None
    """Reward function that `filter_range` applies to; None: `eval_reward_func` if it is one of them, else the first;
    without any, the environment's own reward."""
    max_refills: Annotated[int, AT_LEAST_0] = 0
    """Further rounds of sampling to replace groups outside `filter_range`; then the step uses the groups it has."""
    oversampling: Annotated[float, AT_LEAST_1] = 1.0
    """Prompts sampled per group that a round must bring, with `filter_range`. Above 1 it saves rounds, and so the wait
    for the slowest completion of each. Groups beyond a step's are left out, the last ones first."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.filter_range is None:
            check_unused(self, ("max_refills",), without="--filter-range", why="only filtered groups are replaced")
            why = "all that is sampled beyond a step would be left out"
            check_unused(self, ("oversampling",), without="--filter-range", why=why)


def _is_ref_sync(value: tuple[float, ...]) -> bool:
    return len(value) == 2 and value[0] >= 1 and value[0] == int(value[0]) and 0 < value[1] <= 1


def _is_entropy_target(value: tuple[float, ...]) -> bool:
    return len(value) == 4 and value[0] >= 0 and 0 <= value[1] <= value[2] and value[3] > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class LossConfig:
    """Objective: bounds of the ratio, averages over tokens, KL and corrections."""

    ratio_level: Literal["token", "sequence"] = "token"
    """Ratio to the old policy: of each token, or of a sequence by the mean of its log ratios (GSPO)."""
    bound: BoundName | str = "clip"
    """Bound of the ratio: clipping, a bounded weight that stops no gradient (CISPO), a soft gate (SAPO), a smooth
    weight of the whole completion (VESPO), or none. Or a policy loss per token of your own, as file.py:function or
    module:function."""
    clip_eps_low: Annotated[float, FROM_0_BELOW_1] = 0.2
    """`clip`: the ratio is held above `1 - clip_eps_low`."""
    clip_eps_high: Annotated[float, AT_LEAST_0] = 0.28
    """`clip`: the ratio is held below `1 + clip_eps_high` (DAPO's clip-higher: above `clip_eps_low`). `cispo`: it
    weighs at most that, and the default is 4."""
    bound_shape: tuple[float, ...] | None = None
    """Numbers of `bound`. `clip`: where the advantage is negative, the ratio counts as this at most, such as 3 (dual
    clip). `sapo`: temperatures for positive and negative advantages, 1 1.05. `vespo`: k and lambda for positive, then
    for negative advantages, 2 3 3 2. None: no dual clip, else those."""
    average: Literal["token", "sequence", "constant", "prompt", "sequence_sum"] = "token"
    """Unit of equal weight: token (DAPO), completion (GRPO), token over a constant (Dr. GRPO), or prompt. sequence_sum:
    each completion counts as the sum of its tokens (LUSPO)."""
    average_over: Literal["kept", "all"] = "kept"
    """Completions that `average` counts: those that may have a gradient, or also masked and ungraded ones, as TRL's."""
    beta: Annotated[float, AT_LEAST_0] = 0.0
    """Weight of the KL divergence to the reference model; 0 loads no reference."""
    kl: Literal["reverse", "forward", "k3", "k3_ratio"] = "reverse"
    """reverse is KL(policy || reference), forward is KL(reference || policy), each with its own gradient. k3 is GRPO's
    estimator as TRL differentiates it, and k3_ratio the same times the ratio."""
    ref_sync: Annotated[
        tuple[float, ...] | None, Bound(_is_ref_sync, "be steps and a share in (0, 1]", "512 0.6 is usual")
    ] = None
    """Steps between updates of the reference towards the policy, and the policy's share in them, such as 64 0.6:
    reference = share * policy + (1 - share) * reference. None: never."""
    entropy_coef: Annotated[float, AT_LEAST_0] = 0.0
    """Weight of the policy's entropy, in nats per token, as a bonus."""
    entropy_target: Annotated[
        tuple[float, ...] | None,
        Bound(
            _is_entropy_target,
            "be an entropy, the least and the largest coefficient, and its change per update",
            "0.2 0 1 0.005 is usual",
        ),
    ] = None
    """Adaptive bonus: entropy in nats per token, then the least, the largest and the change per update of
    `entropy_coef`, such as 0.2 0 1 0.005. It rises after an update at or below that entropy, falls after one above
    it, and counts only behind the first kind."""
    top_entropy_quantile: Annotated[
        float, Bound(lambda value: 0 <= value <= 1, "lie in [0, 1]", "0.2 is usual, 1 is off")
    ] = 1.0
    """Share of an update's tokens, those of the highest entropy, whose policy term counts; 1: all, 0.2 is usual."""
    rollout_correction: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = "none"
    """Weight of old over rollout probability, for engines that compute otherwise and completions of older weights: of
    each token, or of a sequence by the product over its tokens; held at a bound (truncate), or 0 beyond it (mask). With
    `max_staleness` above 0 or `engine_quantization` the default is token_truncate."""
    correction_bounds: Annotated[
        tuple[float, ...],
        Bound(
            lambda value: len(value) == 2 and 0 <= value[0] < value[1],
            "be two numbers from 0 on, the lower first",
            "0 2 is usual",
        ),
    ] = (0.0, 2.0)
    """Lower and upper bound of that weight."""
    off_policy_threshold: Annotated[float | None, ABOVE_0] = None
    """Drop completions with a negative advantage whose mean log of rollout over policy probability is above this."""
    skip_threshold: Annotated[float | None, Bound(lambda value: value > 1, "be above 1", "20 is usual")] = None
    """Drop completions whose mean ratio is above this, for example 20."""

    def __post_init__(self) -> None:
        check_bounds(self)
        self._check_shape()
        right = self.ref_sync is None or self.beta > 0
        require(right, "ref_sync", self.ref_sync, "be none while --beta is 0", "there is no reference then")
        self._check_vespo()

    def _check_shape(self) -> None:
        shape, row = self.bound_shape, BOUNDS.get(self.bound)
        if shape is None:
            return
        count = 0 if row is None else row.shape_length
        require(count > 0, "bound_shape", shape, f"be none with --bound {self.bound}", "it has no numbers of its own")
        rule = f"be {'one number' if count == 1 else f'{count} numbers'} with --bound {self.bound}"
        advice = f"{' '.join(map(str, BOUNDS[self.bound].shape)) or 3} is usual"
        require(len(shape) == count, "bound_shape", shape, rule, advice)
        if self.bound == "clip":
            require(shape[0] > 1 + self.clip_eps_high, "bound_shape", shape, "be above 1 + clip_eps_high", advice)
        else:
            require(min(shape) > 0, "bound_shape", shape, "be above 0", advice)

    def _check_vespo(self) -> None:
        if self.bound == "vespo":
            why = "it weighs whole completions itself"
            require(self.ratio_level == "token", "ratio_level", self.ratio_level, "be token with --bound vespo", why)
            right = not self.rollout_correction.startswith("sequence")
            rule = "be none, token_truncate or token_mask with --bound vespo"
            require(right, "rollout_correction", self.rollout_correction, rule, "it multiplies them itself")

    @property
    def shape(self) -> tuple[float, ...]:
        """Numbers of the bound, as given or default; for `clip` none without a dual clip."""
        if self.bound_shape is not None:
            return self.bound_shape
        return BOUNDS[self.bound].shape if self.bound in BOUNDS else ()

    @property
    def ref_sync_steps(self) -> int:
        """Steps between updates of the reference; 0: it stays as it is."""
        return 0 if self.ref_sync is None else int(self.ref_sync[0])

    @property
    def has_entropy_bonus(self) -> bool:
        """True if entropy has a gradient in some update."""
        return self.entropy_coef > 0 or self.entropy_target is not None

    @property
    def reads_whole_completions(self) -> bool:
        """True if a token's loss depends on other tokens of its completion."""
        return (
            self.ratio_level == "sequence"
            or self.bound not in BOUNDS  # a function, which may
            or BOUNDS[self.bound].reads_completion
            or self.rollout_correction.startswith("sequence")
            or self.off_policy_threshold is not None
            or self.skip_threshold is not None
        )

    @property
    def needs_every_token(self) -> bool:
        """True if completions of advantage 0 are computed too, for their gradient or for the quantile of entropies."""
        return self.beta > 0 or self.has_entropy_bonus or self.top_entropy_quantile < 1


OFFLOADED = ("optimizer", "activations", "parameters")
MICRO_BATCH_TOKENS = {"cpu": (4096,), "cuda": (16_384, 8192, 4096)}
"""Candidates, largest first. On an H100 a model of half a billion weights trains with 4096 tokens at a time in 1.9
times the time of 16,384. 32,768 gain another tenth: the host starts kernels too slowly for the device."""


SCHEDULERS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("constant", "constant_with_warmup", "linear"), ()),
    "cosine": ("num_cycles",),
    "cosine_with_min_lr": ("num_cycles", "min_lr", "min_lr_rate"),
    "cosine_with_restarts": ("num_cycles",),
    "cosine_warmup_with_min_lr": ("num_cycles", "min_lr", "min_lr_rate", "warmup_lr_rate"),
    "polynomial": ("lr_end", "power"),
    "inverse_sqrt": ("timescale",),
    "warmup_stable_decay": (
        *("num_decay_steps", "num_stable_steps", "warmup_type", "decay_type", "min_lr_ratio", "num_cycles"),
    ),
}
"""Parameters of each of transformers' schedules, without those that follow a measured loss."""
PROGRAM: Final = "program"
"""Value of `optimizer` and `lr_scheduler` for an object that a Python program passed in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimConfig:
    """Optimiser, learning rate and batches of an update."""

    optimizer: Literal["adamw", "adamw_8bit", "program"] = "adamw"
    """AdamW, with its two moments in float32 or in 8 bits (bitsandbytes): a quarter of their memory, slow on a CPU.
    `program`: an optimiser object that a Python program passed in, to which AdamW's options do not apply."""
    offload: Annotated[
        tuple[str, ...], Bound(lambda value: set(value) <= {*OFFLOADED}, f"name some of {', '.join(OFFLOADED)}")
    ] = ()
    """CUDA: tensors kept in main memory. optimizer: AdamW's moments, which visit the GPU one parameter at a time;
    activations: until the backward pass, which `gradient_checkpointing` takes into account; parameters: the slices of
    `zero_stage`, with their state, which are updated there."""
    learning_rate: Annotated[float, AT_LEAST_0, Bound(lambda value: value < 1, "be below 1")] = 1e-6
    """Peak learning rate of AdamW."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Shape after the warm-up."""
    warmup_steps: Annotated[int, AT_LEAST_0] = 0
    """Steps from 0 to the peak learning rate."""
    min_lr_ratio: Annotated[float, FROM_0_TO_1] = 0.0
    """Final learning rate of `linear` and `cosine`, as a share of the peak."""
    lr_scheduler: str | None = None
    """A schedule of transformers, update by update, in the place of `lr_schedule`, `warmup_steps` and `min_lr_ratio`:
    `cosine(warmup=10)`, `polynomial(warmup=0.1, power=2)`, as `GRPOTrainer` records it; a warm-up below 1 is a share of
    all updates. `program`: a schedule that a Python program passed in. None: `lr_schedule`."""
    adam_betas: Annotated[
        tuple[float, ...],
        Bound(
            lambda value: len(value) == 2 and all(0 <= beta < 1 for beta in value),
            "be two numbers in [0, 1)",
            "0.9 0.999 is usual",
        ),
    ] = (0.9, 0.999)
    """Decay of AdamW's mean of gradients, and of its mean of squared gradients."""
    adam_eps: Annotated[float, ABOVE_0] = 1e-8
    """Added to the root of the mean square."""
    weight_decay: Annotated[float, AT_LEAST_0] = 0.0
    """AdamW's decoupled weight decay."""
    max_grad_norm: Annotated[float, AT_LEAST_0] = 1.0
    """Largest norm of the gradient, to which a larger one is scaled down; 0 is off."""
    num_iterations: Annotated[int, AT_LEAST_1] = 1
    """Updates per batch of rollouts; from the second on the clip bounds bite."""
    num_minibatches: Annotated[int, AT_LEAST_1] = 1
    """Parts that a batch of rollouts is cut into, each with an update of its own; above 1 the clip bounds bite."""
    micro_batch_tokens: Annotated[int, AT_LEAST_0] = 0
    """Tokens forwarded at once by a process, padding included: memory and speed, never the gradient. 0: 4096 on a CPU,
    which suits its cache. On CUDA 16384, or a half or a quarter of it if no more fit without activation checkpointing,
    unless `gradient_checkpointing` asks for that. Where memory runs out in a step, that step is done again with half as
    many, and so are all later ones."""

    def __post_init__(self) -> None:
        check_bounds(self)
        right, rule = self.optimizer == "adamw", f"not name optimizer with --optimizer {self.optimizer}"
        why = "only the float32 moments can lie in main memory"
        require("optimizer" not in self.offload or right, "offload", self.offload, rule, why)

    def micro_batches(self, device: str) -> tuple[int, ...]:
        """Return candidate sizes of a micro-batch in tokens on a device of this type, largest first."""
        return (self.micro_batch_tokens,) if self.micro_batch_tokens else MICRO_BATCH_TOKENS[device]

    @property
    def moment_bytes(self) -> int:
        """Bytes of AdamW's two moments per trained weight; of a program's own optimiser, the most that is usual."""
        return {"adamw": 8, "adamw_8bit": 2, PROGRAM: 8}[self.optimizer]
