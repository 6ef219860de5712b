"""A run directory reads back exactly what was written, has one writer, and is never replaced by mistake."""

import json
import os
import resource
import subprocess
import sys

import pytest

from paceline.checkpoints.existing_runs import refuse_no_run
from paceline.checkpoints.finding import run_and_checkpoint
from paceline.checkpoints.run_directory import RunDir
from paceline.errors import CheckpointError, ConfigError, StorageError

CONFIG = "# paceline 0\nmodel: embedded\n"


@pytest.fixture
def run(tmp_path):
    with RunDir.create(tmp_path / "run", CONFIG) as made:
        yield made


def test_what_is_written_is_read_back_exactly_with_keys_in_their_order(run):
    record = {"clock": {}, "step": 1, "loss": 0.1 + 0.2, "rewards": {"b": 1e-320, "a": None}, "text": "é\u2028\n<"}
    run.append_metrics(record)
    assert run.metrics() == [record]
    assert list(run.metrics()[0]) == list(record)
    assert (run.path / "metrics.jsonl").read_bytes().count(b"\n") == 1
    assert (run.path / "config.yaml").read_text() == CONFIG


def test_a_lone_surrogate_from_a_model_survives_in_a_valid_utf8_file(run):
    run.write_rollouts(1, [{"completion": "a\ud83d"}])
    (run.path / "rollouts" / "step-000001.jsonl").read_bytes().decode("utf-8")
    assert run.rollouts(1) == [{"completion": "a\ud83d"}]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_is_refused_by_key_and_nothing_is_written(run, value):
    with pytest.raises(ValueError, match=r"rewards\.accuracy\[1\] must be a finite number"):
        run.append_metrics({"clock": {}, "step": 1, "rewards": {"accuracy": [0.0, value]}})
    assert run.metrics() == []


def test_rollouts_and_held_out_completions_have_one_file_per_step_and_set(run):
    run.write_rollouts(2, [{"sample": 0}, {"sample": 1}])
    run.write_rollouts(10, [{"sample": 2}])
    run.write_eval_completions("arithmetic:test", 0, [{"correct": True}])
    run.write_eval_completions("data/a.jsonl:test", 0, [])
    run.write_eval_completions("data-a.jsonl:test", 0, [])
    assert run.rollout_steps() == [2, 10]
    assert [record["sample"] for record in run.rollouts(2)] == [0, 1]
    assert run.eval_completions("arithmetic:test", 0) == [{"correct": True}]
    assert sorted(file.name for file in (run.path / "evals").iterdir()) == [
        "arithmetic%3Atest-step-000000.jsonl",
        "data%2Fa.jsonl%3Atest-step-000000.jsonl",
        "data-a.jsonl%3Atest-step-000000.jsonl",
    ]


def test_a_step_without_rollouts_is_refused_with_the_steps_that_have_some(run):
    run.write_rollouts(3, [])
    with pytest.raises(CheckpointError, match=r"step-000004\.jsonl does not exist: .* steps 3 to 3"):
        run.rollouts(4)
    with pytest.raises(CheckpointError, match="s was not evaluated at step 4"):
        run.eval_completions("s", 4)


def test_a_torn_last_line_is_ignored_by_readers_and_cut_off_and_counted_on_resume(run):
    run.append_metrics({"clock": {}, "step": 1})
    with (run.path / "metrics.jsonl").open("ab") as stream:
        stream.write(b'{"step": 2, "lo')
    run.close()
    assert RunDir(run.path).metrics() == [{"clock": {}, "step": 1}]
    resumed = RunDir.open(run.path)
    assert resumed.torn_lines == 1
    resumed.append_metrics({"clock": {}, "step": 2})
    assert [record["step"] for record in resumed.metrics()] == [1, 2]
    resumed.close()


@pytest.mark.parametrize("line", [b"{", b"[1]", b"\xff", b""])
def test_a_bad_line_elsewhere_names_file_and_line(run, line):
    whole = b'{"step": 0, "set": "s"}\n'
    (run.path / "evals.jsonl").write_bytes(whole + line + b"\n" + whole)
    with pytest.raises(CheckpointError, match=r"evals\.jsonl, line 2, is not a JSON object"):
        run.evals()


def test_a_resumed_run_forgets_everything_after_its_checkpoint_and_keeps_the_bytes_before(run):
    for step in (1, 2, 3):
        run.append_metrics({"clock": {}, "step": step, "loss": 0.1 * step})
        run.append_eval({"set": "s", "step": step})
        run.write_rollouts(step, [{"sample": step}])
        run.write_eval_completions("s", step, [])
    kept = (run.path / "metrics.jsonl").read_bytes().splitlines(keepends=True)[:2]
    run.write_summary({"finished": True})
    run.truncate_after(2)
    run.truncate_after(2)
    assert (run.path / "metrics.jsonl").read_bytes() == b"".join(kept)
    assert [record["step"] for record in run.evals()] == [1, 2]
    assert run.rollout_steps() == [1, 2]
    assert len(list((run.path / "evals").iterdir())) == 2
    assert not (run.path / "summary.json").exists()


def test_a_half_written_file_of_a_killed_process_is_never_taken_for_rollouts(run):
    (run.path / "rollouts" / ".step-000001.jsonl.new").write_text('{"sample"')
    assert run.rollout_steps() == []


@pytest.mark.parametrize("work", ["metrics", "rollouts", "checkpoint", "summary"])
def test_a_directory_that_holds_a_run_is_refused_with_both_ways_on(run, work):
    if work == "metrics":
        run.append_metrics({"clock": {}, "step": 1})
    elif work == "rollouts":
        run.write_rollouts(1, [])
    elif work == "checkpoint":
        (run.path / "checkpoints" / "step-000001").mkdir(parents=True)
    else:
        run.write_summary({})
    with pytest.raises(ConfigError, match=r"already holds a run; continue it with --resume .*, or give another"):
        RunDir.create(run.path, CONFIG)


def test_a_run_without_a_finished_step_is_replaced_with_all_that_it_wrote(run):
    run.append_eval({"set": "a", "step": 0})
    run.write_eval_completions("a", 0, [{"correct": True}])
    (run.path / "metrics.jsonl").write_text('{"step":1,"lo')
    run.close()
    again = RunDir.create(run.path, "# paceline 0\nmodel: other\n")
    assert (again.replaced, run.replaced) == (True, False)
    assert (run.path / "config.yaml").read_text() == "# paceline 0\nmodel: other\n"
    again.append_metrics({"clock": {}, "step": 1})
    assert (again.metrics(), again.evals(), list((run.path / "evals").iterdir())) == (
        [{"clock": {}, "step": 1}],
        [],
        [],
    )


def test_a_run_that_another_process_makes_is_never_replaced(run):
    script = (
        "import sys, pathlib; from paceline.checkpoints.run_directory import RunDir\n"
        "RunDir.create(pathlib.Path(sys.argv[1]), '')"
    )
    other = subprocess.run([sys.executable, "-c", script, str(run.path)], capture_output=True, text=True, check=False)
    assert "is in use by process" in other.stderr
    assert (run.path / "config.yaml").read_text() == CONFIG


def test_an_empty_directory_or_one_with_other_files_may_become_a_run(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "evals").mkdir()  # and this is what a process leaves that is killed before it takes the lock
    RunDir.create(tmp_path, CONFIG)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", "# my notes\nmodel: embedded\n"),
        ("config.yaml", CONFIG),  # a copy of a run's, which somebody may have worked on
        ("evals.jsonl", '{"mine": 1}\n'),
        ("evals/step-000001.jsonl", "{}\n"),
        ("final/model.bin", "mine"),
        (".lock", "held by something else"),
    ],
)
def test_files_that_no_run_wrote_are_named_and_stay_as_they_are(tmp_path, name, content):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=rf"{tmp_path} holds {name.split('/')[0]}, which a run would overwrite and"):
        RunDir.create(tmp_path, CONFIG)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [tmp_path / name]
    assert (tmp_path / name).read_text() == content


def test_a_config_that_took_the_place_of_an_unfinished_runs_own_is_not_replaced(run):
    run.close()
    (run.path / "config.yaml").write_text("model: mine\n")
    with pytest.raises(ConfigError, match=r"holds config\.yaml, \.lock, which"):
        RunDir.create(run.path, CONFIG)
    assert (run.path / "config.yaml").read_text() == "model: mine\n"


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        RunDir.create(tmp_path / "file", CONFIG)
    with pytest.raises(ConfigError, match=r"which is a file"):
        RunDir.create(tmp_path / "file" / "run", CONFIG)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_place_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match=r"cannot be written \(Permission denied\)"):
        RunDir.create(tmp_path / "run", CONFIG)


def test_only_a_run_directory_can_be_resumed(tmp_path):
    with pytest.raises(CheckpointError, match=r"is not a run directory \(it has no config\.yaml\)"):
        RunDir.open(tmp_path)
    (tmp_path / "config.yaml").write_text("model: mine\n")
    with pytest.raises(CheckpointError, match=r"is not a run directory \(Paceline did not write its config\.yaml\)"):
        RunDir.open(tmp_path)


@pytest.mark.parametrize("head", ["# paceline 0.1.0\n", "# after step 2: --beta is 0.1 and was 0.0\n# paceline 0.2\n"])
def test_a_copy_of_a_run_without_its_lock_can_be_resumed(tmp_path, head):
    (tmp_path / "config.yaml").write_text(head + "model: embedded\n")
    RunDir.open(tmp_path).close()


def test_a_run_whose_config_has_lost_its_head_can_be_resumed(run):
    run.close()
    (run.path / "config.yaml").write_text("model: embedded\n")
    RunDir.open(run.path).close()


def test_a_full_disk_is_one_sentence_and_leaves_no_half_line(run):
    run.append_metrics({"clock": {}, "step": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))  # room for the first bytes of the second line only
    try:
        with pytest.raises(StorageError, match=r"metrics\.jsonl cannot be written \(.*\); make room"):
            run.append_metrics({"clock": {}, "step": 2, "text": "x" * 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (run.path / "metrics.jsonl").read_text() == '{"clock":{},"step":1}\n'


@pytest.mark.long
def test_a_second_writer_here_or_in_another_process_is_kept_out_until_the_first_ends(run):
    script = (
        "import sys, pathlib; from paceline.checkpoints.run_directory import RunDir\n"
        "from paceline.errors import CheckpointError\n"
        "try: RunDir.open(pathlib.Path(sys.argv[1]))\n"
        "except CheckpointError as error: print(error)\n"
        "else: print('opened')"
    )

    def other_process():
        command = [sys.executable, "-c", script, str(run.path)]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    in_use = f"is in use by process {os.getpid()} on host"
    refuse_no_run(run.path, "--resume")  # the mark is read in this process too, which must not let go of it
    assert in_use in other_process()
    with pytest.raises(CheckpointError, match=in_use):
        RunDir.open(run.path)
    assert in_use in other_process()  # the one that was refused here has not given the lock away
    run.close()
    with RunDir.open(run.path):
        run.close()
        assert in_use in other_process()
    assert other_process() == "opened\n"


def test_one_line_is_one_json_object(run):
    run.write_rollouts(1, [{"text": "two\nlines"}, {}])
    lines = (run.path / "rollouts" / "step-000001.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"text": "two\nlines"}, {}]


def test_a_run_in_a_folder_called_checkpoints_is_no_checkpoint(tmp_path):
    run = tmp_path / "checkpoints" / "mine"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(CONFIG)
    assert run_and_checkpoint(run) == (run, None)
    checkpoint = run / "checkpoints" / "step-000003"
    assert run_and_checkpoint(checkpoint) == (run, checkpoint)
