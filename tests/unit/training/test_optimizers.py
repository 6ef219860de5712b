"""Optimisers with moments in main memory or in eight bits update as torch's AdamW does."""

import copy

import pytest
import torch

from paceline.checkpoints.finding import TrainingState
from paceline.checkpoints.optimizer_state import load_optimizer
from paceline.checkpoints.saving import TokenizerFiles
from paceline.config.building import build_config
from paceline.config.objective import OptimConfig
from paceline.errors import ConfigError
from paceline.models.loaded import Loaded
from paceline.training.learner.optimizers import OffloadedAdamW, make_optimizer
from tests.support.checkpoint_files import save_checkpoint
from tests.support.tiny import tiny_model, tiny_tokenizer

TOKENS = torch.tensor([[1, 2, 3, 5, 8]])


def policy() -> Loaded:
    return Loaded(model=tiny_model("qwen2"), compute_dtype=torch.float32)


def updates(loaded: Loaded, optimizer, rates) -> list[torch.Tensor]:
    """The weights after an update at each of the rates."""
    for rate in rates:
        for group in optimizer.param_groups:
            group["lr"] = rate
        loaded.model(TOKENS).logits.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach() for parameter in loaded.model.parameters()]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


def test_moments_in_main_memory_give_the_updates_of_torchs_adamw():
    optim = OptimConfig(weight_decay=0.1, adam_betas=(0.8, 0.999))
    plain, offloaded = policy(), policy()
    first = updates(plain, make_optimizer(plain, optim), (1e-2, 5e-3, 1e-3))
    other = make_optimizer(offloaded, OptimConfig(weight_decay=0.1, adam_betas=(0.8, 0.999), offload=("optimizer",)))
    assert isinstance(other, OffloadedAdamW)
    assert same(updates(offloaded, other, (1e-2, 5e-3, 1e-3)), first)


def test_a_parameter_without_a_gradient_has_no_moments_and_does_not_move():
    still, moved = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizer = OffloadedAdamW([still, moved], lr=0.5)
    moved.grad = torch.ones(3)
    optimizer.step()
    assert list(optimizer.state) == [moved]
    assert still.tolist() == [1.0] * 3
    # the first step of AdamW is the rate times the gradient's sign, after a decay of rate * 0.01
    assert moved.tolist() == pytest.approx([1 - 0.5 * 0.01 - 0.5] * 3)


@pytest.mark.parametrize("options", [{"offload": ("optimizer",)}, {"optimizer": "adamw_8bit"}], ids=str)
def test_a_run_goes_on_from_a_checkpoint_to_the_same_bits(tmp_path, options):
    if "optimizer" in options:
        pytest.importorskip("bitsandbytes")
    optim = OptimConfig(**options)
    loaded = policy()
    optimizer = make_optimizer(loaded, optim)
    updates(loaded, optimizer, (1e-2, 1e-2))
    checkpoint = save_checkpoint(
        tmp_path,
        TrainingState(step=2, position=2, policy_version=2),
        loaded=loaded,
        tokenizer=TokenizerFiles(tiny_tokenizer()),
        optimizer=optimizer,
        keep=1,
    )
    again = Loaded(model=copy.deepcopy(loaded.model), compute_dtype=torch.float32)
    restored = make_optimizer(again, optim)
    load_optimizer(checkpoint, restored, again.model)
    assert same(updates(again, restored, (1e-2, 1e-3)), updates(loaded, optimizer, (1e-2, 1e-3)))


def test_eight_bit_moments_take_a_quarter_and_move_the_weights_much_as_float32_ones_do():
    pytest.importorskip("bitsandbytes")
    plain, small = policy(), policy()
    rates = (1e-3,) * 5
    before = [parameter.detach().clone() for parameter in plain.model.parameters()]
    exact, eight = make_optimizer(plain, OptimConfig()), make_optimizer(small, OptimConfig(optimizer="adamw_8bit"))
    ends = [updates(plain, exact, rates), updates(small, eight, rates)]
    way, other = (torch.cat([(b - a).flatten() for a, b in zip(before, end, strict=True)]) for end in ends)
    assert torch.nn.functional.cosine_similarity(way, other, dim=0) > 0.98
    head = small.model.lm_head.weight  # 260 * 32 weights: above the 4,096 from which on they are quantised
    moments = [eight.state[head][name] for name in ("state1", "state2")]
    assert [moment.dtype for moment in moments] == [torch.uint8] * 2


def test_eight_bit_moments_do_not_lie_in_main_memory():
    given = {"model": "m", "dataset": "d", "optimizer": "adamw_8bit", "offload": "optimizer"}
    with pytest.raises(ConfigError, match="--offload must not name optimizer with --optimizer adamw_8bit"):
        build_config(given)
