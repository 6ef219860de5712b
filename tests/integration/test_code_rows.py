"""Rows with test cases through the command line: every form that is promised, and rows that cannot be judged."""

import json

import pytest

from paceline.checkpoints.run_directory import RunDir
from paceline.cli.main import main
from tests.support.tiny import tiny_model, tiny_tokenizer

STDIN = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}
CALL = {"fn_name": "add", "inputs": ["1\n2", "3\n4"], "outputs": ["3", "7"]}
LISTED = [{"input": "1 2\n", "output": "3\n", "type": "stdin_stdout", "fn_name": None}]
READS = "print(sum(map(int, input().split())))"
ADDS = "def add(a, b):\n    return a + b"


def user(text):
    return [{"role": "user", "content": text}]


FORMATS = {
    "colossalchat": {"messages": user("Add.")[0], "test_cases": STDIN, "solution": READS},
    "prime": {"messages": user("Add."), "test_cases": json.dumps(CALL), "solution": ADDS},
    "verl": {
        "prompt": user("Add."),
        "ability": "code",
        "reward_model": {"style": "rule", "ground_truth": json.dumps(STDIN)},
        "solution": READS,
    },
    "open-r1": {
        "problem": "Add.",
        "verification_info": {"language": "python", "test_cases": LISTED},
        "solution": READS,
    },
    "apps": {
        "question": "Add.",
        "input_output": json.dumps({"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [[3], [7]]}),
        "starter_code": "def add(a, b):",
        "solution": ADDS,
    },
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    tiny_model("qwen3").save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def train(tmp_path, model):
    """One step on these rows, which are written to `rows.jsonl`; gives the exit status and the run."""

    def run(rows, *options):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        fixed = (
            f"train --model {model} --dataset {path} --output-dir {tmp_path / 'run'} --max-steps 1 "
            "--prompts-per-step 2 --num-generations 2 --max-completion-length 8 --reward-funcs code --system-prompt="
        )
        return main([*fixed.split(), *options]), RunDir(tmp_path / "run")

    return run


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_every_form_train_and_every_completion_is_judged(train, name):
    status, run = train([FORMATS[name]] * 3)
    assert status == 0
    (step,) = run.metrics()
    assert step["step"] == 1
    rollouts = list(run.rollouts(1))
    # Eight random characters hold no program, which is a wrong one and no failure of the grader.
    assert [rollout["rewards"] for rollout in rollouts] == [{"code": 0.0}] * 4
    assert {rollout["notes"]["code"] for rollout in rollouts} == {"no closed fence with Python in it"}
    assert all("Add." in rollout["prompt"] and rollout["answer"] is None for rollout in rollouts)
    assert ("def add(a, b):" in rollouts[0]["prompt"]) is (name == "apps")


def test_a_solution_that_fails_its_own_tests_is_found_before_the_first_step(train, capsys):
    status, _ = train([{**FORMATS["colossalchat"], "solution": "print(input())"}] * 3)
    assert status != 0
    told = capsys.readouterr().err
    assert "'code'" in told
    assert "rows.jsonl:1" in told


def test_rows_without_tests_are_for_other_functions_and_need_some_beside_them(train, capsys):
    math_row = {"messages": user("Add."), "gt_answer": "3"}
    assert train([math_row] * 3)[0] != 0
    assert "test cases" in capsys.readouterr().err
    status, run = train([FORMATS["colossalchat"], math_row], "--reward-funcs", "code,accuracy")
    assert status == 0
    given = {tuple(sorted(rollout["rewards"].items())) for rollout in run.rollouts(1)}
    assert given == {(("accuracy", None), ("code", 0.0)), (("accuracy", 0.0), ("code", None))}


def broken(**changes):
    return {**FORMATS["colossalchat"], **changes}


MALFORMED = {
    "text that is no JSON": (broken(test_cases='{"inputs": ["1"'), "test_cases is text and no JSON"),
    "lengths": (broken(test_cases={"inputs": ["1", "2"], "outputs": ["1"]}), "has 2 inputs and 1 outputs"),
    "number": (broken(test_cases={"inputs": [1], "outputs": ["1"]}), "has a int as input 1"),
    "no outputs": (broken(test_cases={"inputs": ["1"]}), "has no list 'outputs'"),
    "no test": (broken(test_cases={"inputs": [], "outputs": []}), "has no test; give at least one"),
    "name": (broken(test_cases={**CALL, "fn_name": "a b"}), "has 'a b' as fn_name"),
    "language": (
        {"problem": "Add.", "verification_info": {"language": "cpp", "test_cases": LISTED}},
        "is for the language 'cpp'",
    ),
    "size": (broken(test_cases={"inputs": ["1" * 10_000_001], "outputs": ["1"]}), "has 10.0 MB, above 10 MB"),
    "no prompt": ({"test_cases": STDIN}, "no known format has the columns test_cases"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_row_that_cannot_be_judged_stops_the_run_with_file_line_and_rule(train, capsys, name):
    row, rule = MALFORMED[name]
    status, run = train([FORMATS["colossalchat"], row, FORMATS["colossalchat"]])
    told = capsys.readouterr().err
    assert status == 2
    assert "row rows.jsonl:2: " in told
    assert rule in told
    assert "Traceback" not in told
    assert not run.path.exists()


def test_rows_that_cannot_be_judged_are_skipped_and_counted_when_asked_for(train, capsys):
    rows = [FORMATS["colossalchat"], *(row for row, _ in MALFORMED.values()), FORMATS["prime"]]
    status, run = train(rows, "--on-bad-row", "skip")
    assert status == 0
    told = "".join(capsys.readouterr())
    assert f"{len(MALFORMED)}; the first: row rows.jsonl:2: " in told
    assert {rollout["task_id"] for rollout in run.rollouts(1)} == {"rows.jsonl:1", f"rows.jsonl:{len(rows)}"}


def test_skipping_all_rows_is_refused(train, capsys):
    assert train([row for row, _ in MALFORMED.values()], "--on-bad-row", "skip")[0] == 2
    assert "leaves no row" in capsys.readouterr().err


def test_a_service_that_cannot_be_reached_is_told_before_the_first_step(train, capsys):
    status, _ = train([FORMATS["colossalchat"]] * 3, "--sandbox", "http://127.0.0.1:9")
    assert status != 0
    assert "judge service http://127.0.0.1:9 failed" in capsys.readouterr().err
