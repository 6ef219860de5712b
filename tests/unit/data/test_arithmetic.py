"""The generated word problems, and the tokenizer and model that ship with the package for them."""

import hashlib
import operator
import re
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import paceline
from paceline.data.generated import NAMES, OBJECTS, ArithmeticProblem, arithmetic_rows, problems
from paceline.data.sources import load_rows
from paceline.errors import DataError

EMBEDDED = Path(paceline.__file__).parent / "models" / "embedded"
FACTS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
# What a sentence means, read by its verb; {} stands for the number.
MEANINGS = [
    (r"finds (\d+)\.|buys (\d+)\.|hands (\d+) to|gets (\d+) from", "+"),
    (r"loses (\d+)\.|sells (\d+)\.|gives (\d+) to|takes (\d+) from", "-"),
    (r"doubles what|twice as many", "*"),
    (r"only half|Half of them", "/"),
]


def solve_by_reading(question: str) -> list[tuple[int, str, int, int]]:
    """The steps (left, operator, right, result) that the sentences of a question describe."""
    first, *sentences, asked = re.findall(r"[^.?]+[.?]", question)
    assert re.fullmatch(r" How many .*[?]", asked)
    value = int(re.search(r"(?:has|starts with|owns) (\d+) ", first)[1])
    steps = []
    for sentence in sentences:
        ((match, symbol),) = [(m, s) for pattern, s in MEANINGS if (m := re.search(pattern, sentence))]
        operand = next((int(group) for group in match.groups() if group), 2)
        result = int(FACTS[symbol](value, operand))
        steps.append((value, symbol, operand, result))
        value = result
    return steps


@pytest.fixture(scope="module")
def sample() -> list[ArithmeticProblem]:
    return list(islice(problems("train"), 500)) + list(islice(problems("test"), 500))


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(EMBEDDED)


def test_the_answer_is_what_the_sentences_of_the_question_say(sample):
    for problem in sample:
        assert problem.answer == str(solve_by_reading(problem.question)[-1][-1]), problem


def test_the_solution_lists_the_steps_of_the_question_in_order(sample):
    for problem in sample:
        steps = [
            f"{left}{symbol}{right}={result}" for left, symbol, right, result in solve_by_reading(problem.question)
        ]
        assert problem.solution.split(";") == steps, problem


def test_every_step_is_right_and_no_value_leaves_the_range(sample):
    for problem in sample:
        for step in problem.solution.split(";"):
            left, symbol, right, result = re.fullmatch(r"(\d+)([-+*/])(\d+)=(\d+)", step).groups()
            assert FACTS[symbol](int(left), int(right)) == int(result)
            assert 0 <= int(left) <= 99
            assert 0 <= int(result) <= 99


def test_two_to_five_steps_are_equally_frequent(sample):
    counts = [problem.solution.count("=") for problem in sample]
    assert set(counts) == {2, 3, 4, 5}
    assert all(abs(counts.count(steps) / len(counts) - 0.25) < 0.05 for steps in (2, 3, 4, 5))


def test_names_and_objects_vary(sample):
    text = " ".join(problem.question for problem in sample)
    assert all(word in text for word in NAMES + OBJECTS)


def test_the_completion_holds_the_reasoning_and_the_answer():
    problem = ArithmeticProblem(question="", answer="14", solution="12+5=17;17-3=14")
    assert problem.completion == "<think>12+5=17;17-3=14</think><answer>14</answer>"


@pytest.mark.long
def test_no_question_is_in_both_splits_and_none_comes_twice():
    train, test = ([row["question"] for row in arithmetic_rows(split, 3000)] for split in ("train", "test"))
    assert len(set(train)) == len(set(test)) == 3000
    assert not set(train) & set(test)


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_larger_dataset_begins_with_the_smaller_one(split):
    assert arithmetic_rows(split, 300)[:40] == arithmetic_rows(split, 40)


def test_the_rows_are_the_same_on_every_machine():
    text = repr([list(row.items()) for split in ("train", "test") for row in arithmetic_rows(split, 200)])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "7668a36c0f6ab45a"


@pytest.mark.parametrize(("operations", "largest"), [(1, 10), (5, 10), (3, 99)])
def test_problems_may_have_one_number_of_steps_and_only_small_values(operations, largest):
    for row in arithmetic_rows("train", 200, operations=operations, largest=largest):
        steps = solve_by_reading(row["question"])
        values = {value for left, _, right, result in steps for value in (left, right, result)}
        assert len(steps) == operations
        assert max(values) <= largest
        assert row["answer"] == str(steps[-1][-1])


def test_parameters_stand_in_brackets_behind_the_name_and_splits_still_share_no_question():
    address = "arithmetic(operations=1, largest=10)"
    train, test = (load_rows(address, split=split, size=500) for split in ("train", "test"))
    assert train[0].row_id == f"{address}/train:1"
    assert [dict(row.columns) for row in test] == arithmetic_rows("test", 500, operations=1, largest=10)
    assert not {row.columns["question"] for row in train} & {row.columns["question"] for row in test}
    assert load_rows("arithmetic()", split="test", size=5)[0].columns == arithmetic_rows("test", 1)[0]


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("arithmetic(operations=6)", "operations must be a whole number from 1 to 5, got 6"),
        ("arithmetic(largest=9.5)", r"largest must be a whole number from 10 to 99, got 9\.5"),
        ("arithmetic(operations=true)", "operations must be a whole number from 1 to 5, got True"),
        ("arithmetic(steps=1)", "there is no parameter 'steps'; it takes operations, largest"),
        ("guess(size=5)", "there is no parameter 'size'; it takes none"),
    ],
)
def test_wrong_parameters_are_refused(address, sentence):
    with pytest.raises(DataError, match=sentence):
        load_rows(address, split="test", size=5)


def test_an_unknown_split_names_the_ones_there_are():
    with pytest.raises(DataError, match=r"splits 'train' and 'test', got 'validation'"):
        arithmetic_rows("validation", 1)


@pytest.mark.parametrize(
    "text",
    [
        "Tom has 12 coins. Ann hands 5 to Tom.",
        " two  spaces,\n\ttabs and a newline \n",
        "naïve café 数学 🙂 \u0000 ½",
        "007 123456 3.14 x<y</think>\\boxed{5}",
        "<think>12+5=17</think><answer>17</answer>",
    ],
)
def test_any_text_survives_encoding_and_decoding(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_a_number_is_one_token_and_the_same_in_a_question_and_a_solution(tokenizer):
    for number in range(100):
        for text in (f"Tom has {number} coins.", f"Ann hands {number} to Tom.", f"{number}+5=", f"<answer>{number}<"):
            assert tokenizer.convert_tokens_to_ids(str(number)) in tokenizer.encode(text), text


def test_a_problem_is_short_and_has_no_half_words(tokenizer, sample):
    lengths = [len(tokenizer.encode(problem.question)) for problem in sample]
    assert sum(lengths) / len(lengths) < 35
    assert all(len(tokenizer.encode(problem.completion)) < 48 for problem in sample)
    # The five tokens: name, verb with the space before the number, number, object, full stop.
    assert len(tokenizer.encode("Tom has 12 coins.")) == 5


def test_the_chat_template_marks_every_role_and_opens_the_answer(tokenizer):
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1"}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt == "<|system|>Add.<|end|><|user|>1+1<|end|><|assistant|>"
    closed = [*messages, {"role": "assistant", "content": "2"}]
    assert tokenizer.apply_chat_template(closed, tokenize=False) == prompt + "2<|end|>"


def test_tags_are_single_tokens_that_stay_and_markers_are_special(tokenizer):
    for tag in ("<think>", "</think>", "<answer>", "</answer>"):
        assert len(tokenizer.encode(tag)) == 1
        assert tokenizer.decode(tokenizer.encode(tag), skip_special_tokens=True) == tag
    assert tokenizer.decode(tokenizer.encode("<|assistant|>17<|end|>"), skip_special_tokens=True) == "17"


def test_the_model_loads_with_its_end_token_and_is_small(tokenizer):
    weights = EMBEDDED / "model.safetensors"
    assert weights.stat().st_size <= 4_000_000
    assert {tensor.dtype for tensor in load_file(weights).values()} == {torch.float32}
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED)
    assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.config.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id
    assert model.config.vocab_size >= len(tokenizer)
    assert model.config.max_position_embeddings >= 512


def test_the_model_knows_the_sums_when_it_is_led_through_the_steps(tokenizer):
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED).eval()
    right = total = 0
    for problem in islice(problems("test"), 40):
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": problem.question}], tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer.encode(prompt + problem.completion, return_tensors="pt")
        predicted = model(ids).logits[0].argmax(-1)
        results = [i for i in range(ids.shape[1] - 1) if tokenizer.decode(ids[0, i]) == "="]
        right += sum(int(predicted[i] == ids[0, i + 1]) for i in results)
        total += len(results)
    assert right / total > 0.97
