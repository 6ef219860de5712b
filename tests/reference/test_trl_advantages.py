"""TRL 1.16's own advantages, out of a whole generation step of its trainer, beside Paceline's.

`make test-reference` installs TRL; without it these are skipped.
"""

from itertools import chain

import pytest

from paceline.objective.advantages import advantages, normalized_sums
from tests.reference.beside_trl import ROWS, trainer_of

pytest.importorskip("trl", reason="make test-reference installs it")


REWARDS = {
    "right": [1.0, 0.0, None, 0.25, 0.5, 1.0],
    "brief": [30.0, 10.0, None, None, 20.0, 20.0],
}
WEIGHTS = {"right": 1.0, "brief": 0.05}


def by_group(values: list) -> list[list]:
    return [values[:3], values[3:]]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"scale_rewards": "group"}, "group"),
        ({"scale_rewards": "batch"}, "group_mean_reward_std"),
        ({"scale_rewards": "none"}, "none"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "batch"),
    ],
    ids=lambda option: option if isinstance(option, str) else next(iter(option.values())),
)
def test_advantages_are_trls_with_missing_rewards_and_weights(tmp_path, theirs, ours):
    functions = [lambda completions, name=name, **_: REWARDS[name] for name in REWARDS]
    trainer = trainer_of(tmp_path, rewards=functions, reward_weights=list(WEIGHTS.values()), **theirs)
    wanted = trainer._generate_and_score_completions([{"prompt": "x"}] * 3 + [{"prompt": "y"}] * 3)["advantages"]
    if ours == "batch":
        groups = [dict(zip(REWARDS, one, strict=True)) for one in zip(*map(by_group, REWARDS.values()), strict=True)]
        sums = normalized_sums(groups, WEIGHTS)
    else:
        given = [{name: REWARDS[name][row] for name in REWARDS if REWARDS[name][row] is not None} for row in ROWS]
        sums = by_group([sum(WEIGHTS[name] * r for name, r in one.items()) if one else None for one in given])
    got = advantages(sums, kind=ours)
    assert [*chain(*got)] == pytest.approx(wanted.tolist(), rel=1e-5, abs=1e-6)


def test_a_constant_reward_is_exactly_zero_here_and_rounding_over_the_floor_there(tmp_path):
    # the float32 mean of three times 0.9 is not 0.9, and TRL divides what is left by 1e-4
    trainer = trainer_of(tmp_path, rewards=lambda completions, **_: [0.9] * 6, scale_rewards="group")
    theirs = trainer._generate_and_score_completions([{"prompt": "x"}] * 6)["advantages"]
    assert advantages([[0.9] * 3] * 2, kind="group") == [[0.0] * 3] * 2
    assert 0 < float(theirs.abs().max()) < 1e-2
