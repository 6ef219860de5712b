import math

import pytest
import torch

from paceline.config import LossConfig, OptimConfig
from paceline.errors import TrainingError
from paceline.learner import Learner
from paceline.models import Loaded, choose_forward
from paceline.types import Completion, Rollout, RolloutGroup, Task
from tests.tiny import tiny_model, with_exact_norms

PROMPT = tuple(b"ask")


def group(*rollouts: tuple[bytes, float]) -> RolloutGroup:
    """One prompt with completions and their advantages."""
    return RolloutGroup(
        task=Task(task_id="0", prompt="ask", prompt_ids=PROMPT, answer=None),
        rollouts=tuple(
            Rollout(
                completion=Completion(
                    token_ids=tuple(ids),
                    logprobs=(0.0,) * len(ids),
                    finish_reason="stop",
                    text=ids.decode(),
                    policy_version=0,
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
        Loaded(model=model, compute_dtype=torch.float64, eos_token_ids=frozenset()),
        choose_forward(model),
        reference=Loaded(model=other, compute_dtype=torch.float64, eos_token_ids=frozenset()) if reference else None,
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


def test_with_a_reference_every_completion_is_trained_on_for_its_divergence():
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


def test_a_gradient_that_is_not_finite_stops_the_run_and_leaves_the_weights():
    half = learner()
    before = [parameter.clone() for parameter in half.policy.model.parameters()]
    with pytest.raises(TrainingError, match=r"gradient's norm is nan after update 0; lower --learning-rate"):
        half.step([group((b"abc", math.nan))], learning_rate=1e-3)
    assert all(torch.equal(a, b) for a, b in zip(before, half.policy.model.parameters(), strict=True))
