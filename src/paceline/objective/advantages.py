"""Advantages from a step's rewards, in plain floats: P groups, each with the rewards of one prompt's completions.

None is a completion without a reward: it is left out of every mean and standard deviation and has no advantage.
"""

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from paceline.config.algorithms import ADVANTAGES, STD_EPS
from paceline.errors import ConfigError, first_line
from paceline.metrics.statistics import mean_and_std, mean_of

Rewards = Sequence[float | None]
GroupAdvantage = Callable[[list[float | None]], Iterable[float]]
"""Advantage that a user defines: from the rewards of a group's completions, None where there is none, to a number each.
The number of a completion without a reward counts as 0."""

ROUNDING = 4 * sys.float_info.epsilon
"""Relative error of a sum by rounding. Weights, rewards, products and the sum itself are rounded by half an epsilon
each, and rewards are made of a few such numbers themselves."""

MEAN_FLOOR = 1e-12
"""Share of the spread below which a mean is rounding of 0, and taken as 0."""


def advantages(groups: Sequence[Rewards], *, kind: str) -> list[list[float]]:
    """Return one advantage per completion, in order; 0.0 without a reward or anything to compare.

        group                  (r - group mean) / (group std + 1e-4)      GRPO, arXiv:2402.03300, section 4.1.2
        batch                  (r - batch mean) / (batch std + 1e-4)      REINFORCE++, arXiv:2501.03262
        group_mean_batch_std   (r - group mean) / (std of all those + 1e-4)
        group_mean_reward_std  (r - group mean) / (batch std + 1e-4)
        leave_one_out          r - mean of the group's other rewards            RLOO, arXiv:2402.14740
        none                   r - group mean                                   Dr. GRPO, arXiv:2503.20783

    Standard deviations divide by n - 1, as in every widely used implementation; the papers leave it open. A group of
    equal rewards has a standard deviation of exactly 0.0, whatever the rounding of its mean. `kind` is a name of
    `config.algorithms.ADVANTAGES`.

    >>> advantages([[1.0, 0.0, 2.0]], kind="none")
    [[0.0, -1.0, 1.0]]
    """
    if ADVANTAGES[kind].baseline == "step":
        flat = [reward for rewards in groups for reward in rewards]
        whitened = iter(_scaled(flat, _std(flat)))
        return [[next(whitened) for _ in rewards] for rewards in groups]
    pairs = zip(groups, _scales(groups, kind), strict=True)
    return [[0.0 if scale is None else value / scale for value in _centred(rewards, kind)] for rewards, scale in pairs]


def turn_advantages(
    groups: Sequence[Sequence[Sequence[float]]], *, kind: str, discount: float
) -> list[list[tuple[float, ...]]]:
    """Return one advantage per turn of each episode from its turns' rewards; an empty one is without a reward.

        A_k  (G_k - mean of G_k over the group's episodes that reached turn k) / scale
        G_k  sum over turns j >= k of discount^(j - k) * r_j: what the episode earned from turn k on
        R    sum of all its r_j

    Whether an episode reaches turn k is decided before it, so that mean is a baseline. Where no other episode did, the
    baseline is the group's mean of R, less what the episode had earned before k. Means of `leave_one_out` are over the
    others. `kind` is one of `config.algorithms.CREDITED`; its scale is that of `advantages`, computed from R, and a
    kind that scales gives 0.0 where all R are equal.

    Centring each turn's reward by that turn's mean instead would charge an episode for every turn that it chose to
    take: the sum over j >= k would then have as many means as turns.

    >>> turn_advantages([[[0.0, 1.0], [0.0, 0.0], [0.5]]], kind="none", discount=1.0)
    [[(0.5, 0.5), (-0.5, -0.5), (0.0,)]]
    """
    sizes = [[[abs(reward) for reward in episode] for episode in group] for group in groups]
    totals = without_rounding(_totals(groups), _totals(sizes))
    returns, bounds = ([_returns(group, discount) for group in values] for values in (groups, sizes))
    settled = iter(without_rounding(list(itertools.chain(*returns)), list(itertools.chain(*bounds))))
    credits = list[list[tuple[float, ...]]]()
    for group, rewards, columns, scale in zip(groups, totals, returns, _scales(totals, kind), strict=True):
        by_turn = list[list[float]]()
        for turn in range(len(columns)):
            column = next(settled)
            is_alone = len(_present(column)) == 1
            centred = _alone(group, rewards, column, turn, kind) if is_alone else _centred(column, kind)
            by_turn.append([0.0 if scale is None else value / scale for value in centred])
        credits.append([tuple(column[i] for column in by_turn[: len(episode)]) for i, episode in enumerate(group)])
    return credits


def own_advantages(rewards: Rewards, function: GroupAdvantage, name: str) -> list[float]:
    """Return the advantages of a group by a user's function; 0.0 for a completion without a reward.

    >>> own_advantages([1.0, None, 3.0], lambda rewards: [(reward or 0.0) - 2 for reward in rewards], "mine.py:f")
    [-1.0, 0.0, 1.0]

    Raises:
        ConfigError: the function raises, or does not return one finite number per completion.
    """
    rule = "return one finite number for each completion of a group"

    def refused(what: str) -> ConfigError:
        return ConfigError(
            f"--advantage {name} must {rule}, got {what} for rewards {list(rewards)}",
            remedies=["correct the function", "choose an advantage that is built in, such as group"],
        )

    try:
        values = list(function(list(rewards)))
    except Exception as error:
        raise refused(f"{type(error).__name__} ({first_line(error)})") from error
    if len(values) != len(rewards):
        raise refused(f"{len(values)} values")
    for value in values:
        try:
            is_number = math.isfinite(value)
        except TypeError:
            is_number = False
        if not is_number:
            raise refused(repr(value))
    return [0.0 if reward is None else float(value) for reward, value in zip(rewards, values, strict=True)]


TRIAL_GROUPS: Sequence[Rewards] = (
    *((1.0, 0.0, 0.0, 1.0), (0.5, 0.5, 0.5), (0.0, 0.0, 0.0, 0.0), (-2.0, 0.25, 1e6)),
    *((1.0, None, 0.0), (None, 1.0), (None, None), (1.0,)),
)
"""Rewards that a step may have: mixed, equal, all wrong, of any size, and missing for some or all completions."""


def check_advantage(function: GroupAdvantage, name: str) -> None:
    """Call a user's function on a few made-up groups; raises as `own_advantages` does."""
    for rewards in TRIAL_GROUPS:
        own_advantages(rewards, function, name)


def without_rounding(sums: Sequence[Rewards], sizes: Sequence[Rewards]) -> list[list[float | None]]:
    """Merge weighted sums that differ by rounding alone into one number, the least of them.

    Without it, 0.1 + 0.2 would be better than 0.3, and a group of equal rewards would carry signal. `sizes` has what
    the terms of each sum add up to without their signs: a sum is as exact as its terms, however small it is.

    >>> without_rounding([[0.1 + 0.2, 0.3, 0.4]], [[0.3, 0.3, 0.4]])
    [[0.3, 0.3, 0.4]]
    """
    settled = [list(group) for group in sums]
    pairs = [
        (value, size, row, column)
        for row, pair in enumerate(zip(sums, sizes, strict=True))
        for column, (value, size) in enumerate(zip(*pair, strict=True))
        if value is not None and size is not None
    ]
    least, least_size = -math.inf, 0.0
    for value, size, row, column in sorted(pairs):
        if value - least > ROUNDING * (size + least_size):
            least, least_size = value, size
        settled[row][column] = least
    return settled


def normalized_sums(groups: Sequence[Mapping[str, Rewards]], weights: Mapping[str, float]) -> list[list[float | None]]:
    """Combine several rewards, each normalised within its group, so that a large one does not drown the others.

        R = sum over rewards of weight * (r - group mean) / (group std + 1e-4)

    `groups` has, for each group, the completions' rewards by name. A completion that no function graded stays None;
    sums that differ by rounding alone are one number (`without_rounding`).
    Source: GDPO, arXiv:2601.05242, which then normalises over the batch (`advantages(..., kind="batch")`).

    >>> normalized_sums([{"a": [0.0, 2.0], "b": [5.0, None]}], {"a": 2**0.5 + 1e-4, "b": 9.0})
    [[-1.0, 1.0]]
    """
    pairs = [_normalized_sum(by_reward, weights) for by_reward in groups]
    return without_rounding([sums for sums, _ in pairs], [sizes for _, sizes in pairs])


def overlong_penalty(length: int, *, max_length: int, buffer: int) -> float:
    """Return the soft length penalty of a completion: 0, then falling linearly to -1 at `max_length`.

        0                                             length <= max_length - buffer
        (max_length - buffer - length) / buffer       up to max_length
        -1                                            beyond

    Source: DAPO, arXiv:2503.14476, Eq. 13. The same for right and wrong answers.

    >>> [overlong_penalty(n, max_length=100, buffer=20) for n in (80, 90, 100, 120)]
    [0.0, -0.5, -1.0, -1.0]
    """
    over = length - (max_length - buffer)
    if over <= 0:
        return 0.0
    return -1.0 if over >= buffer else -over / buffer


def overlong_buffer(share: float, *, max_length: int) -> int:
    """Return the tokens before `max_length` over which `overlong_penalty` falls: this share of it, at least one.

    >>> overlong_buffer(0.2, max_length=512)
    102
    """
    return max(1, round(share * max_length))


def carries_signal(group_advantages: Sequence[float]) -> bool:
    """Return True if any advantage is nonzero; otherwise the group's policy gradient is exactly zero.

    >>> carries_signal([0.0, 0.0]), carries_signal([0.5, -0.5])
    (False, True)
    """
    return any(advantage != 0.0 for advantage in group_advantages)


def _normalized_sum(by_reward: Mapping[str, Rewards], weights: Mapping[str, float]) -> tuple[Rewards, Rewards]:
    """Return each completion's weighted sum in a group, and its size for `without_rounding`."""
    scaled, largest = dict[str, list[float]](), dict[str, float]()
    for name, rewards in by_reward.items():
        std = _std(rewards)
        scaled[name] = _scaled(rewards, std)
        # a difference from the mean is as exact as its terms
        largest[name] = 2 * max(map(abs, _present(rewards)), default=0.0) / (std + STD_EPS)
    sums, sizes = list[float | None](), list[float | None]()
    for i in range(max(map(len, by_reward.values()))):
        names = [name for name, rewards in by_reward.items() if rewards[i] is not None]
        sums.append(math.fsum(weights[name] * scaled[name][i] for name in names) if names else None)
        sizes.append(math.fsum(abs(weights[name]) * largest[name] for name in names) if names else None)
    return sums, sizes


def _totals(groups: Sequence[Sequence[Sequence[float]]]) -> list[list[float | None]]:
    """Return the sum of each episode's rewards."""
    return [[math.fsum(rewards) if rewards else None for rewards in group] for group in groups]


def _returns(group: Sequence[Sequence[float]], discount: float) -> list[list[float | None]]:
    """Return for each turn what each episode earned from it on; None for one that did not reach it."""
    columns: list[list[float | None]] = [[None] * len(group) for _ in range(max(map(len, group), default=0))]
    for i, rewards in enumerate(group):
        earned = 0.0
        for turn in reversed(range(len(rewards))):
            earned = rewards[turn] + discount * earned
            columns[turn][i] = earned
    return columns


def _alone(group: Sequence[Sequence[float]], totals: Rewards, column: Rewards, turn: int, kind: str) -> list[float]:
    """Centre the return of the only episode that reached a turn by the mean of R less what it had earned before."""
    ((index, value),) = ((i, value) for i, value in enumerate(column) if value is not None)
    with_itself = ADVANTAGES[kind].baseline != "others"
    compared = _present([total for i, total in enumerate(totals) if i != index or with_itself])
    if not compared:
        return [0.0] * len(column)
    mean = mean_of(compared)
    difference = value - (mean - math.fsum(group[index][:turn]))
    size = abs(mean) + math.fsum(map(abs, group[index]))
    centred = [0.0] * len(column)
    centred[index] = 0.0 if abs(difference) <= ROUNDING * size else difference
    return centred


def _scales(groups: Sequence[Rewards], kind: str) -> list[float | None]:
    """Return what the centred rewards of each group are divided by; None: there is nothing to compare."""
    scale = ADVANTAGES[kind].scale
    if scale == "group":
        scales = [_scale(rewards) for rewards in groups]
    elif scale == "none":
        scales = [1.0] * len(groups)
    else:
        centred = groups if scale == "step" else [_scaled(rewards, None) for rewards in groups]
        pairs = [pair for rows in zip(groups, centred, strict=True) for pair in zip(*rows, strict=True)]
        scales = [_scale([value for reward, value in pairs if reward is not None])] * len(groups)
    return [None if len(_present(rewards)) < 2 else scale for rewards, scale in zip(groups, scales, strict=True)]


def _scale(rewards: Rewards) -> float | None:
    values = _present(rewards)
    return None if not values or max(values) == min(values) else _std(values) + STD_EPS


def _present(rewards: Rewards) -> list[float]:
    return [reward for reward in rewards if reward is not None]


def _std(rewards: Rewards) -> float:
    """Return the sample standard deviation; 0.0 for fewer than two rewards."""
    return mean_and_std(rewards)[1] or 0.0


def _scaled(rewards: Rewards, std: float | None) -> list[float]:
    """Subtract the mean from rewards and divide by the standard deviation, unless that is None."""
    values = _present(rewards)
    if not values or max(values) == min(values):
        return [0.0] * len(rewards)
    mean = mean_of(values)
    if abs(mean) < MEAN_FLOOR * (max(values) - min(values)):
        mean = 0.0
    scale = 1.0 if std is None else std + STD_EPS
    return [0.0 if reward is None else (reward - mean) / scale for reward in rewards]


def _centred(rewards: Rewards, kind: str) -> list[float]:
    """Subtract from each reward the mean of the group, or of the group's other rewards."""
    if ADVANTAGES[kind].baseline != "others":
        return _scaled(rewards, None)
    values = _present(rewards)
    if len(values) < 2 or max(values) == min(values):
        return [0.0] * len(rewards)
    total, others = math.fsum(values), len(values) - 1
    return [0.0 if reward is None else reward - (total - reward) / others for reward in rewards]
