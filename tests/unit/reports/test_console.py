"""The screen of a run, as text, at each phase of a step; what is kept for it; and what is printed without one."""

import json
import sys
from datetime import datetime
from io import BytesIO, StringIO, TextIOWrapper
from textwrap import dedent

import pytest
from rich.console import Console
from rich.text import Text

from paceline.reports.console import (
    REDRAWS_PER_SECOND,
    FittedLive,
    MeasurementDisplay,
    RunDisplay,
    broken,
    open_console,
)
from paceline.reports.console.screen import CURVE_POINTS, RunProgress, screen

GIB = 1 << 30


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def record(number: int, reward: float | None = 0.25, **changes: object) -> dict:
    return {
        "step": number,
        "reward_mean": reward,
        "learning_rate": 1e-5,
        "updates": 1,
        "grad_norm": 0.2,
        "prompts": 32,
        "groups_zero_deviation": 4,
        "completion_length_mean": 20.0,
        "truncated_fraction": 0.0,
        "entropy": 0.17834,
        "logprob_mismatch_mean": 5.29e-07,
        "alarms": [],
        "clock": {"tokens_per_second": 34387.8, "total": 0.358},
        **changes,
    }


def evaluation(step: int, accuracy: float) -> dict:
    return {
        "set": "arithmetic:test",
        "step": step,
        "accuracy": accuracy,
        "ci_low": accuracy - 0.028,
        "ci_high": accuracy + 0.028,
    }


def display(clock: Clock, *, width: int = 80, height: int = 24, ascii_only: bool = False, done: int = 0) -> RunDisplay:
    console = Console(
        file=StringIO() if not ascii_only else AsciiFile(),
        record=True,
        force_terminal=True,
        width=width,
        height=height,
        legacy_windows=False,
    )
    return RunDisplay(console, name="runs/demo", total_steps=140, done=done, memory=lambda: 3 * GIB // 2, clock=clock)


class AsciiFile(StringIO):
    """Of a terminal that knows no other characters."""

    encoding = "ascii"


def text_of(shown: RunDisplay) -> str:
    """The screen as it stands, without the spaces at the ends of its lines."""
    console = shown._console
    console.print(shown.frame())
    return "\n".join(line.rstrip() for line in console.export_text(clear=True).splitlines())


def expected(text: str) -> str:
    return dedent(text).strip("\n")


def at_step_37(clock: Clock, **options: int | bool) -> RunDisplay:
    """36 steps of half a second, an evaluation before the first and one after the 30th."""
    shown = display(clock, **options)
    shown.progress.evaluation(evaluation(0, 0.243))
    for number in range(1, 37):
        clock.now += 0.5
        shown.step(record(number, 0.05 + 0.005 * number))
        if number == 30:
            shown.progress.evaluation(evaluation(30, 0.275))
    shown.progress.begin("step 37")
    return shown


def test_before_the_first_step_it_shows_the_evaluation_and_what_is_still_to_come():
    clock = Clock()
    shown = display(clock, ascii_only=True)
    shown.progress.begin("evaluation")
    shown.progress.phase("generate", 0, 1000)
    clock.now += 2
    shown.progress.phase("generate", 250, 1000, tokens=20_000)
    assert text_of(shown) == expected(
        """
        runs/demo                                                        evaluation, 2 s
        steps                               0 of 140
        generate  ######                    250 of 1,000, 10,000 tokens/s, 6 s to go
        reward                              -
        update                              -

        reward    -
        held-out  -
        learning  too early, because 0 of the 18 steps needed have a reward so far



        length    -                             KL        -
        entropy   -                             mismatch  -
        speed     -                             memory    1.50 GiB
        alarms    none
        """
    )


def test_while_it_samples_tokens_say_how_far_it_is_before_completions_end():
    clock = Clock()
    shown = at_step_37(clock, ascii_only=True)
    shown.progress.phase("generate", 0, 256)
    clock.now += 0.2
    # 20 tokens each are expected, as in the last step: 1,280 of 5,120
    shown.progress.phase("generate", 8, 256, tokens=1280)
    assert text_of(shown) == expected(
        """
        runs/demo                                                           step 37, 0 s
        steps     ######                    36 of 140, 52 s to go
        generate  ######                    8 of 256, 6,400 tokens/s, 1 s to go
        reward                              -
        update                              -

        reward    0.230   ___.....-----=====+++++*****#####@@@
        held-out  27.5 % [24.7, 30.3] after step 30, began with 24.3 %, arithmetic:test
        learning  yes, because the reward rose from 0.083 to 0.203; but held-out
                  accuracy went from 24.3 % to 27.5 %, where less than 4.5 % may be
                  chance (arithmetic:test)

        length    20 tokens                     KL        not measured
        entropy   0.178 nats/token              mismatch  5.29e-07 nats
        speed     34,388 tokens/s               memory    1.50 GiB
        alarms    none
        """
    )


def test_phases_that_are_over_keep_their_time_and_the_update_counts_micro_batches():
    clock = Clock()
    shown = at_step_37(clock)
    for name, seconds, parts in (("generate", 0.25, 256), ("reward", 0.06, 1)):
        shown.progress.phase(name, 0, parts)
        clock.now += seconds
        shown.progress.phase(name, parts, parts, tokens=5000 if name == "generate" else 0)
    shown.progress.phase("update", 0, 1)
    clock.now += 6
    shown.progress.phase("update", 3, 9)
    assert text_of(shown).splitlines()[:5] == [
        "runs/demo                                                           step 37, 6 s",
        "steps     ━━━━━━──────────────────  36 of 140, 46 s to go",
        "generate  ━━━━━━━━━━━━━━━━━━━━━━━━  256 of 256, 20,000 tokens/s, 0.2 s",
        "reward    ━━━━━━━━━━━━━━━━━━━━━━━━  1 of 1, 0.1 s",
        "update    ━━━━━━━━────────────────  3 of 9, 12 s to go",
    ]


def test_a_checkpoint_is_named_with_its_time_and_only_what_goes_on_beside_it_stays():
    clock = Clock()
    shown = at_step_37(clock)
    shown.progress.phase("update", 9, 9)
    shown.progress.phase("generate", 1, 2)  # of a step ahead, on a cluster
    shown.progress.begin("checkpoint")
    clock.now += 75
    lines = text_of(shown).splitlines()
    assert lines[0].endswith("checkpoint, 1 min 15 s")
    assert "  1 of 2" in lines[2]
    assert lines[4].endswith("  -")


def test_a_narrow_terminal_has_the_same_lines_with_less_on_them():
    clock = Clock()
    shown = at_step_37(clock, width=60, ascii_only=True)
    shown.step(record(37, None, kl=0.00123, alarms=["no_signal", "clip_fraction"], truncated_fraction=0.25))
    shown.progress.phase("generate", 0, 256)
    clock.now += 0.25
    shown.progress.phase("generate", 64, 256, tokens=3000)
    text = text_of(shown)
    assert max(map(len, text.splitlines())) <= 60
    assert text == expected(
        """
        runs/demo                                       step 37, 0 s
        steps     ##-         37 of 140, 49 s to go
        generate  ######      64 of 256, 12,000 tokens/s, 0 s to go
        reward                -
        update                -

        reward    -       ___.....-----=====+++++*****#####@@@
        held-out  27.5 % [24.7, 30.3] after step 30, began with 24.3
        learning  yes, because the reward rose from 0.083 to 0.203;
                  but held-out accuracy went from 24.3 % to 27.5 %,
                  where less than 4.5 % may be chance ...

        length    20 tokens, 25 % cut KL        0.00123 nats/token
        entropy   0.178 nats/token    mismatch  5.29e-07 nats
        speed     34,388 tokens/s     memory    1.50 GiB
        alarms    no_signal, clip_fraction
        """
    )


def test_a_low_terminal_loses_blank_lines_first_and_never_scrolls():
    clock = Clock()
    full = text_of(at_step_37(clock)).splitlines()
    assert len(full) == 16
    low = text_of(at_step_37(clock, height=16)).splitlines()
    assert len(low) == 14
    assert [line.split()[0] for line in (low[5], low[-1])] == ["reward", "alarms"]
    lowest = text_of(at_step_37(clock, height=6)).splitlines()
    assert [line.split()[0] for line in lowest] == ["runs/demo", "steps", "generate", "reward", "update"]


def test_the_curve_of_a_long_run_has_as_many_points_as_fit():
    progress = RunProgress(name="run", total_steps=1000, done=0, clock=Clock())
    for number in range(1, 1000):
        progress.step(record(number, float(number)))
    means = progress.rewards
    assert len(means) == CURVE_POINTS
    assert (means[0], means[-1]) == (13.0, 987.5)  # of 1 to 25, and of 976 to 999


def test_time_to_go_is_that_of_the_last_20_steps_with_all_between_them_and_not_of_those_before_a_resume():
    clock = Clock()
    progress = RunProgress(name="run", total_steps=100, done=0, clock=clock)
    progress.recall([record(number) for number in range(1, 41)], [evaluation(0, 0.5)])
    assert progress.to_go is None
    for number in range(41, 62):
        clock.now += 10 if number == 50 else 1
        progress.step(record(number))
    # from step 41 to step 61: 20 steps in 29 seconds
    assert progress.to_go == pytest.approx(39 * 29 / 20)
    clock.now += 1
    assert progress.to_go == pytest.approx(39 * 29 / 20 - 1)
    assert progress.steps_done == 61


def test_a_phase_that_begins_again_counts_its_time_anew():
    clock = Clock()
    progress = RunProgress(name="run", total_steps=1, done=0, clock=clock)
    progress.phase("generate", 0, 10)
    clock.now += 5
    progress.phase("generate", 10, 10, tokens=50)
    clock.now += 100
    assert progress.stages["generate"].seconds == 5
    progress.phase("generate", 0, 4)  # a second round, in the place of filtered groups
    clock.now += 1
    progress.phase("generate", 1, 4, tokens=2)
    stage = progress.stages["generate"]
    assert (stage.seconds, stage.share, stage.to_go) == (1, 0.25, 3)


def test_it_redraws_four_times_a_second_above_sentences_and_leaves_its_last_frame():
    clock, shown = Clock(), None
    shown = display(clock)
    assert REDRAWS_PER_SECOND == 4
    with shown:
        shown.step(record(1))
        shown.say("something happened")
    printed = shown._console.export_text()
    assert "something happened" in printed
    assert printed.rstrip().endswith("alarms    none")
    assert printed.index("something happened") < printed.rindex("steps ")


def test_without_a_terminal_there_is_a_line_every_ten_seconds_and_for_the_last_step():
    clock, said = Clock(), StringIO()
    shown = RunDisplay(
        Console(file=said, width=200), name="runs/demo", total_steps=3, done=0, clock=clock, time_of_day=lambda: "12:00"
    )
    with shown:
        shown.say("something happened")
        for number, seconds in ((1, 9.0), (2, 1.0), (3, 0.1)):
            clock.now += seconds
            shown.step(record(number))
    assert said.getvalue().splitlines() == [
        "12:00  something happened",
        "12:00  step    2 of 3  reward 0.250  length 20  34,388 tokens/s  0.36 s/step",
        "12:00  step    3 of 3  reward 0.250  length 20  34,388 tokens/s  0.36 s/step",
    ]


def test_without_a_terminal_a_minute_of_silence_ends_with_how_far_a_step_is():
    clock, said = Clock(), StringIO()
    console = Console(file=said, width=200)
    with RunDisplay(console, name="r", total_steps=9, done=0, clock=clock, time_of_day=lambda: "now") as shown:
        shown.progress.begin("step 1")
        shown.progress.phase("generate", 0, 128)
        for seconds, done in ((59, 16), (1, 32), (59, 64)):
            clock.now += seconds
            shown.progress.phase("generate", done, 128, tokens=10 * done)
        shown.say("a sentence is no silence")
        clock.now += 1
        shown.progress.phase("generate", 66, 128, tokens=660)
    assert said.getvalue().splitlines() == [
        "now  step 1: generate 32 of 128, 5 tokens/s, 3 min 00 s to go",
        "now  a sentence is no silence",
    ]


def test_the_line_of_a_step_ends_the_silence_of_a_log_in_json_too(capsys):
    clock = Clock()
    with RunDisplay(open_console(log_format="json"), name="r", total_steps=9, done=0, clock=clock) as shown:
        for number in (1, 2):
            clock.now += 59
            shown.progress.phase("generate", 64, 128)
            shown.step(record(number))
    assert [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()] == ["step", "step"]


def test_a_log_in_json_has_one_object_per_line_with_its_time(capsys):
    clock = Clock()
    console = open_console(log_format="json")
    shown = RunDisplay(console, name="runs/demo", total_steps=1, done=0, clock=clock)
    with shown:
        shown.say("two\nlines, one of 'em [bold]")
        shown.step(record(1))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [datetime.fromisoformat(line.pop("time")).tzinfo is not None for line in lines] == [True] * 2
    assert lines == [
        {"event": "message", "message": "two\nlines, one of 'em [bold]"},
        {
            "event": "step",
            "step": 1,
            "of": 1,
            "reward_mean": 0.25,
            "completion_length_mean": 20.0,
            "tokens_per_second": 34387.8,
            "seconds": 0.358,
        },
    ]


def test_a_log_in_json_has_the_plan_evaluations_and_alarms_as_fields(capsys):
    shown = RunDisplay(open_console(log_format="json"), name="r", total_steps=9, done=0, clock=Clock())
    shown.plan({"prompts_per_step": 2, "steps": 9})
    shown.evaluation(evaluation(0, 0.243), "accuracy 24.3 %")
    for number, alarms in enumerate((["no_signal"], ["no_signal"], []), start=1):
        shown.step(record(number, alarms=alarms))
    logged = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    plan, measured, begins, ends = (line for line in logged if line["event"] != "step")
    assert (plan["event"], plan["done"], plan["of"], plan["prompts_per_step"]) == ("plan", 0, 9, 2)
    assert measured == {**measured, "event": "evaluation", "message": "accuracy 24.3 %", **evaluation(0, 0.243)}
    assert [(one["event"], one["alarm"], one["step"], one["holds"]) for one in (begins, ends)] == [
        ("alarm", "no_signal", 1, True),
        ("alarm", "no_signal", 3, False),
    ]


@pytest.mark.parametrize("width", [1, 2, 8, 15, 19, 20, 21, 40])
def test_a_screen_of_any_size_fits_into_it(width):
    for height in (1, 2, 5, 24):
        shown = at_step_37(Clock(), width=width, height=height)
        frame = screen(shown.progress, width=width, height=height, memory=None, ascii_only=False)
        lines = frame.plain.splitlines()
        assert max(map(len, lines), default=0) <= width
        assert len(lines) <= max(1, height - 1)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_a_stream_of_any_encoding_takes_every_sentence(encoding, monkeypatch):
    stream = TextIOWrapper(BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    for log_format in (None, "text", "json"):
        RunDisplay(open_console(log_format=log_format), name="r", total_steps=1, done=0).say("x → ▁▂█ ± ü 数 …")
    stream.flush()
    written = stream.buffer.getvalue().decode(encoding)
    *texts, logged = written.splitlines()
    assert len(texts) == 2
    assert all(("->" in text) != (encoding == "utf-8") for text in texts)
    assert json.loads(logged)["message"] == "x → ▁▂█ ± ü 数 …"


def test_a_quiet_console_prints_nothing(capsys):
    shown = RunDisplay(open_console(quiet=True), name="runs/demo", total_steps=1, done=0, clock=Clock())
    with shown:
        shown.say("something happened")
        shown.step(record(1))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_a_sentence_is_broken_between_words_and_never_within_a_command(width):
    sentence = "report  runs/a-very-long-name/report.html   next: `paceline rollouts runs/a-very-long-name` shows it"
    lines = broken(sentence, width)
    assert " ".join(lines).split() == sentence.split()
    assert sum("`paceline rollouts runs/a-very-long-name`" in line for line in lines) == 1
    assert all(len(line) <= width or " " not in line.replace("`paceline rollouts runs", "") for line in lines)


@pytest.mark.parametrize(("before", "after", "rows"), [(80, 40, 2 + 1 + 1), (80, 79, 2 + 1 + 1), (80, 120, 3)])
def test_a_frame_is_erased_by_the_rows_that_it_takes_at_the_width_of_now(before, after, rows):
    console = Console(file=StringIO(), force_terminal=True, width=before, height=24, legacy_windows=False)
    live = FittedLive(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    with live:
        live.update(Text("\n".join(["x" * 80, "y" * 39, ""])), refresh=True)
        console.width = after
        shown = console.file.getvalue()
        live.update(Text("z"), refresh=True)
        erased = console.file.getvalue().removeprefix(shown)
    assert erased.partition("z")[0].count("\x1b[2K") == rows


def test_a_measurement_without_a_terminal_says_every_ten_seconds_how_far_it_is():
    clock, said = Clock(), StringIO()
    with MeasurementDisplay(Console(file=said, width=200), name="model", longest=10, clock=clock) as shown:
        clock.now += 20
        shown.phase("reward", 0, 1)  # a trial on made-up completions
        shown.begin("a:test")
        shown.say("notice")
        clock.now = 200
        shown.phase("generate", 0, 4)
        clock.now += 9
        shown.phase("generate", 0, 4, tokens=9)
        clock.now += 1
        shown.phase("generate", 0, 4, tokens=10)
    # 10 of at most 40 tokens in 10 s
    assert said.getvalue().splitlines() == [
        "notice",
        "a:test: generate 0 of 4",
        "a:test: generate 0 of 4, 1 tokens/s, at most 30 s to go",
    ]


def test_a_measurement_on_a_terminal_has_three_lines_that_do_not_stay():
    clock, said = Clock(), StringIO()
    console = Console(file=said, force_terminal=True, width=80, height=24, legacy_windows=False)
    with MeasurementDisplay(console, name="model", longest=10, clock=clock) as shown:
        shown.begin("a:test")
        shown.phase("generate", 0, 4)
        clock.now += 10
        shown.phase("generate", 1, 4, tokens=20)
        lines = shown.frame().plain.splitlines()
    assert (lines[0].startswith("model "), lines[0].endswith("a:test, 10 s")) == (True, True)
    assert lines[1].endswith("1 of 4, 2 tokens/s, 10 s to go")  # 20 of at most 40 tokens
    assert lines[2].split()[0::2] == ["reward", "-"]
    assert said.getvalue().endswith("\x1b[2K")  # erased


def test_what_is_printed_beside_bars_on_standard_error_stays_on_standard_output(capsys):
    console = Console(stderr=True, force_terminal=True, width=80, height=24, legacy_windows=False)
    with MeasurementDisplay(console, name="model", longest=10) as shown:
        shown.begin("a:test")
        print("{}")
    assert capsys.readouterr().out == "{}\n"
