from dataclasses import replace

import pytest
import torch

from paceline.engines.local.operations import choose_kernels
from paceline.kernels.cpu.decoding import decoding_kernels
from paceline.kernels.cpu.tiles import ROWS_AT_ONCE, tile_products

pytestmark = pytest.mark.skipif(tile_products() is None, reason="no compiler, or a processor without tiles (AMX)")


def whole_numbers(*shape: int, seed: int) -> torch.Tensor:
    """Between -4 and 4: their products and sums are exact in float32, and small sums in bfloat16."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize("rows", [1, 7, 16, 17, 32, 33, 48, ROWS_AT_ONCE, ROWS_AT_ONCE + 1, 300])
@pytest.mark.parametrize("shape", [(32, 32), (33, 64), (47, 32), (1152, 896), (151, 96)], ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_of_whole_numbers_is_exact_up_to_the_rounding_of_its_result(rows, shape, has_bias):
    x, weight = whole_numbers(rows, shape[1], seed=1), whole_numbers(*shape, seed=2)
    bias = whole_numbers(shape[0], seed=3) if has_bias else None
    exact = x.double() @ weight.double().T + (0.0 if bias is None else bias.double())
    assert torch.equal(tile_products().linear(x, weight, bias), exact.bfloat16())


def test_a_row_gives_the_same_bits_whatever_rows_are_beside_it():
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(*shape, generator=generator).bfloat16() for shape in ((200, 896), (4864, 896)))
    together = tile_products().linear(x, weight, None)
    for rows in (1, 8, 40, 130):
        assert torch.equal(tile_products().linear(x[:rows], weight, None), together[:rows])
    torch.testing.assert_close(together.float(), x.float() @ weight.float().T, atol=0.05, rtol=8e-3)


def test_products_of_torch_go_on_rightly_after_one_of_ours():
    x, weight = whole_numbers(64, 256, seed=1), whole_numbers(512, 256, seed=2)
    expected = (x.double() @ weight.double().T).bfloat16()
    for _ in range(3):
        assert torch.equal(tile_products().linear(x, weight, None), expected)
        assert torch.equal(x @ weight.T, expected)
        assert torch.equal(torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], ""), expected)


def test_what_is_no_number_stays_so():
    x, weight = whole_numbers(3, 64, seed=1), whole_numbers(64, 64, seed=2)
    x[1, 5], x[2, 5], weight[:, 5] = float("nan"), float("inf"), 1.0
    result = tile_products().linear(x, weight, None)
    assert result[0].isfinite().all()
    assert result[1].isnan().all()
    assert (result[2] == float("inf")).all()


def test_weights_that_do_not_fill_tiles_are_left_to_torch():
    products = tile_products()
    assert products.serves(torch.zeros(64, 64, dtype=torch.bfloat16))
    for refused in (torch.zeros(64, 48).bfloat16(), torch.zeros(16, 64).bfloat16(), torch.zeros(64, 64)):
        assert not products.serves(refused)


def test_a_decoder_takes_weights_as_they_are_with_tiles_and_packed_without():
    layer = whole_numbers(512, 256, seed=2), whole_numbers(512, seed=3)
    x = whole_numbers(5, 256, seed=1)
    expected = (x.double() @ layer[0].double().T + layer[1].double()).bfloat16()
    with_tiles = choose_kernels(x.device, x.dtype, decoding_kernels())
    without = replace(with_tiles, tiles=None)
    assert with_tiles.prepared(layer) is layer
    assert without.prepared(layer)[0].layout == torch._mkldnn
    for kernels in (with_tiles, without):
        assert torch.equal(kernels.linear(x, kernels.prepared(layer)), expected)
