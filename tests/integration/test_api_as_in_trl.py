"""What a script does under TRL and `GRPOTrainer` does alike: rewards of None, several runs, keywords for the model."""

import errno
import json
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, GptOssConfig, GptOssForCausalLM, TrainerCallback
from transformers.integrations import integration_utils

from paceline import GRPOConfig, GRPOTrainer
from paceline.checkpoints.existing_runs import WriteLock
from paceline.checkpoints.finding import original, read_checkpoint
from paceline.cli.main import main
from paceline.compat.trl.checkpoints import belongings
from paceline.errors import CheckpointError, ConfigError, ModelError
from paceline.training.setup.configuration import EMBEDDED
from tests.support.tiny import tiny_model, tiny_tokenizer
from tests.support.trainer_settings import SHORT

QUESTIONS = [{"prompt": f"What is {number} + 1?", "sum": number + 1} for number in range(8)]
LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])


def variety(completions: list[str], **columns: object) -> list[float]:
    """Many different letters earn more."""
    return [len(set(text)) / 10 for text in completions]


def trainer(tmp_path: Path, *, model=None, reward_funcs=variety, parts=None, **changes) -> GRPOTrainer:
    """Steps of two prompts with four completions each."""
    return GRPOTrainer(
        model=tiny_model() if model is None else model,
        reward_funcs=reward_funcs,
        args=GRPOConfig(**{**SHORT, "output_dir": str(tmp_path / "run"), **changes}),
        **{"processing_class": tiny_tokenizer(), "train_dataset": QUESTIONS, **(parts or {})},
    )


@pytest.fixture
def model_directory(tmp_path) -> str:
    path = tmp_path / "model"
    tiny_model().save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return str(path)


def embedding(made: GRPOTrainer) -> torch.Tensor:
    weight: torch.Tensor = made.model.get_input_embeddings().weight
    return weight.detach().clone()


def numbers(made: GRPOTrainer, name: str) -> list[float]:
    return [line[name] for line in made.state.log_history if name in line]


# --- rewards


def test_a_step_without_any_reward_trains_nothing_is_said_and_the_run_goes_on(tmp_path, caplog):
    made = trainer(tmp_path, reward_funcs=lambda completions, **columns: [None] * len(completions), max_steps=2)
    before = embedding(made)
    with caplog.at_level(logging.WARNING):
        made.train()
    assert caplog.text.count("All reward functions returned None for the following kwargs: {'prompt': 'What is") == 2
    assert "(8 completions of this step)" in caplog.text
    assert torch.equal(embedding(made), before)
    assert [line["reward"] for line in made.state.log_history if "loss" in line] == [None, None]


def test_rows_without_a_reward_are_said_beside_those_that_train(tmp_path, caplog):
    def only_even(completions, sum, **columns):
        return [None if of % 2 else float(len(set(text))) for text, of in zip(completions, sum, strict=True)]

    made = trainer(tmp_path, reward_funcs=only_even, max_steps=4)
    before = embedding(made)
    with caplog.at_level(logging.WARNING):
        made.train()
    assert "All reward functions returned None" in caplog.text
    assert not torch.equal(embedding(made), before)


# --- several runs


def test_held_out_rows_that_are_trained_on_too_are_said(tmp_path, capsys):
    parts = {"eval_dataset": [*QUESTIONS[1:2], {"prompt": "What is it?", "sum": 0}]}
    trainer(tmp_path, parts=parts, max_steps=1, eval_strategy="steps", eval_steps=1).train()
    assert "eval_dataset: 1 of 2 prompts are trained on too (" in capsys.readouterr().out


def test_a_second_train_goes_on_from_the_weights_and_has_a_schedule_and_a_log_of_its_own(tmp_path):
    made = trainer(tmp_path, max_steps=2)
    made.train()
    first, rates = embedding(made), numbers(made, "learning_rate")
    made.train()
    run = tmp_path / "run"
    assert not torch.equal(embedding(made), first)
    assert numbers(made, "learning_rate") == rates == [0.01, 0.005]
    assert (made.state.global_step, len(numbers(made, "loss"))) == (2, 2)
    # what the first one wrote is still there
    earlier = load_file(run / "aside" / "run" / "final" / "model.safetensors")
    assert torch.equal(earlier["model.embed_tokens.weight"], first)
    moved = run / "aside" / "run"
    assert original(moved / "checkpoint-2", moved / "checkpoints") == moved / "checkpoints" / "step-000002"
    assert (run / "aside" / "run" / "checkpoint-2" / "model").is_dir()
    assert (run / "checkpoint-2" / "model").is_dir()


def test_a_second_run_that_is_stopped_resumes_in_another_process_as_if_it_had_not_been(tmp_path):
    def both(place, **changes):
        made = trainer(place, max_steps=2, save_strategy="no", **changes)
        made.train()
        made.train()
        return made

    whole = embedding(both(tmp_path / "whole"))
    made = both(tmp_path / "stopped")
    run = tmp_path / "stopped" / "run"
    # killed before its first step: all it has is the checkpoint of the weights that it starts from
    for name in ("metrics.jsonl", "journal.jsonl", "summary.json"):
        (run / name).unlink()
    for rollouts in (run / "rollouts").iterdir():
        rollouts.unlink()
    assert [place.name for place in (run / "checkpoints").iterdir()] == ["step-000000"]
    resumed = trainer(tmp_path / "stopped", max_steps=2, save_strategy="no")
    resumed.train(resume_from_checkpoint=True)
    assert torch.equal(embedding(resumed), whole)
    assert torch.equal(embedding(made), whole)


def test_a_second_run_that_ends_before_its_first_callback_returns_has_saved_the_weights_it_starts_from(tmp_path):
    class EndsTheSecond(TrainerCallback):
        begun = 0

        def on_train_begin(self, args, state, control, **kwargs):
            self.begun += 1
            if self.begun == 2:
                raise RuntimeError("as if killed")

    whole = trainer(tmp_path / "whole", max_steps=2)
    whole.train()
    whole.train()
    made = trainer(tmp_path / "stopped", max_steps=2, parts={"callbacks": [EndsTheSecond()]})
    made.train()
    with pytest.raises(RuntimeError, match="as if killed"):
        made.train()
    resumed = trainer(tmp_path / "stopped", max_steps=2)
    resumed.train(resume_from_checkpoint=True)
    assert torch.equal(embedding(resumed), embedding(whole))


def test_a_trainer_that_could_not_resume_a_run_does_not_take_it_for_its_own(tmp_path):
    trainer(tmp_path, max_steps=1).train()
    # other rows would be taken, as TRL takes them; another model would not
    other = trainer(tmp_path, max_steps=1, model=tiny_model(layers=3))
    with pytest.raises(ConfigError, match="would compute something else than before"):
        other.train(resume_from_checkpoint=True)
    with pytest.raises(ConfigError, match="already holds a run"):
        other.train()
    assert not (tmp_path / "run" / "aside").exists()


def test_a_run_that_another_writes_to_is_not_moved_aside(tmp_path):
    made = trainer(tmp_path, max_steps=1)
    made.train()
    before = sorted(place.name for place in (tmp_path / "run").iterdir())
    lock = WriteLock(tmp_path / "run")
    try:
        with pytest.raises(CheckpointError, match="is in use by process"):
            made.train()
    finally:
        lock.release()
    assert sorted(place.name for place in (tmp_path / "run").iterdir()) == before
    made.train()
    assert (tmp_path / "run" / "aside" / "run" / "config.yaml").exists()


def test_a_run_half_moved_aside_goes_on_from_its_checkpoint_or_is_refused(tmp_path):
    made = trainer(tmp_path, max_steps=2)
    made.train()
    run, folder = tmp_path / "run", tmp_path / "run" / "aside" / "run"
    folder.mkdir(parents=True)
    *most, config, checkpoints = belongings(run)
    assert (config, checkpoints) == ("config.yaml", "checkpoints")
    for name in most:
        (run / name).rename(folder / name)
    resumed = trainer(tmp_path, max_steps=2)
    resumed.train(resume_from_checkpoint=True)
    assert torch.equal(embedding(resumed), embedding(made))
    (run / config).rename(folder / config)
    with pytest.raises(CheckpointError, match=r"is not a run directory \(it has no config\.yaml\)"):
        trainer(tmp_path, max_steps=2).train(resume_from_checkpoint=True)


class Keeping(TrainerCallback):
    """Renames the first checkpoint, as scripts do that keep one from rotation."""

    def on_save(self, args, state, control, **parts):
        if state.global_step == 1:
            os.rename(f"{args.output_dir}/checkpoint-1", f"{args.output_dir}/keep-1")


def no_links(file, place):
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


@pytest.mark.parametrize("has_links", [True, False], ids=["hard links", "a disk without links"])
def test_a_checkpoint_that_a_script_renames_stays_whole_when_the_run_drops_it(tmp_path, monkeypatch, has_links):
    if not has_links:
        for name in ("link", "symlink"):
            monkeypatch.setattr(os, name, no_links)
    changes = {"max_steps": 2, "save_steps": 1, "save_total_limit": 1}
    made = trainer(tmp_path, parts={"callbacks": [Keeping]}, **changes)
    made.train()
    run, kept = tmp_path / "run", tmp_path / "run" / "keep-1"
    assert sorted(path.name for path in run.glob("*-[0-9]")) == ["checkpoint-2", "keep-1"]
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-000002"]
    assert not [path for path in run.rglob("*") if path.is_symlink()]
    for folder in (kept, run / "checkpoint-2"):
        assert read_checkpoint(folder).state.step == int(folder.name[-1])  # every file as it was saved
        assert load_file(folder / "model.safetensors").keys() == load_file(folder / "model/model.safetensors").keys()
    with pytest.raises(CheckpointError, match=r"still in its checkpoints/, got .*keep-1; give True for the newest one"):
        trainer(tmp_path, **changes).train(resume_from_checkpoint=str(kept))
    # either side may go without the other
    shutil.rmtree(run / "checkpoint-2")
    assert read_checkpoint(run / "checkpoints/step-000002").state.step == 2


def test_a_checkpoint_that_was_moved_elsewhere_is_gone_on_from_while_the_run_still_has_it(tmp_path):
    trainer(tmp_path, max_steps=1).train()
    run, place = tmp_path / "run", tmp_path / "elsewhere"
    shutil.move(run / "checkpoint-1", place)
    # a program may write the state anew without touching the checkpoint's own
    (place / "trainer_state.json").write_text("{}")
    assert json.loads((run / "checkpoints/step-000001/trainer_state.json").read_text())["global_step"] == 1
    again = trainer(tmp_path, max_steps=2)
    again.train(resume_from_checkpoint=str(place))
    assert (again.state.global_step, sorted(path.name for path in run.glob("checkpoint-*"))) == (2, ["checkpoint-2"])
    assert read_checkpoint(place).state.step == 1


def test_a_log_that_a_callback_appends_to_metrics_jsonl_does_not_break_the_run(tmp_path, caplog):
    class Logging(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **parts):
            with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"step": state.global_step, "mine": len(logs)}) + "\n")

    made = trainer(tmp_path, parts={"callbacks": [Logging]}, max_steps=2)
    made.train()
    assert (tmp_path / "run" / "final" / "model.safetensors").is_file()
    assert sum("are no records of the run" in message for message in caplog.messages) == 1


def test_a_scheduler_of_ones_own_goes_on_in_a_second_run_and_that_run_is_not_resumed(tmp_path):
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08)
    optimizers = optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    made = trainer(tmp_path, model=model, max_steps=2, parts={"optimizers": optimizers})
    made.train()
    made.train()
    assert numbers(made, "learning_rate") == pytest.approx([0.02, 0.01])
    with pytest.raises(CheckpointError, match="with 4 updates, 2 of them this run's, and the state of the program's"):
        made.train(resume_from_checkpoint=True)


def addressed(tmp_path, monkeypatch, *, changes=None, **parts) -> Path:
    """A run of one step on rows, a reward and a model that the command line knows too; returns its directory."""
    monkeypatch.chdir(tmp_path)
    GRPOTrainer(
        reward_funcs="accuracy",
        args=GRPOConfig(**{**SHORT, "output_dir": "run", "max_steps": 1, **(changes or {})}),
        train_dataset="arithmetic#100",
        **parts,
    ).train()
    return tmp_path / "run"


def test_a_run_with_a_programs_own_optimizer_names_it_and_goes_on_nowhere_else(tmp_path, monkeypatch, capsys):
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED["embedded"])
    optimizers = torch.optim.SGD(model.parameters(), lr=0.01), None
    run = addressed(tmp_path, monkeypatch, model=model, optimizers=optimizers)
    assert "\noptimizer: program\n" in (run / "config.yaml").read_text()
    assert json.loads((run / "identity.json").read_text())["options"]["optimizer"] == "program"
    assert main(["train", "--resume", str(run), "--max-steps", "2", "--override", "max_steps"]) == 2
    assert "--optimizer program stands for an optimizer of a program's own" in capsys.readouterr().err


def test_a_rollout_func_samples_for_rows_at_an_address_and_the_run_goes_on_nowhere_else(tmp_path, monkeypatch, capsys):
    asked = []

    def answering(prompts, trainer):
        asked.extend(prompts)
        ids, ends = trainer.processing_class.encode("1", add_special_tokens=False), len(prompts)
        return {"prompt_ids": [ids] * ends, "completion_ids": [ids] * ends, "logprobs": [[-1.0] * len(ids)] * ends}

    run = addressed(tmp_path, monkeypatch, model="embedded", rollout_func=answering)
    assert {type(prompt) for prompt in asked} == {list}
    assert asked[0][-1]["role"] == "user"
    assert "\nrollout_func: program\n" in (run / "config.yaml").read_text()
    assert main(["train", "--resume", str(run), "--max-steps", "2", "--override", "max_steps"]) == 2
    assert "--rollout-func program stands for a function of a program's own" in capsys.readouterr().err


def test_held_out_rows_may_lie_at_an_address(tmp_path, monkeypatch):
    place = tmp_path / "rows.jsonl"
    place.write_text('{"prompt": "What is 1 + 1?", "answer": "2"}\n')
    evaluating = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4}
    addressed(tmp_path, monkeypatch, model="embedded", eval_dataset="rows.jsonl", changes=evaluating)
    (line,) = (tmp_path / "run" / "evals.jsonl").read_text().splitlines()
    assert (json.loads(line)["set"], json.loads(line)["n"]) == ("eval_dataset", 1)


def test_a_run_of_a_model_object_is_resumed_by_the_command_line_from_the_files_of_that_model(tmp_path, monkeypatch):
    run = addressed(tmp_path, monkeypatch, model=AutoModelForCausalLM.from_pretrained(EMBEDDED["embedded"]))
    assert main(["train", "--resume", str(run), "--max-steps", "2", "--override", "max_steps"]) == 0
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2


def test_other_ranks_are_told_the_state_of_every_step_without_the_log(tmp_path):
    class Ranks:
        """Notes what all ranks are told."""

        def __init__(self):
            self.told = []

        def call(self, method, *given):
            self.told.append((method, *given))

    made, ranks = trainer(tmp_path, max_steps=1), Ranks()
    made.state.global_step = 3
    made.state.log_history.append({"loss": 1.0})
    made._observer.job = replace(made._job, launch=ranks)
    made._observer.step_begin(4)
    [(method, told)] = ranks.told
    assert (method, told["global_step"]) == ("begin_step", 3)
    assert set(vars(made.state)) - set(told) == {"log_history"}


# --- trackers


def test_a_tracker_that_transformers_alone_knows_is_its_own_callbacks(tmp_path, monkeypatch):
    seen = []

    class Swan(TrainerCallback):
        def on_log(self, args, state, control, logs, **parts):
            seen.append(logs)

    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "swanlab", Swan)
    made = trainer(tmp_path, max_steps=1, report_to=["tensorboard", "swanlab"])
    made.train()
    assert seen[0]["reward"] == numbers(made, "reward")[0]
    assert list((tmp_path / "run").rglob("events.out.tfevents.*"))
    with pytest.raises(ConfigError, match="no tracker 'wandbb'; did you mean 'wandb'"):
        trainer(tmp_path, report_to=["wandbb"])


# --- the model


def test_keywords_of_the_model_that_say_what_is_so_anyway_change_nothing(tmp_path, model_directory):
    keywords = {
        "revision": "main",
        "attn_implementation": "flash_attention_2",
        "dtype": torch.float32,
        "device_map": {"": 0},
        "quantization_config": None,
        "token": None,
    }
    plain = trainer(tmp_path / "plain", model=model_directory, max_steps=1)
    given = trainer(tmp_path / "given", model=model_directory, max_steps=1, model_init_kwargs=keywords)
    plain.train()
    given.train()
    assert torch.equal(embedding(plain), embedding(given))


def test_a_subfolder_is_where_the_model_is(tmp_path, model_directory):
    parent, _, name = model_directory.rpartition("/")
    made = trainer(tmp_path, model=parent, max_steps=1, model_init_kwargs={"subfolder": name})
    assert made.model.config.name_or_path == model_directory
    with pytest.raises(ConfigError, match="device_map must name one device"):
        trainer(
            tmp_path, model=model_directory, model_init_kwargs={"device_map": {"model.embed_tokens": 0, "lm_head": 1}}
        )


def test_a_revision_that_is_not_there_is_named_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match=r"model 'no/where' cannot be fetched with revision 'v2', local_files_only"):
        trainer(tmp_path, model="no/where", model_init_kwargs={"revision": "v2", "local_files_only": True})


def test_weights_in_4_bits_are_read_where_the_trainer_is_told_and_train_an_adapter(tmp_path, model_directory):
    pytest.importorskip("bitsandbytes")
    four = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    parts = {"quantization_config": four, "peft_config": LORA}
    made = trainer(tmp_path, model=model_directory, parts=parts, max_steps=2, optim="adamw_bnb_8bit")
    made.train()
    layer = made.model.get_base_model().model.layers[0].self_attn.q_proj
    assert type(layer.base_layer).__name__ == "Linear4bit"
    assert layer.lora_B["default"].weight.abs().max() > 0
    assert numbers(made, "reward") != []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"parts": {}}, "quantised weights .bitsandbytes, 4 bits., which cannot be trained; .*peft_config"),
        ({"model": tiny_model(), "parts": {"peft_config": LORA}}, "must be None with a model object"),
        ({"parts": {"peft_config": LORA}, "use_vllm": True}, "use_vllm must be False with quantization_config"),
    ],
)
def test_weights_in_4_bits_that_cannot_be_trained_are_refused(tmp_path, model_directory, changes, sentence):
    parts = {"quantization_config": BitsAndBytesConfig(load_in_4bit=True), **changes["parts"]}
    others = {name: value for name, value in changes.items() if name not in ("model", "parts")}
    with pytest.raises((ConfigError, ModelError), match=sentence):
        trainer(tmp_path, model=changes.get("model", model_directory), parts=parts, **others)


def test_weights_in_4_bits_are_read_after_everything_else_is_found_good(tmp_path, model_directory):
    Path(model_directory, "model.safetensors").write_bytes(b"no weights: reading them would fail otherwise")
    parts = {"quantization_config": BitsAndBytesConfig(load_in_4bit=True), "peft_config": LORA}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("# my notes\n")
    with pytest.raises(ConfigError, match=r"holds config\.yaml, which a run would overwrite"):
        trainer(tmp_path, model=model_directory, parts=parts)


def test_a_processor_is_its_tokenizer(tmp_path):
    class Processor:
        tokenizer = tiny_tokenizer()

    made = trainer(tmp_path, parts={"processing_class": Processor()})
    assert made.processing_class is Processor.tokenizer


def test_an_adapter_of_experts_trains(tmp_path):
    config = GptOssConfig(
        vocab_size=len(tiny_tokenizer()),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    experts = LoraConfig(target_parameters=["mlp.experts.down_proj"], r=2)
    made = trainer(tmp_path, model=get_peft_model(GptOssForCausalLM(config), experts), max_steps=2)
    made.train()
    trained = {name: one for name, one in made.model.named_parameters() if "lora_B" in name}
    assert len(trained) == 2
    assert all(one.abs().max() > 0 for one in trained.values())


def test_the_adaptive_weight_of_the_entropy_is_the_trainers_and_in_the_log(tmp_path):
    made = trainer(
        tmp_path,
        max_steps=3,
        use_adaptive_entropy=True,
        entropy_coef=0.01,
        entropy_target=100.0,
        entropy_coef_delta=0.05,
    )
    assert made.entropy_coef == 0.01
    made.train()
    # the target is never reached, so every update adds 0.05
    assert made.entropy_coef == pytest.approx(0.16)
    assert numbers(made, "entropy_coef") == pytest.approx([0.06, 0.11, 0.16])
