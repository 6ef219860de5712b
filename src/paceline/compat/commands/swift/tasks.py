"""Data options of ms-swift: model, rows, images, prompts, adapter, precision, trackers, reward functions."""

import difflib
import json
import re
from collections.abc import Mapping

from paceline.compat.commands.fields import PRODUCTS, add_trackers
from paceline.compat.commands.flags import Flags, is_on, number, value_of
from paceline.compat.commands.swift.tables import PARAMETERS
from paceline.compat.commands.translation import Translation
from paceline.errors import ConfigError

TEXT_FILES = (".txt", ".md")
ADDRESS = re.compile(r"(?:(?P<hub>HF|MS)::)?(?P<place>[^#]*?)(?:#(?P<rows>\d+))?")
LONG = {"left": "truncate_left", "delete": "drop"}
RANK, ALPHA = 8, 32.0
"""Its adapter's own defaults."""


def is_full(flags: Flags) -> bool:
    """True if all weights are trained; the default is an adapter. ConfigError for another kind of training."""
    kinds = [kind for name in ("tuner_type", "train_type", "sft_type") if (kind := value_of(flags, name)) is not None]
    if any(kind not in ("full", "lora") for kind in kinds):
        raise ConfigError(f"--tuner_type must be full or lora, got {kinds[0]!r}; there are no other adapters")
    return kinds[:1] == ["full"]


def tasks(flags: Flags, translation: Translation) -> None:
    """Add the options of model, rows and their prompts, adapter, precision and run directory."""
    model = value_of(flags, "model")
    if model is None:
        raise ConfigError("ms-swift needs --model, got none; give a directory or a Hub name")
    translation.decide(model=model)
    if not flags.get("dataset"):
        raise ConfigError("ms-swift needs --dataset, got none; give files, directories or Hub names")
    in_hub = is_on(flags, "use_hf")
    addresses = tuple([_address("dataset", text, translation, hugging_face=in_hub) for text in flags["dataset"]])
    translation.decide(dataset=addresses[0] if len(addresses) == 1 else addresses)
    if held_out := flags.get("val_dataset", ()):
        # their notes would repeat what is said of the training rows
        unsaid = Translation()
        translation.decide(
            eval_dataset=tuple([_address("val_dataset", text, unsaid, hugging_face=True) for text in held_out])
        )
    _prompts(flags, translation)
    _adapter(flags, translation)
    dtype = value_of(flags, "torch_dtype")
    if dtype not in (None, "bfloat16", "float32"):
        raise ConfigError(f"--torch_dtype must be bfloat16 or float32, got {dtype!r}; half precision is not offered")
    if dtype is not None:
        translation.decide(dtype=dtype)
        translation.note("changed", "--torch_dtype", PRODUCTS)
    if (directory := value_of(flags, "output_dir")) is not None:
        translation.decide(output_dir=directory)
    add_trackers(flags.get("report_to", ()), translation, words=("none",))


def _address(flag: str, text: str, translation: Translation, *, hugging_face: bool) -> str:
    """A dataset's address as ours, with `#N` if it has one; differences are noted."""
    parts = ADDRESS.fullmatch(text)
    if parts is None or not parts["place"]:
        raise ConfigError(f"--{flag} must be a file, a directory or a Hub name, #N behind it or not, got {text!r}")
    name = parts["place"]
    on_a_hub = name.count("/") == 1 and not name.startswith((".", "/", "~")) and "." not in name.rpartition("/")[2]
    if on_a_hub and not hugging_face and parts["hub"] != "HF":
        note = "it is looked up at Hugging Face, there at ModelScope unless --use_hf says so"
        translation.note("changed", f"--{flag} {text}", note)
    if parts["rows"] is None:
        return name
    note = f"{int(parts['rows'])} rows are drawn here as there, by another generator, and so others"
    translation.note("changed", f"--{flag} {text}", note)
    return f"{name}#{int(parts['rows'])}"


def _prompts(flags: Flags, translation: Translation) -> None:
    way = value_of(flags, "truncation_strategy") or "left"
    if way not in LONG:
        raise ConfigError(f"--truncation_strategy must be left or delete, got {way!r}; nothing else keeps a question")
    if "max_length" in flags:
        translation.decide(long_prompts=LONG[way])
        if way == "delete":
            translation.note("changed", "--truncation_strategy", "such rows are counted, not replaced")
    else:
        text = (
            "has no limit unless --max_length is given; here a prompt above --max-prompt-length, 512 tokens, is an "
            "error before the first step"
        )
        translation.note("changed", "--dataset", text)
        if "truncation_strategy" in flags:
            translation.note("idle", "--truncation_strategy", "there is nothing to cut to without --max_length")
    system = value_of(flags, "system")
    if system is None:
        text = "the model's own default system message; here the reward functions' own asks for their format"
        translation.note("changed", "--system", text)
    elif system.lower().endswith(TEXT_FILES) and len(system.split()) == 1:
        translation.decide(system_prompt=f"file:{system}")
        text = "a file that is not there is an error; there its path became the system message in silence"
        translation.note("mended", "--system", text)
    else:
        translation.decide(system_prompt=system)


def _adapter(flags: Flags, translation: Translation) -> None:
    if is_full(flags):
        for name in ("lora_rank", "lora_alpha", "target_modules", "target_parameters"):
            if name in flags:
                translation.note("idle", f"--{name}", "all weights are trained")
        return
    translation.decide(
        lora_rank=int(number(flags, "lora_rank", int) or RANK),
        lora_alpha=number(flags, "lora_alpha") or ALPHA,
        lora_targets=flags.get("target_modules", ("all-linear",)),
    )
    if "target_parameters" in flags:
        translation.decide(lora_parameters=flags["target_parameters"])
    text = "nothing is dropped in an adapter (0.05 there): the policy that trains is the one that sampled"
    translation.note("changed", "--lora_dropout", text)


def images(flags: Flags, variables: Mapping[str, str], translation: Translation) -> None:
    """Add the options of images and of the layers that read them; `variables` are those of the command's process."""
    most, least = (_pixels(*names, variables) for names in PIXELS)
    if (flag := number(flags, "max_pixels", int)) is not None:
        most = int(flag)
    translation.decide(
        **{
            name: pixels
            for name, pixels in (("image_max_pixels", most), ("image_min_pixels", least))
            if pixels is not None
        }
    )
    if (limits := value_of(flags, "vllm_limit_mm_per_prompt")) is not None:
        translation.decide(max_images_per_prompt=_most_images(limits))
    trained = [name for name in ("vit", "aligner") if not is_on(flags, f"freeze_{name}", otherwise=True)]
    if is_full(flags):
        translation.decide(**{TRAINED[name]: True for name in trained})
    elif len(trained) == 1:
        raise ConfigError(
            "--freeze_vit and --freeze_aligner must be the same with an adapter, which lies on both or on neither, got "
            f"{trained[0]} alone to train"
        )
    elif trained:
        translation.decide(lora_vision=True)
    rates = {name: number(flags, f"{name}_lr") for name in ("vit", "aligner")}
    for name, rate in rates.items():
        if rate is not None and name not in trained:
            translation.note("idle", f"--{name}_lr", f"freeze_{name} is on")
    known = {rates[name] for name in trained}
    if len(known) > 1:
        raise ConfigError(
            "--vit_lr and --aligner_lr must be the same where both are trained, got "
            f"{' and '.join(f'{rates[name]}' for name in trained)}; there is one rate for both"
        )
    if known - {None}:
        translation.decide(vision_learning_rate=known.pop())


TRAINED: Mapping[str, str] = {"vit": "train_vision", "aligner": "train_projector"}
"""Our options for the parts of a model that read images."""
PIXELS = (("MAX_PIXELS", "IMAGE_MAX_TOKEN_NUM"), ("MIN_PIXELS", "IMAGE_MIN_TOKEN_NUM"))
"""Variables with the bounds of an image's size, in pixels or in tokens of 32 x 32 pixels."""


def _pixels(name: str, in_tokens: str, variables: Mapping[str, str]) -> int | None:
    """Return the pixels that one of two variables names; None without them."""
    named = [variable for variable in (name, in_tokens) if variables.get(variable)]
    if not named:
        return None
    if len(named) > 1 or not variables[named[0]].isdecimal():
        shown = " ".join(f"{variable}={variables[variable]}" for variable in named)
        raise ConfigError(f"{name} and {in_tokens} must be one whole number, got {shown}; leave the other out")
    return int(variables[named[0]]) * (32 * 32 if named[0] == in_tokens else 1)


def _most_images(limits: str) -> int:
    try:
        read = json.loads(limits)
    except ValueError:
        read = None
    most = read.get("image") if isinstance(read, dict) else None
    if not isinstance(most, int) or most < 1:
        raise ConfigError(f"""--vllm_limit_mm_per_prompt must be JSON such as '{{"image": 5}}', got {limits!r}""")
    return most


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


def _where(name: str, flags: Flags) -> str:
    """Remedy for a reward that ms-swift itself does not have."""
    if plugins := flags.get("external_plugins"):
        return f"{plugins[0]} registers it: give the function behind that name as {plugins[0]}:FUNCTION"
    near = difflib.get_close_matches(name, REWARDS, n=1, cutoff=0.85)
    return f"did you mean {near[0]}?" if near else "name a plugin's function as file.py:function"


def reward_names(flags: Flags, translation: Translation) -> tuple[str, ...]:
    """Value of `--reward_funcs` as ours, parameters in parentheses; ConfigError for an unknown name without a file."""
    names, ours = flags.get("reward_funcs", ()), list[str]()
    for name in names:
        if ":" in name:
            ours.append(name)
            continue
        if name not in REWARDS:
            raise ConfigError(f"--reward_funcs must be of {', '.join(REWARDS)}, got {name!r}; {_where(name, flags)}")
        reward, text = REWARDS[name]
        if text:
            renamed = f"is {reward} here: " * (reward != name)
            translation.note("mended", f"--reward_funcs {name}", renamed + text)
        values = {parameter: value_of(flags, flag) for flag, parameter in PARAMETERS.get(name, {}).items()}
        texts = [f"{parameter}={value}" for parameter, value in values.items() if value is not None]
        ours.append(f"{reward}({', '.join(texts)})" if texts else reward)
    if "soft_overlong" in names and value_of(flags, "soft_cache_length") is None:
        raise ConfigError("--soft_cache_length must be given with the reward soft_overlong, got none; a fifth is usual")
    for reward, parameter_flags in PARAMETERS.items():
        for flag in parameter_flags:
            if flag in flags and reward not in names:
                translation.note("idle", f"--{flag}", f"the reward {reward} is not among --reward_funcs")
    return tuple(dict.fromkeys(ours))
