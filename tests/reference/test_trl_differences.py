"""Where TRL 1.16 means something else than Paceline: what each means, and both numbers.

`make test-reference` installs TRL; without it these are skipped.
"""

import pytest
import torch
from torch import Tensor

from paceline.config.objective import LossConfig
from tests.reference.beside_trl import (
    CLIP,
    COMPLETIONS,
    MAX_LENGTH,
    assert_same,
    near_tables,
    our_outcome,
    own_logprobs,
    trainer_of,
    trl_outcome,
    without,
)

pytest.importorskip("trl", reason="make test-reference installs it")


@pytest.fixture(scope="module")
def tables() -> dict[str, Tensor]:
    return near_tables()


def test_a_penalty_by_its_direction_multiplies_by_the_ratio_where_trls_plain_one_does_not(tmp_path, tables):
    # --kl forward beside use_bias_correction_kl=False: equal on policy, and off policy the ratio apart
    tables = without(tables, "sampling_per_token_logps")
    theirs = trl_outcome(trainer_of(tmp_path, loss_type="dapo", beta=0.3, use_bias_correction_kl=False), tables)
    plain, forward = (
        our_outcome(LossConfig(average="token", beta=0.3, kl=kl, **CLIP), tables) for kl in ("k3", "forward")
    )
    assert_same(plain, theirs)
    assert abs(forward.loss - theirs.loss) > 1e-3


def test_trls_corrected_penalty_has_another_value_than_our_reverse_kl(tmp_path, tables):
    # TRL: ratio * k3, through which the ratio's gradient flows; ours: stop_gradient(ratio) * k2
    plain = trl_outcome(trainer_of(tmp_path, loss_type="dapo"), tables)
    theirs = trl_outcome(trainer_of(tmp_path, loss_type="dapo", beta=0.3), tables)
    ours = our_outcome(LossConfig(average="token", beta=0.3, kl="reverse", **CLIP), tables)
    own = own_logprobs()
    real = torch.tensor([[place < len(text) for place in range(MAX_LENGTH)] for text in COMPLETIONS])
    delta = (own - tables["ref_per_token_logps"])[real]
    ratio = torch.exp(own - tables["old_per_token_logps"])[real]
    k3, k2 = (ratio * (torch.exp(-delta) - 1 + delta)).mean(), (ratio * delta.square() / 2).mean()
    assert theirs.loss - plain.loss == pytest.approx(0.3 * k3.item(), rel=1e-4)
    assert ours.loss - plain.loss == pytest.approx(0.3 * k2.item(), rel=1e-4)
    assert abs(k3 - k2) > 0.01 * k2


def test_their_corrected_penalty_and_our_reverse_kl_have_the_same_expected_gradient():
    # over every token with its exact probability under the old policy: a softmax of 8
    logits, old, reference = torch.randn(3, 8, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    logits.requires_grad_()
    p, q, ref = (torch.log_softmax(one, -1) for one in (logits, old, reference))
    ratio, delta = torch.exp(p - q), p - ref
    theirs = (q.exp() * ratio * (torch.exp(-delta) - 1 + delta)).sum()
    ours = (q.exp() * ratio.detach() * delta.square() / 2).sum()
    gradients = [torch.autograd.grad(one, logits, retain_graph=True)[0] for one in (theirs, ours)]
    assert torch.allclose(*gradients, rtol=0, atol=1e-14)


def test_over_two_micro_batches_trls_bnpo_is_a_mean_of_local_means(tmp_path, tables):
    # 2 rows of 3 + 8 tokens and 4 of 1 + 2 + 5 + 6: TRL gives the first 11 tokens as much weight as the other 14
    parts = ((0, 1), (2, 3, 4, 5))
    tables = without(tables, "ref_per_token_logps")
    trainer = trainer_of(tmp_path, loss_type="bnpo", per_device_train_batch_size=3, gradient_accumulation_steps=2)
    trainer.current_gradient_accumulation_steps = 2
    theirs, loss = trl_outcome(trainer, tables, parts), LossConfig(average="token", **CLIP)
    local = [our_outcome(loss, tables, [part], counted=part).loss for part in parts]
    ours = our_outcome(loss, tables, parts).loss
    assert theirs.loss == pytest.approx(sum(local) / 2, rel=1e-5)
    assert ours == pytest.approx((11 * local[0] + 14 * local[1]) / 25, rel=1e-5)
    assert abs(theirs.loss - ours) > 0.01 * abs(ours)


def test_over_two_updates_trls_dapo_divides_each_by_the_windows_mean_of_tokens(tmp_path, tables):
    # one generation batch, an update for each half: TRL divides by 25 / 2, Paceline by the 11 of the update
    half = (0, 1)
    tables = without(tables, "ref_per_token_logps")
    trainer = trainer_of(tmp_path, loss_type="dapo", per_device_train_batch_size=3, steps_per_generation=2)
    theirs = trl_outcome(trainer, tables, [half])
    ours = our_outcome(LossConfig(average="token", **CLIP), tables, [half], counted=half)
    assert theirs.loss * 25 / 2 == pytest.approx(ours.loss * 11, rel=1e-5)


def test_trls_entropy_bonus_is_a_mean_over_tokens_whatever_the_losss_average(tmp_path, tables):
    tables = without(tables, "ref_per_token_logps")
    plain, bonus = (
        trl_outcome(trainer_of(tmp_path, loss_type="grpo", entropy_coef=coef), tables).loss for coef in (0.0, 0.3)
    )
    by_average = {
        average: our_outcome(LossConfig(average=average, entropy_coef=0.3, **CLIP), tables).loss
        - our_outcome(LossConfig(average=average, **CLIP), tables).loss
        for average in ("token", "sequence")
    }
    assert bonus - plain == pytest.approx(by_average["token"], rel=1e-4)
    assert by_average["sequence"] != pytest.approx(by_average["token"], rel=1e-4)


def test_a_masked_completion_counts_in_trls_mean_over_completions_and_not_over_the_kept(tmp_path, tables):
    # the second of six is masked as truncated: TRL divides by 6 completions, Paceline by 5; over tokens both by 17
    tables = without(tables, "ref_per_token_logps")
    real = torch.tensor([[place < len(text) for place in range(MAX_LENGTH)] for text in COMPLETIONS])
    real[1] = False
    masked = tables | {"completion_mask": real.long()}
    rest = (0, 2, 3, 4, 5)
    theirs = trl_outcome(trainer_of(tmp_path, loss_type="grpo"), masked)
    ours = our_outcome(LossConfig(average="sequence", **CLIP), tables, [rest], counted=rest)
    assert theirs.loss * 6 == pytest.approx(ours.loss * 5, rel=1e-5)
    theirs = trl_outcome(trainer_of(tmp_path, loss_type="bnpo"), masked)
    assert_same(our_outcome(LossConfig(average="token", **CLIP), tables, [rest], counted=rest), theirs)
