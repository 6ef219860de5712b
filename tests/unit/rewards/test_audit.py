"""Attacks on reward functions: weak ones are found out by name, the built-in ones hold, failures are no zeros."""

import json
import subprocess
import sys

import pytest

from paceline.cli.main import main
from paceline.config.sections import DataConfig
from paceline.data.formats import screen
from paceline.data.rows import Row
from paceline.errors import RewardError, SandboxError
from paceline.rewards.audit.cheats import ANSWER_ATTACKS, COMPLETION_ATTACKS
from paceline.rewards.audit.programs import PROGRAM_ATTACKS
from paceline.rewards.audit.running import ATTACKS, audit, verdict
from paceline.rewards.audit.subjects import attempts, plain_tasks, same_answer, subjects
from paceline.rewards.function import FORM_ALONE, BuiltIn, RewardContext
from paceline.rewards.resolving import BUILT_IN, resolve
from paceline.sandbox.levels import open_sandbox

QUESTIONS = [
    ("Ann has 12 pens and finds 30. How many are there?", "42"),
    ("Half of what share is 1/6?", r"\frac{1}{3}"),
    ("Which one is blue: (A) blood (B) the sky (C) grass (D) snow?", "B"),
    ("Which colour has snow?", "white"),
    ("Solve x^2 = 3x.", r"x \in \{0, 3\}"),
    ("Write x(x+2) as a sum.", "x^2+2x"),
]
CONTEXT = RewardContext(max_completion_length=512)


def tasks_of_rows(rows, *, system=None):
    data = DataConfig(dataset="rows")
    return plain_tasks(screen(rows, data, None), data, default_system=system)


def tasks_of(questions, **columns):
    rows = [
        Row(row_id=f"rows:{number}", columns={"question": question, "answer": answer, **columns})
        for number, (question, answer) in enumerate(questions, start=1)
    ]
    return tasks_of_rows(rows)


TASKS = tasks_of(QUESTIONS)


def audited(function, *, tasks=TASKS, attacks=ATTACKS, timeout=30):
    return audit("subject", function, tasks, timeout=timeout, attacks=attacks)


def names(findings):
    return {finding.attack for finding in findings}


def finding(report, name):
    (found,) = [one for one in report.findings if one.attack == name]
    return found


def contains(completions, answer, **columns):
    return [float(gold in completion) for completion, gold in zip(completions, answer, strict=True)]


def first_tag(completions, answer, **columns):
    said = [completion.partition("<answer>")[2].partition("</answer>")[0] for completion in completions]
    return [float(one.strip() == gold) for one, gold in zip(said, answer, strict=True)]


def last_tag(completions, answer, **columns):
    outside = [completion.rpartition("</think>")[2].partition("<think>")[0] for completion in completions]
    said = [(text.rpartition("<answer>")[1:], gold) for text, gold in zip(outside, answer, strict=True)]
    return [
        float(bool(tag) and "</answer>" in rest and rest.partition("</answer>")[0].strip() == gold)
        for (tag, rest), gold in said
    ]


@pytest.mark.long
def test_a_function_that_looks_for_the_gold_answer_anywhere_is_found_out_by_name():
    report = audited(contains)
    cheated = names(report.cheats)
    assert {"sprayed guesses", "near the answer", "either or", "negation", "answer in the thought"} <= cheated
    assert finding(report, "sprayed guesses").full == len(TASKS)
    assert finding(report, "sprayed guesses").forms[0] == "bare"
    assert not report.is_clean
    assert "attacks score full" in verdict(report)


@pytest.mark.long
def test_a_function_that_takes_the_first_answer_is_found_out_by_what_follows_it():
    report = audited(first_tag)
    assert "answer, then another" in names(report.cheats)
    assert not names(report.cheats) & {"nothing", "constants", "either or", "negation"}


@pytest.mark.long
def test_a_function_that_gives_everything_full_is_found_out_by_an_empty_completion():
    report = audited(lambda completions, **columns: [1.0] * len(completions))
    assert finding(report, "nothing").full == len(TASKS)


@pytest.mark.long
def test_a_function_that_reads_the_last_answer_outside_the_thought_is_clean():
    report = audited(last_tag)
    assert report.is_clean
    assert (report.threshold, report.threshold_from) == (1.0, "what the gold answer scores")
    assert {one.form for one in report.honest if one.full} == {
        "answer tags",
        "think and answer tags",
        "reasoning and answer tags",
    }


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in BUILT_IN if name not in ("tool_call", "code")])
def test_the_built_in_functions_are_clean(name):
    report = audited(resolve(name, CONTEXT))
    assert [(one.attack, one.row, one.example) for one in report.cheats] == []
    assert [one.form for one in report.honest if one.is_short] == []
    assert report.failed == 0
    assert report.is_clean


@pytest.mark.parametrize("name", ["format", "random", "soft_overlong", "repetition"])
def test_what_a_built_in_function_may_reward_is_said_and_not_counted(name):
    assert audited(resolve(name, CONTEXT), attacks=COMPLETION_ATTACKS[:1]).exception


@pytest.mark.long
def test_a_format_must_not_be_had_without_content_even_where_the_answer_does_not_matter():
    lax = BuiltIn(
        name="format",
        call=lambda completions, **columns: [1.0] * len(completions),
        gold=lambda task: "x",
        audit_exception=FORM_ALONE,
    )
    assert names(audited(lax).cheats) == {attack.name for attack in ATTACKS if not attack.has_content}


def test_a_failing_grader_is_listed_and_its_failures_are_no_zeros():
    def divides(completions, answer, **columns):
        return [float(one.strip() == gold) / len(one) * len(one) for one, gold in zip(completions, answer, strict=True)]

    report = audited(divides, attacks=COMPLETION_ATTACKS)
    nothing = finding(report, "nothing")
    assert nothing.failed == len(TASKS)
    assert nothing.best == 0.0  # the other completions of the attack were graded
    assert report.failure.splitlines()[0].startswith("'subject' raised ZeroDivisionError on row rows:1")


def test_a_grader_that_fails_always_is_not_clean():
    def broken(completions, **columns):
        raise RuntimeError("no judge")

    report = audited(broken, attacks=COMPLETION_ATTACKS[:2])
    assert report.is_silent
    assert not report.is_clean
    assert verdict(report) == "subject gave no number to any completion: nothing is known of it."


@pytest.mark.long
def test_a_grader_that_hangs_on_a_cheat_is_a_failure_of_that_cheat_only():
    def hangs(completions, answer, **columns):
        while any(len(completion) > 50_000 for completion in completions):
            pass
        return last_tag(completions, answer)

    report = audited(hangs, attacks=COMPLETION_ATTACKS, timeout=2)
    failing = [one for one in report.findings if one.failed]
    assert names(failing) == {"huge completions"}
    assert failing[0].failed == failing[0].completions


def test_a_result_of_the_wrong_shape_is_refused():
    with pytest.raises(RewardError, match="returned 0 items"):
        audited(lambda completions, **columns: [])


def test_the_gold_answer_that_a_built_in_function_does_not_honour_is_named():
    deaf = BuiltIn(
        name="boxed",
        call=lambda completions, **columns: [0.5] * len(completions),
        gold=lambda task: "x",
        honest_forms=("box",),
    )
    report = audited(deaf, attacks=COMPLETION_ATTACKS[:1])
    assert [one.form for one in report.honest if one.is_short] == ["box", "the function's own"]
    assert "the gold answer in the form 'box' scores full on 0 of 6 tasks only" in verdict(report)


@pytest.mark.long
def test_without_a_known_gold_completion_the_highest_score_seen_is_the_full_one():
    def flattered(completions, **columns):
        return [3.0 if "10/10" in completion else 0.0 for completion in completions]

    report = audited(flattered)
    assert report.threshold == 3.0
    assert names(report.cheats) == {"prompt injection", "orders to a judge"}


@pytest.mark.long
def test_a_function_that_nothing_pleases_is_not_judged():
    report = audited(lambda completions, **columns: [-len(completion) / 10 for completion in completions])
    assert report.threshold is None
    assert not report.cheats


def test_a_guess_that_happens_to_be_right_is_no_cheat():
    tasks = tasks_of([("How many moons has the earth?", "1"), ("Is 7 a prime?", "true"), ("12 + 30?", "12")])
    for attack in ANSWER_ATTACKS:
        for attempt in attempts(attack, subjects(tasks)):
            assert attempt.wrapping != "bare" or not same_answer(attempt.text, attempt.subject.task.answer)


def test_no_attack_hands_in_the_gold_answer_as_its_last_word():
    made = [one for attack in ATTACKS for one in attempts(attack, subjects(TASKS))]
    scores = last_tag([one.text for one in made], [one.subject.task.answer for one in made])
    assert not any(scores)


def test_where_the_prompt_has_opened_the_thought_a_completion_does_not_open_it_again():
    row = Row(row_id="1", columns={"prompt": "2+2?<think>", "answer": "4"})
    (subject,) = subjects(tasks_of_rows([row]))
    texts = [one.text for attack in COMPLETION_ATTACKS[3:6] for one in attempts(attack, [subject])]
    assert texts
    assert not any(text.startswith("<think>") for text in texts)


def programs():
    return tasks_of([("Add the two numbers.", None)], test_cases={"inputs": ["1 2\n", "5 5\n"], "outputs": ["3", "10"]})


def test_a_judge_of_programs_that_looks_for_the_outputs_in_the_source_is_found_out():
    def naive(completions, test_cases, **columns):
        return [
            float(all(output in completion for output in tests["outputs"]))
            for completion, tests in zip(completions, test_cases, strict=True)
        ]

    report = audited(naive, tasks=programs(), attacks=PROGRAM_ATTACKS)
    assert {"every output at once", "program in the thought"} <= names(report.cheats)
    assert "right for the first test only" not in names(report.cheats)
    assert [(one.form, one.full) for one in report.honest] == [("program that knows the outputs", 1)]


HARNESS = """
import contextlib, io, json, sys
in_outs, source = json.loads(sys.argv[1]), sys.argv[2]
right = True
for given, expected in zip(in_outs["inputs"], in_outs["outputs"]):
    sys.stdin, out = io.StringIO(given), io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(source, {"__name__": "__main__"})
    right = right and out.getvalue().strip() == expected.strip()
sys.exit(0 if right else 1)
"""


def beside_the_outputs(completions, test_cases, **columns):
    """Runs a program where the expected outputs are, as graders without a sandbox do."""
    sources = [completion.partition("```python\n")[2].partition("\n```")[0] for completion in completions]
    words = [
        [sys.executable, "-I", "-c", HARNESS, json.dumps(tests), source]
        for tests, source in zip(test_cases, sources, strict=True)
    ]
    return [float(subprocess.run(one, capture_output=True, timeout=60).returncode == 0) for one in words]


@pytest.mark.parametrize("name", ["search for the expected outputs", "program that leaves"])
def test_a_judge_that_runs_programs_beside_the_outputs_is_found_out(name):
    attacks = [attack for attack in PROGRAM_ATTACKS if attack.name == name]
    report = audited(beside_the_outputs, tasks=programs(), attacks=attacks, timeout=60)
    assert names(report.cheats) == {name}


@pytest.mark.long
def test_programs_that_cheat_earn_nothing_in_the_sandbox():
    try:
        sandbox = open_sandbox("auto", slots=2)
    except SandboxError as error:
        pytest.skip(str(error))
    context = RewardContext(open_sandbox=lambda: sandbox)
    attacks = [attack for attack in PROGRAM_ATTACKS if attack.max_tasks is None]
    report = audited(resolve("code", context), tasks=programs(), attacks=attacks)
    sandbox.close()
    assert [(one.attack, one.example) for one in report.cheats] == []
    assert report.failed == 0
    assert report.is_clean  # the program that knows the outputs scores full


def test_attacks_with_programs_have_nothing_to_try_on_a_row_without_test_cases():
    assert all(not attempts(attack, subjects(TASKS)) for attack in PROGRAM_ATTACKS)


def test_a_row_is_written_out_without_a_tokenizer():
    row = Row(row_id="r", columns={"prompt": [{"role": "user", "content": "2 + 2?"}], "answer": "4", "level": 1})
    (task,) = tasks_of_rows([row], system="Be brief.")
    assert task.prompt == "system: Be brief.\nuser: 2 + 2?"
    assert task.prompt_ids == tuple(task.prompt.encode())
    assert task.columns["level"] == 1


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in QUESTIONS[:3]))
    return path


@pytest.fixture
def weak(tmp_path):
    path = tmp_path / "weak.py"
    path.write_text(
        "def contains(completions, answer, **columns):\n"
        "    return [float(gold in one) for one, gold in zip(completions, answer)]\n"
    )
    return f"{path}:contains"


@pytest.mark.long
def test_the_command_names_the_cheats_ends_with_1_and_writes_them_down(rows, weak, tmp_path, capsys):
    out = tmp_path / "audit.json"
    assert main(["audit", "--reward-funcs", weak, "format", "--dataset", str(rows), "--json", str(out)]) == 1
    assert "sprayed guesses" in capsys.readouterr().out
    first, second = json.loads(out.read_text())
    assert "sprayed guesses" in first["cheats"]
    assert (second["name"], second["cheats"], second["is_clean"]) == ("format", [], True)


@pytest.mark.long
def test_the_command_needs_neither_model_nor_torch_and_ends_with_0_where_no_cheat_scores(rows):
    code = (
        "import sys\nfrom paceline.cli.main import main\n"
        f"status = main(['audit', '--reward', 'format', '--dataset', {str(rows)!r}, '--dataset-size', '2'])\n"
        "print('\\n', status, 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].split() == ["0", "False", "False"]
    assert "2 tasks" in done.stdout


def test_one_name_is_given_once(rows, capsys):
    assert main(["audit", "--reward", "format", "--reward-funcs", "accuracy", "--dataset", str(rows)]) == 2
    assert "--reward and --reward-funcs are both given" in capsys.readouterr().err


def test_an_option_of_training_is_refused(rows, capsys):
    assert main(["audit", "--reward", "format", "--dataset", str(rows), "--learning-rate", "1"]) == 2
    assert "--learning-rate is no option of `paceline audit`, only of training" in capsys.readouterr().err


@pytest.mark.long
def test_a_row_that_cannot_be_used_stops_the_command_or_is_skipped_and_named(rows, capsys):
    rows.write_text(rows.read_text() + '{"question": ""}\n')
    words = ["audit", "--reward", "format", "--dataset", str(rows)]
    assert main(words) == 2
    assert "row rows.jsonl:4" in capsys.readouterr().err
    assert main([*words, "--on-bad-row", "skip"]) == 0
    assert "Skipped 1 of 4 rows; the first: row rows.jsonl:4" in capsys.readouterr().out


def test_a_judge_that_compares_completions_cannot_be_attacked_with_single_ones(capsys):
    words = ["--reward-funcs", "judge:http://127.0.0.1:9/v1(model=x, mode=rank)", "--dataset", "arithmetic"]
    assert main(["audit", *words]) == 2
    assert "compares a prompt's completions, and attacks are graded alone; give mode=score" in capsys.readouterr().err
