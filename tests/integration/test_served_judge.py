"""A judge whose model a run serves itself: its verdicts are those of the model's files, and nothing of it is left
behind, however the run ends."""

import os
import select
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.checkpoints.run_directory import RunDir
from paceline.cli.main import main
from paceline.errors import RewardError
from paceline.rewards.function import RewardContext
from paceline.rewards.judges.own_service import end_services
from paceline.rewards.judges.settings import spending_metrics
from paceline.rewards.resolving import resolve
from tests.chaos.sabotage import Trap
from tests.integration.test_judge_runs import SHORT, command
from tests.support.forked import forked
from tests.support.tiny import VOCAB_SIZE, tiny_model, tiny_tokenizer

VERDICT = '{"reason": "so it is", "score": 7}'
END = 258
LONGEST_SECONDS = 60.0


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A model that says one verdict, a token of its own, whatever it has read: nothing is added to a token's embedding,
    and the head maps that of the verdict to the end, and every other to the verdict."""
    folder = tmp_path_factory.mktemp("judges") / "judge"
    tokenizer, verdict = tiny_tokenizer(), VOCAB_SIZE
    assert tokenizer.add_tokens([VERDICT]) == 1
    made = tiny_model(vocab_size=verdict + 1)
    with torch.no_grad():
        for layer in made.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        embedding, head = made.model.embed_tokens.weight, made.lm_head.weight
        embedding.zero_()
        head.zero_()
        embedding[:, 0] = embedding[verdict, 1] = 1.0
        embedding[verdict, 0] = 0.0
        head[verdict, 0] = head[END, 1] = 10.0
    made.config.max_position_embeddings = 8192
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def servers(model: Path) -> list[int]:
    """Process ids of what serves this model."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended meanwhile
            continue
        found += [int(place.name)] if str(model).encode() in words and b"--end-with-input" in words else []
    return found


def wait_for_end(process: int) -> None:
    try:
        end = os.pidfd_open(process)
    except ProcessLookupError:
        return
    assert select.select([end], [], [], LONGEST_SECONDS)[0], "it goes on"
    os.close(end)


def graded(function, completions):
    count = len(completions)
    return function(
        prompts=["Q?"] * count,
        completions=completions,
        answer=[None] * count,
        prompt_messages=[None] * count,
    )


def judge(model: Path, **parameters):
    given = ", ".join(f"{name}={value}" for name, value in parameters.items())
    return resolve(f"judge:{model}({given})" if given else f"judge:{model}", RewardContext(call_seconds=60.0))


def test_a_run_that_is_killed_leaves_nothing_and_goes_on_only_with_the_same_judge(model, cache, tmp_path, capsys):
    name, run = f"judge:{model}(concurrency=1)", tmp_path / "run"
    trap = Trap(function="paceline.rewards.judges.client:JudgeClient._text_of", deed="SIGKILL", first=4)
    words = ["train", "--output-dir", str(run), *SHORT.split(), "--reward-funcs", name]
    assert forked(command, cache, trap, words).returncode == -signal.SIGKILL
    assert len(list(cache.rglob("judges/*/*.json"))) == 3
    for process in servers(model):
        wait_for_end(process)
    assert servers(model) == []

    # its first step was not done, and its record has the digests already
    weights = model / "model.safetensors"
    before, others = weights.read_bytes(), load_file(weights)
    others["model.norm.weight"] *= 2
    save_file(others, weights, {"format": "pt"})
    assert main(["train", "--resume", str(run)]) == 2
    assert f"--reward-funcs {name} has other files than it had" in capsys.readouterr().err
    weights.write_bytes(before)

    # the next process has another port and another key, and asks for nothing that is known
    resumed = forked(command, cache, None, ["train", "--resume", str(run)])
    assert resumed.returncode == 0, resumed.stderr
    assert f"judge {model} served by this run, mode score: no limit to its calls" in resumed.stdout
    first, second = (step["rewards"][name] for step in RunDir(run).metrics())
    assert (first["mean"], second["mean"], first["failures"]) == (pytest.approx(0.7), pytest.approx(0.7), 0)
    assert first["judge"]["cached"] == 3
    assert first["judge"]["calls"] == first["judge"]["verdicts"] - 3
    assert servers(model) == []


def test_a_judge_whose_process_dies_fails_by_name_and_is_started_anew_for_the_next_run(model, cache):
    function = judge(model, retries=1)
    assert "served by this run" in function.describe()
    (process,) = servers(model)
    (grade,) = graded(function, ["a"])
    assert (grade.value, grade.note) == (0.7, "7 of 10: so it is")
    os.kill(process, signal.SIGKILL)
    wait_for_end(process)
    (failure,) = graded(function, ["b"])
    assert isinstance(failure, RewardError)
    assert f"judge {model} served by this run: connection: its `paceline serve` has ended with status -9" in str(
        failure
    )
    assert spending_metrics(function.counts())["failed"] == {"connection": 1}

    end_services()
    (grade,) = graded(function, ["b"])
    assert grade.value == 0.7
    (process,) = servers(model)
    # another judge of the same model shares its process, which lasts as long as one of them
    other = judge(model, rubric="be brief")
    other.describe()
    assert servers(model) == [process]
    del function
    assert servers(model) == [process]
    del other
    wait_for_end(process)


def test_a_model_that_cannot_be_served_is_refused_with_its_own_sentence(cache, tmp_path):
    missing = resolve("judge:./nowhere")
    for _ in range(2):  # the second time too, as nothing of the first one is left
        with pytest.raises(
            RewardError, match=r"judge:\./nowhere cannot be served: .* status 2: --model \./nowhere is not a"
        ):
            missing.describe()
    silent = tmp_path / "silent"
    tiny_model().save_pretrained(silent)
    tiny_tokenizer(chat_template=None).save_pretrained(silent)
    with pytest.raises(RewardError, match=r"does not respond: status 400: .*chat template"):
        judge(silent).describe()
