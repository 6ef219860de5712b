"""Rules for the options that a resumed run may change, and the comparison with those it had.

Each option follows one of three rules. It may change `freely`, if each step computes what it would have computed (to
rounding); `by name`, with `--override`, if not; or `never`, if the checkpoint could not be resumed."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.config.reading import find_option, values_of
from paceline.config.sections import Config
from paceline.errors import ConfigError

Rule = Literal["freely", "by name", "never"]

RULES: Mapping[Rule, tuple[str, ...]] = {
    "freely": (
        # the same numbers are computed elsewhere or in another order, which is the same to rounding
        *("deterministic", "threads", "micro_batch_tokens", "gradient_checkpointing", "offload"),
        *("concurrent_sequences", "vllm_memory", "vllm_tensor_parallel", "vllm_eager"),
        *("cluster", "num_producers", "num_consumers"),
        *("zero_stage", "tensor_parallel", "pipeline_parallel", "context_parallel", "sampling_ranks"),
        # it says how long is waited and how much may fail, not what comes of what does not
        *("max_reward_failure_rate", "reward_timeout", "step_timeout", "stop_grace", "sandbox"),
        *("actor_timeout", "max_restarts", "environment_timeout"),
        # it says what is written down, when and for whom, not what is computed
        *("merge_lora", "final_dtype", "eval_steps", "save_steps", "save_total_limit", "background_save"),
        *("report_to", "project", "profile"),
        # it says whether a run is refused, not what it computes
        "allow_overlap",
        # the directory behind --resume is where a run continues, even if it was moved
        "output_dir",
    ),
    "by name": (
        # completions are drawn from another distribution, or of other prompts
        *("model", "dtype", "device", "trust_remote_code"),
        *("dataset", "dataset_split", "prompt_column", "answer_column", "system_prompt"),
        *("image_max_pixels", "image_min_pixels", "max_images_per_prompt", "image_urls"),
        *("enable_thinking", "chat_template_kwargs", "max_prompt_length", "long_prompts", "shuffle", "dataset_size"),
        *("on_bad_row", "seed"),
        *("num_generations", "max_completion_length", "temperature", "top_p", "top_k", "min_p", "stop"),
        *("engine", "engine_quantization", "router_replay", "rollout_func"),
        *("prompts_per_step", "max_staleness", "on_new_weights", "max_refills", "oversampling"),
        *("environment", "max_turns", "max_turn_length", "max_observation_length", "history"),
        # completions are worth something else
        *("reward_funcs", "reward_weights", "preset", "advantage", "reward_aggregation"),
        *("overlong_share", "mask_truncated", "filter_range", "filter_func", "turn_credit"),
        # the loss or the update is another
        *("lora_alpha", "ratio_level", "bound", "clip_eps_low", "clip_eps_high", "bound_shape"),
        *("average", "average_over", "beta", "kl", "entropy_coef", "entropy_target", "rollout_correction"),
        *("correction_bounds", "top_entropy_quantile", "off_policy_threshold", "skip_threshold"),
        *("learning_rate", "vision_learning_rate", "lr_schedule", "warmup_steps", "min_lr_ratio", "lr_scheduler"),
        *("adam_betas", "adam_eps"),
        *("weight_decay", "max_grad_norm", "num_iterations", "num_minibatches"),
        # the learning rate falls towards the last step, unless --lr-schedule is constant
        *("max_steps", "num_epochs"),
        # accuracies before and after it are not of the same measurement
        *("eval_dataset", "eval_split", "eval_share", "eval_size", "eval_temperature", "eval_generations"),
        "eval_reward_func",
    ),
    "never": (
        *("lora_rank", "lora_targets", "lora_parameters", "lora_settings", "optimizer", "ref_sync"),
        *("train_vision", "train_projector", "lora_vision"),
    ),
}
"""Options of each rule, with the reasons; each option is in exactly one of them."""
NEVER_BECAUSE = "a checkpoint holds the weights and moments of what it was saved of"


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """An option with its old and its new value."""

    option: str
    old: object
    new: object

    def describe(self) -> str:
        """Describe the difference in a phrase."""
        return f"{find_option(self.option).flag} is {_word(self.new)} and was {_word(self.old)}"


def rule_of(option: str) -> Rule:
    """Return the one rule for an option."""
    (rule,) = [rule for rule, names in RULES.items() if option in names]
    return rule


def plain_options(config: Config) -> dict[str, object]:
    """Return every option with its value as JSON has it: a list instead of a tuple."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values_of(config).items()}


def differences(old: Mapping[str, object], new: Mapping[str, object]) -> tuple[Difference, ...]:
    """List the options of both sides that differ."""
    return tuple(
        Difference(option=name, old=old[name], new=new[name]) for name in new if name in old and old[name] != new[name]
    )


def changes_what_is_computed(difference: Difference, new: Mapping[str, object], old: Mapping[str, object]) -> bool:
    """Return True if a difference changes what a step computes, beyond rounding."""
    if difference.option == "num_epochs" and (old.get("max_steps"), new.get("max_steps")) != (None, None):
        return False  # a given `max_steps` counts instead, and is compared itself
    is_constant = all(
        values.get("lr_schedule") == "constant" and values.get("lr_scheduler") is None for values in (old, new)
    )
    if difference.option in ("max_steps", "num_epochs") and is_constant:
        return False
    return rule_of(difference.option) != "freely"


def refuse_changes(
    old: Mapping[str, object], new: Mapping[str, object], *, override: Collection[str], written: Collection[str] = ()
) -> tuple[Difference, ...]:
    """Return the options that differ; those that change what is computed must be named.

    Args:
        old: options the run was computed with.
        new: options it is to continue with.
        override: names of options that may change.
        written: options given by the command itself; another that differs comes from an edited config.yaml.

    Raises:
        ConfigError: an option changed that is not named, or that never can change.
    """
    changes = differences(old, new)
    telling = [change for change in changes if changes_what_is_computed(change, new, old)]
    never = [change for change in telling if rule_of(change.option) == "never"]
    if never:
        raise ConfigError(
            f"{_listed(never, written)}, which a run cannot change, as {NEVER_BECAUSE}; "
            "leave it as it was, or start a new run from this one's model"
        )
    unnamed = [change for change in telling if change.option not in override]
    if unnamed:
        names = " ".join(change.option for change in telling)
        raise ConfigError(
            f"{_listed(unnamed, written)}, with which the run would compute something else than before",
            remedies=[
                f"leave {'it' if len(unnamed) == 1 else 'them'} as before",
                f"continue so from the last checkpoint by --override {names}",
            ],
        )
    return changes


def override_names(entries: Sequence[str]) -> frozenset[str]:
    """Return the options named by `--override`, in any spelling, also with commas between them.

    Raises:
        ConfigError: there is no such option.
    """
    return frozenset(find_option(word).name for entry in entries for word in entry.split(",") if word)


def _listed(changes: Sequence[Difference], written: Collection[str]) -> str:
    return ", ".join(
        change.describe() + ("" if change.option in written else " (config.yaml was edited)") for change in changes
    )


def _word(value: object) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return repr(value) if value == "" else str(value)
