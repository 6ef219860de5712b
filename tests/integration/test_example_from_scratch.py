"""The example that teaches the algorithm: its rewards, its loss against numbers worked out by hand, and a whole run."""

import json
import math
import re
import subprocess
import sys

import pytest
import torch

from examples import grpo_from_scratch as scratch
from paceline.objective.policy_loss import kl_penalty
from tests.support.tiny import tiny_model, tiny_tokenizer

WELL_FORMED = "<reasoning>\n2+3\n</reasoning>\n<answer>\n5\n</answer>"


@pytest.fixture
def model():
    return tiny_model("qwen2").eval()


@pytest.fixture
def tokenizer():
    return tiny_tokenizer()


@pytest.mark.parametrize(
    ("given", "gold", "reward"),
    [
        ("42", "42", 2.0),
        ("42.0", "42", 1.5),
        ("$18", "18", 1.5),
        ("5 cm", "5", 1.5),
        ("1,000", "1000", 0.0),  # two numbers
        ("0.5", "1/2", 0.0),
        ("41", "42", 0.0),
        ("...", "...", 0.0),
        ("", "42", 0.0),
    ],
)
def test_the_answer_earns_two_one_and_a_half_or_nothing(given, gold, reward):
    assert scratch.correctness_reward([f"<answer>{given}</answer>"], [gold]) == [reward]


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        (WELL_FORMED, 0.8),
        ("5", 0.0),
        ("<answer>5", 0.2),
        ("<answer>5</answer>", 0.4),
        ("</answer><answer></reasoning><reasoning>", 0.2),  # the first tag alone follows all before it
    ],
)
def test_the_format_earns_a_fifth_for_each_tag_in_its_place(completion, reward):
    assert scratch.format_reward([completion]) == [pytest.approx(reward)]


def test_both_rewards_add_up_and_no_answer_never_matches():
    assert scratch.combined_reward([WELL_FORMED, "no tags"], ["5", "None"]) == [pytest.approx(2.8), 0.0]


def test_the_last_complete_answer_counts():
    text = "<answer>6</answer> no: <answer>7</answer> and <answer>8"
    assert scratch.extract_answer_from_model_output(text) == "7"
    assert scratch.extract_answer_from_dataset("so it is 7.\n#### 1,234") == "1234"
    assert scratch.extract_answer_from_dataset("no mark") is None


def rollouts(**changes) -> scratch.RolloutData:
    """Two completions: two tokens with advantage 1, one token with advantage -1; what padding holds must not count."""
    data = scratch.RolloutData(
        input_ids=torch.zeros(2, 3, dtype=torch.long),
        attention_mask=torch.ones(2, 3, dtype=torch.long),
        completion_mask=torch.tensor([[True, True], [True, False]]),
        old_log_probs=torch.tensor([[-1.0, -2.0], [-0.5, math.nan]]),
        ref_log_probs=torch.tensor([[-1.0, -2.5], [-0.25, math.nan]]),
        advantages=torch.tensor([1.0, -1.0]),
        rewards=torch.tensor([2.0, 0.0]),
    )
    return data._replace(**changes)


def test_the_loss_is_the_one_worked_out_by_hand():
    log_ratios = torch.tensor([[math.log(1.5), math.log(0.9)], [math.log(0.5), 0.0]])
    data = rollouts(ref_log_probs=rollouts().old_log_probs + log_ratios)
    new = data.old_log_probs + log_ratios
    # -min(1.5, 1.2) * 1, -0.9 * 1, and -min(0.5 * -1, 0.8 * -1) = 0.8, over three tokens; no KL
    loss = scratch.grpo_loss(new, data, beta=0.1, epsilon=0.2, num_tokens=3)
    assert loss.item() == pytest.approx((-1.2 - 0.9 + 0.8) / 3)


def test_the_kl_of_the_loss_is_that_of_paceline():
    data, mask = rollouts(), rollouts().completion_mask
    new = data.old_log_probs - 0.1
    with_penalty, without = (
        scratch.grpo_loss(new, data, beta=beta, epsilon=0.2, num_tokens=3).item() for beta in (0.5, 0.0)
    )
    penalty = kl_penalty(new[mask], data.old_log_probs[mask], data.ref_log_probs[mask], kl="reverse")
    assert with_penalty - without == pytest.approx(0.5 * penalty.sum().item() / 3)


def test_the_gradient_does_not_depend_on_how_a_step_is_cut(model, tokenizer):
    batch = [{"prompt": "2+3=", "answer": "5"}, {"prompt": "a longer prompt: 1+1=", "answer": "2"}]
    weights = {}
    for rows in (1, 3, 8):
        scratch.set_random_seed(0)
        changed = tiny_model("qwen2")
        scratch.train_with_grpo(
            model=changed,
            tokenizer=tokenizer,
            train_data=batch,
            reward_function=lambda completions, **columns: [float(len(text)) for text in completions],
            device_ids=None,
            num_iterations=1,
            num_steps=1,
            batch_size=2,
            num_generations=4,
            max_completion_length=6,
            beta=0.04,
            learning_rate=1e-3,
            mu=2,
            epsilon=0.1,
            micro_batch_size=rows,
        )
        weights[rows] = torch.cat([one.flatten() for one in changed.parameters()])
    start = torch.cat([one.flatten() for one in model.parameters()])
    assert (weights[8] - start).abs().max() > 1e-4
    # AdamW divides by the gradient's own size, so rounding shows where a gradient is all but zero
    assert (weights[1] - weights[8]).norm() < 1e-2 * (weights[8] - start).norm()
    assert (weights[3] - weights[8]).norm() < 1e-2 * (weights[8] - start).norm()


def test_logprobs_are_those_of_the_logits_whatever_padding_is_in_front(model, tokenizer):
    prompts = ["ab", "a longer prompt"]
    ids, mask, completions, kept = scratch.generate_completions(model, tokenizer, prompts, 1, 5)
    whole, both = torch.cat([ids, completions], 1), torch.cat([mask, kept.long()], 1)
    got = scratch.compute_log_probs(model, whole, both, completions.shape[1])[0]
    alone = whole[:1, mask[0].argmax() :]
    logits = model(alone).logits[0, -completions.shape[1] - 1 : -1]
    expected = torch.log_softmax(logits, dim=-1).gather(1, completions[0][:, None])[:, 0]
    assert ids[0, 0] == tokenizer.pad_token_id
    torch.testing.assert_close(got[kept[0]], expected[kept[0]], atol=1e-5, rtol=1e-5)


def test_a_completion_ends_with_its_first_end_token():
    ids = torch.tensor([[5, 9, 7, 9], [5, 6, 7, 8], [8, 8, 5, 5]])
    assert scratch.create_completion_mask(ids, [9, 8]).int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]


def test_the_sampling_defaults_of_a_model_do_not_narrow_the_distribution(model, tokenizer):
    model.generation_config.do_sample, model.generation_config.top_k = True, 1
    model.generation_config.repetition_penalty = 50.0
    scratch.set_random_seed(0)
    _, _, completions, _ = scratch.generate_completions(model, tokenizer, ["ab"], 16, 4)
    assert len(set(completions[:, 0].tolist())) > 4


def test_every_example_comes_once_before_any_comes_again():
    data = [{"prompt": str(number), "answer": ""} for number in range(6)]
    seen = [one["prompt"] for batch in scratch.batches(data, 4, 3) for one in batch]
    assert sorted(seen[:6]) == sorted(seen[6:]) == list("012345")


def test_several_gpus_are_refused_by_name(model, tokenizer):
    with pytest.raises(ValueError, match=r"device_ids must name one GPU, got \[0, 1\]; give device_ids\[:1\]"):
        scratch.train_with_grpo(model, tokenizer, [], device_ids=[0, 1])


def accuracies(printed: str, total: int) -> list[float]:
    return [float(share) for share in re.findall(rf"^Accuracy: ([\d.]+)% \(\d+/{total}\)", printed, flags=re.M)]


def test_a_short_run_raises_the_reward_and_prints_the_accuracy_before_and_after(tmp_path):
    options = f"--num-steps 10 --eval-size 64 --learning-rate 2e-4 --output-dir {tmp_path}"
    command = [sys.executable, scratch.__file__, *options.split()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    before, after = accuracies(result.stdout, 64)
    assert after > before + 10
    rewards = [float(reward) for reward in re.findall(r"average reward ([\d.]+)", result.stdout)]
    assert len(rewards) == 10
    assert sum(rewards[-3:]) > 1.5 * sum(rewards[:3])
    assert (tmp_path / "model.safetensors").is_file()
    assert (tmp_path / "tokenizer.json").is_file()


def test_a_file_is_split_into_held_out_and_training_rows(tmp_path, monkeypatch, capsys):
    rows = [
        {"question": f"Tom has {n} coins. Tom buys 2. How many are left?", "answer": f"#### {n + 2}"} for n in range(9)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = f"--dataset {path} --eval-size 4 --num-steps 1 --batch-size 2 --num-generations 2"
    monkeypatch.setattr(sys, "argv", ["grpo_from_scratch.py", *options.split()])
    scratch.main()
    assert len(accuracies(capsys.readouterr().out, 4)) == 2


def test_a_row_without_an_answer_is_named_and_zero_is_an_answer(tmp_path, tokenizer):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "1-1?", "answer": 0}\n{"question": "1+1?", "answer": null}\n')
    with pytest.raises(SystemExit, match=r"row .*rows\.jsonl:2: must have a question and an answer"):
        scratch.prepare_dataset(str(path), "train", tokenizer, "")
    (example,) = scratch.prepare_dataset(str(path), "train", tokenizer, "Be brief.", size=1)
    assert example["answer"] == "0"
    assert "system" in example["prompt"]
    assert example["prompt"].endswith("assistant\n")
