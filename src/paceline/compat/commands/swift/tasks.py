"""Data options of ms-swift: model, rows, prompts, adapter, precision, trackers, reward functions."""

import re
from collections.abc import Mapping

from paceline.compat.commands.flags import GivenFlags, is_on, number, one
from paceline.compat.commands.translation import Note, Translation
from paceline.config.reading import suggest
from paceline.errors import ConfigError

TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow")
TEXT_FILES = (".txt", ".md")
ADDRESS = re.compile(r"(?:(?P<hub>HF|MS)::)?(?P<place>[^#]*?)(?:#(?P<rows>\d+))?")
LONG = {"left": "truncate_left", "delete": "drop"}
RANK, ALPHA = 8, 32.0
"""Its adapter's own defaults."""


def tasks(given: GivenFlags) -> Translation:
    """Options on rows and their prompts."""
    return _model(given) + _rows(given) + _prompts(given) + _adapter(given) + _precision(given) + _kept(given)


def is_full(given: GivenFlags) -> bool:
    """True if all weights are trained; the default is an adapter.

    Raises:
        ConfigError: another kind of training.
    """
    kinds = [kind for name in ("tuner_type", "train_type", "sft_type") if (kind := one(given, name)) is not None]
    if any(kind not in ("full", "lora") for kind in kinds):
        raise ConfigError(f"--tuner_type must be full or lora, got {kinds[0]!r}; there are no other adapters")
    return kinds[:1] == ["full"]


def _model(given: GivenFlags) -> Translation:
    model = one(given, "model")
    if model is None:
        raise ConfigError("ms-swift needs --model, got none; give a directory or a Hub name")
    return Translation(options={"model": model})


def _rows(given: GivenFlags) -> Translation:
    places = given.get("dataset", ())
    if not places:
        raise ConfigError("ms-swift needs --dataset, got none; give files, directories or Hub names")
    found = [_address("dataset", place, hugging_face=is_on(given, "use_hf")) for place in places]
    addresses = tuple(address for address, _ in found)
    notes = [note for _, own in found for note in own]
    options: dict[str, object] = {"dataset": addresses[0] if len(addresses) == 1 else addresses}
    held_out = given.get("val_dataset", ())
    if held_out:
        options["eval_dataset"] = tuple(_address("val_dataset", one, hugging_face=True)[0] for one in held_out)
    return Translation(options=options, notes=tuple(notes))


def _address(flag: str, text: str, *, hugging_face: bool) -> tuple[str, list[Note]]:
    """A dataset's address as ours, with `#N` if it has one, and notes on differences."""
    found = ADDRESS.fullmatch(text)
    if found is None or not found["place"]:
        raise ConfigError(f"--{flag} must be a file, a directory or a Hub name, #N behind it or not, got {text!r}")
    place, notes = found["place"], list[Note]()
    on_a_hub = place.count("/") == 1 and not place.startswith((".", "/", "~")) and "." not in place.rpartition("/")[2]
    if on_a_hub and not hugging_face and found["hub"] != "HF":
        said = "it is looked up at Hugging Face, there at ModelScope unless --use_hf says so"
        notes.append(Note("changed", f"--{flag} {text}", said))
    if found["rows"] is None:
        return place, notes
    said = f"{int(found['rows'])} rows are drawn here as there, by another generator, and so others"
    notes.append(Note("changed", f"--{flag} {text}", said))
    return f"{place}#{int(found['rows'])}", notes


def _prompts(given: GivenFlags) -> Translation:
    options: dict[str, object] = {}
    notes = []
    way = one(given, "truncation_strategy") or "left"
    if way not in LONG:
        raise ConfigError(f"--truncation_strategy must be left or delete, got {way!r}; nothing else keeps a question")
    if "max_length" in given:
        options["long_prompts"] = LONG[way]
    if "max_length" in given and way == "delete":
        notes.append(Note("changed", "--truncation_strategy", "such rows are counted, not replaced"))
    if "max_length" not in given:
        text = (
            "has no limit unless --max_length is given; here a prompt above --max-prompt-length, 512 tokens, is an "
            "error before the first step"
        )
        notes.append(Note("changed", "--dataset", text))
        if "truncation_strategy" in given:
            text = "there is nothing to cut to without --max_length"
            notes.append(Note("idle", "--truncation_strategy", text))
    system = one(given, "system")
    if system is not None:
        if system.lower().endswith(TEXT_FILES) and len(system.split()) == 1:
            options["system_prompt"] = f"file:{system}"
            text = "a file that is not there is an error; there its path became the system message in silence"
            notes.append(Note("mended", "--system", text))
        else:
            options["system_prompt"] = system
    else:
        text = "the model's own default system message; here the reward functions' own asks for their format"
        notes.append(Note("changed", "--system", text))
    return Translation(options=options, notes=tuple(notes))


def _adapter(given: GivenFlags) -> Translation:
    if is_full(given):
        names = [name for name in ("lora_rank", "lora_alpha", "target_modules") if name in given]
        text = "all weights are trained"
        return Translation(notes=tuple(Note("idle", f"--{name}", text) for name in names))
    options = {
        "lora_rank": int(number(given, "lora_rank", int) or RANK),
        "lora_alpha": number(given, "lora_alpha") or ALPHA,
        "lora_targets": given.get("target_modules", ("all-linear",)),
    }
    text = "nothing is dropped in an adapter (0.05 there): the policy that trains is the one that sampled"
    return Translation(options=options, notes=(Note("changed", "--lora_dropout", text),))


def _precision(given: GivenFlags) -> Translation:
    dtype = one(given, "torch_dtype")
    if dtype is None:
        return Translation()
    if dtype not in ("bfloat16", "float32"):
        raise ConfigError(f"--torch_dtype must be bfloat16 or float32, got {dtype!r}; half precision is not offered")
    text = "weights, gradients and moments are float32; the products are of this precision"
    return Translation(options={"dtype": dtype}, notes=(Note("changed", "--torch_dtype", text),))


def _kept(given: GivenFlags) -> Translation:
    options: dict[str, object] = {}
    if (place := one(given, "output_dir")) is not None:
        options["output_dir"] = place
    names = given.get("report_to", ())
    if kept := tuple(name for name in names if name in TRACKERS):
        options["report_to"] = kept
    notes = tuple(
        Note("missing", "--report_to", f"{name}; there are {', '.join(TRACKERS)}")
        for name in names
        if name not in (*TRACKERS, "none")
    )
    return Translation(options=options, notes=notes)


REWARDS: Mapping[str, tuple[str, str]] = {
    "accuracy": (
        "accuracy",
        "read the first <answer>, gave bare LaTeX in it 0, and a gold answer that nobody could read 1; here the last "
        "one counts, and such rows are refused",
    ),
    "format": ("format", "allowed tags inside tags; here each stands once, in order"),
    "react_format": ("react_format", ""),
    "cosine": ("cosine", "rose again beyond its greatest length; here it stays"),
    "repetition": ("repetition", "took a line of Chinese for one word; here characters count there"),
    "soft_overlong": ("soft_overlong", "fell without end beyond the greatest length; here it stays at -1"),
    "toolbench": ("tool_call", "calls are compared as JSON values"),
    "math": ("boxed", "cut a box at its first closing brace; here braces match, and the last box counts"),
}
"""Our name of each reward function, and the defect of theirs."""
PARAMETERS: Mapping[str, Mapping[str, str]] = {
    "cosine": {
        "cosine_max_len": "max_length",
        "cosine_min_len_value_wrong": "min_wrong",
        "cosine_max_len_value_wrong": "max_wrong",
        "cosine_min_len_value_correct": "max_correct",
        "cosine_max_len_value_correct": "min_correct",
    },
    "repetition": {"repetition_n_grams": "ngram", "repetition_max_penalty": "max_penalty"},
    "soft_overlong": {"soft_max_length": "max_length", "soft_cache_length": "cache"},
}
"""Flags of each reward, with our parameter."""


def reward_names(given: GivenFlags) -> tuple[tuple[str, ...], tuple[Note, ...]]:
    """Value of `--reward_funcs` as ours, parameters in parentheses.

    Raises:
        ConfigError: a name that is neither built in nor a function of the user's own.
    """
    found, notes = list[str](), list[Note]()
    names = given.get("reward_funcs", ())
    for name in names:
        if ":" in name:
            found.append(name)
            continue
        if name not in REWARDS:
            near = suggest(name, REWARDS, otherwise="name a plugin's function as file.py:function")
            raise ConfigError(f"--reward_funcs must be of {', '.join(REWARDS)}, got {name!r}; {near}")
        ours, text = REWARDS[name]
        if text:
            renamed = f"is {ours} here: " * (ours != name)
            notes.append(Note("mended", f"--reward_funcs {name}", renamed + text))
        found.append(ours + _parameters(name, given))
    if "soft_overlong" in names and one(given, "soft_cache_length") is None:
        raise ConfigError("--soft_cache_length must be given with the reward soft_overlong, got none; a fifth is usual")
    return tuple(dict.fromkeys(found)), tuple((*notes, *_idle(given, names)))


def _parameters(name: str, given: GivenFlags) -> str:
    set_ = {ours: one(given, flag) for flag, ours in PARAMETERS.get(name, {}).items()}
    texts = [f"{ours}={value}" for ours, value in set_.items() if value is not None]
    return f"({', '.join(texts)})" if texts else ""


def _idle(given: GivenFlags, names: tuple[str, ...]) -> list[Note]:
    return [
        Note("idle", f"--{flag}", f"the reward {reward} is not among --reward_funcs")
        for reward, flags in PARAMETERS.items()
        for flag in flags
        if flag in given and reward not in names
    ]
