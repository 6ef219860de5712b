"""The CPU kernels over logits agree with torch's operations, also at extreme and non-finite values."""

import pytest
import torch

from paceline.kernels.cpu.compiling import library
from paceline.kernels.cpu.logits import logit_passes
from paceline.kernels.logprobs import token_logprobs

pytestmark = pytest.mark.skipif(library().functions is None, reason=library().reason)

CPU = torch.device("cpu")


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("of_logprob", "of_entropy"), [(1.0, 0.0), (0.0, 1.0), (0.7, -0.3)])
@pytest.mark.parametrize("vocabulary", [2, 16, 37, 9001])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.bfloat16, 6e-3)], ids=str)
def test_the_kernels_agree_with_torchs_operations(dtype, tolerance, vocabulary, of_logprob, of_entropy):
    targets = torch.randint(vocabulary, (30,), generator=torch.Generator().manual_seed(0))
    share, results = draw(30, seed=1), []
    for passes in (None, logit_passes(CPU, dtype)):
        hidden = draw(30, 8, seed=2).to(dtype).requires_grad_()
        head = draw(vocabulary, 8, seed=3).requires_grad_()
        logprobs, entropy = token_logprobs(
            hidden, head, targets, temperature=0.8, chunk_elements=1, product_rows=7, passes=passes
        )
        loss = (share * (of_logprob * logprobs + of_entropy * entropy)).sum()
        grads = torch.autograd.grad(loss, (hidden, head))
        results.append([*(part.detach() for part in (logprobs, entropy)), *grads])
    for place, (wanted, got) in enumerate(zip(*results, strict=True)):
        limit = 3e-6 if place < 2 else tolerance  # logprobs and entropies are float32 whatever the logits are
        assert (got - wanted).float().norm() <= limit * wanted.float().norm() + 1e-6


def test_logits_of_any_size_neither_overflow_nor_vanish():
    logits = torch.tensor([[3e4, 3e4, -3e4] + [0.0] * 17, [-3e4] * 19 + [-3e4 + 1]])
    passes = logit_passes(CPU, torch.float32)
    logprobs, entropy, normalisers = passes.statistics(logits, torch.tensor([0, 19]), 1.0)
    assert logprobs.tolist() == pytest.approx([-0.693147, -2.078154])  # of two; of e among 19 ones
    assert entropy.tolist() == pytest.approx([0.693147, 2.952993], rel=1e-5)
    assert normalisers.tolist() == pytest.approx([3e4 + 0.693, -3e4 + 3.078], rel=1e-6)


def test_a_logit_that_is_no_number_stays_visible():
    passes = logit_passes(CPU, torch.float32)
    logits = torch.zeros(1, 40)
    logits[0, 5] = torch.nan
    assert passes.statistics(logits, torch.tensor([1]), 1.0)[0].isnan().all()


def test_float64_and_other_devices_are_left_to_torch():
    assert logit_passes(CPU, torch.float64) is None
    assert logit_passes(torch.device("meta"), torch.float32) is None


@pytest.mark.parametrize("target", [-100, 40])
def test_a_target_that_is_no_token_is_refused_and_not_looked_up(target):
    passes = logit_passes(CPU, torch.float32)
    with pytest.raises(IndexError, match="a target lies outside the 40 tokens of the output embedding"):
        passes.statistics(torch.zeros(2, 40), torch.tensor([3, target]), 1.0)


def test_a_token_that_cannot_be_sampled_spoils_no_gradient():
    """A bias of -infinity over a padded vocabulary: the rest is softmax(1, 1), whose entropy is ln 2."""
    passes = logit_passes(CPU, torch.float32)
    logits = torch.tensor([[1.0, 1.0] + [-torch.inf] * 18])
    logprobs, entropy, normalisers = passes.statistics(logits, torch.tensor([0]), 1.0)
    assert (logprobs.item(), entropy.item()) == pytest.approx((-0.693147, 0.693147), rel=1e-5)
    passes.to_gradients(logits, torch.tensor([0]), normalisers, entropy, [torch.ones(1), torch.ones(1)], 1.0)
    assert logits[0, :2].tolist() == pytest.approx([0.5, -0.5], rel=1e-5)
    assert logits[0, 2:].eq(0).all()
