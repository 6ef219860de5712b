"""Micro-batch size and recomputed layers are chosen by the memory that is free, alike on all ranks."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from paceline.config.building import build_config
from paceline.config.objective import MICRO_BATCH_TOKENS
from paceline.config.sections import Config
from paceline.errors import ConfigError
from paceline.kernels.linear import speed_up_linear_layers
from paceline.models.activation_checkpointing import Activations
from paceline.models.activations import recompute
from paceline.models.forward import choose_forward, measure_activations
from paceline.models.loaded import Loaded
from paceline.runtime.devices import free_memory
from paceline.training.memory import Recomputing, choose_recomputing, least_memory, to_come
from paceline.training.plan.batches import most_tokens
from paceline.training.setup.preparation import check_memory_options
from tests.support.families import family, make_model
from tests.support.tiny import tiny_model

CPU = torch.device("cpu")
PROMPT = 7
PLACE = {"padded": False, "longest_prompt": PROMPT}


def configured(**given: object) -> Config:
    return build_config({"model": "m", "dataset": "d", **given})


def unasked() -> Activations:
    raise AssertionError("nothing is measured where nothing is chosen")


def policy() -> Loaded:
    return Loaded(model=tiny_model("qwen2").train(), compute_dtype=torch.float32)


@pytest.mark.parametrize("name", ["activations", "optimizer"])
def test_offloading_to_the_memory_that_everything_is_in_is_refused(name):
    with pytest.raises(ConfigError, match=rf"--offload must not name {name} on a CPU, got .*; everything"):
        check_memory_options(configured(offload=(name,)), CPU)
    check_memory_options(configured(), CPU)
    check_memory_options(configured(offload=(name,)), torch.device("cuda"))


def test_layers_are_computed_again_only_where_memory_is_short_of_twice_what_they_keep():
    config = configured(micro_batch_tokens=100, max_completion_length=50)
    trained = policy()
    measure = partial(measure_activations, trained.model, choose_forward(trained.model), torch.float32)
    activations = measure()
    whole = 100 * activations.all_layers
    enough = choose_recomputing(config, trained, measure, **PLACE, free=int(2 * whole) + 2)
    assert (enough.layers, enough.needed, enough.describe()) == (0, whole, [])
    assert not any(layer.gradient_checkpointing for layer in trained.model.model.layers)
    short = choose_recomputing(config, trained, measure, **PLACE, free=int(2 * whole) - 2)
    assert (short.layers, short.of) == (1, 2)
    assert [layer.gradient_checkpointing for layer in trained.model.model.layers] == [True, False]
    assert short.needed == pytest.approx(whole / 2 + 100 * 32 * 4)
    assert len(short.describe()) == 1
    assert len(choose_recomputing(config, trained, measure, **PLACE, free=-1).describe()) == 2


@pytest.mark.parametrize("word", ["true", "false"])
def test_a_word_that_is_not_auto_leaves_nothing_to_choose(word):
    config = configured(gradient_checkpointing=word)
    trained = policy()
    assert choose_recomputing(config, trained, unasked, **PLACE, free=0) is None


def test_where_every_layer_is_computed_again_the_size_is_still_chosen_by_memory(monkeypatch):
    monkeypatch.setitem(MICRO_BATCH_TOKENS, "cpu", (100, 60))
    config, trained = configured(gradient_checkpointing="true", max_completion_length=50), policy()
    recompute(trained.model, None)
    measure = partial(measure_activations, trained.model, choose_forward(trained.model), torch.float32)
    kept = 2 * 32 * 4  # bytes of the two layers' inputs, per token
    for free, size in ((2 * 100 * kept, 100), (2 * 100 * kept - 2, 60)):
        found = choose_recomputing(config, trained, measure, **PLACE, free=free)
        assert (found.micro_batch_tokens, found.layers, found.needed) == (size, 2, size * kept)
        assert all(layer.gradient_checkpointing for layer in trained.model.model.layers)


def test_what_cannot_be_known_is_not_guessed():
    trained = policy()
    assert choose_recomputing(configured(), trained, unasked, **PLACE, free=None) is None


def test_the_choice_is_told_in_sentences():
    told = Recomputing(micro_batch_tokens=4096, layers=3, of=24, needed=3 * 2**30, room=2**31).describe()
    assert told[0].startswith("gradient checkpointing: 3 of 24 layers are computed again")
    assert told[1].startswith("activations may take 3.00 GiB, more than the 2.00 GiB")


def test_a_forward_pass_takes_the_budget_the_longest_row_or_the_whole_step():
    sizes = {"num_generations": 4, "max_completion_length": 50, "prompts_per_step": 2}
    assert most_tokens(configured(**sizes), 300, prompt=10, padded=False) == 300
    assert most_tokens(configured(**sizes), 30, prompt=10, padded=False) == 60
    assert most_tokens(configured(**sizes), 4096, prompt=10, padded=False) == 2 * (10 + 4 * 50)
    assert most_tokens(configured(**sizes), 4096, prompt=10, padded=True) == 2 * 4 * (10 + 50)
    assert most_tokens(configured(**sizes), 300, prompt=10, padded=True) == 300
    assert most_tokens(configured(**sizes), 30, prompt=10, padded=True) == 60


def test_ranks_that_share_tokens_take_the_budget_each_and_their_part_of_the_longest_row():
    sizes = {"num_generations": 4, "max_completion_length": 50, "prompts_per_step": 2, "context_parallel": 3}
    assert most_tokens(configured(**sizes), 100, prompt=10, padded=False) == 100
    assert most_tokens(configured(**sizes), 5, prompt=10, padded=False) == 60 / 3
    assert most_tokens(configured(**sizes), 4096, prompt=10, padded=False) == 2 * (10 + 4 * 50) / 3


def test_gradients_and_moments_are_still_to_come():
    trained, optim = policy(), configured().optim
    assert to_come(optim, trained) == trained.model.num_parameters() * (4 + 8)


@pytest.mark.parametrize(("name", "copied"), [("gpt2", True), ("llama", False)])
def test_layers_that_autocast_casts_keep_a_copy_until_the_backward_pass(name, copied):
    model = make_model(family(name)).train()
    speed_up_linear_layers(model)
    optim, numbers = configured().optim, model.num_parameters()
    layers = [one.weight.numel() for one in model.modules() if isinstance(one, Conv1D)]
    assert bool(layers) is copied
    wanted = numbers * (4 + 8) + 2 * sum(layers)
    assert to_come(optim, Loaded(model=model, compute_dtype=torch.bfloat16)) == wanted
    # what a pass in bfloat16 keeps beside what grows with its tokens
    saved = list[Tensor]()
    keep = torch.autograd.graph.saved_tensors_hooks(lambda one: saved.append(one) or one, lambda one: one)
    with keep, torch.autocast("cpu", dtype=torch.bfloat16):
        model(input_ids=torch.arange(8)[None])
    shapes = {tuple(sorted(one.weight.shape)) for one in model.modules() if isinstance(one, Conv1D | nn.Linear)}
    cast = {one.data_ptr(): one for one in saved if one.dtype == torch.bfloat16 and tuple(sorted(one.shape)) in shapes}
    assert 2 * sum(layers) == sum(one.nbytes for one in cast.values())


@dataclass(frozen=True)
class Scripted:
    """Ranks that give what is said."""

    free: list[int | None]

    def collect(self, numbers):
        return [{} if one is None else {"free": float(one)} for one in self.free]


def test_all_ranks_go_by_the_one_with_the_least_memory():
    assert least_memory(5, Scripted([5, 3, None])) == 3
    assert least_memory(None, Scripted([None, None])) is None


def test_free_memory_is_read_where_the_system_says_it():
    free = free_memory(CPU)
    assert free is None or 0 < free < 2**50
