"""Lines of a shell as people put them together: loops, pipes, archives, jobs that a scheduler stops."""

import json

import pytest

from tests.outside.desk import Desk

TINY = "--dataset-size 8 --eval-size 4 --prompts-per-step 2 --num-generations 2 --max-completion-length 8"


@pytest.mark.long
def test_a_pipe_that_is_closed_early_ends_a_command_without_a_word(desk: Desk):
    done = desk.shell(
        """
        for command in "train --help" "explain" "plan"; do
          # head closes the pipe, so that the status is that of a process which SIGPIPE ended, or 0
          paceline $command 2> errors | head -1 > first || [ $? = 141 ]
          wc -l < first
          cat errors
        done
        """
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.split() == ["1", "1", "1"]


@pytest.mark.long
def test_a_shell_script_of_ms_swift_is_translated_and_what_is_printed_trains(desk: Desk):
    desk.write(
        "grpo.sh",
        r"""
        #!/bin/bash
        # as in its documentation, with the variables that its launcher reads
        export NPROC_PER_NODE=${NPROC_PER_NODE:-2}
        MODEL=embedded
        COMMON=(
          --num_generations 4
          --max_completion_length 16
        )
        swift rlhf \
          --rlhf_type grpo \
          --model $MODEL \
          --train_type full \
          --dataset 'rows.jsonl' \
          --reward_funcs accuracy format \
          --per_device_train_batch_size 4 \
          --learning_rate 1e-6 \
          --max_steps 2 \
          --system '' \
          "${COMMON[@]}" \
          --output_dir runs/swift \
          --log_completions true
        """,
    )
    rows = [{"messages": [{"role": "user", "content": f"{n} + 2 ="}], "solution": str(n + 2)} for n in range(16)]
    desk.write("rows.jsonl", "\n".join(map(json.dumps, rows)))

    done = desk.shell("paceline translate grpo.sh > train.sh; bash train.sh")

    assert done.returncode == 0, done.stdout
    translated = (desk.path / "train.sh").read_text(encoding="utf-8")
    assert "torchrun --nproc-per-node 2 -m paceline train" in translated
    assert "--learning-rate 1e-06" in translated
    assert "2 ranks sample and train together" in done.stdout
    rollouts = sorted((desk.path / "runs/swift/rollouts").glob("step-*.jsonl"))
    assert [len(one.read_text(encoding="utf-8").splitlines()) for one in rollouts] == [8, 8]


@pytest.mark.long
def test_a_loop_over_learning_rates_is_compared_in_a_table_and_on_a_page(desk: Desk):
    done = desk.shell(
        f"""
        for rate in 0 1e-4; do
          paceline train {TINY} --max-steps 2 --learning-rate $rate --output-dir "runs/rate $rate" > "$rate.log"
        done
        paceline report runs/* --page compared.html
        """
    )
    assert done.returncode == 0, done.stdout
    assert "learning_rate" in done.stdout
    page = (desk.path / "compared.html").read_text(encoding="utf-8")
    assert "rate 1e-4" in page
    assert "<svg" in page


@pytest.mark.long
def test_a_job_that_a_scheduler_stops_goes_on_from_another_directory_and_then_has_nothing_to_do(desk: Desk):
    done = desk.shell(
        f"""
        nohup paceline train {TINY} --lr-schedule constant --warmup-steps 0 --max-steps 400 --save-steps 1 \\
          --output-dir runs/job > job.log 2>&1 &
        until [ -d runs/job/checkpoints/step-000002 ] || ! kill -0 $!; do sleep 0.1; done
        kill -TERM $!
        wait $! || echo "status $?"
        reached=$(ls runs/job/checkpoints | tail -1 | sed "s/step-0*//")
        mkdir other; cd other
        paceline train --resume ../runs/job --max-steps $((reached + 1)) | grep "going on"
        paceline train --resume ../runs/job | tail -1
        ls ../runs/job/checkpoints | tail -1
        echo $reached
        """
    )
    assert done.returncode == 0, done.stdout
    status, going_on, nothing, newest, reached = done.stdout.splitlines()
    assert status == "status 130"
    assert f"after step {reached} from ../runs/job" in going_on
    assert nothing
    assert newest == f"step-{int(reached) + 1:06d}"


@pytest.mark.long
def test_a_run_in_an_archive_is_read_where_it_is_unpacked(desk: Desk):
    done = desk.shell(
        f"""
        paceline train {TINY} --max-steps 1 --output-dir runs/mine > log
        tar -C runs -cf mine.tar mine; rm -r runs; mkdir "other place"; tar -C "other place" -xf mine.tar
        paceline report "other place/mine"
        paceline rollouts "other place/mine" --static pages
        paceline replay "other place/mine" --step 1 | head -1
        paceline eval "other place/mine" --eval-size 2 | tail -1
        paceline export "other place/mine" final | tail -1
        paceline chat --model "other place/mine" --temperature 0 --max-completion-length 4 <<< "1 + 1 =" > once
        paceline chat --model final --temperature 0 --max-completion-length 4 <<< "1 + 1 =" > again
        cmp once again
        """
    )
    assert done.returncode == 0, done.stdout
    assert "other place/mine/report.html" in done.stdout
    assert any((desk.path / "pages").rglob("*.html"))


@pytest.mark.long
def test_a_spreadsheet_with_semicolons_is_split_and_its_run_written_to_a_log(desk: Desk):
    rows = "\n".join(f"{n};{n} + 2 =;{n + 2},0" for n in range(20))
    desk.write("tasks.csv", f"id;question;answer\n{rows}\n")
    done = desk.shell(
        f"""
        paceline train {TINY} --dataset tasks.csv --eval-share 0.2 --max-steps 1 --system-prompt '' \
          --output-dir out > log 2>&1
        grep -c '%|' log || true
        paceline report out
        """
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines() == ["0", "out/report.html"]
