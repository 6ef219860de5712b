"""The report of a run is one safe, complete and reproducible file at every stage of the run."""

import doctest
import importlib
import json
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from PIL import Image

from paceline.checkpoints.existing_runs import ending_of, write_ending
from paceline.checkpoints.run_directory import RunDir
from paceline.cli.report import compare
from paceline.data.pictures import PictureStore
from paceline.errors import CheckpointError, RewardError
from paceline.reports.page.figures import (
    Band,
    Chart,
    ChartLine,
    Scale,
    draw,
    figure,
    linear_ticks,
    log_ticks,
    step_ticks,
    tick_labels,
)
from paceline.reports.page.html import headline, write_report
from paceline.reports.page.outcome import fates, outcome, pairs
from paceline.reports.page.reading import (
    MAX_POINTS,
    Series,
    dropped_counts,
    metric,
    read_run,
    smoothed,
    time_split,
    total_seconds,
)
from tests.unit.reports.synthetic_run import CONFIG, SET, write_synthetic_run

VOID = {"meta", "br", "img", "input", "hr", "link"}


class Outline(HTMLParser):
    """Collects tags, and fails on any that is closed in the wrong order."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.attributes = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def outline(page):
    parser = Outline()
    parser.feed(page)
    assert parser.open == []
    return parser


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "plums"
    write_synthetic_run(path, steps=40, tasks=60, prompts=6)
    return path


@pytest.mark.parametrize("name", ["format", "page.figures", "viewer.columns"])
def test_the_examples_in_the_docstrings_hold(name):
    result = doctest.testmod(importlib.import_module(f"paceline.reports.{name}"))
    assert result.attempted > 0
    assert result.failed == 0


def test_the_page_of_a_finished_run_is_one_whole_file_that_fetches_nothing(finished):
    report = write_report(finished)
    page = report.read_text()
    parsed = outline(page)
    assert report == finished / "report.html"
    assert not {"link", "img", "iframe", "object"} & set(parsed.tags)
    assert not [value for name, value in parsed.attributes if name in ("src", "href", "srcset")]
    assert not re.search(r"https?://|@import|url\(", page)
    assert parsed.tags.count("script") == 1
    assert "finished" in page


def test_images_of_the_newest_step_are_on_the_page_itself_and_nothing_is_fetched(tmp_path):
    path, store = tmp_path / "a <b> run", PictureStore()
    write_synthetic_run(path, steps=2, tasks=8, prompts=2)
    pictures = [store.add(Image.new("RGB", (300, 30 + shade), (shade, 0, 0))) for shade in range(10)]
    run = RunDir(path)
    run.write_images(store, [picture.sha256 for picture in pictures[1:]])
    names = ["../" * 9 + "etc/passwd", None, *(picture.sha256 for picture in pictures)]
    run.commit_rollouts(3, [b"{}\n"], {"images": names})
    parsed = outline(write_report(path).read_text())
    sources = [value for name, value in parsed.attributes if name == "src"]
    assert len(sources) == 7  # of the first eight, one is not there
    assert all(source.startswith("data:image/png;base64,iVBOR") for source in sources)
    policies = [value for name, value in parsed.attributes if name == "content" and "default-src 'none'" in value]
    assert [policy.rpartition("; ")[2] for policy in policies] == ["img-src data:"]
    text = write_report(path).read_text()
    assert "The first 8 images of 10 in the prompts of step 3" in text
    assert "300 &times; 31" in text
    assert "is missing in the run&#x27;s directory" in text
    assert "<b>" not in text.partition("<main>")[0].partition("<h1>")[2].partition("</h1>")[0]


def test_every_drawing_is_well_formed_and_says_in_words_what_it_shows(finished):
    page = re.sub(r'<svg (x="[^>]*>.*?)</svg>', r"<g \1</g>", write_report(finished).read_text())  # one in another
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    charts = [ElementTree.fromstring(drawing) for drawing in drawings if 'role="img"' in drawing]
    assert len(charts) > 12
    assert all(chart.get("aria-label") for chart in charts)
    assert all(chart.find(".//title") is not None for chart in charts)


def test_every_section_of_a_finished_run_is_there(finished):
    page = write_report(finished).read_text()
    for words in (
        "Accuracy on held-out tasks",
        "Training reward",
        "Reward: accuracy",
        "Reward: format",
        "Completion length",
        "Truncated completions",
        "Groups without signal",
        "Entropy",
        "Gradient norm",
        "Loss",
        "KL to the reference",
        "Clipped tokens",
        "Engine against trainer",
        "Generation speed",
        "before and after training",
        "paceline rollouts plums",
        "Dropped or failed",
        "config.yaml",
    ):
        assert words in page, words


def test_the_same_files_give_the_same_bytes(finished):
    assert write_report(finished).read_bytes() == write_report(finished).read_bytes()


def test_what_a_model_wrote_never_becomes_markup(tmp_path):
    attack = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\"'"
    run = RunDir.create(tmp_path / "<b>run</b>", f"model: '{attack[:30]}'\neval_reward_func: {'<i>'}\n")
    rollout = {"task_id": attack, "prompt": attack, "completion": attack, "answer": attack, "finish_reason": attack}
    rollout |= {"rewards": {attack: 1.0, "b": 0.0}, "reward": 1.0, "advantage": 0.5, "dropped": attack}
    for step in (1, 2):
        run.append_metrics({"step": step, "reward_mean": 0.5, "rewards": {attack: {"mean": 0.5}, "b": {"mean": 0.5}}})
        run.write_rollouts(step, [rollout])
    held_out = rollout | {"correct": True}
    for step in (0, 2):
        run.append_eval({"set": attack, "step": step, "n": 1, "accuracy": 1.0, "ci_low": 0.2, "ci_high": 1.0})
        run.write_eval_completions(attack.replace("/", "")[:40], step, [held_out])
    page = write_report(run.path).read_text()
    parsed = outline(page)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert parsed.tags.count("script") == 1
    assert not {"img", "i>", "b>"} & set(parsed.tags)
    assert not [name for name, _ in parsed.attributes if name.startswith("on")]


@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_a_run_that_still_runs_has_a_page_at_every_step(tmp_path, steps):
    write_synthetic_run(tmp_path / "run", steps=steps, finished=False, eval_every=5, tasks=20, prompts=2)
    page = write_report(tmp_path / "run").read_text()
    outline(page)
    assert f"running, step {steps} of 100" in page
    assert ("No step has finished yet" in page) == (steps == 0)


def test_a_run_with_a_configuration_and_nothing_else_has_a_page(tmp_path):
    RunDir.create(tmp_path / "run", "")
    page = write_report(tmp_path / "run").read_text()
    outline(page)
    assert "No step has finished yet" in page


def test_damaged_lines_are_counted_on_the_page_and_do_not_stop_it(tmp_path):
    write_synthetic_run(tmp_path / "run", steps=3, tasks=20, prompts=2, finished=False)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as stream:
        stream.write(
            'not json\n{"no": "step"}\n{"step": "three"}\n{"step": 4, "a program\'s own": 1}\n{"step": 4, "los'
        )
    run = read_run(tmp_path / "run")
    assert run.unreadable_lines == 5
    assert [number for what, number, _ in dropped_counts(run) if "Unreadable" in what] == [5]
    assert len(run.metrics) == 3


def test_a_directory_without_a_run_is_refused_and_nothing_is_written_into_it(tmp_path):
    (tmp_path / "config.yaml").write_text("some: other program's\n")
    with pytest.raises(CheckpointError, match="is not a run directory"):
        write_report(tmp_path)
    with pytest.raises(CheckpointError, match="is not a run directory"):
        compare([tmp_path])
    assert [file.name for file in tmp_path.iterdir()] == ["config.yaml"]


def test_the_headline_of_an_unfinished_run_is_computed_as_the_summary_of_a_finished_one(tmp_path):
    write_synthetic_run(tmp_path / "run", steps=20, tasks=60, prompts=2)
    finished = outcome(read_run(tmp_path / "run"))
    (tmp_path / "run" / "summary.json").unlink()
    assert outcome(read_run(tmp_path / "run")) == finished
    assert finished.first_step == 0
    assert finished.last_step == 20


def test_the_headline_has_the_test_of_the_difference_and_says_what_was_the_best_of_several(tmp_path):
    run = RunDir.create(tmp_path / "run", "")
    for step, right in ((0, 0), (1, 8), (2, 5)):
        side = {"n": 10, "accuracy": right / 10, "ci_low": 0.0, "ci_high": 1.0}
        run.append_eval({"set": "held-out", "step": step, **side})
        verdicts = [{"task_id": str(task), "correct": task < right} for task in range(10)]
        run.write_eval_completions("held-out", step, verdicts)
    page = headline(read_run(tmp_path / "run"))
    # 2 / 2^5: all five to one side
    assert "5 tasks gained, 0 lost; exact McNemar test: p = 0.062." in page
    assert "Best of 2 evaluations was step 1; picking it needs p &lt; 0.025." in page


def test_every_held_out_task_has_one_of_four_fates(finished):
    both = pairs(read_run(finished))
    counts = fates(both)
    assert len(both) == sum(counts.values()) == 60
    gained = counts["wrong before, right after"] - counts["right before, wrong after"]
    assert gained == sum(after["correct"] - before["correct"] for before, after in both)
    assert all(before["task_id"] == after["task_id"] for before, after in both)
    page = write_report(finished).read_text()
    assert all(f"<b>{number}</b><span>{words}</span>" in page for words, number in counts.items())


def test_the_parts_of_the_time_add_up_to_the_whole(finished):
    run = read_run(finished)
    assert list(time_split(run)) == [
        "generate",
        "reward",
        "update",
        "evaluate",
        "checkpoint",
        "other",
    ]
    assert sum(time_split(run).values()) == pytest.approx(total_seconds(run))


def test_what_was_dropped_is_counted_over_all_steps(tmp_path):
    run = RunDir.create(tmp_path / "run", "")
    for step, groups in ((1, 3), (2, 1)):
        step_record = {
            "step": step,
            "clock": {},
            "prompts": 4,
            "rollouts": 32,
            "groups_zero_deviation": groups,
            "groups_no_reward": 0,
            "updates": 1,
            "updates_skipped": groups,
            "alarms": ["no_signal", "clip_fraction"][:step],
        }
        run.append_metrics(
            step_record | {"truncated_fraction": 3 / 32, "rewards": {"accuracy": {"mean": 0.5, "failures": 2}}}
        )
    counts = {what: (number, of) for what, number, of in dropped_counts(read_run(run.path))}
    assert counts["Groups without signal: all rewards equal"] == (4, 8)
    assert counts["Completions on which the reward function accuracy failed"] == (4, 64)
    assert counts["Training completions cut at the length limit"] == (6, 64)
    assert counts["Updates skipped, as loss or gradient was not finite"] == (4, 6)
    assert counts["Steps with the alarm no_signal"] == (2, 2)
    assert counts["Steps with the alarm clip_fraction"] == (1, 2)


def test_comparing_runs_gives_one_aligned_line_each(finished, tmp_path):
    RunDir.create(tmp_path / "a-new-run", CONFIG)
    header, first, second = compare([finished, tmp_path / "a-new-run"]).splitlines()
    assert header.split()[:3] == ["run", "before", "after"]
    assert len({len(header), len(first), len(second)}) == 1
    found = outcome(read_run(finished))
    assert first.startswith(f"plums      {100 * found.before.value:.1f} %  {100 * found.after.value:.1f} %  ")
    assert second.split() == ["a-new-run", "-", "-", "-", "-", "0.0"]


def test_a_scale_maps_the_ends_to_the_ends_and_the_geometric_mean_of_a_log_axis_to_its_middle():
    assert [Scale(low=2, high=4, start=100, end=0)(value) for value in (2, 3, 4)] == [100, 50, 0]
    assert Scale(low=1e-6, high=1e-2, start=0, end=80, log=True)(1e-4) == pytest.approx(40)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 96.8, [0, 25, 50, 75, 100]),
        (-0.013, 0.02, [-0.02, -0.01, 0, 0.01, 0.02]),
        (5.0, 5.0, [2, 4, 6, 8]),
        (0, 1, [0, 0.25, 0.5, 0.75, 1]),
    ],
)
def test_an_axis_begins_and_ends_on_nice_numbers_around_the_data(low, high, ticks):
    assert linear_ticks(low, high) == pytest.approx(ticks)


def test_step_ticks_are_whole_numbers_within_the_run():
    assert step_ticks(1, 100, 4) == [25, 50, 75, 100]
    assert step_ticks(0, 2, 8) == [0, 1, 2]
    assert step_ticks(1, 11, 4) == [5, 10]
    assert step_ticks(3, 3, 4) == [3]


def test_labels_have_the_decimals_that_tell_ticks_apart():
    assert tick_labels([0, 0.25, 0.5]) == ["0.00", "0.25", "0.50"]
    assert tick_labels([0, 0.025, 0.05], percent=True) == ["0.0 %", "2.5 %", "5.0 %"]
    assert tick_labels([0, 5000, 10000]) == ["0", "5,000", "10,000"]
    assert tick_labels([0, 5e-6, 1e-5]) == ["0", "5e-6", "1e-5"]


def test_log_ticks_are_powers_of_ten_around_the_data_and_at_most_five():
    ticks = log_ticks(3e-12, 0.4)
    assert ticks[0] <= 3e-12
    assert ticks[-1] >= 0.4
    assert len(ticks) <= 5


def test_a_smoothed_line_keeps_a_constant_and_bridges_missing_steps():
    series = Series(steps=(1, 2, 3, 4), values=(2.0, None, 2.0, 5.0))
    assert smoothed(series, 3).values == (2.0, 2.0, 3.5, 3.5)


def test_a_long_run_is_binned_without_losing_a_step_and_says_so(tmp_path):
    records = [{"step": step, "clock": {}, "x": float(step)} for step in range(1, 1001)]
    series = metric(records, "x")
    assert len(series.steps) <= MAX_POINTS
    assert series.steps[-1] == 1000
    assert series.values[0] == pytest.approx(2.0)  # the mean of steps 1, 2 and 3
    assert metric(records, "x", reduce=max).values[0] == 3.0
    run = RunDir.create(tmp_path / "run", "")
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(r | {"reward_mean": 0.5}) + "\n" for r in records))
    assert "stands for 3 steps" in write_report(run.path).read_text()


def test_numbers_that_are_not_there_break_the_line_and_zeros_have_no_place_on_a_log_axis():
    gap = Series(steps=(1, 2, 3, 4, 5), values=(1.0, 2.0, None, 3.0, 4.0))
    assert draw(Chart(title="t", unit="u", lines=(ChartLine(label="l", series=gap),)), 300, 200).count("M") >= 2
    zeros = Series(steps=(1, 2), values=(0.0, 0.0))
    assert "nothing measured yet" in draw(
        Chart(title="t", unit="u", lines=(ChartLine(label="l", series=zeros),), log=True), 9, 9
    )


def test_drawn_points_stay_inside_the_drawing():
    series = Series(steps=(0, 50), values=(0.0, 1.0))
    band = Band(low=series, high=series)
    drawing = draw(
        Chart(title="t", unit="share", lines=(ChartLine(label="l", series=series),), bands=(band,)), 340, 190
    )
    places = [(float(x), float(y)) for x, y in re.findall(r"M([\d.]+) ([\d.]+)h", drawing)]
    assert len(places) == 2
    assert all(0 <= x <= 340 and 0 <= y <= 190 for x, y in places)
    assert places[0][1] > places[1][1]


def test_stacked_columns_end_where_the_sum_is():
    half = Series(steps=(1, 2), values=(0.5, 0.25))
    chart = Chart(
        title="t",
        unit="share",
        stacked=True,
        lines=(ChartLine(label="a", series=half), ChartLine(label="b", series=half)),
    )
    assert ">100 %</text>" in draw(chart, 340, 190)
    assert "a <b>25.0 %</b>" in figure(chart)


def test_the_set_name_of_held_out_completions_survives_its_file_name(tmp_path):
    run = RunDir.create(tmp_path / "run", "")
    run.write_eval_completions("data/my set-step-1.jsonl:test", 0, [])
    run.write_eval_completions(SET, 12, [])
    assert set(read_run(run.path).completion_files) == {("data/my set-step-1.jsonl:test", 0), (SET, 12)}


def test_a_run_that_failed_says_how_at_the_head_of_its_page(tmp_path):
    run = write_synthetic_run(tmp_path / "run", steps=7, finished=False, eval_every=5, tasks=20, prompts=2)
    trace = "Traceback (most recent call last):\n  File <reward>"
    error = RewardError(f"'flaky' raised <b>RuntimeError</b>\n{trace}")
    write_ending(run.path, replace(ending_of(error, step=7, resume="`paceline train --resume run`"), time=0.0))
    page = write_report(run.path).read_text()  # the attempt draws it, with its lock
    run.close()
    assert page == write_report(run.path).read_text()
    assert '<span class="state broken">failed, step 7 of 100</span>' in page
    assert "<p>&#x27;flaky&#x27; raised &lt;b&gt;RuntimeError&lt;/b&gt;</p>" in page
    facts = "1970-01-01 00:00:00 UTC, after step 7, exit status 2; to go on: paceline train --resume run"
    assert f'<p class="note">{facts}</p>' in page
    assert "File &lt;reward&gt;" in page
    assert 'id="written"' not in page


def test_a_run_that_was_killed_does_not_look_as_if_it_went_on(tmp_path):
    run = write_synthetic_run(tmp_path / "run", steps=2, finished=False, eval_every=5, tasks=20, prompts=2)
    assert "broken off" not in write_report(run.path).read_text()
    run.close()
    page = write_report(run.path).read_text()
    assert "broken off, step 2 of 100" in page
    assert f"process {os.getpid()} on host" in page
    (run.path / ".lock").unlink()
    assert "this is a copy" in write_report(run.path).read_text()
