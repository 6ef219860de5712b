import pytest
import torch

from paceline.products import (
    LARGE_WEIGHTS,
    ProductLinear,
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
