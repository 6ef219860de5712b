import pytest
import torch

from paceline.config import Config, build_config
from paceline.errors import ConfigError
from paceline.learner import Learner
from paceline.models import Loaded, choose_forward, free_memory, measure_activations
from paceline.train.memory import Recomputing, check_memory_options, choose_recomputing, most_tokens, to_come
from tests.tiny import tiny_model

CPU = torch.device("cpu")
PROMPT = 7


def configured(**given: object) -> Config:
    return build_config({"model": "m", "dataset": "d", **given})


def learner(config: Config) -> Learner:
    model = tiny_model("qwen2").train()
    return Learner(
        Loaded(model=model, compute_dtype=torch.float32, eos_token_ids=frozenset()),
        choose_forward(model),
        reference=None,
        loss=config.loss,
        optim=config.optim,
        temperature=1.0,
        max_completion_length=8,
    )


@pytest.mark.parametrize("name", ["activation_offload", "optimizer_offload"])
def test_offloading_to_the_memory_that_everything_is_in_is_refused(name):
    with pytest.raises(ConfigError, match=rf"--{name.replace('_', '-')} must be false on a CPU, got True; everything"):
        check_memory_options(configured(**{name: True}), CPU)
    check_memory_options(configured(), CPU)
    check_memory_options(configured(**{name: True}), torch.device("cuda"))


def test_layers_are_computed_again_only_where_memory_is_short_of_twice_what_they_keep():
    config = configured(micro_batch_tokens=100, max_completion_length=50)
    half = learner(config)
    activations = measure_activations(half.policy.model, half.passes.forward, torch.float32)
    whole = 100 * activations.all_layers
    enough = choose_recomputing(config, half, longest_prompt=PROMPT, free=int(2 * whole) + 2)
    assert (enough.layers, enough.needed, enough.describe()) == (0, whole, [])
    assert not any(layer.gradient_checkpointing for layer in half.policy.model.model.layers)
    short = choose_recomputing(config, half, longest_prompt=PROMPT, free=int(2 * whole) - 2)
    assert (short.layers, short.of) == (1, 2)
    assert [layer.gradient_checkpointing for layer in half.policy.model.model.layers] == [True, False]
    assert short.needed == pytest.approx(whole / 2 + 100 * 32 * 4)
    assert len(short.describe()) == 1
    assert len(choose_recomputing(config, half, longest_prompt=PROMPT, free=-1).describe()) == 2


@pytest.mark.parametrize("word", ["true", "false"])
def test_a_word_that_is_not_auto_leaves_nothing_to_choose(word):
    config = configured(gradient_checkpointing=word)
    assert choose_recomputing(config, learner(config), longest_prompt=PROMPT, free=0) is None


def test_what_cannot_be_known_is_not_guessed():
    assert choose_recomputing(configured(), learner(configured()), longest_prompt=PROMPT, free=None) is None


def test_the_choice_is_told_in_sentences():
    told = Recomputing(layers=3, of=24, needed=3 * 2**30, room=2**31).describe()
    assert told[0].startswith("gradient checkpointing: 3 of 24 layers are computed again")
    assert told[1].startswith("activations may take 3.00 GiB, more than the 2.00 GiB")


def test_a_forward_pass_takes_the_budget_the_longest_row_or_the_whole_step():
    sizes = {"num_generations": 4, "max_completion_length": 50, "prompts_per_step": 2}
    assert most_tokens(configured(**sizes, micro_batch_tokens=300), prompt=10, padded=False) == 300
    assert most_tokens(configured(**sizes, micro_batch_tokens=30), prompt=10, padded=False) == 60
    assert most_tokens(configured(**sizes), prompt=10, padded=False) == 2 * (10 + 4 * 50)
    assert most_tokens(configured(**sizes), prompt=10, padded=True) == 2 * 4 * (10 + 50)


def test_gradients_and_moments_are_still_to_come():
    half = learner(configured())
    assert to_come(half) == half.policy.model.num_parameters() * (4 + 8)


def test_free_memory_is_read_where_the_system_says_it():
    free = free_memory(CPU)
    assert free is None or 0 < free < 2**50
