"""Several runs beside each other: options that differ, paired differences, curves in one chart."""

import pytest

from paceline.checkpoints.run_directory import RunDir
from paceline.cli.main import main
from paceline.cli.report import compare
from paceline.reports.page.comparison import difference_text, differing_options, render, run_names, to_first
from paceline.reports.page.reading import read_run


def write_run(path, config, right, *, tasks=10, answer="4", step=3):
    """A run with one evaluation before and one at `step`, in which the first `right` tasks are right."""
    with RunDir.create(path, f"# paceline 0.1.0\npaceline_version: 0.1.0\noutput_dir: {path.name}\n{config}") as run:
        for at, share in ((0, 0), (step, right)):
            side = {"n": tasks, "accuracy": share / tasks, "ci_low": 0.0, "ci_high": 1.0}
            run.append_eval({"set": "held-out", "step": at, **side})
            verdicts = [{"task_id": str(task), "answer": answer, "correct": task < share} for task in range(tasks)]
            run.write_eval_completions("held-out", at, verdicts)
    return read_run(path)


@pytest.fixture
def sweep(tmp_path):
    names = {"lr-1e-6": ("1.0e-06", 2), "lr-1e-5": ("1.0e-05", 8)}
    return [write_run(tmp_path / name, f"learning_rate: {lr}\nseed: 0\n", right) for name, (lr, right) in names.items()]


def test_the_options_that_differ_are_columns_and_those_of_every_run_are_not(sweep):
    assert differing_options(sweep) == {"learning_rate": {"lr-1e-6": "1e-06", "lr-1e-5": "1e-05"}}


def test_runs_are_compared_task_by_task_with_the_first(sweep):
    found = to_first(*sweep)
    # six tasks more: 2 / 2^6
    assert (found.gained, found.lost, found.p_value) == (6, 0, pytest.approx(0.03125))
    assert difference_text(found).startswith("+60.0 (")
    header, first, second = compare([run.path for run in sweep]).splitlines()
    assert header.split()[:4] == ["run", "learning_rate", "before", "after"]
    assert first.split()[:4] == ["lr-1e-6", "1e-06", "0.0", "%"]
    assert "+60.0 (" in second
    assert "p = 0.031" in second


def test_tasks_with_other_gold_answers_are_not_paired(sweep, tmp_path):
    other = write_run(tmp_path / "other", "learning_rate: 1.0e-06\nseed: 0\n", 5, answer="5")
    assert to_first(sweep[0], other) is None
    assert difference_text(None) == "-"


def test_directories_of_one_name_are_told_apart_by_their_paths(sweep, tmp_path):
    other = write_run(tmp_path / "again" / "lr-1e-6", "seed: 0\n", 5)
    assert run_names([sweep[0], other]) == [str(sweep[0].path), str(other.path)]


def test_the_page_lays_the_curves_over_each_other_and_escapes_names(sweep, tmp_path, capsys):
    hostile = write_run(tmp_path / "<b>x", "learning_rate: <script>\nseed: 0\n", 5)
    assert main(["report", *(str(run.path) for run in [*sweep, hostile]), "--page", str(tmp_path / "all.html")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "all.html")
    page = (tmp_path / "all.html").read_text(encoding="utf-8")
    assert page == render([*sweep, hostile])
    assert page.count("<figure") == 1  # no step has a reward
    assert all(f'class="line c{number}' in page for number in (1, 2, 3))
    assert "they differ in learning_rate" in page
    assert "<b>x" not in page


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--page"], "--page needs one FILE"),
        (["--page", "a.html", "--page=b.html"], "--page needs one FILE"),
        (["--page", "a.html"], "--page is of several runs"),
    ],
)
def test_a_page_needs_a_file_and_several_runs(sweep, words, sentence, capsys):
    assert main(["report", str(sweep[0].path), *words]) == 2
    assert sentence in capsys.readouterr().err
