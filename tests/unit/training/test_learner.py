"""A training step computes the policy gradient worked out by hand and counts what it leaves out."""

import math
from dataclasses import replace

import pytest
import torch

from paceline.config.building import build_config
from paceline.config.objective import LossConfig, OptimConfig
from paceline.errors import TrainingError
from paceline.models.forward import PolicyForward, choose_forward
from paceline.models.loaded import Loaded
from paceline.objective.micro_batches import pack, token_weights
from paceline.training.learner.learner import Learner
from paceline.training.learner.objective import token_losses
from paceline.training.learner.samples import samples_of
from paceline.training.learner.stats import merge_sums
from paceline.types import Completion, Rollout, RolloutGroup, Task, completed
from tests.support.tiny import tiny_model, with_exact_norms

PROMPT = tuple(b"ask")


def group(*rollouts: tuple[bytes, float]) -> RolloutGroup:
    """One prompt with completions and their advantages."""
    return RolloutGroup(
        task=Task(task_id="0", prompt="ask", prompt_ids=PROMPT, answer=None),
        rollouts=tuple(
            Rollout(
                trajectory=completed(
                    PROMPT,
                    Completion(
                        token_ids=tuple(ids),
                        logprobs=(0.0,) * len(ids),
                        finish_reason="stop",
                        text=ids.decode(),
                        policy_version=0,
                    ),
                ),
                rewards={},
                reward=1.0,
                advantage=advantage,
            )
            for ids, advantage in rollouts
        ),
    )


def learner(*, loss: LossConfig | None = None, reference: bool = False, **optim: float) -> Learner:
    model = with_exact_norms(tiny_model("qwen2", dtype=torch.float64)).train()
    other = with_exact_norms(tiny_model("qwen2", dtype=torch.float64, seed=3))
    choose_forward(other)
    return Learner(
        Loaded(model=model, compute_dtype=torch.float64),
        choose_forward(model),
        reference=Loaded(model=other, compute_dtype=torch.float64) if reference else None,
        loss=loss or LossConfig(),
        optim=OptimConfig(**optim),
        temperature=1.0,
        max_completion_length=8,
    )


def completion_logprob(half: Learner, completion: bytes) -> float:
    """Nats of the whole completion under the policy as it is now."""
    with torch.no_grad():
        logits = half.policy.model(torch.tensor([PROMPT + tuple(completion)])).logits[0, len(PROMPT) - 1 : -1]
    return float(torch.log_softmax(logits, -1).gather(1, torch.tensor(tuple(completion))[:, None]).sum())


def test_a_step_makes_good_completions_likelier_and_bad_ones_less_likely():
    half = learner()
    before = [completion_logprob(half, text) for text in (b"good", b"bad!")]
    half.step([group((b"good", 1.0), (b"bad!", -1.0))], learning_rate=1e-3)
    good, bad = (completion_logprob(half, text) for text in (b"good", b"bad!"))
    assert good > before[0]
    assert bad < before[1]


def test_the_first_update_is_the_policy_gradient_written_out_by_hand():
    half = learner(max_grad_norm=0)
    model = half.policy.model
    half.step([group((b"abc", 0.5), (b"z", -2.0))], learning_rate=0.0)
    moments = {
        name: half.optimizer.state[parameter]["exp_avg"] / 0.1 for name, parameter in model.named_parameters()
    }  # AdamW's first moment after one step is (1 - beta1) times the gradient
    model.zero_grad()
    loss = torch.zeros((), dtype=torch.float64)
    for text, advantage in ((b"abc", 0.5), (b"z", -2.0)):
        logits = model(torch.tensor([PROMPT + tuple(text)])).logits[0, len(PROMPT) - 1 : -1]
        loss = loss - advantage * torch.log_softmax(logits, -1)[range(len(text)), list(text)].sum() / 4
    loss.backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(moments[name], parameter.grad, rtol=1e-9, atol=1e-14), name


def test_with_a_learning_rate_of_zero_the_weights_stay_as_they_are():
    half = learner()
    before = [parameter.clone() for parameter in half.policy.model.parameters()]
    stats = half.step([group((b"one", 1.0), (b"two", -1.0))], learning_rate=0.0)
    assert stats.updates == 1
    assert all(torch.equal(a, b) for a, b in zip(before, half.policy.model.parameters(), strict=True))


def test_completions_without_advantage_cost_no_forward_pass_but_count_in_the_average():
    full, silent = group((b"abc", 1.0), (b"z", -1.0)), group((b"quiet", 0.0), (b"quiet", 0.0))
    alone, beside = learner(), learner()
    first, second = (
        half.step(groups, learning_rate=0.0) for half, groups in ((alone, [full]), (beside, [full, silent]))
    )
    assert first.tokens_forwarded == second.tokens_forwarded == len(PROMPT) + 2
    assert second.grad_norm == pytest.approx(first.grad_norm * 4 / 14)


def test_padded_rows_count_every_place_as_forwarded_and_keep_to_the_budget():
    # rows of 3 + 2, 3 + 2 and 3 tokens: all in one micro-batch are 15 places, and 12 hold one of each length
    groups, padded = [group((b"abc", 1.0), (b"def", -1.0), (b"z", 0.5))], PolicyForward(kind="padded", reason="")
    forwarded = {}
    for budget in (15, 12):
        half = learner(micro_batch_tokens=budget)
        half.runner.forward = padded
        forwarded[budget] = half.step(groups, learning_rate=0.0).tokens_forwarded
    assert forwarded == {15: 15, 12: 3 + 2 * 5}
    assert learner(micro_batch_tokens=15).step(groups, learning_rate=0.0).tokens_forwarded == 3 + 2 + 2


@pytest.mark.parametrize("reason", ["filtered", "no_reward"])
def test_a_step_whose_groups_are_all_left_out_makes_no_update_and_moves_no_weight(reason):
    half = learner(num_iterations=2, num_minibatches=3)
    before = [parameter.clone() for parameter in half.policy.model.parameters()]
    one = group((b"abc", 0.0), (b"z", 0.0))
    if reason == "no_reward":
        one = replace(one, rollouts=tuple(replace(rollout, dropped=reason, reward=None) for rollout in one.rollouts))
    stats = half.step([replace(one, dropped=reason)] * 2, learning_rate=1e-2)
    assert (stats.updates, stats.tokens_trained, stats.loss, stats.entropy, half.policy_version) == (0, 0, 0.0, None, 0)
    assert all(torch.equal(a, b) for a, b in zip(before, half.policy.model.parameters(), strict=True))
    assert half.step([], learning_rate=1e-2).updates == 0


def test_filtered_groups_and_masked_completions_count_in_no_average():
    full, other = group((b"abc", 1.0), (b"z", -1.0)), group((b"quiet", 1.0), (b"loud!", -1.0))
    masked = replace(full, rollouts=(*full.rollouts, replace(other.rollouts[0], advantage=0.0, dropped="truncated")))
    alone, beside, without = (
        learner().step(groups, learning_rate=0.0)
        for groups in ([full], [replace(other, dropped="filtered"), full], [masked])
    )
    assert beside.grad_norm == pytest.approx(alone.grad_norm, rel=1e-12)
    assert without.grad_norm == pytest.approx(alone.grad_norm, rel=1e-12)


def test_a_step_behind_a_token_weighs_twice_at_most_where_the_policy_went_far_from_the_sampler():
    # three tokens, each three nats likelier to the trainer than to the sampler, whose weight e^3 is held at 2
    samples = samples_of([group((b"abc", 1.0))])
    batch = pack(samples, token_weights(samples, average="token", max_completion_length=8), [0], dtype=torch.float64)
    slopes = {}
    for staleness in (0, 1):
        options = {"model": "m", "dataset": "d", "cluster": True, "max_staleness": staleness}
        policy = torch.full((3,), 3.0, dtype=torch.float64, requires_grad=True)
        known = replace(batch, old_logprobs=policy.detach())
        losses, _ = token_losses(known, policy, torch.zeros(3), build_config(options).loss)
        slopes[staleness] = torch.autograd.grad((batch.weights * losses).sum(), policy)[0].tolist()
    assert slopes == {0: pytest.approx([-1 / 3] * 3), 1: pytest.approx([-2 / 3] * 3)}


@pytest.mark.parametrize(("average", "share"), [("sequence", 2 / 4), ("constant", 2 / 4), ("token", 4 / 9)])
def test_averages_over_all_count_masked_completions_and_the_tokens_of_ungraded_ones(average, share):
    # two are trained, of 3 + 1 tokens; "quiet" is ungraded and counts its 5 tokens, "loud!" is masked and counts none
    full, other = group((b"abc", 1.0), (b"z", -1.0)), group((b"quiet", 0.0), (b"loud!", 0.0))
    ungraded, masked = other.rollouts
    beside = (replace(ungraded, dropped="no_reward", reward=None), replace(masked, dropped="truncated"))
    groups = [replace(full, rollouts=(*full.rollouts, *beside))]
    kept, counted = (
        learner(loss=LossConfig(average=average, average_over=over)).step(groups, learning_rate=0.0)
        for over in ("kept", "all")
    )
    assert counted.grad_norm == pytest.approx(share * kept.grad_norm, rel=1e-12)
    assert counted.tokens_trained == kept.tokens_trained == 4


def test_an_ungraded_completion_that_counts_has_a_kl_and_a_masked_one_has_none():
    one = group((b"abc", 1.0), (b"quiet", 0.0), (b"loud!", 0.0))
    drops = (None, "no_reward", "truncated")
    groups = [replace(one, rollouts=tuple(map(lambda r, why: replace(r, dropped=why), one.rollouts, drops)))]
    stats = learner(loss=LossConfig(beta=0.1, average_over="all"), reference=True).step(groups, learning_rate=0.0)
    assert stats.tokens_trained == 3 + 5


@pytest.mark.parametrize("over", ["kept", "all"])
def test_nothing_is_measured_where_every_completion_is_masked(over):
    one = group((b"abc", 1.0), (b"z", -1.0))
    masked = replace(one, rollouts=tuple(replace(rollout, dropped="truncated") for rollout in one.rollouts))
    measured = learner(loss=LossConfig(average_over=over)).measure([masked])
    assert (measured.loss, measured.tokens_trained) == (0.0, 0)


@pytest.mark.parametrize("options", [{"skip_threshold": 20.0}, {"bound_shape": (3.0,)}, {"bound": "sapo"}], ids=str)
def test_a_ratio_beyond_any_float_is_bounded_or_dropped_and_leaves_the_others_their_gradient(options):
    samples = samples_of([group((b"ab", -1.0), (b"z", 1.0))])
    batch = pack(samples, [1.0, 1.0], [0, 1], dtype=torch.float32)
    policy = torch.full((3,), -1.0, requires_grad=True)
    old = torch.tensor([-100.0, -1.0, -1.0])  # e^99 for the first token
    losses, _ = token_losses(replace(batch, old_logprobs=old), policy, torch.zeros(3), LossConfig(**options))
    losses.sum().backward()
    assert policy.grad[0].item() == 0.0
    assert policy.grad[2].item() == pytest.approx(-1.0)


@pytest.mark.parametrize("kl", ["reverse", "forward", "k3", "k3_ratio"])
@pytest.mark.parametrize("bound", ["clip", "cispo", "sapo", "none"])
@pytest.mark.parametrize("gap", [-1e4, -100.0, 100.0, 1e4])
def test_no_token_that_is_left_out_makes_a_gradient_that_is_not_a_number(gap, bound, kl):
    """The first sequence is dropped, with logprobs as far from the old, the reference's and the engine's as can be."""
    samples = samples_of([group((b"ab", -1.0), (b"z", 1.0))])
    batch = pack(samples, [1.0, 1.0], [0, 1], dtype=torch.float32)
    batch = replace(batch, rollout_logprobs=torch.tensor([-1.0 - gap, -1.0 - gap, -1.0]))
    policy = torch.full((3,), -1.0, requires_grad=True)
    entropy = torch.zeros(3, requires_grad=True)
    far = torch.tensor([-1.0 - gap, -1.0 - gap, -1.0])
    for reference in (far, policy.detach()):  # a penalty of 0 times a ratio beyond any float is the other trap
        known = replace(batch, old_logprobs=far, ref_logprobs=reference)
        options = LossConfig(
            bound=bound, beta=0.1, kl=kl, entropy_coef=0.1, skip_threshold=20.0, rollout_correction="token_mask"
        )
        losses, sums = token_losses(known, policy, entropy, replace(options, off_policy_threshold=1.0))
        gradients = torch.autograd.grad(losses.sum(), (policy, entropy))
        assert all(torch.isfinite(one).all() for one in (losses, *gradients, *(s.float() for s in sums.values())))
        if gap > 0:
            assert [one.tolist()[:2] for one in gradients] == [[0.0, 0.0], [0.0, 0.0]]


def test_the_measure_of_groups_is_the_one_a_step_would_report_and_moves_nothing():
    options = LossConfig(beta=0.5, entropy_coef=0.1, average="sequence")
    groups = [group((b"abc", 1.0), (b"z", -1.0)), group((b"quiet", 0.0))]
    half = learner(loss=options, reference=True, micro_batch_tokens=5)
    before = [parameter.clone() for parameter in half.policy.model.parameters()]
    alone = half.measure(groups)
    assert all(parameter.grad is None for parameter in half.policy.model.parameters())
    stats = half.step(groups, learning_rate=0.0)
    assert alone.updates == 0
    for name in ("loss", "policy_loss", "entropy", "kl", "clip_low_fraction", "tokens_trained"):
        assert getattr(alone, name) == pytest.approx(getattr(stats, name), rel=1e-12, abs=1e-12)
    # on-policy every ratio is 1: the policy term is minus the mean of advantages, here 0
    assert stats.policy_loss == pytest.approx(0.0, abs=1e-12)
    assert stats.loss != pytest.approx(stats.policy_loss)
    assert all(torch.equal(a, b) for a, b in zip(before, half.policy.model.parameters(), strict=True))
    assert half.measure([]).loss == 0.0


def test_more_parts_than_completions_make_one_update_for_each_completion():
    stats = learner(num_minibatches=5).step([group((b"abc", 1.0), (b"z", -1.0))], learning_rate=1e-3)
    assert (stats.updates, stats.tokens_trained) == (2, 4)


def test_a_part_without_signal_makes_no_update():
    groups = [group((b"abc", 0.0), (b"z", 0.0)), group((b"abc", 1.0), (b"z", -1.0))]
    assert learner(num_minibatches=2).step(groups, learning_rate=1e-3).updates == 1


def test_no_learning_rate_leaves_the_optimisers_own():
    half = learner(learning_rate=0.25)
    half.step([group((b"abc", 1.0))], learning_rate=None)
    assert {part["lr"] for part in half.optimizer.param_groups} == {0.25}
    half.step([group((b"abc", 1.0))], learning_rate=0.125)
    assert {part["lr"] for part in half.optimizer.param_groups} == {0.125}


def test_an_entropy_bonus_trains_completions_without_advantage_and_flattens_the_policy():
    half = learner(loss=LossConfig(entropy_coef=1.0))
    silent = [group((b"abc", 0.0))]
    first, second = (half.step(silent, learning_rate=1e-2) for _ in range(2))
    assert first.updates == 1
    assert second.entropy > first.entropy


def test_what_the_bounds_did_is_counted_in_tokens():
    rollout = group((b"abcd", 1.0), (b"xy", -1.0))  # the engine said 0.0 nats: the weight of any token is below 1
    loss = LossConfig(
        rollout_correction="token_mask", correction_bounds=(0.0, 1e-9), off_policy_threshold=0.1, skip_threshold=2.0
    )
    stats = learner(loss=loss).step([rollout], learning_rate=0.0)
    assert stats.correction_masked_fraction == 1.0
    assert stats.off_policy_fraction == pytest.approx(2 / 6)  # the bad one
    assert stats.skipped_fraction == 0.0
    assert stats.grad_norm == 0.0
    plain = learner().step([rollout], learning_rate=0.0)
    assert (plain.correction_masked_fraction, plain.off_policy_fraction, plain.skipped_fraction) == (None, None, None)


@pytest.mark.parametrize("mix", [0.6, 1.0])
def test_the_reference_moves_towards_the_policy_by_the_mix(mix):
    half = learner(loss=LossConfig(beta=0.1, ref_sync=(1, mix)), reference=True)
    pairs = [
        (ours.clone(), theirs.clone())
        for ours, theirs in zip(half.policy.model.parameters(), half.reference.model.parameters(), strict=True)
    ]
    half.sync_reference()
    for (ours, theirs), moved in zip(pairs, half.reference.model.parameters(), strict=True):
        assert torch.allclose(moved, mix * ours + (1 - mix) * theirs, rtol=0, atol=1e-14)


def test_with_a_reference_every_completion_is_trained_on_for_its_kl():
    stats = learner(loss=LossConfig(beta=0.5), reference=True).step([group((b"abc", 0.0))], learning_rate=0.0)
    assert (stats.updates, stats.tokens_trained) == (1, 3)
    assert stats.kl > 0
    assert stats.grad_norm > 0


def test_several_updates_move_the_ratio_until_the_clip_holds_it():
    half = learner(num_iterations=6)
    stats = half.step([group((b"good", 1.0), (b"bad!", -1.0))], learning_rate=3e-3)
    assert (stats.updates, half.policy_version) == (6, 6)
    assert stats.clip_high_fraction > 0
    assert stats.clip_low_fraction > 0
    assert learner().step([group((b"good", 1.0), (b"bad!", -1.0))], learning_rate=3e-3).clip_high_fraction == 0


def test_the_entropy_of_a_uniform_policy_is_the_logarithm_of_the_vocabulary():
    half = learner()
    torch.nn.init.zeros_(half.policy.model.lm_head.weight)
    stats = half.step([group((b"abc", 1.0))], learning_rate=0.0)
    assert stats.entropy == pytest.approx(math.log(260))


def test_an_update_whose_gradient_is_not_finite_is_skipped_and_leaves_weights_moments_and_version():
    half, other = learner(num_minibatches=2), learner()
    sound, broken = group((b"abc", 1.0), (b"z", -1.0)), group((b"de", math.nan), (b"f", 1.0))
    stats, alone = half.step([sound, broken], learning_rate=1e-3), other.step([sound], learning_rate=1e-3)
    assert (stats.updates, stats.updates_skipped, stats.skipped_in_a_row, half.policy_version) == (1, 1, 1, 1)
    assert (stats.loss, stats.grad_norm, stats.tokens_trained) == (alone.loss, alone.grad_norm, alone.tokens_trained)
    for ours, theirs in zip(half.policy.model.parameters(), other.policy.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert all(
            torch.equal(one, half.optimizer.state[ours][name]) for name, one in other.optimizer.state[theirs].items()
        )
        assert ours.grad is None


def test_a_skipped_update_before_others_is_not_counted_as_one_in_a_row_with_the_next_step():
    broken, sound = group((b"de", math.nan), (b"f", 1.0)), group((b"abc", 1.0), (b"z", -1.0))
    called = []
    half = learner(num_minibatches=2)
    stats = half.step([broken, sound], learning_rate=1e-3, after_update=lambda: called.append(half.policy_version))
    assert (stats.updates, stats.updates_skipped, stats.skipped_in_a_row, called) == (1, 1, 0, [1])


def test_a_step_of_which_every_update_was_skipped_has_finite_numbers_all_the_same():
    stats = learner(num_iterations=2).step([group((b"abc", math.nan))], learning_rate=1e-3)
    assert (stats.updates, stats.updates_skipped, stats.skipped_in_a_row) == (0, 2, 2)
    assert (stats.loss, stats.grad_norm, stats.entropy, stats.tokens_trained) == (0.0, 0.0, None, 0)
    assert stats.tokens_forwarded > 0


def test_a_number_that_is_not_finite_on_any_rank_is_one_on_all():
    numbers = [{"loss": 0.5, "mismatch_max": 1.0, "grad_norm": 2.0}, {"loss": 0.25, "mismatch_max": math.nan}]
    for ranks in (numbers, numbers[::-1]):
        merged = merge_sums(ranks)
        assert math.isnan(merged["mismatch_max"])
        assert (merged["loss"], merged["grad_norm"]) == (0.75, 2.0)


def test_weights_that_are_not_finite_are_found_by_name_before_they_are_saved():
    half = learner()
    half.check_weights()
    with torch.no_grad():
        half.policy.model.lm_head.weight[3, 1] = math.inf
    with pytest.raises(TrainingError, match=r"a weight of lm_head\.weight is not finite after update 0, so it is not"):
        half.check_weights()
    with torch.no_grad():
        half.policy.model.model.layers[1].mlp.up_proj.weight[0, 0] = math.nan
    with pytest.raises(TrainingError, match=r"a weight of model\.layers\.1\.mlp\.up_proj\.weight is not finite"):
        half.check_weights()


def entropy_gradient(half: Learner, groups, *, steps: int) -> list[float]:
    """The entropy's coefficient before each step, and behind the last."""
    coefs = [half.entropy_control[0]]
    for _ in range(steps):
        half.step(groups, learning_rate=0.0)
        coefs.append(half.entropy_control[0])
    return coefs


def test_an_adaptive_bonus_rises_and_falls_with_the_entropy_of_the_last_update():
    # the tiny model's entropy is near log(vocabulary), far above 0.2 and below 50
    groups = [group((b"ab", 1.0), (b"c", -1.0))]
    low = learner(loss=LossConfig(entropy_coef=0.01, entropy_target=(50.0, 0.0, 0.02, 0.006)))
    assert entropy_gradient(low, groups, steps=3) == pytest.approx([0.01, 0.016, 0.02, 0.02])
    high = learner(loss=LossConfig(entropy_coef=0.01, entropy_target=(0.2, 0.0, 0.02, 0.006)))
    assert entropy_gradient(high, groups, steps=3) == pytest.approx([0.01, 0.004, 0.0, 0.0])
    # one that begins below the least begins at the least
    least = learner(loss=LossConfig(entropy_target=(50.0, 0.01, 0.02, 0.006)))
    assert entropy_gradient(least, groups, steps=2) == pytest.approx([0.01, 0.016, 0.02])
    # the mean is over the update's tokens
    assert low.entropy_control[1] == pytest.approx(low.step(groups, learning_rate=0.0).entropy)


def test_an_adaptive_bonus_counts_only_behind_an_update_of_low_entropy():
    groups = [group((b"ab", 1.0), (b"c", -1.0))]
    plain, static = learner(), learner(loss=LossConfig(entropy_coef=0.016))
    control = learner(loss=LossConfig(entropy_coef=0.01, entropy_target=(50.0, 0.0, 1.0, 0.006)))
    losses = [half.step(groups, learning_rate=0.0).loss for half in (plain, static)]
    # nothing is measured before the first update; then the coefficient has risen once
    assert [control.step(groups, learning_rate=0.0).loss for _ in range(2)] == pytest.approx(losses)


def test_tokens_below_the_top_entropies_of_the_whole_update_have_no_gradient():
    groups = [group((b"abcd", 1.0), (b"xy", -1.0)), group((b"q", 2.0), (b"rstu", 0.0))]
    half = learner(loss=LossConfig(top_entropy_quantile=0.4), micro_batch_tokens=1)
    samples = samples_of(groups)
    weights = token_weights(samples, average="token", max_completion_length=8)
    batch = pack(samples, weights, range(4), dtype=torch.float64)
    _, entropy = half.runner.values(half.policy, [batch])[0]
    # of 11 tokens the quantile 0.6 is the seventh lowest entropy: five are left
    top = entropy >= entropy.sort().values[6] - 1e-9
    assert top.sum() == 5
    expected = float((batch.weights * -batch.advantages * top).sum())
    stats = half.step(groups, learning_rate=0.0)
    assert stats.policy_loss == pytest.approx(expected)
    assert stats.tokens_trained == 11  # those without an advantage have a place among the entropies
