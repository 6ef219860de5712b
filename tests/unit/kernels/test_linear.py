"""Matrix products of linear layers have torch's values and gradients, cast or not."""

import pytest
import torch

from paceline.kernels.linear import (
    LARGE_WEIGHTS,
    ProductLinear,
    cast_linear,
    linear,
    onednn_serves,
    prefers_onednn,
    product,
    speed_up_linear_layers,
)

GENERATOR = torch.Generator().manual_seed(0)
LARGE = torch.randn(260, 256, generator=GENERATOR)
ROWS = torch.randn(3, 50, 256, generator=GENERATOR)


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got - wanted).detach().norm() / wanted.detach().norm())


def test_only_large_float32_weights_on_a_cpu_leave_torchs_own_product():
    assert LARGE.numel() >= LARGE_WEIGHTS
    assert onednn_serves(ROWS, LARGE) == prefers_onednn(torch.float32)
    assert not onednn_serves(ROWS, LARGE[:100])
    assert not onednn_serves(ROWS.double(), LARGE.double())


@pytest.mark.parametrize("weight", [LARGE, LARGE[:100]], ids=["large", "small"])
def test_a_product_is_rows_times_the_transposed_weight(weight):
    rows = ROWS[0]
    assert relative(product(rows, weight), rows.double() @ weight.double().T) < 1e-6
    assert relative(product(rows @ weight.T, weight.T), (rows @ weight.T).double() @ weight.double()) < 1e-6


def test_a_linear_layer_has_torchs_values_and_gradients():
    inputs, weight = ROWS.clone().requires_grad_(), LARGE.clone().requires_grad_()
    bias = torch.randn(260, generator=GENERATOR).requires_grad_()
    outside = torch.randn(3, 50, 260, generator=GENERATOR)
    results = []
    for function in (linear, torch.nn.functional.linear):
        output = function(inputs, weight, bias)
        results.append((output.detach(), *torch.autograd.grad((output * outside).sum(), (inputs, weight, bias))))
    for got, wanted in zip(*results, strict=True):
        assert got.shape == wanted.shape
        assert relative(got, wanted) < 1e-6


def test_a_models_layers_keep_their_parameters_and_stay_linear_layers():
    model = torch.nn.Sequential(torch.nn.Linear(256, 260), torch.nn.ReLU())
    names, before = list(model.state_dict()), model(ROWS)
    speed_up_linear_layers(model)
    assert type(model[0]) is ProductLinear
    assert isinstance(model[0], torch.nn.Linear)
    assert list(model.state_dict()) == names
    assert relative(model(ROWS), before) < 1e-6


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_a_cast_product_has_autocasts_values_and_gradients(bias):
    inputs, weight = ROWS.clone().requires_grad_(), LARGE.clone().requires_grad_()
    shift = torch.randn(260, generator=GENERATOR).requires_grad_() if bias else None
    outside, parameters = (
        torch.randn(3, 50, 260, generator=GENERATOR),
        [one for one in (inputs, weight, shift) if one is not None],
    )
    ours = cast_linear(inputs, weight, shift, torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torchs = torch.nn.functional.linear(inputs, weight, shift)
    assert torch.equal(ours, torchs)
    got, wanted = (torch.autograd.grad((output * outside).sum(), parameters) for output in (ours, torchs))
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype == other.dtype == torch.float32
        assert relative(one, other) < 1e-2


def test_a_cast_product_keeps_no_copy_of_the_weight():
    layer, kept = ProductLinear(256, 260), list[torch.Tensor]()
    with (
        torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: kept.append(tensor.detach()) or tensor, lambda one: one
        ),
        torch.autocast("cpu", dtype=torch.bfloat16),
    ):
        layer(ROWS)
    assert [one.shape for one in kept] == [(150, 256), (260, 256)]
    assert kept[1].data_ptr() == layer.weight.data_ptr()
