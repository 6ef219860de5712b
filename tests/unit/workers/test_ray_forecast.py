"""Whether a cluster pays: from a run's files to a table and an advice."""

import re
from pathlib import Path

import pytest

from paceline.checkpoints.run_directory import RunDir
from paceline.cli.forecast import counts_to_try, most_producers
from paceline.cli.main import main
from paceline.config.building import build_config
from paceline.config.flat_yaml import to_yaml
from paceline.errors import ConfigError
from paceline.workers.ray.forecast import make_forecast
from paceline.workers.ray.timings import LEAST_STEPS, MeasuredRun, MeasuredStep, read_measured

OPTIONS = {"model": "org/some-model", "dataset": "rows.jsonl", "prompts_per_step": 4, "num_generations": 2}
ROWS = '{"question": "1+1?", "answer": "2"}\n' * 8
LENGTHS = ([[10, 10]] * 4, [[15, 5]] * 4)
"""Of steps in turn: as many tokens in each, which take 2 s, whatever the longest completion."""


def measured(
    *, update: float, tokens: tuple[int, int] = (150, 150), hand_over: float = 0.0, is_cluster: bool = False
) -> MeasuredRun:
    """Two steps in turn: sampling takes 2 s, and updates `update` seconds per 150 tokens."""
    return MeasuredRun(
        steps=tuple(
            MeasuredStep(
                generate=2.0,
                reward=0.0,
                hand_over=hand_over,
                update=update * number / 150,
                record=0.0,
                lengths=lengths,
                tokens_forwarded=number,
            )
            for lengths, number in zip(LENGTHS, tokens, strict=True)
        ),
        is_cluster=is_cluster,
        num_producers=1,
        num_consumers=1,
        slots=16,
    )


def write_run(place: Path, *, steps: int = 8, **options: object) -> Path:
    """Steps of 2 s of sampling and 1 s of update, after a first one that took ten times as long."""
    with RunDir.create(place, to_yaml(build_config({**OPTIONS, **options}))) as run:
        for step in range(1, steps + 1):
            slow = 10.0 if step == 1 else 1.0
            clock = {"generate": 1.9 * slow, "reward": 0.1, "update": 1.0, "other": 0.0, "total": 3.0}
            clock |= {"produce": 2.0 * slow, "wait": 2.0 * slow}
            run.append_metrics({"step": step, "tokens_forwarded": 150, "clock": clock})
            groups = enumerate(LENGTHS[step % 2])
            rows = [(task, sample, length) for task, group in groups for sample, length in enumerate(group)]
            run.write_rollouts(
                step, [{"task_id": f"a:{t}", "sample": s, "completion_tokens": length} for t, s, length in rows]
            )
    return place


def test_the_table_by_hand():
    forecast = make_forecast(measured(update=1.0), producers=[1, 2, 4], consumers=[1])
    assert forecast.one_process == pytest.approx(3.0)
    assert [forecast.at(1, 1, staleness).pace.seconds for staleness in (0, 1, 2)] == pytest.approx([3.0, 2.0, 2.0])
    # two producers sample half the tokens each, in half the time
    assert [forecast.at(2, 1, staleness).pace.seconds for staleness in (0, 1)] == pytest.approx([2.0, 1.0])
    assert [forecast.at(4, 1, staleness).pace.seconds for staleness in (0, 1)] == pytest.approx([1.5, 1.0])


def test_the_advice_is_the_fewest_producers_and_the_least_staleness_that_nothing_beats_by_much():
    advice = make_forecast(measured(update=1.0), producers=[1, 2, 4], consumers=[1]).advice
    assert (advice.num_producers, advice.max_staleness) == (2, 1)
    advice = make_forecast(measured(update=1.98), producers=[1, 2, 4], consumers=[1]).advice
    assert (advice.num_producers, advice.max_staleness) == (1, 1)


def test_a_cluster_that_would_cost_more_than_it_gains_is_advised_against():
    # handing over takes longer than there is to gain
    given = measured(update=0.05, hand_over=0.1, is_cluster=True)
    assert make_forecast(given, producers=[1], consumers=[1]).advice is None


def test_consumers_share_what_an_update_takes_per_token_and_not_what_it_takes_anyway():
    by_tokens = make_forecast(measured(update=3.0, tokens=(100, 200)), producers=[1], consumers=[1, 2])
    assert by_tokens.at(1, 1, 0).pace.seconds == pytest.approx(2.0 + 3.0)
    assert by_tokens.at(1, 2, 0).pace.seconds == pytest.approx(2.0 + 1.5)
    assert (by_tokens.advice.num_consumers, by_tokens.advice.max_staleness) == (2, 1)
    # steps of equally many tokens do not tell the two apart
    alike = make_forecast(measured(update=3.0), producers=[1], consumers=[1, 2])
    assert alike.at(1, 2, 0).pace.seconds == pytest.approx(2.0 + 3.0)
    assert alike.advice.num_consumers == 1


def test_a_runs_files_say_what_its_phases_took_without_the_first_step(tmp_path):
    found = read_measured(RunDir(write_run(tmp_path / "run")), build_config(OPTIONS))
    assert len(found.steps) == 7
    assert {(one.generate, one.reward, one.update) for one in found.steps} == {(1.9, 0.1, 1.0)}
    assert [list(map(list, one.lengths)) for one in found.steps[:2]] == [LENGTHS[0], LENGTHS[1]]


def test_a_run_of_too_few_steps_is_refused(tmp_path):
    run = RunDir(write_run(tmp_path / "run", steps=LEAST_STEPS))
    with pytest.raises(ConfigError, match=r"--timings \S+ must have at least 6 steps, got 5; let it run longer"):
        read_measured(run, build_config(OPTIONS))


def test_a_run_whose_steps_lack_what_is_needed_is_refused(tmp_path):
    with RunDir.create(tmp_path / "run", to_yaml(build_config(OPTIONS))) as run:
        for step in range(1, 9):
            run.append_metrics({"step": step, "clock": {"total": 1.0}})
        with pytest.raises(ConfigError, match=r"`produce` and `wait` in the clock of every step, which step 2 lacks"):
            read_measured(run, build_config(OPTIONS))


def test_producers_are_tried_in_doublings_up_to_what_is_asked_for_and_has_prompts():
    assert counts_to_try(8, 1) == [1, 2, 4, 8]
    assert counts_to_try(6, 3) == [1, 2, 3, 4, 6]
    asked = {"cluster": True, "num_producers": 3, "ray_address": "auto"}
    assert most_producers(build_config({**OPTIONS, **asked})) == 3
    assert most_producers(build_config({**OPTIONS, **asked, "num_producers": 9})) == 4


@pytest.fixture
def plan(tmp_path, capsys):
    """`paceline plan` for the run's own work, further options behind it: exit status, output, errors."""
    (tmp_path / "rows.jsonl").write_text(ROWS)
    work = {**OPTIONS, "dataset": str(tmp_path / "rows.jsonl")}

    def run(*words: object) -> tuple[int, str, str]:
        flags = [str(word) for name, value in work.items() for word in (f"--{name}", value)]
        status = main(["plan", *flags, *map(str, words)])
        return status, *capsys.readouterr()

    return run


def test_plan_prints_every_split_and_takes_one(tmp_path, plan):
    run = write_run(tmp_path / "run", dataset=str(tmp_path / "rows.jsonl"))
    status, out, _ = plan("--cluster", "--num-producers", 4, "--ray-address", "auto", "--timings", run)
    assert status == 0
    assert "Measured over 7 steps of one process, seconds per step: sampling 1.900, rewards 0.100" in out
    assert "Completions have 10 tokens on average, 95 % have at most 15, the longest 15." in out
    assert re.search(r"\n +1 +1 +1 +2\.000 +4\.0 +1\.50x +0% +50%\n", out)
    assert re.search(r"\n +2 +1 +1 +~ +1\.000 +8\.0 +3\.00x +0% +0%\n", out)
    assert (
        "took 2.0x the update. Take --cluster --num-producers 2 --max-staleness 1: 1.000 s a step, 3.00x as fast as "
        "one process; staler weights gain 0% and more processes gain 0%."
    ) in out
    assert "is measured by a run with --cluster" in out


def test_plan_of_a_cluster_without_times_says_how_to_get_them(plan):
    status, out, _ = plan("--cluster")
    assert status == 0
    assert "times that were not measured yet: run 20 steps (--max-steps 20)" in out


def test_times_of_other_work_are_refused_with_the_option_that_differs(tmp_path, plan):
    run = write_run(tmp_path / "run", dataset=str(tmp_path / "rows.jsonl"), num_generations=4)
    status, _, errors = plan("--timings", run)
    assert status == 2
    assert "has --num-generations 4 where the plan has 2; plan with --config" in errors
