"""What can be refused of a `peft_config` before any weight is read."""

from typing import Any

from paceline.errors import ConfigError, ModelError
from paceline.models.lora import check_adapter_kind

OUTPUT_NAMES = ("lm_head", "embed_out")
"""Usual names of the output embedding; a model object knows its own."""


def check_adapter(peft_config: Any, model: Any) -> None:
    """Refuse an adapter that its configuration alone shows to be none that can be trained here.

    Raises:
        ConfigError: the sentence names the field of `peft_config`, its value and the remedy.
    """
    if peft_config is None:
        return
    if not hasattr(peft_config, "peft_type"):
        hint = f"give peft.LoraConfig(**{peft_config!r})" if isinstance(peft_config, dict) else "give a peft.LoraConfig"
        raise ConfigError(f"peft_config must be a configuration of peft, got a {type(peft_config).__name__}; {hint}")
    try:
        check_adapter_kind(peft_config)
    except ModelError as error:
        raise ConfigError(f"peft_config: {error}") from error
    for name in ("modules_to_save", "target_modules"):
        _check_output(name, getattr(peft_config, name, None), model)


def _check_output(name: str, modules: Any, model: Any) -> None:
    """Log-probabilities are computed from the output embedding's own weight, which nothing may replace."""
    given = [modules] if isinstance(modules, str) else list(modules or ())
    for module in given:
        if str(module).rsplit(".", 1)[-1] in _output_names(model):
            raise ConfigError(
                f"peft_config.{name} must leave out the output embedding, got {module!r}: log-probabilities are "
                "computed from its own weight; target_modules='all-linear' leaves it out"
            )


def _output_names(model: Any) -> tuple[str, ...]:
    if not hasattr(model, "get_output_embeddings"):
        return OUTPUT_NAMES
    head = model.get_output_embeddings()
    names = [name.rsplit(".", 1)[-1] for name, module in model.named_modules() if module is head]
    return tuple(names) or OUTPUT_NAMES
