"""TRL 1.16's own loss, computed by its code, where Paceline means the same: loss and every gradient agree to rounding.

Float32, 1e-5 relative. `make test-reference` installs TRL; without it these are skipped.
"""

import pytest
import torch
from torch import Tensor

from paceline.config.objective import LossConfig
from paceline.objective.policy_loss import off_policy_sequences
from tests.reference.beside_trl import (
    ADVANTAGES,
    CLIP,
    COMPLETIONS,
    MAX_LENGTH,
    assert_same,
    loss_of_fields,
    near_tables,
    our_outcome,
    our_outcome_without,
    trainer_of,
    trl_outcome,
    without,
)

trl = pytest.importorskip("trl", reason="make test-reference installs it")


@pytest.fixture(scope="module")
def tables() -> dict[str, Tensor]:
    return near_tables()


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"loss_type": "grpo"}, {"average": "sequence", **CLIP}),
        ({"loss_type": "grpo", "epsilon_high": 0.28}, {"average": "sequence", "clip_eps_low": 0.2}),
        ({"loss_type": "grpo", "delta": 1.5}, {"average": "sequence", "bound_shape": (1.5,), **CLIP}),
        (
            {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
            {"average": "sequence", "ratio_level": "sequence", "clip_eps_low": 3e-4, "clip_eps_high": 4e-4},
        ),
        ({"loss_type": "grpo", "off_policy_mask_threshold": 0.1},
         {"average": "sequence", "off_policy_threshold": 0.1, **CLIP}),
        ({"loss_type": "bnpo"}, {"average": "token", **CLIP}),
        ({"loss_type": "bnpo", "entropy_coef": 0.03}, {"average": "token", "entropy_coef": 0.03, **CLIP}),
        ({"loss_type": "dr_grpo"}, {"average": "constant", **CLIP}),
        ({"loss_type": "dapo"}, {"average": "token", **CLIP}),
        (
            {"loss_type": "dapo", "importance_sampling_level": "sequence"},
            {"average": "token", "ratio_level": "sequence", **CLIP},
        ),
        ({"loss_type": "dapo", "entropy_coef": 0.03, "delta": 1.5},
         {"average": "token", "entropy_coef": 0.03, "bound_shape": (1.5,), **CLIP}),
        ({"loss_type": "cispo", "epsilon_high": 5.0}, {"average": "token", "bound": "cispo", "clip_eps_high": 4.0}),
        # left alone, TRL's epsilon_high is epsilon and holds every weight at 0.2; here the bound is above 1
        ({"loss_type": "cispo", "epsilon_high": 1.25}, {"average": "token", "bound": "cispo", "clip_eps_high": 0.25}),
        ({"loss_type": "sapo"}, {"average": "sequence", "bound": "sapo"}),
        ({"loss_type": "sapo", "sapo_temperature_pos": 2.0, "sapo_temperature_neg": 0.5},
         {"average": "sequence", "bound": "sapo", "bound_shape": (2.0, 0.5)}),
        ({"loss_type": "luspo"}, {"average": "sequence_sum", **CLIP}),
        (
            {"loss_type": "luspo", "importance_sampling_level": "sequence"},
            {"average": "sequence_sum", "ratio_level": "sequence", **CLIP},
        ),
        ({"loss_type": "vespo"}, {"average": "token", "bound": "vespo"}),
        ({"loss_type": "vespo", "vespo_k_pos": 1.0, "vespo_lambda_pos": 0.5, "vespo_k_neg": 0.3,
          "vespo_lambda_neg": 4.0}, {"average": "token", "bound": "vespo", "bound_shape": (1.0, 0.5, 0.3, 4.0)}),
        # in one micro-batch the tokens of TRL's quantile are those of the update
        ({"loss_type": "dapo", "top_entropy_quantile": 0.3},
         {"average": "token", "top_entropy_quantile": 0.3, **CLIP}),
        ({"loss_type": "grpo", "top_entropy_quantile": 0.0},
         {"average": "sequence", "top_entropy_quantile": 0.0, **CLIP}),
        (
            {"loss_type": "sapo", "importance_sampling_level": "sequence"},
            {"average": "sequence", "bound": "sapo", "ratio_level": "sequence"},
        ),
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)  # fmt: skip
def test_loss_and_gradient_are_trls(tmp_path, tables, theirs, ours):
    tables = without(tables, "ref_per_token_logps")
    assert_same(our_outcome(LossConfig(**ours), tables), trl_outcome(trainer_of(tmp_path, **theirs), tables))


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "cispo", "sapo"])
def test_on_policy_all_bounds_have_one_gradient_in_both(tmp_path, loss_type):
    average = "sequence" if loss_type in ("grpo", "sapo") else "token"
    bound = loss_type if loss_type in ("cispo", "sapo") else "clip"
    trainer = trainer_of(tmp_path, loss_type=loss_type, epsilon_high=5.0)
    assert_same(our_outcome(LossConfig(average=average, bound=bound), {}), trl_outcome(trainer, {}))


@pytest.mark.parametrize(
    "fields",
    [
        {"loss_type": "dapo", "beta": 0.3},
        {"loss_type": "dapo", "beta": 0.3, "use_bias_correction_kl": False},
        {"loss_type": "grpo", "beta": 0.3, "importance_sampling_level": "sequence"},
        {"loss_type": "cispo", "beta": 0.3, "epsilon_high": 5.0, "use_bias_correction_kl": False},
    ],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_a_scripts_penalty_is_trls_in_value_and_gradient_off_policy_too(tmp_path, tables, fields):
    # old logprobs lie up to a nat from the policy's, so that the ratios are e^+-0.6 and more
    tables = without(tables, "sampling_per_token_logps")
    assert_same(our_outcome(loss_of_fields(**fields), tables), trl_outcome(trainer_of(tmp_path, **fields), tables))


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo", "bnpo", "sapo"])
def test_masked_and_ungraded_completions_count_as_they_do_in_trl(tmp_path, tables, loss_type, beta):
    # the second of six is truncated and masked, the fifth has no reward: advantage 0, and a penalty of its own
    fields = {"loss_type": loss_type, "beta": beta}
    tables = without(tables, "sampling_per_token_logps", *([] if beta else ["ref_per_token_logps"]))
    real = torch.tensor([[place < len(text) for place in range(MAX_LENGTH)] for text in COMPLETIONS])
    real[1] = False
    advantages = torch.tensor(ADVANTAGES).index_fill(0, torch.tensor([4]), 0.0)
    theirs = tables | {"completion_mask": real.long(), "advantages": advantages}
    ours = our_outcome_without({1: "truncated", 4: "no_reward"}, loss_of_fields(**fields), tables)
    assert_same(ours, trl_outcome(trainer_of(tmp_path, **fields), theirs))


def test_on_policy_trls_plain_penalty_is_our_forward_kl(tmp_path, tables):
    # k3 inside the loss: its gradient is the forward KL's
    tables = without(tables, "old_per_token_logps", "sampling_per_token_logps")
    trainer = trainer_of(tmp_path, loss_type="dapo", beta=0.3, use_bias_correction_kl=False)
    assert_same(
        our_outcome(LossConfig(average="token", beta=0.3, kl="forward", **CLIP), tables), trl_outcome(trainer, tables)
    )


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("kind", ["truncate", "mask"])
def test_the_correction_of_rollouts_enters_trls_loss_where_it_enters_ours(tmp_path, tables, kind, level):
    # the weights themselves are made with the rollouts, by vLLM's side of TRL; here by their formula
    tables = without(tables, "ref_per_token_logps")
    real = torch.tensor([[place < len(text) for place in range(MAX_LENGTH)] for text in COMPLETIONS])
    log_weight = (tables["old_per_token_logps"] - tables["sampling_per_token_logps"]).where(real, 0.0)
    weight = (log_weight if level == "token" else log_weight.sum(-1, keepdim=True)).exp()
    low = 0.7 if level == "token" else 0.3  # something must be left of six sequences
    inside = (weight >= low) & (weight <= 1.3)
    weight = weight.clamp(low, 1.3) if kind == "truncate" else weight.where(inside, 0.0)
    trainer = trainer_of(tmp_path, loss_type="dapo")
    trainer.use_vllm = True
    ours = LossConfig(rollout_correction=f"{level}_{kind}", correction_bounds=(low, 1.3), **CLIP)
    assert_same(our_outcome(ours, tables), trl_outcome(trainer, tables | {"importance_sampling_ratio": weight}))


@pytest.mark.parametrize("kind", ["truncate", "mask"])
def test_vespo_takes_the_correction_into_the_weight_of_the_completion(tmp_path, tables, kind):
    tables = without(tables, "ref_per_token_logps")
    real = torch.tensor([[place < len(text) for place in range(MAX_LENGTH)] for text in COMPLETIONS])
    weight = (tables["old_per_token_logps"] - tables["sampling_per_token_logps"]).where(real, 0.0).exp()
    weight = weight.clamp(max=1.3) if kind == "truncate" else weight.where(weight <= 1.3, 0.0)
    trainer = trainer_of(tmp_path, loss_type="vespo")
    trainer.use_vllm = True
    ours = LossConfig(bound="vespo", rollout_correction=f"token_{kind}", correction_bounds=(0.0, 1.3))
    assert_same(our_outcome(ours, tables), trl_outcome(trainer, tables | {"importance_sampling_ratio": weight}))


PARTS = ((1, 0, 2), (5, 3, 4))
"""Two micro-batches of three completions each."""


@pytest.mark.parametrize(
    ("loss_type", "average"), [("grpo", "sequence"), ("dr_grpo", "constant"), ("dapo", "token")]
)  # fmt: skip
def test_over_two_micro_batches_the_global_averages_are_trls(tmp_path, tables, loss_type, average):
    tables = without(tables, "ref_per_token_logps")
    trainer = trainer_of(tmp_path, loss_type=loss_type, per_device_train_batch_size=3, gradient_accumulation_steps=2)
    trainer.current_gradient_accumulation_steps = 2
    ours = our_outcome(LossConfig(average=average, **CLIP), tables, PARTS)
    assert_same(ours, trl_outcome(trainer, tables, PARTS))


@pytest.mark.parametrize(
    ("advantage", "drift", "kept"),
    [(-1.0, 0.6, False), (-1.0, 0.4, True), (1.0, 5.0, True), (0.0, 5.0, True), (-1.0, -5.0, True)],
)
def test_the_off_policy_mask_keeps_what_trls_keeps(advantage, drift, kept):
    policy, rollout, advantages_ = (
        torch.tensor([-2.0, -3.0]),
        torch.tensor([-2.0, -3.0]) + drift,
        torch.tensor(advantage),
    )
    theirs = trl.GRPOTrainer.get_off_policy_mask(
        advantages_.reshape(1, 1), policy[None], rollout[None], torch.ones(1, 2), 0.5
    )
    ours = off_policy_sequences(policy, rollout, advantages_.expand(2), torch.tensor([2]), threshold=0.5)
    assert theirs.bool().item() == kept
    assert ours.tolist() == [not kept] * 2
