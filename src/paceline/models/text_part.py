"""The language model in a checkpoint that also reads images or sound: it alone is loaded, trained and exported."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel
from transformers.utils.logging import get_verbosity, set_verbosity, set_verbosity_error

from paceline.errors import ModelError
from paceline.models.head import decoder_of
from paceline.models.loaded import import_peft
from paceline.models.places import ADAPTER_WEIGHTS, TEXT_NAMES
from paceline.models.pretrained import text_config
from paceline.models.vision.families import family_of

if TYPE_CHECKING:
    from peft import PeftModel


def read_model(
    source: str, *, trust_remote_code: bool, whole: bool = False, **options: Any
) -> tuple[PreTrainedModel, Mapping[str, Any]]:
    """Read a causal language model in float32 by transformers; return it with the report of loading it.

    `whole`: all of a model that reads images too. `options` are further ones of `from_pretrained`, whose errors are
    raised as they are. In the report, weights of a checkpoint's other parts are unexpected.
    """
    described = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
    text = described if whole else text_config(described)
    if text is not described:
        options = {**options, "config": text, "key_mapping": TEXT_NAMES}
    reader: Any = AutoModelForImageTextToText if whole else AutoModelForCausalLM  # its signature leaves out the report
    with nullcontext() if text is described else _quiet():
        model, report = reader.from_pretrained(
            source, dtype=torch.float32, trust_remote_code=trust_remote_code, output_loading_info=True, **options
        )
    if text is not described:
        if hasattr(model, "_weight_conversions"):  # by which transformers would save it under the names of its files
            del model._weight_conversions
        # where both matrices are there and differ, transformers ties none, whatever the default of such a file is
        model.config.tie_word_embeddings = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    return model, report


@contextmanager
def _quiet() -> Iterator[None]:
    """Within the context transformers does not list weights that are left out on purpose."""
    verbosity = get_verbosity()
    set_verbosity_error()
    try:
        yield
    finally:
        set_verbosity(verbosity)


def language_model(model: PreTrainedModel) -> PreTrainedModel:
    """Return the causal language model in a user's object, made of the same modules; other objects as they are.

    ModelError: the object has no such part that transformers knows, or quantised weights.
    """
    text = text_config(model.config)
    if text is model.config:
        return model
    with torch.device("meta"):
        causal: Any = AutoModelForCausalLM.from_config(text)
    is_quantised: bool = getattr(model, "is_quantized", False)
    decoder: Any = model.get_decoder()
    head = model.get_output_embeddings()
    if is_quantised or type(decoder) not in (type(causal), type(decoder_of(causal))) or head is None:
        how = "has quantised weights" if is_quantised else f"has no {type(causal).__name__} in it"
        raise ModelError(f"the model is a {type(model).__name__} that {how}; give the name of its directory instead")
    if isinstance(decoder, type(causal)):
        causal = decoder
    else:
        setattr(causal, causal.base_model_prefix, decoder)
        causal.set_output_embeddings(head)
        causal.config.tie_word_embeddings = head.weight is decoder.get_input_embeddings().weight
    causal.generation_config = model.generation_config
    part: PreTrainedModel = causal.train(model.training)
    return part


def has_vision(saved: Path) -> bool:
    """Return whether saved weights, of a whole model, in pieces or of an adapter, are of one that reads images."""
    if (saved / ADAPTER_WEIGHTS).is_file():
        with safe_open(saved / ADAPTER_WEIGHTS, framework="pt") as file:
            return any({"language_model", "text_model"} & set(name.split(".")) for name in file.keys())  # noqa: SIM118
    return family_of(AutoConfig.from_pretrained(saved).model_type) is not None


def parts_of_object(model: "PreTrainedModel | PeftModel", *, whole: bool) -> tuple[PreTrainedModel, "PeftModel | None"]:
    """Return the model in a user's object, or its language model unless `whole`, and the adapter if it has one."""
    if isinstance(model, PreTrainedModel):
        return model if whole else language_model(model), None
    if not (isinstance(model, import_peft().PeftModel) and isinstance(model.get_base_model(), PreTrainedModel)):
        raise ModelError(f"the model must be a PreTrainedModel or a PeftModel around one, got {type(model).__name__}")
    base = cast(PreTrainedModel, model.get_base_model())
    if not whole and language_model(base) is not base:
        raise ModelError(
            f"the PeftModel is around a {type(base).__name__}, of which only the language model is trained here; give "
            "the model without the adapter, and the adapter as peft_config"
        )
    return base, model
