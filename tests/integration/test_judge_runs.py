"""Runs that are rewarded by a judge on this machine: resumed after a kill nothing is asked twice, and no file has the
key."""

import json
import os
import shutil
from pathlib import Path

from paceline.checkpoints.run_directory import RunDir
from paceline.cli.main import main
from tests.chaos.sabotage import Trap, lay
from tests.support.forked import forked
from tests.support.scripted_judge import Body, ScriptedJudge, score, texts

KEY = "sk-canary-7d793037a0760186"
SHORT = (
    "--max-steps 2 --prompts-per-step 4 --num-generations 4 --dataset-size 32 --eval-size 4 --warmup-steps 1 "
    "--save-steps 1"
)


def command(cache: Path, trap: Trap | None, words: list[str]) -> None:
    os.environ |= {"XDG_CACHE_HOME": str(cache), "JUDGE_KEY": KEY}
    if trap is not None:
        lay(trap)
    raise SystemExit(main(words))


def by_digits(number: int, body: Body) -> Body:
    """A judge that counts the digits of a completion."""
    return score(min(10, sum(character.isdigit() for character in texts(body)["completion"])))


def weights(run: Path) -> bytes:
    return (run / "final" / "model.safetensors").read_bytes()


def holds_key(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


def test_a_run_killed_while_it_is_judged_resumes_without_asking_again(tmp_path):
    with ScriptedJudge(by_digits) as service:
        judge = f"judge:{service.url}(model=tiny, key_env=JUDGE_KEY, concurrency=1)"
        given = [*SHORT.split(), "--reward-funcs", judge, "--eval-reward-func", judge]
        whole, cut = tmp_path / "whole", tmp_path / "cut"
        cache = tmp_path / "cache"
        done = forked(command, cache, None, ["train", "--output-dir", str(whole), *given])
        assert done.returncode == 0, done.stderr
        asked = service.asked
        assert set(asked.values()) == {1}
        assert set(service.keys) == {f"Bearer {KEY}"}
        assert f"{judge}: at most 16 calls a step, without retries" in done.stdout
        steps = [step["rewards"][judge] for step in RunDir(whole).metrics()]
        assert [step["judge"]["calls"] + step["judge"]["cached"] for step in steps] == [
            step["judge"]["verdicts"] for step in steps
        ]
        evals = [record["judge"]["calls"] for record in RunDir(whole).evals()]
        assert evals[0] > 0
        assert sum(step["judge"]["calls"] for step in steps) + sum(evals) == len(asked)
        assert [step["failures"] for step in steps] == [0, 0]

        # killed in the middle of the second step's calls, before the call is made
        before = evals[0] + steps[0]["judge"]["calls"]
        last = before + max(2, steps[1]["judge"]["calls"] // 2)
        trap = Trap(function="paceline.rewards.judges.client:JudgeClient._text_of", deed="SIGKILL", first=last)
        service.bodies.clear()
        shutil.rmtree(cache / "paceline" / "judges")
        assert forked(command, cache, trap, ["train", "--output-dir", str(cut), *given]).returncode == -9
        assert len(service.bodies) == last - 1
        resumed = forked(command, cache, None, ["train", "--resume", str(cut)])
        assert resumed.returncode == 0, resumed.stderr
        assert service.asked == asked
    assert weights(cut) == weights(whole)
    second = list(RunDir(cut).metrics())[1]["rewards"][judge]["judge"]
    assert second["cached"] == last - 1 - before
    assert [holds_key(folder) for folder in (whole, cut, cache)] == [[], [], []]
    notes = [json.loads(line)["notes"] for line in (cut / "rollouts" / "step-000002.jsonl").read_text().splitlines()]
    assert all(one[judge].endswith(" of 10: so it is") for one in notes)


def test_a_judge_that_breaks_down_stops_the_run_and_is_no_zero(tmp_path):
    with ScriptedJudge(lambda number, body: (500, b"out of order")) as service:
        judge = f"judge:{service.url}(model=tiny, retries=0)"
        run = tmp_path / "run"
        done = forked(
            command,
            tmp_path / "cache",
            None,
            ["train", "--output-dir", str(run), *SHORT.split(), "--reward-funcs", judge],
        )
    assert done.returncode == 1
    assert "failed on 16 of 16 completions (100.0%), above --max-reward-failure-rate 0.05" in done.stderr
    assert "server: status 500: out of order" in done.stderr
