"""Layers, embeddings and logprobs in parts: the numbers of the whole, two meetings of ranks per block each way."""

import json

import pytest
import torch
from transformers import (
    Gemma3nTextConfig,
    Gemma4TextConfig,
    GPT2Config,
    LlamaConfig,
    OlmoeConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3MoeConfig,
)

from paceline.errors import ModelError
from paceline.kernels.logprobs import row_sums
from paceline.models.parallel.tensor import SharedHeads, check_tensor_size, tensor_plan, tensor_sizes
from paceline.models.parallel.tensor_layers import HeadLinear, add_row_sums
from tests.support.forked import fork_ranks
from tests.unit.models.tensor_ranks import LAYERS, MODELS, work

EXACT, FLOAT32 = 1e-12, 1e-5


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of two ranks found."""
    folder = tmp_path_factory.mktemp("ranks")
    fork_ranks(work, str(folder), count=2)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


def of(found, *names):
    for one in found:
        for name in names:
            one = one[name]
        yield one


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_in_parts_has_the_values_and_gradients_of_the_whole(found, name):
    for one in of(found, "models", name):
        assert one["values"] < FLOAT32
        assert all(error < FLOAT32 for error in one["gradients"].values()), one["gradients"]


def test_a_block_meets_the_other_ranks_once_in_each_direction(found):
    for forward, backward in of(found, "models", "llama, biases", "sent"):
        # and once for the embedding, or the output embedding; sums of probabilities are gathered
        assert forward == {"allreduce_": 2 * LAYERS + 1, "allgather_": 1}
        assert backward == {"allreduce_": 2 * LAYERS + 1}


def test_a_vocabulary_that_cannot_be_divided_stays_whole(found):
    for parts in of(found, "models", "qwen3, odd vocabulary", "parts"):
        assert parts
        assert not [name for name in parts if "embed" in name or "lm_head" in name]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, EXACT), (torch.float32, FLOAT32)])
def test_logits_in_parts_give_the_logprobs_entropies_and_gradients_of_all(found, dtype, limit, temperature):
    for errors in of(found, "vocabulary", f"{dtype}, {temperature}"):
        assert len(errors) == 7
        assert all(error < limit for error in errors.values()), errors


def test_bfloat16_costs_a_split_model_what_it_costs_the_whole(found):
    for half in of(found, "half"):
        assert half["dtype"] == "torch.float32"
        assert 1e-4 < half["part"] < 2 * half["whole"] < 0.1


def test_ranks_that_share_a_key_value_head_have_it_whole(found):
    for parts in of(found, "models", "llama, one key/value head", "parts"):
        assert "model.layers.0.self_attn.q_proj.weight" in parts
        assert not [name for name in parts if "k_proj" in name or "v_proj" in name]


def test_attention_of_transformers_repeats_a_shared_key_for_the_queries_that_are_here(found):
    for error in of(found, "eager"):
        assert error < FLOAT32  # norms of transformers round to float32


def test_four_ranks_with_two_key_value_heads_compute_the_attention_and_its_gradients_of_one():
    heads = SharedHeads(ranks=4, query=8, key_value=2, width=4)
    assert [heads.rows(place) for place in range(4)] == [slice(0, 4), slice(0, 4), slice(4, 8), slice(4, 8)]
    assert heads.groups == 2
    torch.manual_seed(0)
    x, query = torch.randn(1, 5, 6).double(), torch.nn.Linear(6, 32).double()
    keys = torch.nn.Linear(6, heads.out_features).double()

    def attended(queries, keys):
        query, key = (one.unflatten(-1, (-1, 4)).transpose(1, 2) for one in (queries, keys))
        return torch.nn.functional.scaled_dot_product_attention(query, key, key, is_causal=True, enable_gqa=True)

    whole = attended(query(x), keys(x))
    shares = torch.randn_like(whole)
    wanted = torch.autograd.grad((shares * whole).sum(), list(keys.parameters()))
    total = [torch.zeros_like(one) for one in keys.parameters()]
    keys.__class__ = HeadLinear
    for place, (queries, own, share) in enumerate(
        zip(query(x).chunk(4, -1), whole.chunk(4, 1), shares.chunk(4, 1), strict=True)
    ):
        keys.rows = heads.rows(place)
        part = attended(queries, keys(x))
        assert torch.allclose(part, own, rtol=0, atol=EXACT)
        gradients = torch.autograd.grad((share * part).sum(), list(keys.parameters()))
        total = [sum(pair) for pair in zip(total, gradients, strict=True)]
    for one, other in zip(total, wanted, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=EXACT)


def test_what_cannot_be_split_is_refused_and_left_as_it_is(found):
    for said in of(found, "refused"):
        assert "leaves out q_layernorm.weight" in said["a norm beside the plan"]
        assert "layers.1.mlp.up_proj is a Sequential" in said["no linear layer"]
        assert "use plain LoRA" in said["DoRA"]
        assert "layers.0.mlp.experts has an adapter beside its experts" in said["an adapter beside experts"]
        assert "layers.0.mlp.experts computes its experts by itself" in said["experts by other products"]
        wide = "layers.1.self_attn.k_proj has 16 outputs, and the model's key/value heads, which 2 ranks would share, "
        assert f"{wide}have 1 x 8; use a tensor size that divides 1" in said["two keys for one key/value head"]
        assert "which layers of layers.1.self_attn lead to 1 key/value heads" in said["no number of groups"]


def test_a_rank_whose_partner_has_left_says_so_in_the_backward_pass_too(found):
    assert found[0]["left"].startswith("rank 0 was adding up parts of a layer when another rank went away or was late")


def test_sums_of_two_parts_of_a_row_are_those_of_the_row():
    logits, target, temperature = torch.tensor([[1.0, 5.0, -2.0, 4.0]]).double(), torch.tensor([3]), 0.5
    parts = [row_sums(part, torch.tensor([1]), temperature) for part in logits.split(2, dim=1)]
    got = add_row_sums(torch.stack([torch.stack(part) for part in parts]), torch.tensor([1]), temperature)
    for one, other in zip(got, row_sums(logits, target, temperature), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("heads", "key_value_heads", "width", "sizes"),
    [
        (14, 2, 4864, [1, 2]),  # Qwen2.5 of 0.5 B
        (32, 8, 14336, [1, 2, 4, 8, 16, 32]),  # Llama 3 of 8 B
        (4, 1, 256, [1, 2, 4]),
        (12, 4, 144, [1, 2, 4, 12]),  # 3 and 6 neither divide 4 nor are multiples of it
    ],
)
def test_a_size_divides_heads_and_width_and_divides_key_value_heads_or_is_a_multiple(
    heads, key_value_heads, width, sizes
):
    config = LlamaConfig(
        num_attention_heads=heads, num_key_value_heads=key_value_heads, intermediate_size=width, hidden_size=8 * heads
    )
    assert tensor_sizes(config) == sizes
    check_tensor_size(config, sizes[-1])


def test_ranks_share_key_value_heads_only_where_the_plan_names_them():
    config = Qwen2Config(num_attention_heads=4, num_key_value_heads=2, intermediate_size=64)
    config.base_model_tp_plan = {"layers.*.attention.first": "colwise", "layers.*.attention.last": "rowwise"}
    assert tensor_sizes(config) == [1, 2]
    with pytest.raises(ModelError, match="64 elements of its feed-forward width, 2 key/value heads; the nearest"):
        check_tensor_size(config, 4)


def test_queries_keys_and_values_in_one_matrix_are_not_split():
    assert tensor_sizes(Phi3Config()) == [1]


@pytest.mark.parametrize(("size", "nearest"), [(3, "2 or 4"), (64, "32"), (0, "1")])
def test_a_wrong_size_names_what_it_must_divide_and_the_nearest_that_does(size, nearest):
    llama = LlamaConfig(num_attention_heads=32, num_key_value_heads=8, intermediate_size=14336)
    sentence = (
        f"a tensor size of {size} must divide what the model has: 32 attention heads, 14336 elements of its "
        f"feed-forward width, and divide or be a multiple of its 8 key/value heads; the nearest that does is {nearest}$"
    )
    with pytest.raises(ModelError, match=sentence):
        check_tensor_size(llama, size)


def test_a_plan_with_unknown_cuts_alone_is_refused_by_their_name():
    with pytest.raises(ModelError, match=r"its plan cuts .* by 'colwise_gather_output'"):
        check_tensor_size(Phi3Config(), 2)
    check_tensor_size(Phi3Config(), 1)


def test_a_block_with_an_unknown_cut_stays_whole_where_others_are_cut():
    assert tensor_plan(OlmoeConfig()) == {"layers.*.mlp.experts": "moe_tp_experts"}


def test_ranks_divide_experts_and_no_expert():
    config = Qwen3MoeConfig(num_experts=6, num_attention_heads=8, num_key_value_heads=8, intermediate_size=64)
    assert tensor_sizes(config) == [1, 2]
    with pytest.raises(ModelError, match="8 attention heads, 64 elements of its feed-forward width, 6 experts"):
        check_tensor_size(config, 4)


def test_layers_whose_heads_differ_in_width_are_refused():
    gemma = Gemma4TextConfig(num_hidden_layers=6)
    assert tensor_sizes(gemma) == [1]
    with pytest.raises(ModelError, match="because its layers differ in the number or the width of their heads"):
        check_tensor_size(gemma, 2)


def test_a_family_without_a_plan_is_refused():
    with pytest.raises(
        ModelError, match="a gpt2 model cannot be split over a tensor axis, because transformers has no"
    ):
        check_tensor_size(GPT2Config(), 2)


def test_layers_of_different_widths_are_refused():
    gemma = Gemma3nTextConfig(num_hidden_layers=2, intermediate_size=[32, 64], activation_sparsity_pattern=None)
    with pytest.raises(ModelError, match=r"because its intermediate_size is \[32, 64\] and not one number for all"):
        check_tensor_size(gemma, 2)
