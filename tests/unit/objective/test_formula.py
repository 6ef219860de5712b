"""The formula of a configuration: what it says of each preset, and that no option that acts is left out of it."""

import pytest

from paceline.config.algorithms import CREDITED
from paceline.config.building import build_config
from paceline.config.objective import AdvantageConfig, LossConfig
from paceline.config.presets import PRESETS
from paceline.config.reading import options
from paceline.objective.formula import as_text, objective

REQUIRED = {"model": "org/model", "dataset": "rows.jsonl"}


def formula(**given: object) -> str:
    config = build_config({**REQUIRED, **given})
    lines = objective(config)
    return as_text(lines)


def rows(text: str) -> dict[str, str]:
    return dict([part.strip() for part in line.split(" = ", 1)] for line in text.splitlines())


EVERY = {
    "p_t": "the policy's probability of the token, at temperature 1",
    "old_t": "p_t before the step's first update (1 update, so the ratio is 1)",
    "group": "the 8 completions of one prompt",
    "R": "1 * accuracy",
}
CLIP = "-min(r_t A, clip(r_t, 1 - 0.2, 1 + 0.2) A)"
CISPO = "-stop_gradient(min(r_t, 5)) A log p_t"
TOKENS = {"r_t": "p_t / old_t", "w_t": "1 / tokens of the update"}
GROUP = "(R - mean over group) / (std over group + 0.0001)"
BATCH_STD = "(R - mean over group) / (std of those differences over step + 0.0001)"
PLAIN = "sum over tokens t of w_t * policy_t"
REVERSE = {
    "kl_t": "stop_gradient(p_t / old_t) log(p_t / q_t)^2 / 2, with the gradient of KL(policy || reference)",
    "q_t": "the reference's probability",
}
GOLDEN = {
    "grpo": {
        "loss": "sum over tokens t of w_t * (policy_t + 0.04 * kl_t)",
        "policy_t": CLIP,
        "r_t": "p_t / old_t",
        **REVERSE,
        "w_t": "1 / (completions of the update * tokens of the completion)",
        "A": GROUP,
    },
    "dapo": {
        "loss": PLAIN,
        "policy_t": "-min(r_t A, clip(r_t, 1 - 0.2, 1 + 0.28) A)",
        **TOKENS,
        "A": GROUP,
        "R": "1 * accuracy + 1 * overlong",
        "overlong": "0 up to 410 tokens, then a line down to -1 at 512",
        "groups": "those with 0 < mean of accuracy < 1; up to 3 rounds to replace others",
    },
    "dr_grpo": {
        "loss": PLAIN,
        "policy_t": CLIP,
        "r_t": "p_t / old_t",
        "w_t": "1 / (completions of the update * 512)",
        "A": "R - mean over group",
    },
    "bnpo": {"loss": PLAIN, "policy_t": CLIP, **TOKENS, "A": GROUP},
    "gspo": {
        "loss": PLAIN,
        "policy_t": "-min(r A, clip(r, 1 - 0.0003, 1 + 0.0004) A)",
        "r": "exp(mean over the completion of log(p_t / old_t))",
        "w_t": "1 / (completions of the update * tokens of the completion)",
        "A": GROUP,
    },
    "cispo": {"loss": PLAIN, "policy_t": CISPO, **TOKENS, "A": GROUP},
    "rloo": {
        "loss": "sum over tokens t of w_t * (policy_t + 0.05 * kl_t)",
        "policy_t": "-r_t A",
        "r_t": "p_t / old_t",
        **REVERSE,
        "w_t": "1 / (completions of the update * 512)",
        "A": "R - mean over the others of the group",
    },
    "reinforce_pp": {
        "loss": "sum over tokens t of w_t * (policy_t + 0.01 * kl_t)",
        "policy_t": CLIP,
        **TOKENS,
        **REVERSE,
        "A": BATCH_STD,
    },
    "scalerl": {
        "loss": PLAIN,
        "policy_t": CISPO,
        "r_t": "p_t / old_t",
        "w_t": "1 / (prompts of the update * tokens of the prompt's completions)",
        "A": BATCH_STD,
        "groups": "those with 0 < mean of accuracy < 1",
    },
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_reads_as_its_paper_has_it(name):
    assert rows(formula(preset=name)) == {**EVERY, **GOLDEN[name]}


FILTERED = {"filter_range": (0.0, 1.0), "filter_func": "accuracy", "reward_funcs": ("accuracy", "format")}
DIVERGING = {"beta": 0.1}
CHANGES: dict[str, tuple[dict[str, object], object]] = {
    "advantage": ({}, "batch"),
    "reward_aggregation": ({}, "normalize_then_sum"),
    "overlong_share": ({}, 0.5),
    "mask_truncated": ({}, True),
    "filter_range": ({}, (0.1, 0.9)),
    "filter_func": (FILTERED, "format"),
    "max_refills": (FILTERED, 2),
    "oversampling": (FILTERED, 1.5),
    "ratio_level": ({}, "sequence"),
    "bound": ({}, "sapo"),
    "clip_eps_low": ({}, 0.2 + 1e-9),
    "clip_eps_high": ({}, 0.28 + 1e-9),
    "bound_shape": ({}, (3.0,)),
    "average": ({}, "prompt"),
    "average_over": ({}, "all"),
    "beta": ({}, 1e-9),
    "kl": (DIVERGING, "forward"),
    "ref_sync": (DIVERGING, (7, 0.7)),
    "entropy_target": ({}, (0.2, 0.0, 1.0, 0.005)),
    "top_entropy_quantile": ({}, 0.2),
    "entropy_coef": ({}, 1e-9),
    "rollout_correction": ({}, "token_mask"),
    "correction_bounds": ({"rollout_correction": "token_truncate"}, (0.5, 2.0)),
    "off_policy_threshold": ({}, 0.5),
    "skip_threshold": ({}, 20.0),
    "reward_funcs": ({}, ("format",)),
    "reward_weights": ({}, (0.5,)),
    "environment": ({}, ("guess",)),
    "turn_credit": ({"environment": ("guess",)}, 0.9),
    "num_generations": ({}, 4),
    "max_completion_length": ({"average": "constant"}, 99),
    "temperature": ({}, 0.7),
    "num_iterations": ({}, 2),
    "num_minibatches": ({}, 2),
}
"""Of each option that acts on the objective: options under which it does, and another value for it."""


@pytest.mark.parametrize("name", CHANGES)
def test_an_option_that_changes_the_objective_changes_its_formula(name):
    ground, value = CHANGES[name]
    assert formula(**{**ground, name: value}) != formula(**ground)


def test_no_option_of_advantage_and_loss_is_without_its_place_in_the_formula():
    objective_options = {option.name for option in options() if option.section in ("advantage", "loss")}
    assert objective_options - {"preset"} <= CHANGES.keys()
    assert {*AdvantageConfig.__dataclass_fields__, *LossConfig.__dataclass_fields__} == objective_options


def test_every_advantage_and_average_has_words_of_its_own():
    for name in ("advantage", "average", "bound", "kl"):
        (choices,) = (option.choices for option in options() if option.name == name)
        assert len({formula(beta=0.1, **{name: choice}) for choice in choices}) == len(choices)


def test_the_rewards_of_an_environment_and_of_its_turns_are_told():
    lines = rows(formula(environment=("guess",), turn_credit=0.9))
    assert lines["R"] == "1 * environment"
    assert lines["A"] == "(G_k - mean over the group's episodes that reached turn k) / (std of R over group + 0.0001)"
    assert lines["G_k"].startswith("sum over turns j from the token's turn k on of 0.9^(j - k) * r_j")
    found = {formula(environment=("guess",), turn_credit=1.0, advantage=kind) for kind in CREDITED}
    assert len(found) == len(CREDITED)


def test_code_of_ones_own_is_named():
    lines = rows(formula(advantage="mine.py:f", bound="mine.py:g", ratio_level="sequence"))
    assert lines["A"] == "own: mine.py:f, of the rewards R of a group"
    assert lines["policy_t"] == "own: mine.py:g, of r, log p_t, log old_t, log rollout_t, A and H_t"


@pytest.mark.parametrize(
    "off",
    [
        {"kl": "forward"},
        {"correction_bounds": (0.0, 9.0)},
        {"bound": "sapo", "clip_eps_high": 9.0},
        {"bound": "none", "clip_eps_low": 0.1},
    ],
)
def test_what_is_switched_off_is_not_shown(off):
    without = {"bound": off["bound"]} if "bound" in off else {}
    assert formula(**off) == formula(**without)


def test_all_terms_stand_in_the_order_in_which_the_learner_joins_them():
    text = formula(
        beta=0.1, entropy_coef=0.01, rollout_correction="token_truncate", off_policy_threshold=0.5, skip_threshold=20.0
    )
    assert rows(text)["loss"] == "sum over tokens t of w_t * kept * (on * c_t * policy_t + 0.1 * kl_t - 0.01 * H_t)"


def test_a_bonus_that_follows_a_target_and_the_tokens_of_high_entropy_are_told():
    lines = rows(formula(entropy_coef=0.01, entropy_target=(0.2, 0.0, 1.0, 0.005), top_entropy_quantile=0.2))
    assert lines["loss"] == "sum over tokens t of w_t * (top_t * policy_t - eps * top_t * H_t)"
    assert lines["top_t"] == "1 for the top 0.2 of the update's tokens by H_t, else 0"
    assert lines["eps"] == (
        "0 unless the mean H_t of the update before was at most 0.2; 0.01 at first, after each such update + 0.005 "
        "up to 1, after others - 0.005 down to 0"
    )
    beyond = rows(formula(entropy_target=(0.2, 0.01, 1.0, 0.005)))  # a coefficient of 0 is below the least
    assert "; 0.01 at first, after" in beyond["eps"]


def test_vespo_has_the_correction_in_its_weight():
    lines = rows(formula(bound="vespo", rollout_correction="token_mask", correction_bounds=(0.5, 2.0)))
    assert lines["loss"] == "sum over tokens t of w_t * policy_t"
    assert lines["policy_t"].startswith(
        "-stop_gradient(w^k exp(l (1 - w))) A log p_t, k = 2, l = 3 where A >= 0, else 3"
    )
    assert lines["w"] == "product over the completion of p_t / old_t and of c_t, in [1e-8, e^20]"
    assert lines["c_t"].startswith("rho from 0.5 up to 2, else 0")


def test_vespo_has_a_ratio_beside_its_weight_only_where_the_penalty_is_times_it():
    penalised = {"bound": "vespo", "beta": 0.1}
    lines = rows(formula(**penalised, kl="k3_ratio"))
    assert lines["kl_t"] == "r_t (q_t / p_t - 1 + log(p_t / q_t))"
    assert (lines["w"], lines["r_t"]) == ("product over the completion of p_t / old_t, in [1e-8, e^20]", "p_t / old_t")
    for without in ({**penalised, "kl": "k3"}, {"bound": "vespo", "kl": "k3_ratio"}):
        assert "r_t" not in rows(formula(**without))
