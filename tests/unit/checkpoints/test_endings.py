"""What an attempt writes of its end, and how a reader tells a killed run from one that goes on."""

import json
import subprocess
import sys
from dataclasses import asdict

import pytest

from paceline.checkpoints.existing_runs import (
    ENDED,
    ending_of,
    is_being_written,
    last_writer,
    read_ending,
    write_ending,
)
from paceline.checkpoints.run_directory import RunDir
from paceline.errors import RewardError, StorageError, TrainingError

HOLD = """
import sys
from pathlib import Path
from paceline.checkpoints.existing_runs import WriteLock
lock = WriteLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def ended(error=None, **changes):
    return ending_of(error, **{"step": 3, "resume": "`paceline train --resume runs/a`"} | changes)


@pytest.mark.parametrize(
    ("error", "signals", "status", "sentence"),
    [
        (None, {}, 0, "finished after step 3"),
        (None, {"interrupt": "SIGTERM", "signal": "SIGTERM"}, 130, "SIGTERM after step 3, with a checkpoint"),
        (KeyboardInterrupt(), {"interrupt": "SIGINT"}, 130, "SIGINT after step 3, with a checkpoint"),
        (KeyboardInterrupt(), {}, 130, "interrupted, before the step in hand was done"),
        (KeyboardInterrupt("too slow", "no checkpoint"), {"signal": "SIGTERM"}, 130, "too slow; no checkpoint"),
        (SystemExit(143), {"signal": "SIGTERM"}, 130, "SIGTERM, before the step in hand was done"),
        (SystemExit(4), {}, 4, "the program called sys.exit(4)"),
        (TrainingError("the loss\nis nan"), {}, 1, "the loss is nan"),
        (StorageError("disk full"), {"interrupt": "SIGINT"}, 1, "disk full"),
        (RewardError("row 3 is wrong"), {}, 2, "row 3 is wrong"),
        (ZeroDivisionError("division by zero"), {}, 1, "ZeroDivisionError: division by zero"),
    ],
)
def test_every_way_to_end_has_a_status_and_a_sentence(error, signals, status, sentence):
    ending = ended(error, **signals)
    assert (ending.status, ending.sentence, ending.step) == (status, sentence, 3)
    assert ending.is_finished is (status == 0)
    assert ending.resume == (None if status == 0 else "`paceline train --resume runs/a`")


def test_a_traceback_is_kept_where_the_error_was_not_expected():
    with pytest.raises(ValueError, match="too many") as raised:
        raise ValueError("too many values")
    assert "test_endings.py" in (ended(raised.value).traceback or "")
    trace = "Traceback (most recent call last):\n  File reward.py"
    assert ended(RewardError(f"it raised\n{trace}")).traceback == trace
    assert ended(RewardError("it raised")).traceback is None


def test_the_end_is_read_as_it_was_written_and_a_damaged_one_not_at_all(tmp_path):
    assert read_ending(tmp_path) is None
    ending = ended(TrainingError("the loss is nan"))
    write_ending(tmp_path, ending)
    assert read_ending(tmp_path) == ending
    late = json.dumps({**asdict(ending), "time": 1e30})
    for damage in (late, '{"time": 1', "[]", '{"time": 1.0, "status": "1", "step": 0, "sentence": ""}'):
        (tmp_path / ENDED).write_text(damage)
        assert read_ending(tmp_path) is None


def test_a_resumed_run_forgets_how_it_had_ended(tmp_path):
    with RunDir.create(tmp_path / "run", "model: embedded\n") as run:
        write_ending(run.path, ended(TrainingError("the loss is nan")))
    with RunDir.open(tmp_path / "run") as run:
        assert read_ending(run.path) is not None  # until it is known that it can go on
        run.truncate_after(-1)
        assert read_ending(run.path) is None


def test_a_reader_sees_whether_the_writer_lives_and_leaves_its_lock_alone(tmp_path):
    with RunDir.create(tmp_path / "run", "model: embedded\n") as run:
        assert is_being_written(run.path)
    assert not is_being_written(run.path)
    words = [sys.executable, "-c", HOLD, str(run.path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "held\n"
        assert is_being_written(run.path)
        assert is_being_written(run.path)
        writer.kill()
        writer.wait()
    assert not is_being_written(run.path)
    assert (last_writer(run.path) or "").startswith(f"process {writer.pid} on host ")
    assert last_writer(tmp_path) is None
