"""Reads the rows of `grpo_fields.py` and `training_fields.py`: refuses, converts, and says what has no effect."""

import re
import typing
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import Enum
from types import NoneType, UnionType
from typing import Any, ClassVar, TypeVar

from paceline.compat.trl.grpo_fields import GRPOFields
from paceline.compat.trl.training_fields import TrainingFields
from paceline.compat.vocabulary import Meaning, changed, fields_by_option, same
from paceline.config.reading import suggest
from paceline.errors import ConfigError, PacelineError

MEANINGS: Mapping[str, Meaning] = {**TrainingFields.MEANINGS, **GRPOFields.MEANINGS}
"""Meaning of every field of `GRPOConfig`."""
DECIDED_BY: Mapping[str, tuple[str, ...]] = fields_by_option(MEANINGS)
"""Fields that decide each option; the first is named in errors about it."""

Options = dict[str, object]

FIELD_OF: Mapping[str, str] = {
    **{option: names[0] for option, names in DECIDED_BY.items()},
    "enable_thinking": "chat_template_kwargs enable_thinking",
    "chat_template_kwargs": "chat_template_kwargs",
    "stop": "generation_kwargs stop_strings",
    "eval_temperature": "temperature",
    "lora_rank": "peft_config.r",
    "lora_alpha": "peft_config.lora_alpha",
    "lora_targets": "peft_config.target_modules",
    "lora_parameters": "peft_config.target_parameters",
    "lora_settings": "peft_config",
    "lr_scheduler": "lr_scheduler_type",
    "rollout_func": "rollout_func",
    "dataset": "train_dataset",
    "environment": "environment_factory",
    "prompt_column": "train_dataset's column `prompt`",
    "answer_column": "train_dataset's column `answer`",
    "resume": "output_dir",
}
"""Field of `GRPOConfig`, or argument of the trainer, behind each option."""

INSTEAD: Mapping[str, str] = {
    "long_prompts": "give a max_prompt_length that fits, which cuts them",
    "prompt_column": "",
    "answer_column": "give them in a column `answer`",
    "system_prompt": "leave the system message out where the template takes none",
    "eval_share": "",
    "eval_split": "",
    "allow_overlap": "",
    "offload": "give optim adamw_8bit or a peft_config",
    "override": "start a new run in another output_dir",
    "resume": "continue it with train(resume_from_checkpoint=True)",
}
"""Remedy for a program in place of one that names an option without a field; empty if there is none."""
ErrorT = TypeVar("ErrorT", bound=PacelineError)

OPTION = re.compile(r"--([a-z][a-z0-9-]*[a-z0-9])")
ASIDE = re.compile(r" \(--([a-z][a-z0-9-]*[a-z0-9])[^()]*\)")
"""Option in parentheses that only names a limit."""
NOTHING = "leave it out"
FORMER_ARGUMENTS: Mapping[str, str] = {
    "tokenizer": "give processing_class",
    "config": "give args",
    "ref_model": "the reference is the model as it is at the start; give beta in args",
    "dataset": "give train_dataset",
    "reward_function": "give reward_funcs",
    "reward_functions": "give reward_funcs",
    "env": "give environment_factory",
    "environments": "give environment_factory",
}
"""Arguments of a trainer."""
FORMER_FIELDS: Mapping[str, str] = {
    # TRL
    "vllm_device": f"vLLM has the trainer's own device; {NOTHING}",
    "vllm_dtype": f"vLLM computes in the precision of the weights; {NOTHING}",
    "vllm_max_model_len": "give vllm_max_model_length",
    "vllm_guided_decoding_regex": f"completions are not held to a pattern; {NOTHING}",
    "vllm_enable_prefix_caching": f"vLLM always caches prefixes; {NOTHING}",
    "use_liger_loss": f"logits are never in memory as a whole; {NOTHING}",
    "wandb_log_unique_prompts": f"every completion is written to the run directory's rollouts/; {NOTHING}",
    "max_length": "give max_completion_length, and max_prompt_length",
    "max_new_tokens": "give max_completion_length",
    "num_return_sequences": "give num_generations",
    "kl_coef": "give beta",
    # transformers
    "evaluation_strategy": "give eval_strategy",
    "no_cuda": "give use_cpu",
    "overwrite_output_dir": "nothing overwrites a run; give another output_dir, or resume it",
    "logging_dir": f"trackers write below output_dir; {NOTHING}",
    "per_gpu_train_batch_size": "give per_device_train_batch_size",
    "per_gpu_eval_batch_size": "give per_device_eval_batch_size",
    "push_to_hub_model_id": "give hub_model_id",
    "push_to_hub_organization": "give hub_model_id='organization/name'",
    "push_to_hub_token": "give hub_token",
    "save_safetensors": f"weights are always written as safetensors; {NOTHING}",
    "group_by_length": f"prompts are not ordered by length; {NOTHING}",
    "half_precision_backend": f"torch is the only one; {NOTHING}",
    "fp16_backend": f"torch is the only one; {NOTHING}",
    "fp16_opt_level": f"half precision is not offered; {NOTHING}",
    "adafactor": "give the trainer optimizers=(optimizer, None)",
    "jit_mode_eval": f"the model is not compiled; {NOTHING}",
    "torchdynamo": f"the model is not compiled; {NOTHING}",
    "use_mps_device": f"it computes on CUDA or the CPU; {NOTHING}",
    "include_tokens_per_second": f"clock/ and tokens_generated in the log say it; {NOTHING}",
    "include_inputs_for_metrics": f"there are no predictions to compute on; {NOTHING}",
    "dispatch_batches": f"no loader runs; {NOTHING}",
    "split_batches": f"batches are counted per process; {NOTHING}",
    "fsdp_min_num_params": "give fsdp, whose slices do not depend on it",
    "fsdp_transformer_layer_cls_to_wrap": "give fsdp, which knows the layers",
}
"""Fields of a configuration."""


@dataclass(repr=False)
class Fields(GRPOFields, TrainingFields):  # type: ignore[misc] # TRL widens types of shared fields
    """All fields of `GRPOConfig`, its base; by itself, the fields of a command: no transformers, no device."""

    TABLE: "ClassVar[type[Fields]]"
    """Class whose defaults are TRL's; a program's own class below it may have others."""

    def __post_init__(self) -> None:
        """Set fields that follow from others, as TrainingArguments does."""
        if self.activation_checkpointing is None:
            self.activation_checkpointing = self.gradient_checkpointing
        if self.eval_strategy == "steps" and not self.eval_steps:
            self.eval_steps = self.logging_steps

    @property
    def world_size(self) -> int:
        """Number of processes that the batch numbers are counted for; 1 for a command, which counts all together."""
        return 1


Fields.TABLE = Fields


def check_fields(args: Fields) -> None:
    """Check every field by itself, in one pass over the rows (ConfigError); text of a number becomes the number."""
    declared = {field.name: field for field in fields(args)}
    scaled: object = args.scale_rewards
    if isinstance(scaled, bool):
        args.scale_rewards = "group" if scaled else "none"
    for name, meaning in MEANINGS.items():
        value = getattr(args, name)
        if meaning.kind == "refused":
            _check_refused(args, name, meaning, value)
        elif meaning.choices:
            if value not in meaning.choices and (value is not None or changed(args, name)):
                raise _no_choice(name, meaning, value)
        elif (whole := _counts_whole(kind := declared[name].type)) is not None:
            may_be_none = meaning.may_be_none or NoneType in typing.get_args(kind) or declared[name].default is None
            if not (value is None and may_be_none):
                setattr(args, name, _number(name, value, whole=whole))


def _check_refused(args: Fields, name: str, meaning: Meaning, value: object) -> None:
    is_on = meaning.switch is None or meaning.switch.is_on(args)
    if is_on and changed(args, name) and not any(same(value, other) for other in meaning.also):
        raise ConfigError(f"{name} must be left out, got {value!r}: {meaning.text}")


def _no_choice(name: str, meaning: Meaning, value: Any) -> ConfigError:
    value, choices = value.value if isinstance(value, Enum) else value, ", ".join(meaning.choices)
    remedy = suggest(str(value), meaning.choices, otherwise=meaning.remedy)
    return ConfigError(f"{name} must be one of {choices}, got {value!r}", remedies=[remedy] if remedy else [])


def _counts_whole(kind: Any) -> bool | None:
    """True for the type of a whole number, False for that of any number, None for every other type."""
    is_union = typing.get_origin(kind) in (typing.Union, UnionType)
    kinds = {*(typing.get_args(kind) if is_union else (kind,))} - {NoneType}
    return float not in kinds if kinds and kinds <= {int, float} else None


def _number(name: str, value: Any, *, whole: bool) -> Any:
    """Number behind a value, also behind its text, since YAML reads `1e-5` as text."""
    settled = value
    if isinstance(value, str):
        try:
            settled = int(value) if whole else float(value)
        except ValueError:
            settled = None
    if whole and isinstance(settled, float) and settled.is_integer():
        settled = int(settled)
    if not hasattr(settled, "__float__") or (whole and not hasattr(settled, "__index__")):
        kind = "a whole number" if whole else "a number"
        raise ConfigError(f"{name} must be {kind}, got {value!r}; write it in digits, without quotes")
    return settled


def options_of(args: Fields) -> Options:
    """Options of fields that become one by themselves."""
    return {
        meaning.options[0]: meaning.convert(getattr(args, name))
        for name, meaning in MEANINGS.items()
        if meaning.convert
    }


def without_effect(args: Fields) -> dict[str, str]:
    """Changed fields without effect, each with the reason: some never have any, some while a feature is off."""
    untouched = args.TABLE(output_dir=args.output_dir, use_cpu=args.use_cpu)
    if args.accelerator_config is not None:  # transformers leaves it None where accelerate is not installed
        # a dataset without a length sets it, which is no change of the user's
        # (transformers has made an AcceleratorConfig of it, whatever the field's own type says)
        ours: Any = args.accelerator_config
        theirs: Any = untouched.accelerator_config
        theirs.dispatch_batches = ours.dispatch_batches
    never = {
        name: meaning.text
        for name, meaning in MEANINGS.items()
        if meaning.kind == "idle" and changed(args, name) and not same(getattr(args, name), getattr(untouched, name))
    }
    switched_off = {
        name: meaning.switch.off
        for name, meaning in MEANINGS.items()
        if meaning.switch is not None and changed(args, name) and not meaning.switch.is_on(args)
    }
    return {**never, **switched_off}


def accepted_without_effect(args: Fields) -> str:
    """One line on the changed fields without effect, with reasons; empty if there are none."""
    reasons = "; ".join(f"{name} ({reason})" for name, reason in without_effect(args).items())
    return reasons and f"accepted without effect: {reasons}"


def keywords_of(args: Fields, name: str) -> dict[str, object]:
    """Keywords for another library in a field; ConfigError if it is no dictionary."""
    value: object = getattr(args, name)
    if value is None or value == "":
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a dict, or JSON text that starts with a brace, got {value!r}")
    return dict(value)


def refuse_field(name: str, known: Collection[str]) -> ConfigError:
    """Return the refusal of a field that GRPOConfig does not have."""
    remedy = FORMER_FIELDS.get(name) or suggest(name, [*known], otherwise=NOTHING)
    return ConfigError(f"GRPOConfig has no field {name}; {remedy}")


def refuse_argument(name: str, known: Collection[str], of_config: Collection[str]) -> ConfigError:
    """Return the refusal of an argument that GRPOTrainer does not have; it may be a field of its configuration."""
    remedy = FORMER_ARGUMENTS.get(name) or (
        f"give it in args: GRPOConfig({name}=...)" if name in of_config else FORMER_FIELDS.get(name)
    )
    return ConfigError(f"GRPOTrainer has no argument {name}; {remedy or suggest(name, [*known], otherwise=NOTHING)}")


def of_fields(error: ErrorT) -> ErrorT:
    """The same error for a program: fields instead of options, and remedies that a program has.

    >>> str(of_fields(ConfigError("--clip-eps-low is 2", remedies=["name a --prompt-column", "lower it"])))
    'epsilon is 2; lower it'
    """
    return error.reworded(in_field_names, advise=_remedy)


def _remedy(clause: str) -> str:
    lacking = next((name for flag in OPTION.finditer(clause) if (name := _name(flag)) in INSTEAD), None)
    return in_field_names(clause) if lacking is None else INSTEAD[lacking]


def in_field_names(text: str) -> str:
    """Replace options in a text by the fields behind them, and leave out a limit in parentheses that is no field.

    >>> in_field_names("--clip-eps-low 1.5 is left (--stop-grace 3)")
    'epsilon 1.5 is left'
    """
    text = ASIDE.sub(lambda flag: flag[0] if _name(flag) in {*FIELD_OF, *MEANINGS} else "", text)
    # the option's value is its field where a program gives an object, and a program names a model without its prefix
    text = text.replace("--engine vllm", "--engine").replace(
        "--engine local", "--engine False"
    )  # a field of two values
    text = text.replace("--dataset train_dataset ", "--dataset ").replace("--reward-funcs model:", "--reward-funcs ")
    return OPTION.sub(lambda flag: FIELD_OF.get(_name(flag), _name(flag)), text)


def _name(flag: re.Match[str]) -> str:
    return flag[1].replace("-", "_")


@contextmanager
def errors_in_field_names() -> Iterator[None]:
    """Reword errors that name options: a program's author knows the fields behind them."""
    try:
        yield
    except PacelineError as error:
        raise of_fields(error) from error
