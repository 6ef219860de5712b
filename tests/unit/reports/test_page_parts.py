"""The parts of the page that say something: form, verdict, alarms, formula, what the script reads."""

import json

import pytest

from paceline.checkpoints.run_directory import RunDir
from paceline.objective.formula import Line as Definition
from paceline.reports.page.curves import metric_chart, time_chart
from paceline.reports.page.figures import Band, Chart, ChartLine, figure, readings
from paceline.reports.page.html import alarm_list, as_list, form_note, headline, stretches, verdict_of
from paceline.reports.page.outcome import form_of, is_right_leniently
from paceline.reports.page.reading import MAX_POINTS, Series, read_run


def said(completion, correct=False, answer="42"):
    return {"task_id": "t", "prompt": "q", "completion": completion, "correct": correct, "answer": answer}


@pytest.mark.parametrize(
    ("completion", "answer", "right"),
    [
        ("So the answer is 42.", "42", True),
        ("<answer>42</answer>", "42", True),
        ("It costs 1,200", "1200", True),
        ("= 0.5", "1/2", True),
        ("It is 41 or 42", "42", False),
        ("<think>42</think>", "42", False),
        ("no idea", "42", False),
        ("", "42", False),
    ],
)
def test_a_lenient_reading_takes_the_answer_wherever_the_text_ends_on_it(completion, answer, right):
    assert is_right_leniently(said(completion, answer=answer)) is right


def test_what_the_grader_calls_right_is_right_in_any_reading():
    assert is_right_leniently(said("x^2 + 1, written otherwise", correct=True, answer="1 + x^2"))


def test_the_gain_is_split_into_form_and_other_answers_that_add_up():
    plain, tagged, wrong = said("It is 42"), said("<answer>42</answer>", correct=True), said("<answer>7</answer>")
    both = [(plain, tagged), (plain, tagged), (wrong, tagged), (wrong, wrong), (tagged, tagged)]
    form = form_of(both)
    # before 1 of 5 graded right and 3 of 5 right leniently, after 4 of 5 both: 60 points, 20 of them other answers
    assert form.right == (0.2, 0.8)
    assert form.right_leniently == (0.6, 0.8)
    assert form.marked == (0.6, 1.0)
    assert form.gain_by_form == pytest.approx(0.4)
    note = form_note(form)
    assert "of the +60.0 points, +40.0 are form and +20.0 are other answers" in note
    assert "60.0 % of the completions marked an answer before, 100.0 % after" in note


def test_programs_and_ungraded_completions_have_no_lenient_reading():
    assert form_of([(said("print(1)", answer=None), said("print(2)", answer=None))]) is None
    assert form_of([(said("42", correct=None), said("42"))]) is None
    assert form_of([(said("7") | {"judged_by": "environment"}, said("42", correct=True))]) is None
    assert form_note(None) == ""


def a_step(step, reward, alarms=()):
    numbers = {"step": step, "learning_rate": 1e-5, "updates": 1, "grad_norm": 0.5, "reward_mean": reward}
    return numbers | {"clock": {}, "prompts": 4, "groups_zero_deviation": 0, "alarms": list(alarms)}


def test_the_verdict_is_that_of_the_rules_and_leaves_records_out_that_they_cannot_read(tmp_path):
    run = RunDir.create(tmp_path / "run", "")
    for step in range(1, 31):
        run.append_metrics(a_step(step, 0.1 if step <= 15 else 0.9))
    for damaged in ({"step": 31}, a_step(32, "much"), a_step(33, 0.9) | {"learning_rate": None}):
        run.append_metrics(damaged)
    run.append_eval({"set": "s", "step": 0, "accuracy": 0.5})
    found = verdict_of(read_run(run.path))
    assert (found.word, found.because) == ("yes", "the reward rose from 0.100 to 0.900")
    assert "Learning: <b>yes</b>, because the reward rose from 0.100 to 0.900." in headline(read_run(run.path))


def test_alarms_are_told_by_the_steps_in_a_row_at_which_they_held():
    active = {2: ["no_signal"], 3: ["no_signal", "entropy"], 5: ["no_signal"], 6: ["no_signal"]}
    found = stretches([{"step": step, "alarms": active.get(step, [])} for step in range(1, 7)])
    assert found == [
        ("no_signal", 2, 3),
        ("entropy", 3, 3),
        ("no_signal", 5, 6),
    ]


def test_an_alarm_comes_with_its_meaning_and_one_of_another_version_without(tmp_path):
    run = RunDir.create(tmp_path / "run", "")
    run.append_metrics(a_step(1, 0.5, ["logprob_mismatch", "<b>new</b>"]))
    shown = alarm_list(read_run(run.path))
    assert "<b>logprob_mismatch</b>: step 1<p>engine and trainer differ by more than 0.1 nats per token; " in shown
    assert "<b>&lt;b&gt;new&lt;/b&gt;</b>: step 1</li>" in shown
    assert alarm_list(read_run(RunDir.create(tmp_path / "quiet", "").path)) == ""


def test_the_formula_is_set_with_indices_and_signs_and_nothing_of_it_is_lost():
    lines = [Definition(symbol="w_t", text="-(4 / tau) sigmoid(tau (r_t - 1)) A where A < 0, 1.5 * mean - 2")]
    assert as_list(lines) == (
        '<dl class="formula"><dt>w<sub>t</sub></dt><dd>&minus;(4 / <i>&tau;</i>) sigmoid(<i>&tau;</i> '
        "(<i>r<sub>t</sub></i> &minus; 1)) <i>A</i> where <i>A</i> &lt; 0, 1.5 &middot; mean &minus; 2</dd></dl>"
    )


def test_the_script_is_given_every_number_to_six_figures_with_its_spread():
    series = Series(steps=(1, 2, 3), values=(0.123456789, None, 3.0))
    band = Band(low=series, high=Series(steps=(1, 2, 3), values=(1.0, None, 1234567.0)), of="mean")
    found = readings(Chart(title="t", unit="u", lines=(ChartLine(label="mean", series=series),), bands=(band,)))
    assert found["steps"] == [1, 2, 3]
    assert found["lines"] == [
        {"name": "mean", "values": [0.123457, None, 3.0], "low": [0.123457, None, 3.0], "high": [1.0, None, 1234570.0]}
    ]
    assert "first" not in found


def test_a_long_run_is_drawn_as_means_within_the_least_and_the_greatest_and_stays_small(tmp_path):
    run = RunDir.create(tmp_path / "run", "")
    lines = (json.dumps(a_step(step, float(step % 25))) for step in range(1, 10_001))
    (run.path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    chart = metric_chart(read_run(run.path), "reward_mean", title="Training reward", unit="mean per completion")
    found = readings(chart)
    # 25 steps in each of 400 points: 0 to 24, of which the mean is 12
    assert len(found["steps"]) == MAX_POINTS == 400
    assert (found["first"][1], found["steps"][1]) == (26, 50)
    assert {found["lines"][0][key][7] for key in ("low", "values", "high")} == {0.0, 12.0, 24.0}
    assert len(figure(chart, ((1040, 300), (340, 210)))) < 60_000


def test_the_time_of_each_step_is_stacked_by_what_it_went_to(tmp_path):
    run = RunDir.create(tmp_path / "run", "")
    for step in (1, 2):
        run.append_metrics({"step": step, "clock": {"generate": 2.0, "reward": 0.0, "update": step, "other": 0.5}})
    chart = time_chart(read_run(run.path))
    assert chart.stacked
    assert [(line.label, line.colour, line.series.values) for line in chart.lines] == [
        ("generate", 1, (2.0, 2.0)),
        ("update", 3, (1.0, 2.0)),
        ("other", 4, (0.5, 0.5)),
    ]
