"""Tokens of a micro-batch on several ranks: who has which, heads in their place for attention, and what is refused."""

import json

import pytest
import torch
from transformers import LlamaConfig, Qwen2Config

from paceline.errors import ModelError
from paceline.models.parallel.context import by_rank, check_context_size, context_sizes, deal
from tests.support.forked import fork_ranks
from tests.unit.models.context_ranks import work


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of two ranks found."""
    folder = tmp_path_factory.mktemp("ranks")
    fork_ranks(work, str(folder), count=2)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


def test_tokens_become_heads_and_heads_tokens_by_hand(found):
    first, second = (one["exchanged"] for one in found)
    # of three tokens the first rank has 0 and 2, the second 1 and a place that is filled up
    assert first["queries"] == [[0, 1], [10, 11], [20, 21]]
    assert second["queries"] == [[2, 3], [12, 13], [22, 23]]
    # the one head of keys is wanted by both
    assert first["keys"] == second["keys"] == [[0], [10], [20]]
    assert first["back"] == [[0, 1, 2, 3], [20, 21, 22, 23]]
    assert second["back"] == [[10, 11, 12, 13], [0, 0, 0, 0]]


def test_gradients_go_the_same_way_back_and_those_of_a_shared_head_are_added_up_by_hand(found):
    first, second = (one["exchanged"] for one in found)
    assert first["by queries"] == [[3] * 4, [3] * 4]
    assert second["by queries"] == [[3] * 4, [0] * 4]
    assert (first["by keys"], second["by keys"]) == ([[2], [2]], [[2], [0]])


@pytest.mark.parametrize(("precision", "limit"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_layers_on_kernels_have_the_values_and_gradients_of_all_tokens(found, precision, limit):
    for one in found:
        assert len(one[precision]) == 6
        assert all(error < limit for error in one[precision].values()), one[precision]


def test_a_pass_keeps_about_half_of_what_it_keeps_of_all_tokens(found):
    for one in found:
        assert 0.5 <= one["kept"]["shared"] / one["kept"]["alone"] < 0.6


def test_padded_rows_are_refused_with_the_remedy(found):
    for one in found:
        assert "padded rows (some layers attend to a sliding window)" in one["refused"]
        assert one["refused"].endswith("train it with --context-parallel 1")


def test_targets_go_to_the_rank_of_the_token_that_predicts_them_by_hand():
    # four targets, predicted by tokens 1, 2, 3 and 1: those of odd tokens are the second rank's
    assert deal([1, 2, 3, 1], ranks=2, rank=0) == ([1], [3, 0, 4, 5], 3)
    assert deal([1, 2, 3, 1], ranks=2, rank=1) == ([0, 2, 3], [3, 0, 4, 5], 3)


def test_heads_are_dealt_out_in_order_and_fewer_than_ranks_several_times():
    heads = torch.arange(4.0)[None, :, None]
    assert by_rank(heads, 2)[..., 0].tolist() == [[[0, 1], [2, 3]]]
    assert by_rank(heads[:, :2], 4)[..., 0].tolist() == [[[0], [0], [1], [1]]]


@pytest.mark.parametrize(
    ("heads", "key_value", "tensor", "sizes"),
    [
        (4, 1, 1, [1, 2, 4]),
        (14, 2, 1, [1, 2, 14]),  # of seven ranks one would have queries of both key/value heads
        (32, 8, 2, [1, 2, 4, 8, 16]),
        (8, 2, 4, [1, 2]),  # tensor ranks that share a key/value head have one each
    ],
)
def test_sizes_divide_the_heads_that_a_rank_of_the_tensor_axis_has(heads, key_value, tensor, sizes):
    config = LlamaConfig(hidden_size=16 * heads, num_attention_heads=heads, num_key_value_heads=key_value)
    assert context_sizes(config, tensor=tensor) == sizes


def test_another_size_is_refused_with_the_nearest_that_do():
    config = Qwen2Config(num_attention_heads=14, num_key_value_heads=2)
    with pytest.raises(ModelError, match=r"a context size of 4 must .* 14 attention heads, .* its 2 .* is 2 or 14$"):
        check_context_size(config, 4)
    with pytest.raises(ModelError, match=r"has on each of 2 tensor ranks: 7 attention heads"):
        check_context_size(config, 2, tensor=2)
