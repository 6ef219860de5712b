"""A `GRPOConfig` to a run's configuration: a pure function whose errors name the field."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.compat.trl.batches import batches_of, fill_batch_fields, in_steps, interval, warmup_steps
from paceline.compat.trl.fields import DECIDED_BY, MEANINGS, Options, check_fields, options_of
from paceline.compat.trl.keywords import (
    check_checkpointing,
    model_keywords,
    sampling_keywords,
    schedule_keywords,
    template_keywords,
)
from paceline.compat.trl.objective import OPTIONS, objective_options
from paceline.compat.trl.training_fields import NO_LIMIT
from paceline.config.building import build_config
from paceline.config.sections import Config
from paceline.errors import ConfigError, PacelineError, sentence

if TYPE_CHECKING:
    from paceline.compat.trl.config import GRPOConfig


FIELDS: Mapping[str, str] = {
    **{option: names[0] for option, names in DECIDED_BY.items()},
    "enable_thinking": "chat_template_kwargs enable_thinking",
    "stop": "generation_kwargs stop_strings",
    "eval_temperature": "temperature",
    "lora_rank": "peft_config.r",
    "lora_alpha": "peft_config.lora_alpha",
    "lora_targets": "peft_config.target_modules",
    "dataset": "train_dataset",
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
    "offload": "give optim adamw_8bit or a peft_config",
    "override": "start a new run in another output_dir",
    "resume": "continue it with train(resume_from_checkpoint=True)",
}
"""What a program does where a remedy names an option without a field; empty if there is nothing that it can do."""
OPTION = re.compile(r"--([a-z][a-z0-9-]*[a-z0-9])")
ASIDE = re.compile(r" \(--([a-z][a-z0-9-]*[a-z0-9])[^()]*\)")
"""Option in parentheses that only names a limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """Facts for the translation that the arguments alone do not contain."""

    model: str
    """Directory or Hub name; for a model object its `name_or_path`."""
    reward_names: tuple[str, ...]
    """Functions and models in the given order, which is that of `reward_weights`; each name once."""
    dataset: str = "train_dataset"
    """Name of the training set in the resolved configuration."""
    num_prompts: int | None = None
    """Rows of the training set, or None without a length: a share of the run needs it, or `max_steps`."""
    context_length: int | None = None
    """Context length of the model in tokens, if known: it bounds prompts while `max_prompt_length` is None."""
    adapter: bool = False
    """True if a `peft_config` or a PeftModel is trained."""


def translate(args: "GRPOConfig", surroundings: Surroundings) -> Config:
    """Configuration of the whole run in Paceline's options.

    Rewards keep the given order, models among functions, so that weights match. Saving and evaluation intervals are in
    steps for the strategy `steps`, else 0: the trainer handles the other strategies.

    Raises:
        ConfigError: a field that is refused, wrong, or at odds with another; the sentence names fields, not options.
    """
    check_fields(args)
    fill_batch_fields(args)
    check_checkpointing(args)
    batches, prompts, limit = batches_of(args), surroundings.num_prompts, args.max_prompt_length
    if args.temperature <= 0:
        raise ConfigError(
            f"temperature must be above 0, got {args.temperature!r}; greedy completions of one prompt are all the same"
        )
    given: Options = {
        **{name: value for name, value in options_of(args).items() if name not in OPTIONS},
        **objective_options(args),
        **model_keywords(args),
        **sampling_keywords(args),
        **template_keywords(args),
        **schedule_keywords(args),
        # data and rewards
        "model": surroundings.model,
        "dataset": surroundings.dataset,
        "max_prompt_length": (surroundings.context_length or NO_LIMIT) if limit is None else limit,
        "long_prompts": "error" if limit is None else "truncate_left",
        "reward_funcs": surroundings.reward_names,
        "reward_weights": _weights(args, surroundings),
        # the step and the run
        "prompts_per_step": batches.prompts_per_step,
        "num_minibatches": batches.num_minibatches,
        "warmup_steps": warmup_steps(args, prompts),
        "save_steps": interval(args, "save", prompts),
        "background_save": False,  # on_save finds the checkpoint on disk, and the trainer's state as it was
        # evaluation
        "eval_steps": interval(args, "eval", prompts),
        "eval_size": None,
        "eval_generations": args.num_generations if args.num_generations_eval is None else args.num_generations_eval,
        "eval_temperature": args.temperature,
        "eval_reward_func": surroundings.reward_names[0],
    }
    if args.max_steps > 0:
        given["max_steps"] = math.ceil(args.max_steps / batches.updates_per_step)
    else:
        given["num_epochs"] = args.num_train_epochs
    if args.sync_ref_model:
        given["ref_sync_steps"] = _reference_steps(args, surroundings)
    try:
        return build_config(given)
    except ConfigError as error:
        raise ConfigError(said_of_fields(error)) from None


def said_of_fields(error: PacelineError) -> str:
    """Sentence of an error for a program: fields instead of options, and remedies that a program has.

    >>> said_of_fields(ConfigError("--clip-eps-low is 2", remedies=["name a --prompt-column", "lower it"]))
    'epsilon is 2; lower it'
    """
    remedies = [said for remedy in error.remedies if (said := _remedy(remedy))]
    return sentence(in_field_names(error.message), remedies, _remedy(error.then))


def _remedy(clause: str) -> str:
    lacking = next((name for found in OPTION.finditer(clause) if (name := _name(found)) in INSTEAD), None)
    return in_field_names(clause) if lacking is None else INSTEAD[lacking]


def in_field_names(text: str) -> str:
    """Replace options in a text by the fields behind them, and leave out a limit in parentheses that is no field.

    >>> in_field_names("--clip-eps-low 1.5 is left (--stop-grace 3)")
    'epsilon 1.5 is left'
    """
    text = ASIDE.sub(lambda found: found[0] if _name(found) in {*FIELDS, *MEANINGS} else "", text)
    # the option's value is its field where a program gives an object, and a program names a model without its prefix
    text = text.replace("--dataset train_dataset ", "--dataset ").replace("--reward-funcs model:", "--reward-funcs ")
    return OPTION.sub(lambda found: FIELDS.get(_name(found), _name(found)), text)


def _name(flag: re.Match[str]) -> str:
    return flag[1].replace("-", "_")


def _weights(args: "GRPOConfig", surroundings: Surroundings) -> list[float] | None:
    names, weights = surroundings.reward_names, args.reward_weights
    if weights is not None and len(weights) != len(names):
        raise ConfigError(
            f"reward_weights must have one number for each of the {len(names)} rewards ({', '.join(names)}), got "
            f"{weights!r}"
        )
    return weights


def _reference_steps(args: "GRPOConfig", surroundings: Surroundings) -> int:
    if surroundings.adapter:
        raise ConfigError("sync_ref_model must be False with a PEFT model, got True: the reference is its base model")
    if args.beta == 0 and args.preset is None:
        raise ConfigError("sync_ref_model must be False while beta is 0, got True: there is no reference then")
    if args.ref_model_sync_steps < 1:
        raise ConfigError(f"ref_model_sync_steps must be at least 1, got {args.ref_model_sync_steps!r}")
    return in_steps(args, "ref_model_sync_steps", args.ref_model_sync_steps, None)
