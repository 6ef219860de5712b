"""How a trainer's model lies on the ranks of a launch: the fields and files of DeepSpeed, FSDP and accelerate."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.compat.layouts import Agreement, of_deepspeed, of_fsdp, of_launcher, of_sizes
from paceline.compat.trl.fields import Fields
from paceline.errors import ConfigError

FIELDS = {
    "gradient_clipping": "max_grad_norm",
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "train_batch_size": "per_device_train_batch_size",
    "lr": "learning_rate",
    "betas": "adam_beta1 and adam_beta2",
    "eps": "adam_epsilon",
    "activation_checkpointing": "gradient_checkpointing",
}
"""Fields of transformers behind settings of DeepSpeed and FSDP with other names."""


def layout_options(args: Fields, environment: Mapping[str, str]) -> dict[str, object]:
    """Options behind `deepspeed`, `fsdp`, `parallelism_config` and the launcher's variables; the fields come first.

    Raises:
        ConfigError: something has no counterpart here, or says otherwise than a field.
    """
    accelerator: Any = args.accelerator_config  # transformers has made an AcceleratorConfig of it
    if args.world_size > 1 and getattr(accelerator, "split_batches", False):
        raise ConfigError(
            "accelerator_config split_batches must be False, got True: batches are counted per process; divide "
            "per_device_train_batch_size"
        )
    micro, parts = args.per_device_train_batch_size, args.gradient_accumulation_steps
    values = {
        "gradient_clipping": args.max_grad_norm or 0.0,
        "gradient_accumulation_steps": parts,
        "train_micro_batch_size_per_gpu": micro,
        "train_batch_size": micro * parts * args.world_size,
        "bf16": bool(args.bf16),
        "lr": args.learning_rate,
        "betas": (args.adam_beta1, args.adam_beta2),
        "eps": args.adam_epsilon,
        "weight_decay": args.weight_decay,
        "activation_checkpointing": bool(args.gradient_checkpointing),
    }
    agreement, sharded = (
        Agreement(values=values, fields=FIELDS),
        {name: getattr(args, name) for name in ("deepspeed", "fsdp")},
    )
    if all(sharded.values()):
        raise ConfigError("deepspeed and fsdp both say how the weights are sliced; leave one out")
    options = of_launcher(environment, lambda path: _json(path, "a file of DeepSpeed's"), agreement)
    if args.deepspeed:
        given: object = args.deepspeed
        label = given if isinstance(given, str) else "deepspeed"
        options |= of_deepspeed(label, _json(given, "deepspeed") if isinstance(given, str) else given, agreement)
    if args.fsdp:
        settings: Any = args.fsdp_config or {}
        settings = _json(settings, "fsdp_config") if isinstance(settings, str) else settings
        options |= of_fsdp(args.fsdp, settings, agreement)
    if args.parallelism_config:
        sizes: Any = args.parallelism_config
        options |= of_sizes("parallelism_config", sizes if isinstance(sizes, Mapping) else vars(sizes))
    if args.world_size == 1:  # all slices are this process's
        options = {name: value for name, value in options.items() if name.endswith("_parallel")}
    return options


def _json(text: str, name: str) -> Any:
    """Settings from a JSON file, or from JSON itself as a command line gives it; ConfigError for neither."""
    try:
        return json.loads(text if text.lstrip().startswith("{") else Path(text).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{name} must be a JSON file's path, got {text!r} ({error}); mend it, or give a dict"
        ) from None
