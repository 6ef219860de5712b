"""The card of a run: its program gives the completion that the run's own evaluation has."""

import json
import re
import runpy

import pytest

from paceline.cli.main import main

LAST = "arithmetic%3Atest-step-000002.jsonl"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("card") / "run"
    short = "--max-steps 2 --save-steps 1 --dataset-size 200 --eval-size 5"
    argv = ["train", *short.split(), "--output-dir", str(path)]
    assert main(argv) == 0
    return path


def test_the_program_of_the_card_answers_as_the_run_measured(run, tmp_path, capsys):
    card = (run / "final" / "README.md").read_text()
    program = re.search(r"```python\n(.*?)```", card, re.DOTALL)[1]
    asked = re.search(r'"role": "user", "content": (".*")', program)[1]
    records = [json.loads(line) for line in (run / "evals" / LAST).read_text().splitlines()]
    (measured,) = [one for one in records if json.loads(asked) in one["prompt"]]
    assert measured["correct"] or not any(one["correct"] for one in records)
    assert f"its gold answer: {measured['answer']}\n" in program
    assert 'folder = "."  #' in program
    (tmp_path / "program.py").write_text(program.replace('folder = "."', f"folder = {str(run / 'final')!r}"))
    capsys.readouterr()
    runpy.run_path(str(tmp_path / "program.py"))
    assert capsys.readouterr().out.strip() == measured["completion"].strip()


def test_an_exported_checkpoint_has_a_card_of_its_own_step(run, tmp_path, capsys):
    assert main(["export", str(run / "checkpoints" / "step-000001"), str(tmp_path / "one")]) == 0
    assert capsys.readouterr().out.endswith(f"step 1: {tmp_path / 'one'} (its card: README.md)\n")
    card = (tmp_path / "one" / "README.md").read_text()
    assert "in 1 step of group-relative" in card
    assert "step 2" not in card
