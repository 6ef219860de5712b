"""What a command names is what is measured and trained on: rows, splits, numbers of rows."""

import json

import pytest

from tests.outside.desk import Desk

SMALL = ("--model", "embedded", "--max-steps", 1, "--prompts-per-step", 2, "--num-generations", 2, "--eval-size", 2)


def rows(desk: Desk, name: str, first: int, count: int = 4) -> None:
    numbers = range(first, first + count)
    lines = [json.dumps({"question": f"{number} + 1 =", "answer": str(number + 1)}) for number in numbers]
    desk.write(name, "\n".join(lines) + "\n")


def measured(desk: Desk, *words: object) -> list[str]:
    """The names of the sets that `eval` measures."""
    done = desk.paceline("eval", *words, "--json", "--eval-size", 2, "--max-completion-length", 8)
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["set"] for line in done.stdout.splitlines()]


@pytest.mark.long
def test_eval_measures_the_rows_that_it_names_and_not_the_runs_own(desk: Desk):
    for number, name in enumerate(("train.jsonl", "own.jsonl", "other.jsonl")):
        rows(desk, name, 10 * number)
    run = ("--dataset", "train.jsonl", "--eval-dataset", "own.jsonl", "--output-dir", "runs/mine")
    trained = desk.paceline("train", *SMALL, *run, "--max-completion-length", 8)
    assert trained.returncode == 0, trained.stderr

    assert measured(desk, "runs/mine") == ["own.jsonl"]
    assert measured(desk, "--model", "runs/mine", "--dataset", "other.jsonl") == ["other.jsonl"]
    unread = desk.paceline("eval", "runs/mine", "--dataset-size", 2)
    assert unread.returncode == 2
    assert "give --eval-size" in unread.stderr
