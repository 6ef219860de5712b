"""The surface of TRL's trainer: what a program overrides or sets counts, or is refused by name."""

import functools
from dataclasses import dataclass, field

import pytest
import torch
from transformers import Trainer, TrainerCallback

from paceline import GRPOConfig, GRPOTrainer
from paceline.compat.trl import surface
from paceline.compat.trl.fields import accepted_without_effect
from paceline.errors import ConfigError, ModelError
from tests.support.tiny import tiny_model, tiny_tokenizer

ROWS = [{"prompt": f"What is {number} + 1?"} for number in range(4)]
SMALL = {
    "per_device_train_batch_size": 2,
    "num_generations": 2,
    "max_completion_length": 4,
    "max_steps": 2,
    "logging_steps": 1,
    "disable_tqdm": True,
    "report_to": "none",
}


def lengths(completions, **columns):
    return (len(text) / 10 for text in completions)  # a generator, which TRL iterates over too


def make(tmp_path, kind=GRPOTrainer, *, args=GRPOConfig, model=None, callbacks=None, **changes):
    return kind(
        model or tiny_model(),
        lengths,
        args(output_dir=str(tmp_path / "run"), **{**SMALL, **changes}),
        ROWS,
        processing_class=tiny_tokenizer(),
        callbacks=callbacks,
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make(tmp_path_factory.mktemp("made"))


def refusal(kind: type) -> str:
    """What the constructor says of a class before it looks at anything else; empty: nothing."""
    try:
        surface.refuse_hooks(object.__new__(kind))
    except ConfigError as error:
        return str(error)
    return ""


METHODS = sorted(name for name, one in GRPOTrainer._originals.items() if callable(one))


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_theirs_is_called_by_the_loop_or_refused(name):
    said = refusal(type("Own", (GRPOTrainer,), {name: lambda self, *given, **named: None}))
    assert bool(said) != surface.is_overridable(GRPOTrainer._originals[name])
    assert not said or said.startswith(f"Own.{name} would never be called by this loop; ")


def test_mixins_partial_methods_and_patches_of_the_class_are_seen(monkeypatch):
    class Mixin:
        def training_step(self, *given):
            """Never called."""

    class Mixed(Mixin, GRPOTrainer):
        pass

    class Partial(GRPOTrainer):
        compute_loss = functools.partialmethod(Mixin.training_step)

    class Behind(GRPOTrainer, Mixin):  # hidden by GRPOTrainer's own, under TRL too
        pass

    assert "Mixed.training_step" in refusal(Mixed)
    assert "Partial.compute_loss" in refusal(Partial)
    assert not refusal(Behind)
    monkeypatch.setattr(GRPOTrainer, "_get_train_sampler", lambda self: None)
    assert "GRPOTrainer._get_train_sampler" in refusal(GRPOTrainer)


def test_a_hook_that_a_class_sets_before_its_constructor_is_seen(tmp_path):
    class Own(GRPOTrainer):
        def __init__(self, *given, **named):
            self.compute_loss = lambda *inputs: 0.0
            super().__init__(*given, **named)

    with pytest.raises(ConfigError, match=r"^Own\.compute_loss would never be called"):
        make(tmp_path, Own)


def test_a_trainer_is_one_of_transformers(made):
    assert isinstance(made, Trainer)
    assert all(hasattr(made, name) for name in dir(Trainer) if not name.startswith("_"))
    with pytest.raises(ConfigError, match=r"^GRPOTrainer\.predict is part of TRL's loop, .*; call evaluate"):
        made.predict(ROWS)


def test_every_attribute_stays_as_it_was_unless_the_loop_reads_it_anew(made):
    for name in {"eval_dataset", "rollout_func"}:
        setattr(made, name, getattr(made, name))
    sealed = {*made._attributes} - surface.MAY_BE_SET - surface.OF_GENERATE
    assert {"reward_weights", "train_dataset", "beta", "temperature", "args", "model", "optimizer"} <= sealed
    for name in sealed | {"_step", "_logs", "_buffered_inputs", "control", "entropy_coef"}:
        with pytest.raises(ConfigError, match=rf"^GRPOTrainer\.{name} must stay"):
            setattr(made, name, object())
    for name in ("compute_loss", "_calculate_rewards", "get_train_dataloader"):
        with pytest.raises(ConfigError, match=rf"^GRPOTrainer\.{name} would never be called"):
            setattr(made, name, None)
    made.beta, made.reward_weights = 0.0, torch.ones(1)  # as they are: classes below TRL's repeat what they are given
    made.my_own = 1
    assert made.my_own == 1
    with pytest.raises(AttributeError, match=r"has no _total_train_tokens: state\.num_input_tokens_seen counts them"):
        made._total_train_tokens  # noqa: B018 - it is read


def test_a_callback_that_changes_what_the_loop_does_not_read_ends_the_run_by_name(tmp_path):
    class Curriculum(TrainerCallback):
        def on_step_end(self, args, state, control, **parts):
            trainer.reward_weights.mul_(2)

    trainer = make(tmp_path, callbacks=[Curriculum()])
    with pytest.raises(ConfigError, match=r"^GRPOTrainer\.reward_weights must stay .*; weigh rewards inside a reward"):
        trainer.train()
    trainer.reward_weights.fill_(1.0)
    trainer.args.beta = 0.5
    with pytest.raises(ConfigError, match=r"^args must stay .* beta \(from 0\.0 to 0\.5\)"):
        trainer.train(resume_from_checkpoint=True)


def test_callbacks_get_what_transformers_gives_them_and_metrics_of_a_program_are_logged(tmp_path):
    given = {}

    class Looking(TrainerCallback):
        def on_step_begin(self, args, state, control, **parts):
            given.update(parts, training=trainer.is_in_train)

        def on_step_end(self, args, state, control, **parts):
            trainer._metrics["train"]["mine"] += [1.0, 2.0]

    trainer = make(tmp_path, callbacks=[Looking()])
    trainer.train()
    assert (given["model"], given["processing_class"]) == (trainer.model, trainer.processing_class)
    assert (given["optimizer"], given["lr_scheduler"]) == (trainer.optimizer, trainer.lr_scheduler)
    assert [row["prompt"] for batch in given["train_dataloader"] for row in batch] != []
    assert (given["training"], trainer.is_in_train) == (True, False)
    assert [line["mine"] for line in trainer.state.log_history if "loss" in line] == [1.5, 1.5]


def test_an_event_that_does_not_occur_is_warned_of_also_where_an_object_has_it(tmp_path, caplog):
    callback = TrainerCallback()
    callback.on_push_begin = lambda *given, **parts: None
    make(tmp_path, callbacks=[callback])
    assert "on_push_begin of TrainerCallback will not be called" in caplog.text


@dataclass
class Experiment(GRPOConfig):
    """A script's own configuration, as open-r1 and many others have one."""

    system_prompt: str | None = None
    benchmarks: list[str] = field(default_factory=list)
    own_number: int = 3
    temperature: float = 0.7

    def __post_init__(self) -> None:
        super().__post_init__()
        self.handle = torch.Generator()  # has no copy


@dataclass
class Further(Experiment):
    level: float = 0.5


@pytest.mark.long
@pytest.mark.parametrize("kind", [Experiment, Further])
def test_a_dataclass_below_the_configuration_trains_and_resumes(tmp_path, kind):
    trainer = make(tmp_path, args=kind, benchmarks=["gsm8k"])
    trainer.args.system_prompt = "think"  # a field of its own may change
    assert trainer.train().global_step == 2
    assert (trainer.temperature, trainer._job.config.sampling.temperature) == (0.7, 0.7)
    again = make(tmp_path, args=kind, max_steps=3)
    assert again.train(resume_from_checkpoint=True).global_step == 3


def test_a_default_of_a_programs_own_counts_as_a_change(tmp_path):
    @dataclass
    class Penalised(GRPOConfig):
        repetition_penalty: float = 1.1

    @dataclass
    class Idle(GRPOConfig):
        needed: str = field(kw_only=True)
        data_seed: int | None = 7

    with pytest.raises(ConfigError, match=r"^repetition_penalty must be left out, got 1\.1"):
        Penalised(output_dir=str(tmp_path))
    assert "data_seed (seed fixes data order" in accepted_without_effect(Idle(output_dir=str(tmp_path), needed="x"))


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("evaluation_strategy", "give eval_strategy"),
        ("vllm_max_model_len", "give vllm_max_model_length"),
        ("num_generation", "did you mean num_generations"),
    ],
)
def test_a_field_that_there_is_not_is_refused_with_todays(tmp_path, name, remedy):
    with pytest.raises(ConfigError, match=rf"^GRPOConfig has no field {name}; {remedy}"):
        GRPOConfig(output_dir=str(tmp_path), **{name: 1})


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("tokenizer", "give processing_class"),
        ("max_prompt_length", r"give it in args: GRPOConfig\(max_prompt_length=\.\.\.\)"),
        ("trainset", r"did you mean train_dataset\?"),
    ],
)
def test_an_argument_of_another_version_is_refused_with_todays(name, remedy):
    with pytest.raises(ConfigError, match=rf"^GRPOTrainer has no argument {name}; {remedy}"):
        GRPOTrainer("no model", lengths, **{name: 1})


def test_an_adapter_that_is_not_to_be_trained_is_refused_and_frozen_parts_stay_frozen(tmp_path):
    peft = pytest.importorskip("peft")
    adapter = peft.get_peft_model(tiny_model(), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    frozen = [one for name, one in adapter.named_parameters() if "q_proj" in name]
    for one in frozen:
        one.requires_grad_(False)
    trainer = make(tmp_path, model=adapter)
    assert not any(one.requires_grad for one in frozen)
    assert trainer.get_num_trainable_parameters() > 0
    for one in adapter.parameters():
        one.requires_grad_(False)
    with pytest.raises(ModelError, match="is_trainable=True"):
        make(tmp_path / "again", model=adapter)


def test_what_scripts_ask_accelerate_for(made, tmp_path):
    accelerator, state = made.accelerator, made.args.distributed_state
    state.wait_for_everyone()
    assert accelerator.state is state
    assert (state.distributed_type, state.num_processes, state.is_main_process) == ("NO", 1, True)
    tensor = torch.tensor([1.0, 2.0])
    assert accelerator.gather(tensor).tolist() == accelerator.reduce(tensor, "mean").tolist() == [1.0, 2.0]
    assert accelerator.gather_for_metrics({"a": tensor})["a"].tolist() == [1.0, 2.0]
    assert accelerator.gather_for_metrics(["x"], use_gather_object=True) == ["x"]
    with accelerator.main_process_first(), accelerator.split_between_processes([1, 2, 3]) as part:
        assert part == [1, 2, 3]
    weight = torch.ones(1, requires_grad=True)
    accelerator.backward((weight * 3).sum())
    assert weight.grad.tolist() == [3.0]
    accelerator.save({"a": 1}, tmp_path / "saved.pt")
    assert accelerator.on_main_process(lambda: 5)() == 5
    with pytest.raises(AttributeError, match=r"^trainer\.accelerator has no save_state: the trainer's own run writes"):
        accelerator.save_state("here")
