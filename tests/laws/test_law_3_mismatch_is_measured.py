"""Law 3: every step reports the difference between the engine's logprobs and the trainer's, and it is the true one."""

from dataclasses import replace

import pytest
import torch

from paceline.checkpoints.run_directory import RunDir
from paceline.cli.main import main
from paceline.config.objective import LossConfig, OptimConfig
from paceline.models.forward import choose_forward
from paceline.models.loaded import Loaded
from paceline.objective.micro_batches import pack
from paceline.training.learner.learner import Learner
from paceline.training.learner.samples import samples_of
from paceline.types import Completion, Rollout, RolloutGroup, Task, Trajectory, completed
from tests.support.cluster_runs import CONVERSATIONS, options_in
from tests.support.episodes import branched, conversation
from tests.support.families import family, make_model
from tests.support.tiny import tiny_model, with_exact_norms

TEMPERATURE = 0.8
FAR = {
    "gpt_neo": ("engine: plain path", "learner: padded rows"),
    "openai-gpt": ("engine: the whole context computed again for each token", "learner: padded rows"),
}
"""Models that neither engine nor trainer computes in the fastest way, and what a run says of it."""
PROMPT, COMPLETIONS = tuple(b"some prompt"), (tuple(b"one answer"), tuple(b"another one, longer"))


def learner(dtype: torch.dtype, kind: str = "qwen3") -> Learner:
    model = tiny_model(kind, dtype=dtype).train()
    if dtype == torch.float64:
        model = with_exact_norms(model)
    policy = Loaded(model=model, compute_dtype=dtype)
    return Learner(
        policy,
        choose_forward(model),
        reference=None,
        loss=LossConfig(),
        optim=OptimConfig(),
        temperature=TEMPERATURE,
        max_completion_length=32,
    )


def plain_logprobs(model, completion: tuple[int, ...]) -> torch.Tensor:
    """One row, alone, through the model's own forward pass."""
    logits = model(torch.tensor([PROMPT + completion])).logits[0, len(PROMPT) - 1 : -1]
    return torch.log_softmax(logits / TEMPERATURE, -1).gather(1, torch.tensor(completion)[:, None])[:, 0]


def group(logprobs: list[list[float]]) -> RolloutGroup:
    return RolloutGroup(
        task=Task(task_id="0", prompt="", prompt_ids=PROMPT, answer=None),
        rollouts=tuple(
            Rollout(
                trajectory=completed(
                    PROMPT,
                    Completion(token_ids=ids, logprobs=tuple(values), finish_reason="stop", text="", policy_version=0),
                ),
                rewards={},
                reward=1.0,
                advantage=1.0,
            )
            for ids, values in zip(COMPLETIONS, logprobs, strict=False)
        ),
    )


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_trainer_logprobs_equal_a_plain_forward_pass_in_float64(kind):
    half = learner(torch.float64, kind)
    model = half.policy.model
    with torch.no_grad():
        plain = torch.cat([plain_logprobs(model, ids) for ids in COMPLETIONS])
        samples = samples_of([group([[0.0] * len(ids) for ids in COMPLETIONS])])
        batch = pack(samples, [1.0, 1.0], [0, 1], dtype=torch.float64)
        packed, _ = half.runner.values(half.policy, [batch])[0]
    assert float((packed - plain).abs().max()) <= 1e-9


def test_the_reported_mismatch_is_the_difference_that_was_put_in():
    half = learner(torch.float64)
    with torch.no_grad():
        true = [plain_logprobs(half.policy.model, ids).tolist() for ids in COMPLETIONS]
    wrong = [list(values) for values in true]
    wrong[0][3] += 0.25
    wrong[1][0] -= 0.5
    tokens = sum(map(len, COMPLETIONS))
    stats = half.step([group(wrong)], learning_rate=0.0)
    assert stats.logprob_mismatch_max == pytest.approx(0.5, abs=1e-9)
    assert stats.logprob_mismatch_mean == pytest.approx(0.75 / tokens, abs=1e-9)
    assert half.step([group(true)], learning_rate=0.0).logprob_mismatch_max < 1e-9


def conversation_of(model, turns: int, *, drift: dict[int, float]) -> Trajectory:
    """Two tokens in each of so many turns, two read between them, and by `drift` wrong logprobs of sampled tokens."""
    parts = [(f"{turn:02d}", "" if turn + 1 == turns else "ok") for turn in range(turns)]
    made = conversation(*parts, prompt=PROMPT)
    every = plain_logprobs(model, made.completion_ids)
    sampled = [at for at in range(len(every)) if at % 4 < 2]
    values = [every[at].item() + drift.get(number, 0.0) for number, at in enumerate(sampled)]
    return conversation(*parts, prompt=PROMPT, logprobs=values)


def group_of(*trajectories: Trajectory) -> RolloutGroup:
    task = Task(task_id="0", prompt="", prompt_ids=PROMPT, answer=None)
    rollouts = [Rollout(trajectory=one, rewards={}, reward=1.0, advantage=1.0) for one in trajectories]
    return RolloutGroup(task=task, rollouts=tuple(rollouts))


@pytest.mark.parametrize("rewritten", [(), (1, 2)], ids=["one row", "a row for each turn"])
def test_a_drift_at_the_second_turn_shows_there(rewritten):
    half = learner(torch.float64)
    with torch.no_grad():
        drifted = conversation_of(half.policy.model, 3, drift={2: 0.5, 3: -0.25})
        sound = conversation_of(half.policy.model, 2, drift={})
    groups = [group_of(branched(drifted, rewritten), sound)]
    by_turn = half.step(groups, learning_rate=0.0).logprob_mismatch_by_turn
    # two tokens of each of two conversations at turns 1 and 2, of one at turn 3
    assert by_turn == pytest.approx({"1": 0.0, "2": 0.75 / 4, "3": 0.0}, abs=1e-9)
    assert half.measure(groups).logprob_mismatch_by_turn == by_turn


def test_late_turns_are_measured_together_and_single_ones_as_the_first():
    half = learner(torch.float64)
    with torch.no_grad():
        long = conversation_of(half.policy.model, 10, drift={14: 0.5, 19: 0.25, 0: 0.125})
        single = plain_logprobs(half.policy.model, COMPLETIONS[0]).tolist()
    one_turn = group([single]).rollouts[0].trajectory
    stats = half.step([group_of(long, one_turn)], learning_rate=0.0)
    by_turn = stats.logprob_mismatch_by_turn
    assert by_turn is not None
    assert list(by_turn) == ["1", "2", "3", "4", "5", "6", "7", "8+"]
    assert by_turn["1"] == pytest.approx(0.125 / (2 + len(COMPLETIONS[0])), abs=1e-9)
    assert by_turn["8+"] == pytest.approx(0.75 / 6, abs=1e-9)  # three turns of two tokens
    assert half.step([group([single])], learning_rate=0.0).logprob_mismatch_by_turn is None


def test_a_step_without_signal_says_that_it_measured_nothing():
    half = learner(torch.float32)
    silent = group([[0.0] * len(ids) for ids in COMPLETIONS])
    silent = replace(silent, rollouts=tuple(replace(rollout, advantage=0.0) for rollout in silent.rollouts))
    stats = half.step([silent], learning_rate=1e-2)
    assert (stats.updates, stats.logprob_mismatch_mean, stats.entropy) == (0, None, None)
    assert half.policy_version == 0


@pytest.mark.parametrize(("name", "paths"), FAR.items())
def test_conversations_of_models_off_the_fast_paths_have_no_mismatch_in_any_turn(tmp_path, capsys, name, paths):
    given = options_in(tmp_path / "place") | CONVERSATIONS | {"max_steps": 1, "output_dir": tmp_path / "run"}
    make_model(family(name)).save_pretrained(str(given["model"]))
    assert main(["train", *(f"--{option}={value}" for option, value in given.items())]) == 0
    (step,) = RunDir(tmp_path / "run").metrics()
    assert list(step["logprob_mismatch_by_turn"]) == ["1", "2", "3"]
    assert max(step["logprob_mismatch_by_turn"].values()) < 1e-5
    said = capsys.readouterr().out
    assert all(path in said for path in paths)


def test_a_run_that_samples_in_eight_bits_reports_how_far_its_samples_are(tmp_path, capsys):
    given = options_in(tmp_path / "place") | {"max_steps": 1}
    off = {}
    for quantization in ("none", "fp8"):
        run = tmp_path / quantization
        options = given | {"engine_quantization": quantization, "output_dir": run}
        assert main(["train", *(f"--{option}={value}" for option, value in options.items())]) == 0
        (off[quantization],) = (step["logprob_mismatch_mean"] for step in RunDir(run).metrics())
    assert off["none"] < 1e-5
    assert off["fp8"] > 1e-3
    assert "completions are sampled with layers in eight bits (e4m3)" in capsys.readouterr().out
