"""Routers compute in their weights' precision, are noted, and take given choices with gradients to their scores."""

import copy

import pytest
import torch

from paceline.errors import ModelError
from paceline.models.forward import choose_forward
from paceline.models.plain_forward import computing_in
from paceline.models.routing import connect_routers, routing_of
from paceline.objective.micro_batches import one_turn, pack
from tests.support.families import family, make_model
from tests.support.tiny import tiny_model

FAMILIES = ("qwen3_moe", "gpt_oss", "glm4_moe", "deepseek_v3", "lfm2_moe")
"""Softmax of all experts, softmax of the chosen, sigmoid with a bias, the same in groups, and behind convolutions."""
IDS = torch.tensor([[5, 9, 200, 31, 7, 64, 3, 111]])


def routed(name: str):
    model = make_model(family(name)).eval()
    return model, connect_routers(model)


def routers(model) -> list[torch.nn.Module]:
    return [module for module in model.modules() if "router_number" in vars(module)]


@pytest.mark.parametrize("name", FAMILIES)
def test_router_logits_are_float32_under_autocast(name):
    model, _ = routed(name)
    seen = []
    for router in routers(model):
        router.register_forward_hook(lambda _, inputs, outputs: seen.append(outputs[0].dtype))
    with torch.no_grad(), computing_in(model, torch.bfloat16):
        model(input_ids=IDS)
    assert set(seen) == {torch.float32}


@pytest.mark.parametrize("name", FAMILIES)
def test_replay_of_own_routes_changes_no_bit(name):
    model, routing = routed(name)
    routing.begin()
    plain = model(input_ids=IDS).logits
    gradients = torch.autograd.grad(plain.square().sum(), list(model.parameters()), allow_unused=True)
    routes = routing.chosen()
    assert routes.shape == (8, routing.routers * 2)
    routing.begin(routes, torch.arange(8))
    replayed = model(input_ids=IDS).logits
    again = torch.autograd.grad(replayed.square().sum(), list(model.parameters()), allow_unused=True)
    assert torch.equal(plain, replayed)
    assert all(torch.equal(one, two) for one, two in zip(gradients, again, strict=True) if one is not None)
    counts = routing.counts()
    assert counts["routes_differ"] == 0
    assert counts["routes_known"] == 8 * routing.routers


@pytest.mark.parametrize("name", FAMILIES)
def test_replay_of_other_routes_is_counted_and_trains_the_router(name):
    model, routing = routed(name)
    routing.begin()
    plain = model(input_ids=IDS).logits
    own = routing.chosen()
    # two tokens take the two experts that the first router did not choose
    other = own.clone()
    for token in (2, 6):
        other[token, :2] = torch.tensor([e for e in range(4) if e not in own[token, :2].tolist()], dtype=torch.uint8)
    routing.begin(other, torch.arange(8))
    logits = model(input_ids=IDS).logits
    logits.square().sum().backward()
    first = routers(model)[0]
    assert not torch.equal(logits, plain)
    assert first.weight.grad.abs().sum() > 0
    # the layers behind see other states, so that they may choose otherwise too
    assert routing.counts()["routes_differ"] >= 2
    loads = routing.counts()["loads"]
    assert loads.sum(-1).tolist() == [16] * routing.routers
    assert loads[0].tolist() == torch.bincount(other[:, :2].flatten().long(), minlength=4).tolist()


def test_unknown_routes_are_the_routers_own():
    model, routing = routed("qwen3_moe")
    routing.begin()
    plain = model(input_ids=IDS).logits
    routes = routing.chosen()
    routes[3:] = 255
    routing.begin(routes, torch.arange(8))
    assert torch.equal(model(input_ids=IDS).logits, plain)
    assert routing.counts()["routes_known"] == 3 * routing.routers


def test_a_packed_micro_batch_takes_routes_as_padded_rows_do():
    model = make_model(family("qwen3_moe"))
    packed = choose_forward(model)
    assert packed.kind == "packed"
    samples = [
        one_turn(group=0, prompt_ids=(1, 2, 3), completion_ids=ids, advantage=1.0) for ids in ((4, 5), (6, 7, 8, 9))
    ]
    batch = pack(samples, [0.5, 0.5], [0, 1], dtype=torch.float32)
    routing = routing_of(model)
    hidden = packed(model, batch)
    routes = torch.randint(4, (len(batch.input_ids), 4, 1), generator=torch.Generator().manual_seed(1))
    routes = torch.cat([routes, (routes + 1) % 4], dim=-1).flatten(1).to(torch.uint8)
    given = type(batch)(**{name: getattr(batch, name) for name in batch.__slots__ if name != "routes"}, routes=routes)
    moved = packed(model, given)
    counts = routing.counts()
    assert not torch.allclose(moved, hidden, atol=1e-2)
    padded = type(packed)(kind="padded", reason="")(model, given)
    assert torch.allclose(moved, padded, atol=1e-5)
    assert all(torch.equal(value, routing.counts()[name]) for name, value in counts.items())
    assert counts["loads"].sum(-1).tolist() == [12] * 4  # two experts for each of six targets


def test_a_copied_model_has_routers_of_its_own():
    model, routing = routed("qwen3_moe")
    other = copy.deepcopy(model)
    routing.begin()
    routing_of(other).begin()
    other(input_ids=IDS)
    assert routing.chosen() is None
    assert routing_of(other).chosen() is not None
    assert connect_routers(other) is routing_of(other)


def test_from_256_experts_on_a_number_has_two_bytes():
    _, routing = routed("qwen3_moe")
    routing.experts = 300
    routing._choices = [torch.tensor([[299, 1]], dtype=torch.int16)] * 4
    routes = routing.chosen()
    assert routes[0, :4].tolist() == [43, 1, 1, 0]
    assert routing._unpacked(routes)[0, 0].tolist() == [299, 1]


def test_a_dense_model_has_no_routing():
    model = tiny_model()
    assert connect_routers(model) is None
    assert routing_of(model) is None


def test_routes_of_another_model_are_refused():
    model, routing = routed("qwen3_moe")
    with pytest.raises(ModelError, match="7 bytes for each token, which the model's 4 routers cannot share"):
        routing.begin(torch.zeros(8, 7, dtype=torch.uint8))
    routing.begin(torch.zeros(5, 8, dtype=torch.uint8))
    with pytest.raises(ModelError, match="2 experts for each of 8 tokens, and recorded routes have 2 for each of 5"):
        model(input_ids=IDS)
