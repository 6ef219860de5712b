"""Flags of `trl grpo` in one row each, and the file behind its `--config`: flags by line, `env` and `datasets`."""

import json
from collections.abc import Mapping

import yaml

from paceline.compat.commands.fields import field_names
from paceline.compat.commands.flags import Flags, FlagWords, read_flags
from paceline.compat.commands.launching import ACCELERATE, WITHOUT_EFFECT, Started
from paceline.compat.commands.translation import Refusals, Translation
from paceline.compat.vocabulary import Meaning, flags
from paceline.config.reading import suggest
from paceline.errors import ConfigError

OF_A_DATASET: Mapping[str, str] = {"path": "dataset_name", "name": "dataset_config", "split": "dataset_train_split"}
"""Keys in an entry of `datasets` that are flags as well."""


def known_flags() -> tuple[str, ...]:
    """Every flag of `trl grpo`, including those that it passes on, and names that earlier versions had."""
    names = (*MEANINGS, *field_names(), *EARLIER, "config")
    return tuple(dict.fromkeys((*names, *ACCELERATE, *WITHOUT_EFFECT["accelerate"])))


EARLIER: Mapping[str, str] = {
    "torch_dtype": "dtype",
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "use_liger_loss": "use_liger_kernel",
    "vllm_max_model_len": "vllm_max_model_length",
}
"""Names that flags had in earlier versions, and have in recipes that are still about, with today's."""


def _todays(flags: Flags, translation: Translation) -> Flags:
    """The flags under the names that TRL has now; a change of name is noted."""
    today = Flags()
    for name, words in flags.items():
        if name in EARLIER:
            translation.note("settled", f"--{name}", f"is --{EARLIER[name]} in today's TRL")
        today[EARLIER.get(name, name)] = words
    return today


def read(words: FlagWords, start: Started, translation: Translation, refusals: Refusals) -> Flags:
    """Parse flags over the lines of their file; refuses what TRL does not have, and an unreadable file."""
    flags = _todays(read_flags(words, known_flags(), "TRL", translation, refusals), translation)
    if "datasets" in flags:
        with refusals():
            raise ConfigError("--datasets must stand in the file of --config, as TRL reads it; or give --dataset_name")
    path = flags.pop("config", None)
    if path is None:
        return flags
    if len(path) != 1:
        raise ConfigError(f"--config must name one file, got {' '.join(path) or 'none'}")
    lines = _lines(path[0], start, translation, refusals)
    for name, texts in lines.items():
        if flags.get(name, texts) != texts:
            text = f"{' '.join(flags[name])}, where {path[0]} has {' '.join(texts)}; the flag counts"
            translation.note("settled", f"--{name}", text)
    return {**lines, **flags}


def _lines(path: str, start: Started, translation: Translation, refusals: Refusals) -> Flags:
    """Lines of the file as flags; its `env` is added to the environment."""
    try:
        values = yaml.safe_load(start.read(path))
    except yaml.YAMLError as error:
        raise ConfigError(f"--config {path} is not YAML ({' '.join(str(error).split())}); mend it") from None
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ConfigError(f"--config {path} must hold lines of `name: value`, got {type(values).__name__}")
    environment = values.pop("env", {})
    if not isinstance(environment, dict):
        raise ConfigError(f"--config {path}: env must hold names and values, got {environment!r}")
    translation.environment |= {name: str(value) for name, value in environment.items()}
    lines = _dataset(values.pop("datasets", None), path)
    lines |= {name: flag_words(value) for name, value in values.items()}
    known = known_flags()
    for name in lines:
        if name not in known:
            near = suggest(name, known, otherwise="leave it out")
            with refusals():
                raise ConfigError(f"--config {path}: TRL has no {name}; {near}")
    return _todays({name: texts for name, texts in lines.items() if name in known}, translation)


def _dataset(entries: object, path: str) -> Flags:
    if entries is None:
        return {}
    if not isinstance(entries, list) or len(entries) != 1 or not isinstance(entries[0], dict):
        raise ConfigError(
            f"--config {path}: datasets must hold one entry, got {entries!r}; a mixture is made beforehand, as one file"
        )
    entry = dict(entries[0])
    if isinstance(entry.get("data_files"), str):
        # rows of a kind of file, which here are named by themselves
        entry["path"] = entry.pop("data_files")
    for name in entry:
        if name not in OF_A_DATASET:
            raise ConfigError(f"--config {path}: datasets: {name} is not offered; {', '.join(OF_A_DATASET)} are")
    return {OF_A_DATASET[name]: (str(value),) for name, value in entry.items()}


def flag_words(value: object) -> FlagWords:
    """A value of a file or a script as the words of a flag."""
    if isinstance(value, list | tuple):
        return tuple(word for item in value for word in flag_words(item))
    if isinstance(value, dict):
        return (json.dumps(value),)
    if value is None:
        return ("none",)
    return (str(value).lower(),) if isinstance(value, bool) else (str(value),)


MEANINGS: Mapping[str, Meaning] = {
    **flags(
        "option",
        {
            "dataset": "dataset_name dataset_config datasets",
            "dataset_split": "dataset_train_split",
            "eval_split": "dataset_test_split",
            "prompt_column": "dataset_prompt_column",
            "system_prompt": "system_prompt",
            "reward_funcs: model:NAME": "reward_model_name_or_path",
            "reward_funcs": "reward_funcs",
            "model": "model_name_or_path",
            "dtype: of the computation, weights are float32 always": "dtype",
            "lora_rank": "use_peft lora_r",
            "lora_alpha": "lora_alpha",
            "lora_targets": "lora_target_modules",
        },
    ),
    **flags(
        "idle",
        {
            "rows are read once, before the first step": "dataset_streaming streaming",
            "there are none that would have to be left out": "ignore_bias_buffers",
            "attention is the built-in one, or torch's": "attn_implementation",
            "nothing is dropped: the policy that trains is the one that sampled": "lora_dropout",
            "a causal language model is what is trained": "lora_task_type",
            "they take no part in the loss": "output_router_logits",
        },
    ),
    **flags(
        "refused",
        {
            "no held-out set is cut from the training rows; "
            "give a file of its own as --eval-dataset": "test_split_size",
            "a Hub name is read at its main branch; download the revision and give its directory": "model_revision",
            "adapters are of linear layers": "lora_target_parameters",
            "an adapter holds its own matrices alone": "lora_modules_to_save",
            "the adapter's scale is lora_alpha over its rank; "
            "give --lora_alpha times the root of the rank": "use_rslora",
            "adapters have no magnitudes of their own": "use_dora",
            "weights are not quantised; --optimizer adamw_8bit, --zero-stage and --lora-rank save memory": (
                "load_in_8bit load_in_4bit bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage"
            ),
        },
        also={
            "model_revision": ("main",),
            "bnb_4bit_quant_type": ("nf4", "fp4"),
            "bnb_4bit_quant_storage": ("uint8",),
        },
    ),
}
"""`also`: values with which a refused flag means the same as its absence."""
