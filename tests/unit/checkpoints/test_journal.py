"""Committed rollouts survive kills and damage, and what is torn or damaged is named, counted and sampled again."""

import json

import pytest

from paceline.checkpoints.run_directory import RunDir
from paceline.checkpoints.run_files import json_line

ROLLOUTS = [{"sample": 0, "text": "a\ud83d"}, {"sample": 1}]
LINES = [*map(json_line, ROLLOUTS)]


@pytest.fixture
def run(tmp_path):
    with RunDir.create(tmp_path / "run", "model: embedded\n") as made:
        yield made


def commit(run, *steps):
    for step in steps:
        run.commit_rollouts(step, LINES, {"position": 10 * step})


def again(run, step):
    """What a run that goes on after `step` finds, and what it was told."""
    run.close()
    with RunDir.open(run.path) as opened:
        committed = opened.truncate_after(step)
        return [entry["step"] for entry in committed.entries], " ".join(committed.faults), opened


def test_committed_rollouts_stay_when_metrics_and_evaluations_after_the_checkpoint_go(run):
    commit(run, 1, 2, 3)
    for step in (1, 2):
        run.append_metrics({"clock": {}, "step": step})
    run.write_rollouts(4, ROLLOUTS)  # its line was not written any more
    assert again(run, 1)[:2] == ([2, 3], "")
    assert [record["step"] for record in run.metrics()] == [1]
    assert run.rollout_steps() == [1, 2, 3]
    assert run.rollouts(3) == ROLLOUTS
    assert {step: entry["position"] for step, entry in run.journal().items()} == {1: 10, 2: 20, 3: 30}


def test_a_run_without_a_checkpoint_uses_what_it_committed_from_its_first_step_on(run):
    commit(run, 1, 2)
    assert again(run, -1)[0] == [1, 2]


def test_a_torn_last_line_is_cut_and_counted_and_its_step_is_not_committed(run):
    commit(run, 1, 2)
    journal = run.path / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-9])
    steps, faults, opened = again(run, 0)
    assert (steps, faults, opened.torn_lines) == ([1], "", 1)
    assert run.rollout_steps() == [1]


@pytest.mark.parametrize("step", [2, 3])
def test_a_damaged_line_is_named_and_what_hangs_on_it_is_made_again(run, step):
    commit(run, 1, 2, 3, 4)
    journal = run.path / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[step - 1] = lines[step - 1].replace(b'"position":', b'"positiom":')
    journal.write_bytes(b"".join(lines))
    steps, faults, _ = again(run, 1)
    assert steps == list(range(2, step))
    assert f"journal.jsonl, line {step}, is damaged" in faults
    assert f"the rollouts of steps {step} to 4 are made again" in faults
    assert run.rollout_steps() == [1, *steps]
    commit(run, step)
    assert again(run, 1)[:2] == ([*steps, step], "")


@pytest.mark.parametrize("harm", ["a changed byte", "cut short", "gone"])
def test_a_damaged_file_of_rollouts_is_named_and_made_again_with_all_after_it(run, harm):
    commit(run, 1, 2, 3)
    file = run.path / "rollouts" / "step-000002.jsonl"
    content = file.read_bytes()
    if harm == "gone":
        file.unlink()
    else:
        file.write_bytes(content.replace(b'"sample":1', b'"sample":7') if harm == "a changed byte" else content[:-1])
    steps, faults, _ = again(run, 0)
    assert steps == [1]
    assert "the rollouts of step 2 are not as" in faults
    assert run.rollout_steps() == [1]


def test_what_was_sampled_under_other_options_can_be_discarded(run):
    commit(run, 1, 2, 3)
    first = (run.path / "journal.jsonl").read_bytes().splitlines(keepends=True)[0]
    run.discard_rollouts_after(1)
    run.discard_rollouts_after(1)
    assert (run.path / "journal.jsonl").read_bytes() == first
    assert run.rollout_steps() == [1]


def test_every_line_of_the_journal_is_plain_json_too(run):
    commit(run, 1)
    entry = json.loads((run.path / "journal.jsonl").read_bytes())
    assert entry["file"] == "rollouts/step-000001.jsonl"
    assert entry["bytes"] == (run.path / entry["file"]).stat().st_size


def test_a_kept_batch_stays_with_its_reason_whatever_the_run_does_then(run):
    commit(run, 12)
    file = run.keep_batch(12, LINES, reason="the gradient is not finite")
    run.discard_rollouts_after(0)
    assert file == run.path / "kept" / "step-000012.jsonl"
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]
    assert lines == [{**rollout, "kept": "the gradient is not finite"} for rollout in ROLLOUTS]


def test_what_a_replay_said_of_a_steps_tokens_goes_with_its_rollouts(run):
    for step in (1, 2):
        run.write_tokens(step, {"step": step}, [{"entropy": {"float32": ""}}])
    run.discard_rollouts_after(1)
    assert [file.name for file in (run.path / "tokens").iterdir()] == ["step-000001.jsonl"]
