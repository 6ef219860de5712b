"""What `GRPOTrainer` refuses in its constructor, before weights are read, and the rates that it trains at."""

import json
from pathlib import Path

import pandas
import pytest
import torch
from datasets import Dataset, DatasetDict
from peft import LoraConfig, PromptTuningConfig
from transformers import get_scheduler

from paceline import GRPOConfig, GRPOTrainer
from paceline.errors import ConfigError, DataError, ModelError, PacelineError
from tests.support.tiny import tiny_model, tiny_tokenizer

QUESTIONS = [{"prompt": f"What is {number} + 1?", "sum": number + 1} for number in range(6)]
ROWS = Dataset.from_list(QUESTIONS)


def variety(completions: list[str], **columns: object) -> list[float]:
    """Many different letters earn more."""
    return [len(set(text)) / 10 for text in completions]


def plain(completions: list[str]) -> list[float]:
    return [len(set(text)) / 10 for text in completions]


def settings(tmp_path: Path, **changes: object) -> GRPOConfig:
    values = {
        "output_dir": str(tmp_path / "run"),
        "per_device_train_batch_size": 4,
        "num_generations": 2,
        "max_completion_length": 8,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    return GRPOConfig(**{**values, **changes})


def trainer(tmp_path: Path, *, parts=None, **changes) -> GRPOTrainer:
    given = {
        "model": tiny_model(),
        "reward_funcs": variety,
        "train_dataset": ROWS,
        "processing_class": tiny_tokenizer(),
    }
    return GRPOTrainer(**{**given, **(parts or {}), "args": settings(tmp_path, **changes)})


@pytest.fixture
def no_weights(tmp_path) -> str:
    """A model's directory whose weights cannot be read."""
    path = tmp_path / "model"
    tiny_model().save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    (path / "model.safetensors").write_bytes(b"no weights: reading them would fail otherwise")
    return str(path)


def requires_answer(completions, answer):
    return [0.0 for _ in completions]


def positional(p, c):
    return [0.0 for _ in c]


def only_positional(completions, /):
    return [0.0 for _ in completions]


def nearly(prompt, completions):
    return [0.0 for _ in completions]


EVALUATED = {"eval_strategy": "steps", "eval_steps": 1}
FRAME = pandas.DataFrame({"prompt": ["a"]})
SPLITS = DatasetDict({"train": ROWS, "test": ROWS})


@pytest.mark.parametrize(
    ("parts", "fields", "message"),
    [
        ({"train_dataset": FRAME}, {}, r"train_dataset must .* pandas DataFrame; give Dataset\.from_pandas\(frame\)"),
        ({"eval_dataset": FRAME}, EVALUATED, r"eval_dataset must .* give Dataset\.from_pandas\(frame\)"),
        ({"eval_dataset": {"a": FRAME}}, EVALUATED, r"eval_dataset\['a'\] must .* give Dataset\.from_pandas\(frame\)"),
        ({"train_dataset": SPLITS}, {}, r"train_dataset must be one split.* give dataset\['train'\]"),
        ({"eval_dataset": SPLITS}, EVALUATED, r"eval_dataset must hold no split to train on.* give dataset\['test'\]"),
        ({"train_dataset": [{"prompt": "a"}, "b"]}, {}, r"row train:2 is a str"),
        ({"train_dataset": [{"prompt": "a"}, {"prompt": 3}]}, {}, r"row train:2: .*, got int; mend the row$"),
        ({"train_dataset": [{"prompt": "a"}, {"question": "b"}]}, {}, r"row train:2 has no `prompt`"),
        ({"reward_funcs": "accuracyy"}, {}, r"reward_funcs must name .*, got 'accuracyy'; did you mean accuracy\?"),
        ({"reward_funcs": "no/judge"}, {}, "^reward_funcs no/judge "),
        ({"reward_funcs": requires_answer}, {}, r"'requires_answer' requires 'answer', .* completion_ids, sum, "),
        ({"reward_funcs": [variety, positional]}, {}, "'positional' requires 'p', which is no column of train_dataset"),
        ({"reward_funcs": only_positional}, {}, "'only_positional' requires 'completions'"),
        ({"reward_funcs": nearly}, {}, r"'nearly' requires 'prompt', .*; did you mean prompts\?"),
        ({"peft_config": {"r": 4}}, {}, r"peft_config must .*, got a dict; give peft\.LoraConfig\(\*\*\{'r': 4\}\)"),
        ({"peft_config": LoraConfig(modules_to_save=["lm_head"])}, {}, r"peft_config\.modules_to_save must leave out"),
        ({"peft_config": LoraConfig(target_modules=["lm_head"])}, {}, r"peft_config\.target_modules must leave out"),
        ({"peft_config": LoraConfig(init_lora_weights="pissa")}, {}, r"peft_config: init_lora_weights must be one of"),
        (
            {"peft_config": PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)},
            {},
            "peft_config: the adapter must put matrices .* PROMPT_TUNING; give a peft.LoraConfig",
        ),
        ({"eval_dataset": ROWS}, {**EVALUATED, "metric_for_best_model": "eval_rewad"}, "did you mean eval_reward"),
        (
            {"eval_dataset": {"a": ROWS}},
            {**EVALUATED, "metric_for_best_model": "a_rewad"},
            "did you mean eval_a_reward",
        ),
        (
            {"eval_dataset": ROWS, "reward_funcs": plain},
            {**EVALUATED, "metric_for_best_model": "eval_speed_of_light"},
            "metric_for_best_model must be a number that evaluation gives, got 'eval_speed_of_light'; take eval_reward",
        ),
        ({}, {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"lr_end": 1.0}}, "'polynomial' can be made"),
    ],
)
def test_wrong_arguments_are_refused_before_any_weight_is_read(tmp_path, no_weights, parts, fields, message):
    with pytest.raises((ConfigError, DataError, PacelineError), match=message) as caught:
        trainer(tmp_path, parts={"model": no_weights, **parts}, **fields)
    assert "\n" not in str(caught.value)


def test_a_place_with_files_of_the_users_own_is_refused_before_any_weight_is_read(tmp_path, no_weights):
    (tmp_path / "evals.jsonl").write_text('{"mine": 1}\n')
    (tmp_path / "config.yaml").write_text("# my notes\n")
    with pytest.raises(ConfigError, match=r"^output_dir .* holds config\.yaml, evals\.jsonl, which a run would"):
        trainer(tmp_path, parts={"model": no_weights}, output_dir=str(tmp_path))
    assert (tmp_path / "evals.jsonl").read_text() == '{"mine": 1}\n'


def test_quantised_weights_and_models_of_images_are_refused_before_any_weight_is_read(tmp_path, no_weights):
    file = Path(no_weights, "config.json")
    described = json.loads(file.read_text())
    file.write_text(json.dumps({**described, "quantization_config": {"load_in_4bit": True}}))
    with pytest.raises(ModelError, match=r"has quantised weights \(bitsandbytes, 4 bits\), which .*peft_config"):
        trainer(tmp_path, parts={"model": no_weights})
    file.write_text(json.dumps({**described, "model_type": "clip", "architectures": ["ASeeingModel"]}))
    with pytest.raises(ModelError, match="is a ASeeingModel, and causal language models are trained here"):
        trainer(tmp_path, parts={"model": no_weights})
    assert not (tmp_path / "run").exists()


def test_a_prompt_above_the_models_positions_is_refused_with_the_length_that_fits(tmp_path):
    limit = tiny_model().config.max_position_embeddings
    rows = [{"prompt": "a"}, {"prompt": "b" * (limit + 9)}]
    with pytest.raises(DataError) as caught:
        trainer(tmp_path, parts={"train_dataset": rows})
    sentence = str(caught.value)
    assert f"above the model's {limit} positions (1 of 2 rows are)" in sentence
    assert sentence.startswith("row train:2: its prompt has ")
    assert f"set max_prompt_length={limit - 8}, which cuts it, or remove the row" in sentence
    assert trainer(tmp_path, parts={"train_dataset": rows}, max_prompt_length=limit - 8).args.max_prompt_length


def test_a_metric_that_a_reward_function_may_log_is_accepted_until_it_runs(tmp_path):
    made = trainer(tmp_path, parts={"eval_dataset": ROWS}, metric_for_best_model="eval_speed_of_light", **EVALUATED)
    assert made.args.metric_for_best_model == "eval_speed_of_light"


@pytest.mark.parametrize("name", ["reward", "eval_rewards/variety/mean", "eval_completions/mean_length", "eval_loss"])
def test_every_name_of_an_evaluation_can_choose_the_best_model(tmp_path, name):
    made = trainer(tmp_path, parts={"eval_dataset": ROWS.select(range(2))}, metric_for_best_model=name, **EVALUATED)
    numbers = made.evaluate()
    assert (name if name.startswith("eval_") else f"eval_{name}") in numbers


def theirs(args: GRPOConfig, *, total: int) -> list[float]:
    """The rates of transformers' own trainer: the scheduler's, read before each of its steps."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=args.learning_rate)
    scheduler = get_scheduler(
        args.lr_scheduler_type,
        optimizer,
        num_warmup_steps=args.get_warmup_steps(total),
        num_training_steps=total,
        scheduler_specific_kwargs=args.lr_scheduler_kwargs,
    )
    rates = []
    for _ in range(total):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return rates


class Rates:
    """An optimiser's step that writes the rate down first."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.seen: list[float] = []
        optimizer.register_step_pre_hook(lambda one, *_: self.seen.append(one.param_groups[0]["lr"]))


@pytest.mark.parametrize(
    ("fields", "updates"),
    [
        ({"lr_scheduler_type": "linear", "warmup_steps": 3, "num_train_epochs": 2}, 1),
        ({"lr_scheduler_type": "cosine", "warmup_steps": 0.25, "num_iterations": 2}, 2),
        ({"lr_scheduler_type": "polynomial", "steps_per_generation": 2, "num_iterations": 2, "max_steps": 8}, 4),
    ],
)
def test_every_update_has_the_rate_that_transformers_gives_it(tmp_path, fields, updates):
    # an entropy bonus: a batch in which all rewards are equal makes its updates too
    made = trainer(tmp_path, entropy_coef=0.001, **fields)
    rates = Rates(made.optimizer)
    made.train()
    expected = theirs(made.args, total=made.state.max_steps)
    assert rates.seen == pytest.approx(expected)
    logged = [line["learning_rate"] for line in made.state.log_history if "loss" in line]
    assert logged == pytest.approx(expected[updates - 1 :: updates])  # as of the last update before the line


def test_a_step_without_updates_counts_those_that_it_would_have_made(tmp_path):
    def same(completions, trainer_state, **columns):
        return [1.0] * len(completions) if trainer_state.global_step == 2 else variety(completions)

    made = trainer(tmp_path, parts={"reward_funcs": same}, num_iterations=2, max_steps=8)
    made.train()
    logged = [line["learning_rate"] for line in made.state.log_history if "loss" in line]
    assert made._job.backend.trainer.policy_version <= 6
    assert logged == pytest.approx(theirs(made.args, total=8)[1::2])


@pytest.mark.parametrize("kind", ["linear", "cosine_with_restarts"])
def test_a_resumed_run_goes_on_with_the_rates_of_the_whole_one(tmp_path, kind):
    def make(folder: str) -> GRPOTrainer:
        return trainer(
            tmp_path / folder, lr_scheduler_type=kind, warmup_steps=3, num_iterations=2, max_steps=8,
            save_strategy="steps", save_steps=4,
        )  # fmt: skip

    whole, cut = make("whole"), make("whole")
    whole.train()
    checkpoint = tmp_path / "whole" / "run" / "checkpoints" / "step-000002"
    cut.train(resume_from_checkpoint=str(checkpoint))
    rates = [[line["learning_rate"] for line in one.state.log_history if "loss" in line] for one in (whole, cut)]
    assert rates[0] == rates[1]
    first, second = (dict(one.model.named_parameters()) for one in (whole, cut))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
