"""Data options of ms-swift: model, rows, prompts, adapter, precision, trackers, reward functions."""

import difflib
import re
from collections.abc import Mapping

from paceline.compat.commands.fields import PRODUCTS, add_trackers
from paceline.compat.commands.flags import GivenFlags, is_on, number, one
from paceline.compat.commands.swift.tables import PARAMETERS
from paceline.compat.commands.translation import Translation
from paceline.errors import ConfigError

TEXT_FILES = (".txt", ".md")
ADDRESS = re.compile(r"(?:(?P<hub>HF|MS)::)?(?P<place>[^#]*?)(?:#(?P<rows>\d+))?")
LONG = {"left": "truncate_left", "delete": "drop"}
RANK, ALPHA = 8, 32.0
"""Its adapter's own defaults."""


def is_full(given: GivenFlags) -> bool:
    """True if all weights are trained; the default is an adapter. ConfigError for another kind of training."""
    kinds = [kind for name in ("tuner_type", "train_type", "sft_type") if (kind := one(given, name)) is not None]
    if any(kind not in ("full", "lora") for kind in kinds):
        raise ConfigError(f"--tuner_type must be full or lora, got {kinds[0]!r}; there are no other adapters")
    return kinds[:1] == ["full"]


def tasks(given: GivenFlags, found: Translation) -> None:
    """Add the options of model, rows and their prompts, adapter, precision and run directory."""
    model = one(given, "model")
    if model is None:
        raise ConfigError("ms-swift needs --model, got none; give a directory or a Hub name")
    found.decide(model=model)
    if not given.get("dataset"):
        raise ConfigError("ms-swift needs --dataset, got none; give files, directories or Hub names")
    in_hub = is_on(given, "use_hf")
    addresses = tuple([_address("dataset", text, found, hugging_face=in_hub) for text in given["dataset"]])
    found.decide(dataset=addresses[0] if len(addresses) == 1 else addresses)
    if held_out := given.get("val_dataset", ()):
        # their notes would repeat what is said of the training rows
        unsaid = Translation()
        found.decide(
            eval_dataset=tuple([_address("val_dataset", text, unsaid, hugging_face=True) for text in held_out])
        )
    _prompts(given, found)
    _adapter(given, found)
    dtype = one(given, "torch_dtype")
    if dtype not in (None, "bfloat16", "float32"):
        raise ConfigError(f"--torch_dtype must be bfloat16 or float32, got {dtype!r}; half precision is not offered")
    if dtype is not None:
        found.decide(dtype=dtype)
        found.note("changed", "--torch_dtype", PRODUCTS)
    if (directory := one(given, "output_dir")) is not None:
        found.decide(output_dir=directory)
    add_trackers(given.get("report_to", ()), found, words=("none",))


def _address(flag: str, text: str, found: Translation, *, hugging_face: bool) -> str:
    """A dataset's address as ours, with `#N` if it has one; differences are noted."""
    parts = ADDRESS.fullmatch(text)
    if parts is None or not parts["place"]:
        raise ConfigError(f"--{flag} must be a file, a directory or a Hub name, #N behind it or not, got {text!r}")
    place = parts["place"]
    on_a_hub = place.count("/") == 1 and not place.startswith((".", "/", "~")) and "." not in place.rpartition("/")[2]
    if on_a_hub and not hugging_face and parts["hub"] != "HF":
        said = "it is looked up at Hugging Face, there at ModelScope unless --use_hf says so"
        found.note("changed", f"--{flag} {text}", said)
    if parts["rows"] is None:
        return place
    said = f"{int(parts['rows'])} rows are drawn here as there, by another generator, and so others"
    found.note("changed", f"--{flag} {text}", said)
    return f"{place}#{int(parts['rows'])}"


def _prompts(given: GivenFlags, found: Translation) -> None:
    way = one(given, "truncation_strategy") or "left"
    if way not in LONG:
        raise ConfigError(f"--truncation_strategy must be left or delete, got {way!r}; nothing else keeps a question")
    if "max_length" in given:
        found.decide(long_prompts=LONG[way])
        if way == "delete":
            found.note("changed", "--truncation_strategy", "such rows are counted, not replaced")
    else:
        text = (
            "has no limit unless --max_length is given; here a prompt above --max-prompt-length, 512 tokens, is an "
            "error before the first step"
        )
        found.note("changed", "--dataset", text)
        if "truncation_strategy" in given:
            found.note("idle", "--truncation_strategy", "there is nothing to cut to without --max_length")
    system = one(given, "system")
    if system is None:
        text = "the model's own default system message; here the reward functions' own asks for their format"
        found.note("changed", "--system", text)
    elif system.lower().endswith(TEXT_FILES) and len(system.split()) == 1:
        found.decide(system_prompt=f"file:{system}")
        text = "a file that is not there is an error; there its path became the system message in silence"
        found.note("mended", "--system", text)
    else:
        found.decide(system_prompt=system)


def _adapter(given: GivenFlags, found: Translation) -> None:
    if is_full(given):
        for name in ("lora_rank", "lora_alpha", "target_modules"):
            if name in given:
                found.note("idle", f"--{name}", "all weights are trained")
        return
    found.decide(
        lora_rank=int(number(given, "lora_rank", int) or RANK),
        lora_alpha=number(given, "lora_alpha") or ALPHA,
        lora_targets=given.get("target_modules", ("all-linear",)),
    )
    text = "nothing is dropped in an adapter (0.05 there): the policy that trains is the one that sampled"
    found.note("changed", "--lora_dropout", text)


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


def _where(name: str, given: GivenFlags) -> str:
    """Remedy for a reward that ms-swift itself does not have."""
    if plugins := given.get("external_plugins"):
        return f"{plugins[0]} registers it: give the function behind that name as {plugins[0]}:FUNCTION"
    near = difflib.get_close_matches(name, REWARDS, n=1, cutoff=0.85)
    return f"did you mean {near[0]}?" if near else "name a plugin's function as file.py:function"


def reward_names(given: GivenFlags, found: Translation) -> tuple[str, ...]:
    """Value of `--reward_funcs` as ours, parameters in parentheses; ConfigError for an unknown name without a file."""
    names, ours = given.get("reward_funcs", ()), list[str]()
    for name in names:
        if ":" in name:
            ours.append(name)
            continue
        if name not in REWARDS:
            raise ConfigError(f"--reward_funcs must be of {', '.join(REWARDS)}, got {name!r}; {_where(name, given)}")
        reward, text = REWARDS[name]
        if text:
            renamed = f"is {reward} here: " * (reward != name)
            found.note("mended", f"--reward_funcs {name}", renamed + text)
        values = {parameter: one(given, flag) for flag, parameter in PARAMETERS.get(name, {}).items()}
        texts = [f"{parameter}={value}" for parameter, value in values.items() if value is not None]
        ours.append(f"{reward}({', '.join(texts)})" if texts else reward)
    if "soft_overlong" in names and one(given, "soft_cache_length") is None:
        raise ConfigError("--soft_cache_length must be given with the reward soft_overlong, got none; a fifth is usual")
    for reward, flags in PARAMETERS.items():
        for flag in flags:
            if flag in given and reward not in names:
                found.note("idle", f"--{flag}", f"the reward {reward} is not among --reward_funcs")
    return tuple(dict.fromkeys(ours))
