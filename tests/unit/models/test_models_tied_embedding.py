"""A tied embedding's gradient joins the output's: torch's numbers, in the memory that is there."""

import copy

import pytest
import torch
from transformers import PreTrainedModel

from paceline.models.tied_embedding import TiedEmbedding, add_up_in_place
from tests.support.tiny import tiny_model

IDS = torch.tensor([[5, 7, 5, 0, 9]])


def tied_model(dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    model = tiny_model("qwen2", dtype=dtype)
    model.get_output_embeddings().weight = model.get_input_embeddings().weight
    return model


def gradient(model: PreTrainedModel, *, batches: int = 1) -> torch.Tensor:
    model.zero_grad()
    for _ in range(batches):
        model(IDS).logits.square().mean().backward()
    return model.get_input_embeddings().weight.grad


@pytest.mark.parametrize("padding", [None, 5])
@pytest.mark.parametrize("batches", [1, 3])
def test_the_gradient_is_torchs(padding, batches):
    ours = tied_model(torch.float64)
    ours.get_input_embeddings().padding_idx = padding
    torchs = copy.deepcopy(ours)
    add_up_in_place(ours)
    assert type(ours.get_input_embeddings()) is TiedEmbedding
    torch.testing.assert_close(gradient(ours, batches=batches), gradient(torchs, batches=batches))


def test_looked_up_rows_are_added_to_the_gradient_that_is_there():
    embedding = tied_model().get_input_embeddings()
    embedding.__class__ = TiedEmbedding
    there = embedding.weight.grad = torch.ones_like(embedding.weight)
    (2 * embedding(IDS)).sum().backward()
    assert embedding.weight.grad is there
    assert there[:, 0].tolist()[:10] == [3, 1, 1, 1, 1, 5, 1, 3, 1, 3]


def test_without_a_gradient_it_is_the_embedding_that_it_was():
    model = tied_model()
    wanted = model.get_input_embeddings()(IDS)
    add_up_in_place(model)
    model.requires_grad_(False)
    found = model.get_input_embeddings()(IDS)
    assert torch.equal(found, wanted)
    assert not found.requires_grad


def test_an_embedding_of_its_own_stays():
    model = tiny_model("qwen2")
    add_up_in_place(model)
    assert type(model.get_input_embeddings()) is torch.nn.Embedding
