"""Layers to stages: who has which, what is refused, and that stages in a row are the whole model."""

import copy

import pytest
import torch
from transformers import GraniteConfig, GraniteForCausalLM

from paceline.errors import ConfigError, ModelError
from paceline.models.forward import PolicyForward, choose_forward
from paceline.models.parallel.context import Tokens
from paceline.models.parallel.stages import (
    Elsewhere,
    Stages,
    divide,
    is_at_both_ends,
    keep_stages,
    mark_both_ends,
    own_layers,
)
from paceline.objective.micro_batches import pack
from tests.laws.splitting import random_samples
from tests.support.tiny import VOCAB_SIZE, tiny_model

IDS = torch.tensor([[5, 6, 7]])


def stages(ranks: int, place: int = 0) -> Stages:
    return Stages(ranks=ranks, rank=place, group=None)


def tied(layers: int = 2):
    model = tiny_model("llama", layers=layers)
    model.config.tie_word_embeddings = True
    model.get_output_embeddings().weight = model.get_input_embeddings().weight
    return model


@pytest.mark.parametrize(
    ("layers", "number", "sizes"),
    [(2, 2, [1, 1]), (7, 2, [4, 3]), (6, 4, [1, 2, 2, 1]), (7, 4, [2, 2, 2, 1]), (5, 3, [2, 2, 1]), (3, 1, [3])],
)
def test_every_layer_is_in_one_stage_and_the_ends_have_one_fewer_where_it_does_not_divide(layers, number, sizes):
    parts = divide(layers, number)
    assert [len(part) for part in parts] == sizes
    assert [layer for part in parts for layer in part] == list(range(layers))


def test_more_stages_than_layers_are_refused_with_the_sizes_that_there_can_be():
    with pytest.raises(ConfigError, match=r"over 6 ranks has 6 stages.*5 layers; take 1 to 5 ranks"):
        divide(5, 6)
    with pytest.raises(ConfigError, match=r"take 1 rank$"):
        divide(1, 2)


@pytest.mark.parametrize(("count", "passes"), [(0, 0), (1, 4), (4, 4), (9, 9)])
def test_the_schedule_needs_a_micro_batch_for_every_stage(count, passes):
    assert stages(4).passes(count) == passes


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_stages_in_a_row_are_the_whole_model_and_keep_its_names(kind):
    model = tiny_model(kind, layers=5)
    whole, names = model(IDS).logits, [name for name, _ in model.named_parameters()]
    ranks = [copy.deepcopy(model) for _ in range(2)]
    for place, part in enumerate(ranks):
        keep_stages(part, stages(2, place))
    assert sorted(name for part in ranks for name, _ in part.named_parameters()) == sorted(names)
    states = ranks[0].base_model(input_ids=IDS).last_hidden_state
    states = ranks[1].base_model(inputs_embeds=states).last_hidden_state
    assert torch.equal(ranks[1].get_output_embeddings()(states), whole)


def test_a_layer_elsewhere_has_no_weights_and_tells_what_a_models_loop_asks_it_for():
    model = tiny_model("qwen3")
    model.base_model.layers[1].attention_type = "full_attention"
    keep_stages(model, stages(2, 0))
    first, second = model.base_model.layers
    assert own_layers(model) == [first]
    assert isinstance(second, Elsewhere)
    assert second.attention_type == "full_attention"
    assert list(second.parameters()) == []
    assert second(IDS, position_embeddings=None) is IDS


def test_one_embedding_for_both_ends_stays_at_both_under_its_one_name():
    parts = [tied(3) for _ in range(3)]
    for place, part in enumerate(parts):
        keep_stages(part, stages(3, place))
        mark_both_ends(part)
    named = [dict(part.named_parameters()) for part in parts]
    name = "model.embed_tokens.weight"
    assert [name in one for one in named] == [True, False, True]
    assert all("lm_head.weight" not in one for one in named)
    assert parts[2].get_output_embeddings().weight is named[2][name]
    assert [[key for key, one in part.items() if is_at_both_ends(one)] for part in named] == [[name], [], [name]]


def test_two_embeddings_are_each_at_their_end():
    parts = [tiny_model("llama") for _ in range(2)]
    for place, part in enumerate(parts):
        keep_stages(part, stages(2, place))
        mark_both_ends(part)
    names = [{name for name, _ in part.named_parameters()} for part in parts]
    assert [("model.embed_tokens.weight" in one, "lm_head.weight" in one) for one in names] == [
        (True, False),
        (False, True),
    ]
    assert not any(is_at_both_ends(one) for part in parts for one in part.parameters())


def test_a_model_that_scales_whatever_enters_its_layers_is_refused():
    config = GraniteConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        embedding_multiplier=3.0,
    )
    with pytest.raises(ModelError, match=r"GraniteForCausalLM computes something else in pipeline stages"):
        keep_stages(GraniteForCausalLM(config), stages(2))


def test_a_model_of_another_plan_is_refused():
    model = tiny_model("qwen3")
    model.base_model.second_norm = torch.nn.LayerNorm(32)
    with pytest.raises(ModelError, match=r"Qwen3ForCausalLM is not an embedding, layers, a norm and a head"):
        keep_stages(model, stages(2))


def test_padded_rows_do_not_go_through_a_stage():
    model = tiny_model("qwen3")
    choose_forward(model)
    samples = random_samples(0)
    batch = pack(samples, [1.0] * len(samples), range(len(samples)), dtype=torch.float32)
    padded = PolicyForward(kind="padded", reason="some layers attend to a sliding window")
    with pytest.raises(ModelError, match=r"padded rows \(some layers attend to a sliding window\); train it without"):
        padded.through(model, Tokens(batch=batch), None)
