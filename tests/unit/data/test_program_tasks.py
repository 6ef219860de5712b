"""The generated programs, and the tokenizer and model that ship with the package for them."""

import hashlib
import json
import subprocess
import sys
from itertools import combinations, islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import paceline
from paceline.cli.arguments import parse
from paceline.cli.train import COMMAND as TRAIN
from paceline.data.programs import KINDS, ProgramProblem, problems, rows
from paceline.data.sources import load_rows
from paceline.errors import DataError
from paceline.models.places import DIRECTORIES
from paceline.models.pretrained import model_directory
from paceline.training.setup.configuration import read_configuration

EMBEDDED = Path(paceline.__file__).parent / "models" / DIRECTORIES["embedded-programs"]
# One interpreter for all programs, each with an input and an output of its own.
RUN_ALL = """
import contextlib, io, json, sys
printed = []
for program, given in json.load(open(sys.argv[1])):
    sys.stdin, output = io.StringIO(given), io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(program, {"__name__": "__main__"})
    printed.append(output.getvalue())
print(json.dumps(printed))
"""


def run_programs(tmp_path: Path, jobs: list[tuple[str, str]]) -> list[str]:
    """What each program prints for its input; the programs are the generator's own text."""
    listed = tmp_path / "jobs.json"
    listed.write_text(json.dumps(jobs))
    done = subprocess.run(
        [sys.executable, "-I", "-c", RUN_ALL, str(listed)], capture_output=True, text=True, check=True, timeout=60
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def sample() -> list[ProgramProblem]:
    return list(islice(problems("train"), 400)) + list(islice(problems("test"), 400))


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(EMBEDDED)


def test_every_solution_passes_its_own_tests(sample, tmp_path):
    jobs = [(problem.solution, given) for problem in sample for given in problem.inputs]
    expected = [output for problem in sample for output in problem.outputs]
    assert run_programs(tmp_path, jobs) == expected


def test_the_first_test_fails_a_program_that_leaves_steps_out(sample, tmp_path):
    jobs, expected = [], []
    for problem in sample[:200]:
        for count in range(len(problem.steps)):
            for kept in combinations(problem.steps, count):
                lines = [problem.reader.code, *(step.code for step in kept), problem.printer.code]
                # Nothing left to take the largest of is a failure too, but not one to stop this test.
                program = "try:\n" + "\n".join(f" {line}" for text in lines for line in text.split("\n"))
                jobs.append((f"{program}\nexcept ValueError:\n pass", problem.inputs[0]))
                expected.append(problem.outputs[0])
    printed = run_programs(tmp_path, jobs)
    assert len(jobs) > 500
    assert [job for job, given, wanted in zip(jobs, printed, expected, strict=True) if given == wanted] == []


def test_no_constant_and_no_repeated_input_passes(sample):
    for problem in sample:
        assert len(set(problem.outputs)) == len(problem.outputs) == 3, problem
        for given, output in zip(problem.inputs, problem.outputs, strict=True):
            assert output.split(), problem
            assert given.split() != output.split(), problem


def test_one_test_is_a_large_case(sample):
    for problem in sample:
        assert len(problem.inputs[2]) > max(len(problem.inputs[0]), len(problem.inputs[1])), problem


def test_a_program_written_by_hand_gives_the_outputs_of_the_tests():
    problem = next(
        problem
        for problem in problems("train")
        if problem.solution == "v = list(map(int, input().split()))\nv = [x for x in v if x % 2 == 0]\nprint(sum(v))"
    )
    assert "even" in problem.question or "odd" in problem.question
    for given, output in zip(problem.inputs, problem.outputs, strict=True):
        assert int(output) == sum(int(word) for word in given.split() if word[-1] in "02468")


def test_the_completion_is_the_program_between_fences(sample):
    assert sample[0].completion == f"```python\n{sample[0].solution}\n```"


def test_one_to_three_steps_and_every_piece_are_frequent(sample):
    counts = [len(problem.steps) for problem in sample]
    assert all(0.25 < counts.count(steps) / len(counts) < 0.45 for steps in (1, 2, 3))
    used = {id(sentence.piece) for p in sample for sentence in (*p.steps, p.printer)}
    assert all(id(piece) in used for kind in KINDS for piece in (*kind.steps, *kind.printers))


def test_different_sentences_never_stand_for_different_code():
    for kind in KINDS:
        sentences = [text for piece in (*kind.steps, *kind.printers) for text in piece.sentences]
        assert len(set(sentences)) == len(sentences)


@pytest.mark.long
def test_no_question_is_in_both_splits_and_none_comes_twice():
    train, test = ([row["question"] for row in rows(split, 1000)] for split in ("train", "test"))
    assert len(set(train)) == len(set(test)) == 1000
    assert not set(train) & set(test)


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_larger_dataset_begins_with_the_smaller_one(split):
    assert rows(split, 100)[:40] == rows(split, 40)


def test_the_rows_are_the_same_on_every_machine():
    text = repr([list(row.items()) for split in ("train", "test") for row in rows(split, 200)])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "bece73f06d94619b"


def test_a_row_has_what_the_reward_function_code_reads():
    row = rows("train", 1)[0]
    assert list(row) == ["question", "test_cases", "solution"]
    assert list(row["test_cases"]) == ["inputs", "outputs"]
    assert [len(texts) for texts in row["test_cases"].values()] == [3, 3]


def test_an_unknown_split_names_the_ones_there_are():
    with pytest.raises(DataError, match=r"splits 'train' and 'test', got 'validation'"):
        rows("validation", 1)


@pytest.mark.parametrize(
    "text",
    [
        "Read numbers on one line. Keep the even ones. Print the sum.",
        "```python\nfor x in v: print(x)\n```",
        "for i in range(10):\n\tif i//2 == 0 : pass\n\n```\n",
        " two  spaces,\n\ttabs and a newline \n",
        "naïve café 数学 🙂 \u0000 ½",
        "007 123456 3.14 x<y</think>\\boxed{5} __init__ ```",
    ],
)
def test_any_text_survives_encoding_and_decoding(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_descriptions_and_programs_are_short_and_have_no_half_words(tokenizer, sample):
    lengths = [len(tokenizer.encode(problem.question)) for problem in sample]
    assert sum(lengths) / len(lengths) < 25
    assert max(lengths) < 64 - 3  # markers of the chat
    assert all(len(tokenizer.encode(problem.completion)) < 48 for problem in sample)
    # The ten tokens: fence, left side, name, sign, number, line end; the call with its bracket, name, bracket, fence.
    assert len(tokenizer.encode("```python\nx = x * 3\nprint(x)\n```")) == 10


def test_the_model_loads_with_its_end_token_and_is_small(tokenizer):
    weights = EMBEDDED / "model.safetensors"
    assert weights.stat().st_size < 1_000_000
    assert {tensor.dtype for tensor in load_file(weights).values()} == {torch.float32}
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED)
    assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.config.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id
    assert model.config.vocab_size >= len(tokenizer)


def test_the_model_knows_every_step_when_it_is_led_through_the_program(tokenizer):
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED).eval()
    right = total = 0
    for problem in islice(problems("test"), 40):
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": problem.question}], tokenize=False, add_generation_prompt=True
        )
        start = len(tokenizer.encode(prompt))
        ids = tokenizer.encode(prompt + problem.completion, return_tensors="pt")
        predicted = model(ids).logits[0].argmax(-1)
        # What follows a line's end is a choice between a step and the end; all else is knowledge.
        asked = [i for i in range(start, ids.shape[1] - 1) if not tokenizer.decode(ids[0, i]).endswith("\n")]
        right += sum(int(predicted[i] == ids[0, i + 1]) for i in asked)
        total += len(asked)
    assert right / total > 0.97


def test_a_run_that_names_the_model_has_its_recipe_for_a_ground():
    configuration = read_configuration(parse(TRAIN, ["--model", "embedded-programs", "--max-steps", "2"]).options)
    config = configuration.config
    assert (config.data.dataset, config.rewards.functions, config.optim.warmup_steps) == ("programs", ("code",), 2)
    assert "the embedded-programs recipe and the flags given" in configuration.origin
    assert Path(model_directory("embedded-programs")) == EMBEDDED


def test_the_dataset_is_addressed_by_its_name():
    (first, second) = load_rows("programs", split="test", size=2)
    assert (first.row_id, second.row_id) == ("programs/test:1", "programs/test:2")
    assert first.columns == rows("test", 1)[0]
