"""The generated games, and the tokenizer and model that ship with the package for them."""

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import paceline
from paceline.cli.arguments import parse
from paceline.cli.train import COMMAND as TRAIN
from paceline.data.generated import games, guess_rows
from paceline.data.sources import load_rows
from paceline.environments import AgentTurn
from paceline.environments.builtin.games import Guess
from paceline.errors import DataError
from paceline.models.places import DIRECTORIES
from paceline.training.setup.configuration import read_configuration

EMBEDDED = Path(paceline.__file__).parent / "models" / DIRECTORIES["embedded-agent"]
TURNS = 5


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(EMBEDDED)


def test_a_row_has_a_range_and_a_number_in_it():
    for row in guess_rows("train", 500):
        assert row["question"] == f"Guess a number from {row['low']} to {row['high']}."
        assert 1 <= row["low"] <= int(row["answer"]) <= row["high"] <= 99


def test_no_range_is_in_both_splits_and_no_game_comes_twice():
    train, test = games("train"), games("test")
    assert not {game.question for game in train} & {game.question for game in test}
    assert len(set(train)) == len(train) > 10_000
    assert len(set(test)) == len(test) > 10_000


def test_who_halves_what_is_left_finds_every_number():
    for game in games("test"):
        low, high, turns = game.low, game.high, 1
        while (guess := (low + high) // 2) != int(game.answer):
            low, high = (guess + 1, high) if guess < int(game.answer) else (low, guess - 1)
            turns += 1
        assert turns <= TURNS


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_larger_dataset_begins_with_the_smaller_one(split):
    assert guess_rows(split, 300)[:40] == guess_rows(split, 40)


def test_the_rows_are_the_same_on_every_machine():
    text = repr([list(row.items()) for split in ("train", "test") for row in guess_rows(split, 200)])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "1df92fbeb401260f"


def test_more_games_than_there_are_is_refused():
    with pytest.raises(DataError, match=r"dataset 'guess' has 12480 games in the split 'train', got 12481; take fewer"):
        guess_rows("train", 12_481)


def test_an_unknown_split_names_the_ones_there_are():
    with pytest.raises(DataError, match=r"splits 'train' and 'test', got 'validation'"):
        guess_rows("validation", 1)


def test_the_dataset_is_addressed_by_its_name():
    (first,) = load_rows("guess", split="test", size=1)
    assert (first.row_id, first.columns) == ("guess/test:1", guess_rows("test", 1)[0])


def test_a_run_that_names_the_model_has_its_recipe_for_a_ground():
    configuration = read_configuration(parse(TRAIN, ["--model", "embedded-agent", "--max-steps", "2"]).options)
    config = configuration.config
    assert (config.data.dataset, config.environment.environment, config.optim.warmup_steps) == ("guess", ("guess",), 2)
    assert "the embedded-agent recipe and the flags given" in configuration.origin


def test_a_number_is_one_token_wherever_it_stands(tokenizer):
    for number in range(1, 100):
        token = tokenizer.convert_tokens_to_ids(str(number))
        for text in (f"Guess a number from {number} to 99.", f"From {number} to 99: 98", f"From 1 to {number}: 1"):
            assert token in tokenizer.encode(text), text
        assert tokenizer.encode(str(number)) == [token]


def test_a_turn_and_an_answer_are_short(tokenizer):
    assert len(tokenizer.encode("From 12 to 37: 24<|end|>")) == 7
    assert [len(tokenizer.encode(text)) for text in ("higher", "lower")] == [1, 1]


def test_the_tokens_of_a_game_are_those_of_its_messages(tokenizer):
    messages = [
        {"role": "user", "content": "Guess a number from 12 to 37."},
        {"role": "assistant", "content": "From 12 to 37: 24"},
        {"role": "user", "content": "higher"},
    ]
    whole = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    texts = (
        "<|user|>Guess a number from 12 to 37.<|end|><|assistant|>",
        "From 12 to 37: 24<|end|>",
        "<|user|>higher<|end|><|assistant|>",
    )
    assert whole == [token for text in texts for token in tokenizer.encode(text)]


def test_the_model_loads_with_its_end_token_and_is_small(tokenizer):
    weights = EMBEDDED / "model.safetensors"
    assert weights.stat().st_size <= 4_000_000
    assert {tensor.dtype for tensor in load_file(weights).values()} == {torch.float32}
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED)
    assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.config.vocab_size >= len(tokenizer)


@pytest.mark.long
def test_the_model_wins_when_it_is_led_to_say_what_is_left(tokenizer):
    # All that it has to be led to is the first word of a turn: it seldom begins with it by itself.
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED).eval()
    word = tokenizer.encode("From 1")[:1]
    assert tokenizer.decode(word) == "From "  # with the blank, when a number follows
    assert won(model, tokenizer, word) > 0.8
    assert won(model, tokenizer, []) < 0.4


@torch.no_grad()
def won(model, tokenizer, opening: list[int]) -> float:
    """Share of held-out games that are won by greedy turns that begin with `opening`."""
    chosen, found = games("test")[:60], 0.0
    for game in chosen:
        environment = Guess()
        environment.begin({"low": game.low, "high": game.high, "answer": game.answer}, seed=0)
        text = f"<|user|>{game.question}<|end|><|assistant|>"
        for number in range(TURNS):
            ids = torch.tensor([tokenizer.encode(text) + opening])
            output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
            said = tokenizer.decode(output[0, ids.shape[1] - len(opening) :], skip_special_tokens=True)
            turn = AgentTurn(number=number, text=said, content=said, finish_reason="stop", is_last=False)
            observation = environment.observe(turn)
            if observation.done:
                break
            text += f"{said}<|end|><|user|>{observation.messages[0]['content']}<|end|><|assistant|>"
        found += environment.close()
    return found / len(chosen)
