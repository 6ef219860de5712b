"""Law 9: `kl="reverse"` has the gradient of KL(policy || reference), `"forward"` that of KL(reference || policy)."""

import pytest
import torch
from torch import Tensor

from paceline.config.objective import LossConfig, OptimConfig
from paceline.models.forward import choose_forward
from paceline.models.loaded import Loaded
from paceline.objective.policy_loss import kl_estimate, kl_penalty, policy_ratio
from paceline.training.learner.learner import Learner
from paceline.types import Rollout, RolloutGroup, Task
from tests.support.episodes import branched, conversation
from tests.support.tiny import tiny_model

TOKENS = 8
SAMPLES = 1_000_000
KINDS = ["reverse", "forward"]

Logits = tuple[Tensor, Tensor, Tensor]


@pytest.fixture
def logits() -> Logits:
    """Policy, policy at the start of the step, and reference: three different softmaxes of 8 tokens."""
    return tuple(
        torch.randn(
            3, TOKENS, generator=torch.Generator(torch.get_default_device()).manual_seed(5), dtype=torch.float64
        )
    )


def penalties(logits: Logits, kl: str, *, on_policy: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The policy's logits as a leaf, the probability with which each token is drawn, and each token's penalty."""
    policy, old, reference = logits
    policy = policy.clone().requires_grad_()
    logprobs = torch.log_softmax(policy, -1)
    drawn_from = logprobs.detach() if on_policy else torch.log_softmax(old, -1)
    return policy, drawn_from.exp(), kl_penalty(logprobs, drawn_from, torch.log_softmax(reference, -1), kl=kl)


def expected_gradient(logits: Logits, kl: str, *, on_policy: bool) -> Tensor:
    """Gradient of the penalty averaged over every token with its exact probability of being drawn."""
    policy, probabilities, penalty = penalties(logits, kl, on_policy=on_policy)
    return torch.autograd.grad((probabilities * penalty).sum(), policy)[0]


def sampled_gradient(logits: Logits, kl: str, *, on_policy: bool) -> Tensor:
    """The same over a million drawn tokens."""
    policy, probabilities, penalty = penalties(logits, kl, on_policy=on_policy)
    generator = torch.Generator(torch.get_default_device()).manual_seed(9)
    drawn = torch.multinomial(probabilities, SAMPLES, replacement=True, generator=generator)
    return torch.autograd.grad(penalty[drawn].mean(), policy)[0]


def exact_gradient(logits: Logits, kl: str) -> Tensor:
    """Of the KL itself."""
    policy = logits[0].clone().requires_grad_()
    logprobs, reference = torch.log_softmax(policy, -1), torch.log_softmax(logits[2], -1)
    first, second = (logprobs, reference) if kl == "reverse" else (reference, logprobs)
    return torch.autograd.grad((first.exp() * (first - second)).sum(), policy)[0]


def cosine(got: Tensor, wanted: Tensor) -> float:
    return float(torch.cosine_similarity(got, wanted, dim=0))


@pytest.mark.parametrize("on_policy", [True, False])
@pytest.mark.parametrize("kl", KINDS)
def test_the_expected_gradient_is_exactly_that_of_the_named_kl(logits, kl, on_policy):
    got, wanted = expected_gradient(logits, kl, on_policy=on_policy), exact_gradient(logits, kl)
    assert torch.allclose(got, wanted, rtol=0, atol=1e-12)
    assert cosine(got, wanted) > 0.9999


@pytest.mark.parametrize("on_policy", [True, False])
@pytest.mark.parametrize("kl", KINDS)
def test_a_large_sample_points_the_same_way(logits, kl, on_policy):
    got, wanted = sampled_gradient(logits, kl, on_policy=on_policy), exact_gradient(logits, kl)
    assert cosine(got, wanted) > 0.9999
    assert float((got - wanted).norm() / wanted.norm()) < 0.01


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_estimator_times_the_ratio_has_the_reverse_kls_gradient_on_single_tokens(logits, level):
    policy, old, reference = logits
    policy = policy.clone().requires_grad_()
    logprobs, drawn_from = torch.log_softmax(policy, -1), torch.log_softmax(old, -1)
    ratio = policy_ratio(logprobs, drawn_from, torch.ones(TOKENS, dtype=torch.int64), level=level)
    penalty = ratio * kl_estimate(logprobs, torch.log_softmax(reference, -1))
    (got,) = torch.autograd.grad((drawn_from.exp() * penalty).sum(), policy)
    assert torch.allclose(got, exact_gradient(logits, "reverse"), rtol=0, atol=1e-12)


def test_the_bare_estimator_has_the_forward_kls_gradient_on_policy_alone(logits):
    policy = logits[0].clone().requires_grad_()
    logprobs, reference = torch.log_softmax(policy, -1), torch.log_softmax(logits[2], -1)
    by_drawn = {}
    for name, drawn_from in (("own", logprobs.detach()), ("old", torch.log_softmax(logits[1], -1))):
        mean = (drawn_from.exp() * kl_estimate(logprobs, reference)).sum()
        by_drawn[name] = torch.autograd.grad(mean, policy, retain_graph=True)[0]
    assert torch.allclose(by_drawn["own"], exact_gradient(logits, "forward"), rtol=0, atol=1e-12)
    assert cosine(by_drawn["old"], exact_gradient(logits, "forward")) < 0.99


def test_the_two_directions_are_not_the_same(logits):
    assert cosine(exact_gradient(logits, "reverse"), exact_gradient(logits, "forward")) < 0.95


@pytest.mark.parametrize("kl", KINDS)
def test_without_the_ratio_the_gradient_off_policy_would_be_another(logits, kl):
    policy, probabilities, _ = penalties(logits, kl, on_policy=False)
    logprobs, reference = torch.log_softmax(policy, -1), torch.log_softmax(logits[2], -1)
    penalty = kl_penalty(logprobs, logprobs.detach(), reference, kl=kl)
    (got,) = torch.autograd.grad((probabilities * penalty).sum(), policy)
    assert cosine(got, exact_gradient(logits, kl)) < 0.99


def test_the_kl_of_an_episode_is_over_its_sampled_tokens_in_their_contexts():
    talk, prompt = conversation(("ab", "xyz"), ("c", "w"), ("def", "v")), tuple(b"ask")
    policy, reference = (tiny_model("qwen2", dtype=torch.float64, seed=seed).train() for seed in (0, 3))
    row, places = (*prompt, *talk.completion_ids), [3, 4, 8, 10, 11, 12]
    assert bytes(row[place] for place in places) == b"abcdef"
    with torch.no_grad():
        rows = [torch.log_softmax(model(torch.tensor([row])).logits[0], -1) for model in (policy, reference)]
    own, other = (torch.stack([one[place - 1, row[place]] for place in places]) for one in rows)
    choose_forward(reference)
    learner = Learner(
        Loaded(model=policy, compute_dtype=torch.float64),
        choose_forward(policy),
        reference=Loaded(model=reference, compute_dtype=torch.float64),
        loss=LossConfig(beta=0.1),
        optim=OptimConfig(),
        temperature=1.0,
        max_completion_length=16,
    )
    task = Task(task_id="0", prompt="ask", prompt_ids=prompt, answer=None)
    for one in (talk, branched(talk, [1, 2])):
        rollout = Rollout(trajectory=one, rewards={}, reward=0.0, advantage=0.0)
        stats = learner.measure([RolloutGroup(task=task, rollouts=(rollout,))])
        assert stats.kl == pytest.approx(float(kl_estimate(own, other).mean()), rel=1e-6)


def test_the_reported_value_is_the_reverse_kl_in_expectation_and_never_negative(logits):
    policy, reference = (torch.log_softmax(one, -1) for one in (logits[0], logits[2]))
    values = kl_estimate(policy, reference)
    assert bool((values >= 0).all())
    assert float((policy.exp() * values).sum()) == pytest.approx(float((policy.exp() * (policy - reference)).sum()))
