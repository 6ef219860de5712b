"""Whole runs through `GRPOTrainer`, as scripts written for TRL make them."""

import asyncio
import json
import logging
import math
import os
import signal
import threading
from pathlib import Path

import pytest
import torch
import yaml
from datasets import Dataset, IterableDataset
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    EarlyStoppingCallback,
    TrainerCallback,
)
from transformers.trainer_utils import get_last_checkpoint

from paceline import GRPOConfig, GRPOTrainer
from paceline.errors import CheckpointError, ConfigError, DataError, RewardError, TrainingError
from tests.support.tiny import tiny_model, tiny_reward_model, tiny_tokenizer
from tests.support.trainer_settings import SHORT

QUESTIONS = [{"prompt": f"What is {number} + 1?", "sum": number + 1} for number in range(8)]
CONVERSATIONS = [{"prompt": [{"role": "user", "content": row["prompt"]}], "sum": row["sum"]} for row in QUESTIONS]
LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])

TRL_NAMES = {
    "loss", "grad_norm", "learning_rate", "num_tokens", "epoch", "step", "step_time", "reward", "reward_std",
    "rewards/variety/mean", "rewards/variety/std", "frac_reward_zero_std", "entropy", "completions/mean_length",
    "completions/min_length", "completions/max_length", "completions/clipped_ratio",
    "completions/mean_terminated_length", "clip_ratio/low_mean", "clip_ratio/low_min", "clip_ratio/high_mean",
    "clip_ratio/high_max", "clip_ratio/region_mean",
}  # fmt: skip


def variety(completions: list, **columns: object) -> list[float]:
    """Many different letters earn more."""
    texts = [one if isinstance(one, str) else one[0]["content"] for one in completions]
    return [len(set(text)) / 10 for text in texts]


def brevity(completions: list[str], completion_ids: list[list[int]], **columns: object) -> list[float]:
    return [-len(ids) / 100 for ids in completion_ids]


def settings(tmp_path: Path, **changes: object) -> GRPOConfig:
    """Four steps of two prompts with four completions each."""
    return GRPOConfig(**{**SHORT, "output_dir": str(tmp_path / "run"), "max_steps": 4, **changes})


def trainer(tmp_path: Path, *, model=None, reward_funcs=variety, rows=QUESTIONS, parts=None, **changes) -> GRPOTrainer:
    return GRPOTrainer(
        model=tiny_model() if model is None else model,
        reward_funcs=reward_funcs,
        args=settings(tmp_path, **changes),
        train_dataset=Dataset.from_list(rows) if isinstance(rows, list) else rows,
        processing_class=tiny_tokenizer(),
        **(parts or {}),
    )


@pytest.fixture
def model_directory(tmp_path) -> str:
    path = tmp_path / "model"
    tiny_model().save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return str(path)


class Diary(TrainerCallback):
    """Writes down every event with the number of updates."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def on_train_begin(self, args, state, control, **parts):
        self.events.append(("begin", state.global_step))

    def on_step_end(self, args, state, control, **parts):
        self.events.append(("step", state.global_step))

    def on_evaluate(self, args, state, control, metrics, **parts):
        assert "eval_reward" in metrics
        self.events.append(("evaluate", state.global_step))

    def on_save(self, args, state, control, **parts):
        self.events.append(("save", state.global_step))

    def on_train_end(self, args, state, control, model, **parts):
        self.events.append(("end", state.global_step))


class StopAfter(TrainerCallback):
    def __init__(self, updates: int) -> None:
        self.updates = updates

    def on_step_end(self, args, state, control, **parts):
        if state.global_step == self.updates:
            control.should_training_stop = control.should_save = True


def weights(path: Path) -> dict[str, torch.Tensor]:
    (file,) = path.glob("*.safetensors")
    return load_file(file)


def test_a_script_with_adapter_evaluation_callbacks_and_tensorboard_runs_as_under_trl(tmp_path, model_directory):
    diary = Diary()
    made = GRPOTrainer(
        model=model_directory,
        reward_funcs=[variety, brevity],
        args=settings(tmp_path, eval_strategy="steps", eval_steps=2, report_to="tensorboard", log_completions=True),
        train_dataset=Dataset.from_list(QUESTIONS),
        eval_dataset=Dataset.from_list(QUESTIONS[:3]),
        callbacks=[diary],
        peft_config=LORA,
    )
    before = {name: tensor.clone() for name, tensor in made.model.named_parameters()}
    output = made.train()
    assert output.global_step == made.state.global_step == 4
    assert diary.events == [
        ("begin", 0), ("step", 1), ("step", 2), ("evaluate", 2), ("save", 2), ("step", 3), ("step", 4),
        ("evaluate", 4), ("save", 4), ("end", 4),
    ]  # fmt: skip
    changed = {name for name, tensor in made.model.named_parameters() if not torch.equal(before[name], tensor)}
    assert changed == {name for name in before if "lora" in name}
    training = [line for line in made.state.log_history if "loss" in line]
    assert [line["step"] for line in training] == [1, 2, 3, 4]
    assert TRL_NAMES | {"rewards/brevity/mean"} <= training[0].keys()
    assert [line["learning_rate"] for line in training] == pytest.approx([0.01, 0.0075, 0.005, 0.0025])
    evaluations = [line for line in made.state.log_history if "eval_reward" in line]
    assert [line["step"] for line in evaluations] == [2, 4]
    assert {"eval_rewards/variety/mean", "eval_runtime", "eval_completions/mean_length"} <= evaluations[0].keys()
    assert all(math.isfinite(line["eval_loss"]) for line in evaluations)
    assert "train_runtime" in made.state.log_history[-1]
    assert made.reward_processing_classes == [None, None]
    run = tmp_path / "run"
    assert list((run / "tensorboard").glob("events*"))
    assert {"config.yaml", "metrics.jsonl", "rollouts", "checkpoints", "final"} <= {path.name for path in run.iterdir()}
    assert (run / "checkpoints" / "step-000004" / "trainer_state.json").is_file()
    assert isinstance(PeftModel.from_pretrained(tiny_model(), run / "final"), PeftModel)


def test_all_weights_change_and_the_saved_model_is_the_trained_one(tmp_path):
    made = trainer(tmp_path)
    before = [tensor.clone() for tensor in made.model.parameters()]
    made.train()
    assert not any(torch.equal(old, new) for old, new in zip(before, made.model.parameters(), strict=True))
    made.save_model(tmp_path / "saved")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert all(torch.equal(a, b) for a, b in zip(made.model.parameters(), loaded.parameters(), strict=True))


def test_early_stopping_ends_the_run_and_the_best_model_is_loaded(tmp_path):
    calls = []

    def falling(completions, prompts, **columns):
        """Every evaluation (of three prompts) finds less than the one before."""
        if len(set(prompts)) == 3:
            calls.append(0)
        return [variety([text])[0] / 100 - len(calls) for text in completions]

    made = trainer(
        tmp_path,
        reward_funcs=falling,
        parts={
            "eval_dataset": Dataset.from_list(QUESTIONS[:3]),
            "callbacks": [EarlyStoppingCallback(early_stopping_patience=2)],
        },
        max_steps=8, eval_strategy="steps", eval_steps=1, save_steps=1, save_total_limit=1,
        load_best_model_at_end=True, metric_for_best_model="eval_reward", greater_is_better=True,
    )  # fmt: skip
    made.train()
    assert made.state.global_step == 3
    assert made.state.best_global_step == 1
    best = tmp_path / "run" / "checkpoints" / "step-000001"
    assert made.state.best_model_checkpoint == str(tmp_path / "run" / "checkpoint-1")
    trained = dict(made.model.named_parameters())
    assert all(torch.equal(trained[name], tensor) for name, tensor in weights(best / "model").items())
    assert sorted(path.name for path in best.parent.iterdir()) == ["step-000001", "step-000003"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["final_step"] == 1, "of the model that is exported, not of the run"


def test_none_is_no_reward_and_async_functions_are_awaited(tmp_path):
    async def patient(completions, **columns):
        await asyncio.sleep(0)
        return [None if number % 2 else 1.0 for number in range(len(completions))]

    made = trainer(tmp_path, reward_funcs=[variety, patient], max_steps=1, reward_weights=[1.0, 0.5])
    made.train()
    line = made.state.log_history[0]
    assert line["rewards/patient/mean"] == 1.0
    assert line["reward"] == pytest.approx(line["rewards/variety/mean"] + 0.25)


def test_a_step_without_any_reward_is_told_and_the_run_goes_on(tmp_path, capsys):
    made = trainer(tmp_path, reward_funcs=[lambda completions, **columns: [None] * len(completions)], max_steps=2)
    before = {name: tensor.clone() for name, tensor in made.model.named_parameters()}
    made.train()
    assert [line["reward"] for line in made.state.log_history[:2]] == [None, None]
    assert all(torch.equal(tensor, before[name]) for name, tensor in made.model.named_parameters())
    assert "gave no completion a reward, so nothing was learned from it" in capsys.readouterr().out


@pytest.mark.parametrize("rows", [QUESTIONS, CONVERSATIONS], ids=["text", "conversation"])
def test_a_reward_function_sees_prompts_completions_and_columns_as_the_dataset_has_them(tmp_path, rows):
    seen = {}

    def grade(prompts, completions, completion_ids, sum, trainer_state, log_extra, log_metric):
        seen.update(prompts=prompts, completions=completions, sum=sum, step=trainer_state.global_step)
        log_extra("sum", sum)
        log_metric("half", 0.5)
        return torch.arange(len(prompts)).float()

    made = trainer(tmp_path, reward_funcs=grade, rows=rows, max_steps=2)
    made.train()
    assert seen["step"] == 1
    assert all(prompt in [row["prompt"] for row in rows] for prompt in seen["prompts"])
    assert len(seen["prompts"]) == len(seen["sum"]) == 8
    kinds = {type(completion) for completion in seen["completions"]}
    assert kinds == ({str} if rows is QUESTIONS else {list})
    if rows is CONVERSATIONS:
        assert all(completion[0]["role"] == "assistant" for completion in seen["completions"])
    assert made.state.log_history[0]["half"] == 0.5


def test_reward_models_and_functions_mix(tmp_path):
    judge = tiny_reward_model()
    judge.save_pretrained(tmp_path / "judge")
    tiny_tokenizer().save_pretrained(tmp_path / "judge")
    own = tiny_tokenizer()
    made = trainer(
        tmp_path,
        reward_funcs=[str(tmp_path / "judge"), variety, judge],
        parts={"reward_processing_classes": [own, None, tiny_tokenizer()]},
        max_steps=1,
    )
    assert made.reward_func_names == ["judge", "variety", "LlamaForSequenceClassification"]
    assert made.reward_processing_classes[0] is own
    assert made.reward_processing_classes[1] is None
    made.train()
    line = made.state.log_history[0]
    assert line["rewards/judge/mean"] == pytest.approx(line["rewards/LlamaForSequenceClassification/mean"])


def momentum(model) -> tuple:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


@pytest.mark.parametrize("kind", ["all weights", "adapter", "moving reference", "own optimiser"])
def test_a_resumed_run_ends_with_the_same_weights(tmp_path, model_directory, kind):
    def make(folder: str, callbacks: list) -> GRPOTrainer:
        model = tiny_model() if kind == "own optimiser" else model_directory
        moving = {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 1} if kind == "moving reference" else {}
        parts = {
            "callbacks": callbacks,
            "peft_config": LORA if kind == "adapter" else None,
            "optimizers": momentum(model) if kind == "own optimiser" else (None, None),
        }
        return trainer(tmp_path / folder, model=model, parts=parts, **moving)

    whole = make("whole", [])
    whole.train()
    make("cut", [StopAfter(2)]).train()
    resumed = make("cut", [])
    output = resumed.train(resume_from_checkpoint=True)
    assert output.global_step == 4
    first, second = (weights(tmp_path / folder / "run" / "final") for folder in ("whole", "cut"))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    rates = [[line["learning_rate"] for line in one.state.log_history if "loss" in line] for one in (whole, resumed)]
    assert rates[0] == pytest.approx(rates[1])
    again = make("cut", [])
    again.train(resume_from_checkpoint=str(tmp_path / "cut" / "run" / "checkpoints" / "step-000002"))
    third = weights(tmp_path / "cut" / "run" / "final")
    assert all(torch.equal(tensor, third[name]) for name, tensor in first.items())


def test_an_own_optimiser_and_scheduler_set_the_rate(tmp_path):
    model = tiny_model()
    made = trainer(tmp_path, model=model, parts={"optimizers": momentum(model)})
    made.train()
    rates = [line["learning_rate"] for line in made.state.log_history if "loss" in line]
    assert rates == pytest.approx([0.05, 0.025, 0.0125, 0.00625])
    assert isinstance(made.optimizer, torch.optim.SGD)


def test_a_peft_model_trains_its_own_adapter(tmp_path):
    model = get_peft_model(tiny_model(), LORA)
    made = trainer(tmp_path, model=model, max_steps=1, beta=0.1)
    assert made.model is model
    made.train()
    assert made.state.log_history[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert any(tensor.abs().sum() > 0 for name, tensor in model.named_parameters() if "lora_B" in name)


def test_global_step_counts_updates_and_callbacks_fire_once_per_batch(tmp_path):
    diary = Diary()
    made = trainer(
        tmp_path, parts={"callbacks": [diary]}, num_iterations=2, per_device_train_batch_size=4,
        steps_per_generation=2, max_steps=8, save_steps=3,
    )  # fmt: skip
    made.train()
    assert diary.events == [("begin", 0), ("step", 4), ("save", 4), ("step", 8), ("save", 8), ("end", 8)]


def test_the_last_line_of_the_log_has_what_was_pending(tmp_path):
    made = trainer(tmp_path, logging_steps=3, entropy_coef=0.1)
    output = made.train()
    first, last = made.state.log_history
    assert (first["step"], last["step"]) == (3, 4)
    assert {"reward", "rewards/variety/std", "policy_loss", "entropy_coef"} <= first.keys() & last.keys()
    assert "loss" not in last
    # the bonus is the entropy's mean per token where all completions are as long
    assert first["policy_loss"] - first["loss"] == pytest.approx(0.1 * first["entropy"], rel=0.3)
    assert set(output.metrics) == {name for name in last if name.startswith(("train", "total_flos", "epoch"))}


def test_the_loss_of_held_out_completions_can_choose_the_best_model(tmp_path):
    made = trainer(
        tmp_path, parts={"eval_dataset": Dataset.from_list(QUESTIONS[:2])}, max_steps=2, beta=0.5,
        eval_strategy="steps", eval_steps=1, eval_on_start=True, save_steps=1, load_best_model_at_end=True,
    )  # fmt: skip
    made.train()
    losses = [line["eval_loss"] for line in made.state.log_history if "eval_loss" in line]
    assert losses[0] == pytest.approx(0.0, abs=1e-5)  # advantages of a group sum to 0, and the policy is the reference
    assert max(losses[1:]) > 1e-4
    assert made.state.best_metric == min(losses[1:])
    assert made.state.best_global_step == 1 + losses[1:].index(min(losses[1:]))
    assert Path(made.state.best_model_checkpoint).name == f"checkpoint-{made.state.best_global_step}"


@pytest.mark.usefixtures("heeded_signals")
def test_an_interrupt_ends_the_run_after_its_step_with_a_checkpoint_to_go_on_from(tmp_path):
    def interrupting(completions, trainer_state, **columns):
        if trainer_state.global_step == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return variety(completions)

    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path, reward_funcs=interrupting, save_steps=10).train()
    checkpoints = tmp_path / "run" / "checkpoints"
    assert [path.name for path in checkpoints.iterdir()] == ["step-000002"]
    assert trainer(tmp_path, save_steps=10).train(resume_from_checkpoint=True).global_step == 4


@pytest.mark.usefixtures("heeded_signals")
def test_a_programs_own_handler_of_a_signal_stops_the_run_by_its_callback(tmp_path):
    asked = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))

    class Stopping(TrainerCallback):
        def on_step_end(self, args, state, control, **given):
            control.should_save = control.should_training_stop = bool(asked)

    def interrupting(completions, trainer_state, **columns):
        if trainer_state.global_step == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return variety(completions)

    made = trainer(tmp_path, reward_funcs=interrupting, save_steps=10)
    made.add_callback(Stopping())
    assert made.train().global_step == 2
    assert (tmp_path / "run" / "checkpoint-2").exists()


def test_what_followed_an_older_checkpoint_that_is_gone_on_from_is_kept(tmp_path, capsys):
    trainer(tmp_path, save_steps=1).train()
    run = tmp_path / "run"
    trainer(tmp_path, save_steps=1, learning_rate=0.02, max_steps=2).train(
        resume_from_checkpoint=str(run / "checkpoint-1")
    )
    kept = run / "aside" / "after-step-000001"
    assert f"step-000002 to step-000004 and the records after step 1 are kept in {kept}" in capsys.readouterr().out
    assert sorted(path.name for path in (kept / "checkpoints").iterdir()) == [f"step-00000{n}" for n in (2, 3, 4)]
    assert [json.loads(line)["step"] for line in (kept / "metrics.jsonl").read_text().splitlines()] == [2, 3, 4]
    assert len(list((kept / "rollouts").iterdir())) == 3
    assert sorted(path.name for path in run.glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-2"]


@pytest.mark.parametrize(("loss_type", "warned"), [("grpo", False), ("dapo", True), ("dr_grpo", True)])
def test_a_sequence_level_ratio_under_an_average_over_tokens_is_warned_of(tmp_path, caplog, loss_type, warned):
    with caplog.at_level(logging.WARNING):
        trainer(tmp_path, importance_sampling_level="sequence", loss_type=loss_type)
    assert ("weights each sequence by its completion length" in caplog.text) == warned


def test_loaders_show_the_rows_as_the_first_epoch_takes_them(tmp_path):
    made = trainer(tmp_path, max_steps=2, dataloader_num_workers=0, parts={"eval_dataset": QUESTIONS[:3]})
    batches = [[row["prompt"] for row in batch] for batch in made.get_train_dataloader()]
    made.train()
    taken = [
        list(dict.fromkeys(json.loads(line)["prompt"] for line in path.read_text().splitlines()))
        for path in sorted((tmp_path / "run" / "rollouts").iterdir())
        if path.suffix == ".jsonl"
    ]
    assert batches[:2] == taken
    assert [len(batch) for batch in made.get_eval_dataloader()] == [2, 1]


def test_a_stream_needs_no_workers_and_no_dispatching(tmp_path):
    rows = IterableDataset.from_generator(lambda: iter(QUESTIONS))
    made = trainer(tmp_path, rows=rows, max_steps=1, dataloader_num_workers=4)
    assert made.args.dataloader_num_workers == 0
    assert made.args.accelerator_config.dispatch_batches is False
    with pytest.raises(ConfigError, match="Iterable datasets require `dispatch_batches=False`, got True"):
        trainer(tmp_path, rows=rows, accelerator_config={"dispatch_batches": True})


def test_only_better_models_are_saved_where_the_strategy_is_best(tmp_path):
    held_out = {"few": Dataset.from_list(QUESTIONS[:2]), "all": Dataset.from_list(QUESTIONS)}
    made = trainer(
        tmp_path, parts={"eval_dataset": held_out},
        eval_strategy="steps", eval_steps=1, save_strategy="best", metric_for_best_model="eval_few_reward",
        greater_is_better=True, learning_rate=0.0,
    )  # fmt: skip
    made.train()
    assert made.state.best_global_step == 1  # the weights stay as they are: no later one is better
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000001"]


def test_epochs_are_counted_and_their_end_evaluates_and_saves(tmp_path):
    made = trainer(
        tmp_path, rows=QUESTIONS[:3], parts={"eval_dataset": Dataset.from_list(QUESTIONS[:1])}, max_steps=-1,
        num_train_epochs=2, eval_strategy="epoch", save_strategy="epoch", logging_strategy="epoch",
    )  # fmt: skip
    made.train()
    assert made.state.max_steps == made.state.global_step == 3
    evaluated = [(line["step"], line["epoch"]) for line in made.state.log_history if "eval_reward" in line]
    assert evaluated == [(2, pytest.approx(4 / 3)), (3, 2.0)]


def test_several_evaluation_sets_are_reported_under_their_names(tmp_path):
    held_out = {"easy": Dataset.from_list(QUESTIONS[:2]), "hard": Dataset.from_list(QUESTIONS[2:5])}
    made = trainer(tmp_path, parts={"eval_dataset": held_out}, num_generations_eval=2)
    metrics = made.evaluate()
    assert {"eval_easy_reward", "eval_hard_reward", "eval_hard_rewards/variety/std"} <= metrics.keys()
    assert metrics["eval_hard_num_samples"] == 3
    assert metrics["eval_reward"] == pytest.approx((metrics["eval_easy_reward"] + metrics["eval_hard_reward"]) / 2)
    assert set(made.evaluate(Dataset.from_list(QUESTIONS[:1]), metric_key_prefix="test")) > {"test_reward"}
    assert made.evaluate()["eval_easy_reward"] == metrics["eval_easy_reward"]


def test_a_dataset_without_a_length_is_read_as_far_as_the_steps_need(tmp_path):
    read = []

    def rows():
        for number in range(1000):
            read.append(number)
            yield {"prompt": f"Count to {number}"}

    made = trainer(tmp_path, rows=IterableDataset.from_generator(rows), max_steps=2)
    assert len(read) == 4
    made.train()
    assert made.state.epoch == 1.0


def test_an_existing_run_is_refused_unless_it_is_gone_on_with(tmp_path, caplog):
    trainer(tmp_path, max_steps=1).train()
    with caplog.at_level(logging.WARNING):
        again = trainer(tmp_path, max_steps=1)
    assert "already holds a run; continue it with train(resume_from_checkpoint=True)" in caplog.text
    with pytest.raises(ConfigError, match=r"already holds a run.*resume_from_checkpoint=True"):
        again.train()
    with pytest.raises(CheckpointError, match="must be a checkpoint of output_dir"):
        again.train(resume_from_checkpoint=str(tmp_path / "elsewhere" / "step-000001"))


def test_the_model_card_says_what_was_trained_without_any_account(tmp_path, model_directory):
    made = trainer(tmp_path, model=model_directory, max_steps=1, parts={"peft_config": LORA})
    made.train()
    made.create_model_card(model_name="small", dataset_name="org/sums", tags="demo")
    card = (tmp_path / "run" / "README.md").read_text()
    header = yaml.safe_load(card.split("---\n")[1])
    assert (header["model_name"], header["datasets"], header["library_name"]) == ("small", ["org/sums"], "peft")
    assert header["tags"] == ["paceline", "grpo", "reinforcement-learning", "lora", "demo"]
    assert f"A low-rank adapter for `{Path(model_directory).name}` on `org/sums`, in 1 step of" in card
    assert model_directory not in card  # a path of this machine
    assert "| `clip_eps_high` | 0.2 |" in card
    assert "| `loss_type` | dapo |" in card
    assert "| `epsilon` | 0.2 |" in card
    assert "None" not in card


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"tools": [print]}, ConfigError, r"tool print: argument .\*args. cannot be given by name"),
        ({"train_dataset": None}, ConfigError, "`train_dataset` is required: give a dataset"),
        ({"train_dataset": Dataset.from_list([{"question": "?"}])}, DataError, "no column `prompt`.*question"),
        ({"train_dataset": Dataset.from_dict({"prompt": []})}, DataError, "train_dataset has no rows"),
        ({"reward_funcs": []}, ConfigError, "at least one reward function"),
        ({"reward_funcs": [variety, 3]}, ConfigError, r"reward_funcs\[1\] must be a function"),
        ({"reward_funcs": "/no/such/judge"}, RewardError, "is not a directory"),
        ({"args": {"reward_weights": [1.0, 2.0]}}, ConfigError, "reward_weights must have one number for each"),
        ({"args": {"eval_strategy": "steps", "eval_steps": 1}}, ConfigError, "without eval_dataset"),
        ({"optimizers": (torch.optim.SGD([torch.zeros(1)], lr=1.0), None)}, ConfigError, "the trainer itself makes"),
        ({"reward_processing_classes": [None, None]}, ConfigError, "one tokenizer .* for each of the 1"),
        (
            {"reward_model": variety, "train_dataset": "no-such.jsonl"},
            ConfigError,
            "one of reward_funcs and reward_model",
        ),
        ({"model": tiny_model()}, ConfigError, "processing_class must be given with a model object"),
        ({"args": {"max_completion_length": 4000}}, ConfigError, "max_completion_length must be below"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_arguments_are_refused_before_any_weight_is_read(tmp_path, model_directory, changes, error, message):
    (Path(model_directory) / "model.safetensors").write_bytes(b"no weights: reading them would fail otherwise")
    given = {"model": model_directory, "reward_funcs": variety, "train_dataset": Dataset.from_list(QUESTIONS)}
    arguments = {**given, **changes, "args": settings(tmp_path, **changes.get("args", {}))}
    with pytest.raises(error, match=message):
        GRPOTrainer(**arguments)


def test_names_of_one_kind_are_told_apart_and_a_training_loss_is_reported(tmp_path):
    made = trainer(tmp_path, reward_funcs=[variety, variety], max_steps=1)
    assert made.reward_func_names == ["variety", "variety_2"]
    output = made.train()
    assert math.isfinite(output.training_loss)
    assert output.metrics["train_loss"] == output.training_loss


def test_methods_that_a_subclass_overrides_are_called_while_training(tmp_path):
    calls = []

    class Watching(GRPOTrainer):
        def log(self, logs, *rest):
            calls.append(("log", "train_loss" in logs))
            super().log({**logs, "mine": 1.0}, *rest)

        def evaluate(self, *given, **named):
            calls.append(("evaluate", self.state.global_step))
            return super().evaluate(*given, **named)

        def save_model(self, output_dir=None, _internal_call=False):
            calls.append(("save_model", Path(output_dir).name))
            super().save_model(output_dir)
            (Path(output_dir) / "mine.txt").write_text("mine")

    args = settings(tmp_path, max_steps=2, logging_steps=2, eval_strategy="steps", eval_steps=2)
    rows = Dataset.from_list(QUESTIONS)
    held_out = {"few": Dataset.from_list(QUESTIONS[:1]), "more": Dataset.from_list(QUESTIONS[:2])}
    made = Watching(tiny_model(), variety, args, rows, held_out, processing_class=tiny_tokenizer())
    made.train()
    assert calls == [
        ("log", False), ("evaluate", 2), ("log", False), ("log", False), ("save_model", "checkpoint-2"), ("log", True),
    ]  # fmt: skip
    assert all(line["mine"] == 1.0 for line in made.state.log_history)
    run = tmp_path / "run"
    assert len((run / "evals.jsonl").read_text().splitlines()) == 2
    assert (run / "checkpoint-2" / "mine.txt").read_text() == "mine"
    with pytest.raises(ConfigError, match="save_model must not write into a checkpoint"):
        made.save_model(run / "checkpoint-2")


@pytest.mark.parametrize(
    ("hook", "remedy"),
    [
        ("compute_loss", "choose the objective by loss_type"),
        ("create_optimizer", r"give optimizers=\(optimizer, scheduler\)"),
        ("_calculate_rewards", "grade completions with reward_funcs"),
        ("_generate", "the built-in engine samples"),
    ],
)
def test_a_subclass_whose_method_would_never_be_called_is_refused(tmp_path, hook, remedy):
    hooked = type("Hooked", (GRPOTrainer,), {hook: lambda self, *given: None})
    with pytest.raises(ConfigError, match=rf"Hooked\.{hook} would never be called by this loop; {remedy}"):
        hooked("no model is read", variety, settings(tmp_path), Dataset.from_list(QUESTIONS))


def test_when_to_log_and_save_may_change_until_training_starts_and_nothing_else(tmp_path):
    made = trainer(tmp_path)
    made.args.logging_steps, made.args.save_steps = 2, 3
    made.args.max_steps = 3
    with pytest.raises(ConfigError, match=r"max_steps \(from 4 to 3\) changed since; make a new GRPOTrainer"):
        made.train()
    made.args.max_steps = 4
    made.args.eval_strategy = "steps"
    with pytest.raises(ConfigError, match="eval_strategy must be 'no' without eval_dataset, got 'steps'"):
        made.train()
    made.args.eval_strategy, made.args.eval_on_start = "no", True
    with pytest.raises(ConfigError, match="eval_on_start must be False without eval_dataset, got True"):
        made.train()
    made.args.eval_on_start = False
    made.train()
    assert [line["step"] for line in made.state.log_history if "loss" in line] == [2, 4]
    saved = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert saved == ["step-000003", "step-000004"]  # the last step is always saved
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert "save_steps: 3" in config


def test_checkpoints_have_the_names_that_transformers_gives_them(tmp_path):
    opened = []

    class Opening(TrainerCallback):
        def on_save(self, args, state, control, **parts):
            place = f"{args.output_dir}/checkpoint-{state.global_step}"
            opened.append(AutoModelForCausalLM.from_pretrained(place).num_parameters())

    made = trainer(tmp_path, parts={"callbacks": [Opening]}, save_steps=1, save_total_limit=2, num_iterations=2)
    made.train()
    run = tmp_path / "run"
    assert opened == [made.model.num_parameters()] * 2  # four updates, two batches of rollouts
    assert sorted(path.name for path in run.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]
    assert get_last_checkpoint(str(run)) == str(run / "checkpoint-4")
    again = trainer(tmp_path, save_steps=1, save_total_limit=1, num_iterations=2, max_steps=6)
    again.train(resume_from_checkpoint=str(run / "checkpoint-2"))
    assert again.state.global_step == 6
    assert [path.name for path in run.glob("checkpoint-*")] == ["checkpoint-6"]


@pytest.mark.parametrize("named", [True, False], ids=["by its path", "by True"])
def test_a_checkpoint_of_trls_own_is_refused_as_such(tmp_path, named):
    foreign = tmp_path / "run" / "checkpoint-4"
    foreign.mkdir(parents=True)
    (foreign / "trainer_state.json").write_text("{}")
    (foreign / "optimizer.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"that TRL .* wrote.*start a new run from its weights with model=.*-4'"):
        trainer(tmp_path).train(resume_from_checkpoint=str(foreign) if named else True)


def test_a_run_that_failed_in_its_first_step_leaves_its_place_to_the_next(tmp_path, capsys):
    def broken(completions, **columns):
        if training:
            raise KeyboardInterrupt
        return variety(completions)

    training = []
    made = trainer(tmp_path, reward_funcs=broken)
    training.append(True)
    with pytest.raises(KeyboardInterrupt):
        made.train()
    assert (tmp_path / "run" / "config.yaml").exists()
    made = trainer(tmp_path)
    made.train()
    assert "held a run without a finished step" in capsys.readouterr().out
    assert made.state.global_step == 4


def test_a_trainer_does_not_change_its_run_directory(tmp_path):
    made = trainer(tmp_path, max_steps=1)
    made.train()
    made.args.output_dir = str(tmp_path / "other")
    with pytest.raises(ConfigError, match="args must stay as they were when the trainer was made, got output_dir"):
        made.train()


@pytest.mark.parametrize(
    ("changes", "message"),
    [({}, "needs metric_for_best_model"), ({"metric_for_best_model": "eval_reward"}, "needs evaluations to compare")],
)
def test_early_stopping_without_anything_to_compare_is_refused_before_weights_are_read(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        trainer(tmp_path, model="no model", parts={"callbacks": [EarlyStoppingCallback()]}, **changes)


def test_a_callback_is_warned_of_events_that_do_not_occur(tmp_path, caplog):
    class Silent(TrainerCallback):
        def on_optimizer_step(self, args, state, control, **parts):
            """Never called."""

    with caplog.at_level(logging.WARNING):
        trainer(tmp_path, parts={"callbacks": [Silent(), Diary()]})
    assert [record.message.split(":")[0] for record in caplog.records if "will not be called" in record.message] == [
        "on_optimizer_step of Silent will not be called"
    ]


def test_the_events_of_a_step_come_in_the_order_of_transformers(tmp_path):
    events = []

    class Order(TrainerCallback):
        def on_train_begin(self, args, state, control, **parts):
            events.append(state.train_batch_size)

        def on_step_end(self, args, state, control, **parts):
            events.append("step")

        def on_epoch_end(self, args, state, control, **parts):
            events.append("epoch")

        def on_log(self, args, state, control, logs, **parts):
            events.append("log" if "loss" in logs else "log of another kind")

        def on_evaluate(self, args, state, control, metrics, **parts):
            events.append(("evaluate", metrics["epoch"]))

        def on_save(self, args, state, control, **parts):
            events.append("save")

    parts = {"callbacks": [Order()], "eval_dataset": Dataset.from_list(QUESTIONS[:1])}
    trainer(
        tmp_path, rows=QUESTIONS[:2], parts=parts, max_steps=1, eval_strategy="steps", eval_steps=1, save_steps=1
    ).train()
    assert events == [
        8, "step", "log", "log of another kind", ("evaluate", 1.0), "save", "epoch", "log of another kind",
    ]  # fmt: skip


def test_the_screen_shows_trls_names_and_the_history_all(tmp_path, capsys):
    made = trainer(tmp_path, max_steps=1)
    made.train()
    (printed,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{'loss'")]
    assert "'reward':" in printed
    assert "'completions/clipped_ratio':" in printed
    assert "tokens_trained" not in printed
    assert "clock/" not in printed
    assert {"tokens_trained", "clock/update"} <= made.state.log_history[0].keys()


def test_what_scripts_ask_of_a_trainer_beside_training(tmp_path, capsys):
    made = trainer(tmp_path, beta=0.1)
    assert made.accelerator.is_main_process
    assert made.accelerator.num_processes == 1
    assert made.accelerator.unwrap_model(made.model) is made.model is made.model_wrapped
    made.accelerator.wait_for_everyone()
    made.accelerator.print("once")
    assert (made.num_generations, made.beta, made.accelerator.device.type) == (4, 0.1, made.args.device.type)
    assert made.get_num_trainable_parameters() == made.model.num_parameters()
    assert set(made.get_learning_rates()) == {0.01}
    made.log_metrics("train", {"train_runtime": 3661.5, "loss": 0.123456})
    made.save_metrics("train", {"loss": 0.5})
    made.save_metrics("eval", {"eval_loss": 0.25})
    printed = capsys.readouterr().out.splitlines()
    assert printed[-4:] == [
        "once", "***** train metrics *****", "  loss          =     0.1235", "  train_runtime = 1:01:01.50",
    ]  # fmt: skip
    run = tmp_path / "run"
    assert json.loads((run / "eval_results.json").read_text()) == {"eval_loss": 0.25}
    assert json.loads((run / "all_results.json").read_text()) == {"loss": 0.5, "eval_loss": 0.25}


def test_a_trainers_run_goes_on_with_other_data_which_it_says_and_with_no_other_model(
    tmp_path, model_directory, capsys
):
    trainer(tmp_path, model=model_directory, max_steps=2).train()
    noted = json.loads((tmp_path / "run" / "identity.json").read_text())
    assert (noted["dataset"]["rows"], noted["changes"]) == (8, [])
    assert {"model.safetensors", "vocabulary"} <= noted["model"].keys()
    other = [{**QUESTIONS[0], "prompt": "What is 0?"}, *QUESTIONS[1:]]
    assert trainer(tmp_path, model=model_directory, rows=other, max_steps=3).train(True).global_step == 3
    assert "from here on train_dataset has other content than it had, first in row train:1" in capsys.readouterr().out
    (change,) = json.loads((tmp_path / "run" / "identity.json").read_text())["changes"]
    assert change["files"]["dataset"].endswith("has other content than it had, first in row train:1")
    place = Path(model_directory) / "config.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "rms_norm_eps": 1e-3}))
    with pytest.raises(ConfigError, match=r"has another config\.json: rms_norm_eps than it had"):
        trainer(tmp_path, model=model_directory).train(resume_from_checkpoint=True)


@pytest.mark.parametrize("beta", [0.0, 0.1], ids=["no reference", "reference"])
def test_a_model_object_may_be_trained_already_unless_it_is_the_reference(tmp_path, beta):
    model = tiny_model()
    trainer(tmp_path, model=model, max_steps=2, beta=beta).train()
    again = trainer(tmp_path, model=model, max_steps=3, beta=beta)
    if beta:
        with pytest.raises(ConfigError, match="has another weights than it had"):
            again.train(resume_from_checkpoint=True)
    else:
        assert again.train(resume_from_checkpoint=True).global_step == 3


def test_what_a_program_changes_in_its_arguments_is_taken_and_written_down(tmp_path):
    trainer(tmp_path, max_steps=2).train()
    trainer(tmp_path, max_steps=3, temperature=0.5).train(resume_from_checkpoint=True)
    (change,) = json.loads((tmp_path / "run" / "identity.json").read_text())["changes"]
    assert change["after_step"] == 2
    assert change["options"]["temperature"] == {"old": 1.0, "new": 0.5}
    assert "# after step 2: --temperature is 0.5 and was 1.0\n" in (tmp_path / "run" / "config.yaml").read_text()


def test_a_trainers_run_in_which_nothing_happens_any_more_ends(tmp_path):
    class Stuck(TrainerCallback):
        def on_step_end(self, args, state, control, **parts):
            if state.global_step == 3:
                threading.Event().wait(600)

    made = trainer(tmp_path, parts={"callbacks": [Stuck()]}, step_timeout=5.0)
    with pytest.raises(
        TrainingError, match=r"for step_timeout 5 s, .* continue it with train\(resume_from_checkpoint=True\)"
    ):
        made.train()
    (report,) = (tmp_path / "run" / "stuck").glob("*/report.txt")
    assert "in on_step_end" in report.read_text()
    assert trainer(tmp_path).train(resume_from_checkpoint=True).global_step == 4
