"""Each preset's objective written again from its source, token by token, in plain loops over padded tables.

Nothing here is shared with the package: advantages come from `statistics`, gradients from autograd alone. What these
functions keep of the differences that `PRESETS[...].differs` names is said in each. `Step` is in `steps.py`; `p` is
the policy's logprobs [B, T].
"""

from collections.abc import Callable, Iterable
from statistics import mean, stdev

import torch
from torch import Tensor

from tests.reference.steps import Step

FLOOR = 1e-4
"""Added to every standard deviation; the papers add nothing."""


def grpo(step: Step, p: Tensor) -> Tensor:
    """DeepSeekMath, arXiv:2402.03300, Eq. 3: mean over completions of the mean over tokens, minus 0.04 KL.

    Differs: the KL term is the one whose gradient is the reverse KL's; the paper does not tell its epsilon.
    """
    total = 0.0
    for row in range(len(step.rewards)):
        a = group_normalised(step, row, step.rewards)
        for t in range(step.lengths[row]):
            token = -surrogate(ratio(step, p, row, t), a, 0.2, 0.2) + 0.04 * reverse_kl(step, p, row, t)
            total = total + token / step.lengths[row] / len(step.rewards)
    return total


def dapo(step: Step, p: Tensor) -> Tensor:
    """DAPO, arXiv:2503.14476, Eq. 8 (loss), 11 (groups of mixed results only), 13 (soft length penalty)."""
    buffer = max(1, round(0.2 * step.max_length))
    shaped = [
        reward + soft_penalty(length, step.max_length, buffer)
        for reward, length in zip(step.rewards, step.lengths, strict=True)
    ]
    rows = mixed(step)
    tokens = sum(step.lengths[row] for row in rows)
    return sum(
        -surrogate(ratio(step, p, row, t), group_normalised(step, row, shaped), 0.2, 0.28) / tokens
        for row, t in places(step, rows)
    )


def dr_grpo(step: Step, p: Tensor) -> Tensor:
    """Dr. GRPO, arXiv:2503.20783, section 3.2: no division by standard deviation or length.

    Differs: the division by the longest completion allowed, which its code has.
    """
    rows = range(len(step.rewards))
    return sum(
        -surrogate(ratio(step, p, row, t), centred(step, row), 0.2, 0.2) / len(rows) / step.max_length
        for row, t in places(step, rows)
    )


def bnpo(step: Step, p: Tensor) -> Tensor:
    """The loss of this name in TRL, on one micro-batch: GRPO's, as a mean over tokens."""
    return sum(
        -surrogate(ratio(step, p, row, t), group_normalised(step, row, step.rewards), 0.2, 0.2) / sum(step.lengths)
        for row, t in places(step, range(len(step.rewards)))
    )


def gspo(step: Step, p: Tensor) -> Tensor:
    """GSPO, arXiv:2507.18071, Eq. 5 and 7: one ratio per completion, the geometric mean of its tokens'."""
    total = 0.0
    for row in range(len(step.rewards)):
        logs = [p[row, t] - step.old[row, t] for t in range(step.lengths[row])]
        s = torch.exp(sum(logs) / len(logs))
        a = group_normalised(step, row, step.rewards)
        total = total - surrogate(s, a, 3e-4, 4e-4) / len(step.rewards)
    return total


def cispo(step: Step, p: Tensor) -> Tensor:
    """MiniMax-M1, arXiv:2506.13585, Eq. 4 and 5. Differs: the bound is 5, which the paper does not tell."""
    return sum(
        -bounded_weight(step, p, row, t) * group_normalised(step, row, step.rewards) * p[row, t] / sum(step.lengths)
        for row, t in places(step, range(len(step.rewards)))
    )


def rloo(step: Step, p: Tensor) -> Tensor:
    """RLOO, arXiv:2402.14740: REINFORCE with the mean of the other samples as baseline, as a sum over tokens.

    Differs: divided by the longest completion allowed; the KL is per token in the loss, not in the reward; and the
    ratio is 1 at the first update, where this is the paper's.
    """
    total = 0.0
    for row, t in places(step, range(len(step.rewards))):
        others = [step.rewards[other] for other in step.group_of(row) if other != row]
        advantage = step.rewards[row] - mean(others)
        token = -ratio(step, p, row, t) * advantage + 0.05 * reverse_kl(step, p, row, t)
        total = total + token / len(step.rewards) / step.max_length
    return total


def reinforce_pp(step: Step, p: Tensor) -> Tensor:
    """REINFORCE++ with baseline, arXiv:2501.03262: the group's mean off, then the std of the whole batch.

    Differs: that standard deviation is of completions, not of tokens.
    """
    rows = range(len(step.rewards))
    scale = stdev(centred(step, row) for row in rows) + FLOOR
    return sum(
        (-surrogate(ratio(step, p, row, t), centred(step, row) / scale, 0.2, 0.2) + 0.01 * reverse_kl(step, p, row, t))
        / sum(step.lengths)
        for row, t in places(step, rows)
    )


def scalerl(step: Step, p: Tensor) -> Tensor:
    """ScaleRL, arXiv:2510.13786, section 3.2: CISPO, mean over prompts, std of the batch, mixed groups only."""
    rows = mixed(step)
    groups = [group for group in step.groups if group[0] in rows]
    scale = stdev(centred(step, row) for row in rows) + FLOOR
    total = 0.0
    for group in groups:
        tokens = sum(step.lengths[row] for row in group)
        for row, t in places(step, group):
            token = -bounded_weight(step, p, row, t) * centred(step, row) / scale * p[row, t]
            total = total + token / tokens / len(groups)
    return total


PAPERS: dict[str, Callable[[Step, Tensor], Tensor]] = {
    function.__name__: function for function in (grpo, dapo, dr_grpo, bnpo, gspo, cispo, rloo, reinforce_pp, scalerl)
}


def places(step: Step, rows: Iterable[int]) -> list[tuple[int, int]]:
    """Every row with every token of it."""
    return [(row, t) for row in rows for t in range(step.lengths[row])]


def ratio(step: Step, p: Tensor, row: int, t: int) -> Tensor:
    """Of one token."""
    return torch.exp(p[row, t] - step.old[row, t])


def bounded_weight(step: Step, p: Tensor, row: int, t: int) -> float:
    """CISPO's: a number, without gradient."""
    return min(ratio(step, p, row, t).item(), 5.0)


def surrogate(r: Tensor, a: float, low: float, high: float) -> Tensor:
    """PPO's, case by case: what is beyond a bound on the side that the advantage pushes to is a constant."""
    if a > 0 and r > 1 + high:
        return r.detach() * 0 + (1 + high) * a
    if a < 0 and r < 1 - low:
        return r.detach() * 0 + (1 - low) * a
    return r * a


def reverse_kl(step: Step, p: Tensor, row: int, t: int) -> Tensor:
    """Importance weight, a number, times half the square of the log ratio to the reference."""
    return ratio(step, p, row, t).item() * (p[row, t] - step.reference[row, t]) ** 2 / 2


def centred(step: Step, row: int) -> float:
    """Reward minus the group's mean."""
    return step.rewards[row] - mean(step.rewards[other] for other in step.group_of(row))


def group_normalised(step: Step, row: int, rewards: Iterable[float]) -> float:
    """Reward minus the group's mean, over the group's standard deviation."""
    rewards = list(rewards)
    group = [rewards[other] for other in step.group_of(row)]
    return (rewards[row] - mean(group)) / (stdev(group) + FLOOR)


def mixed(step: Step) -> list[int]:
    """Rows of the groups that are neither all right nor all wrong."""
    return [row for group in step.groups if 0 < mean(step.rewards[r] for r in group) < 1 for row in group]


def soft_penalty(length: int, longest: int, buffer: int) -> float:
    """DAPO, Eq. 13."""
    if length <= longest - buffer:
        return 0.0
    return (longest - buffer - length) / buffer if length <= longest else -1.0
