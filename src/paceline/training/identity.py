"""Identity of a run: its options, data, model, tokenizer, graders and environments, and every change after a step.

The record is stored next to `config.yaml`. A resumed run is compared with it, so that no option or file changes
unnoticed.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from transformers import PreTrainedTokenizerBase

from paceline import __version__
from paceline.base_directory import local_path
from paceline.checkpoints.digests import TasksDigest, tasks_difference, tasks_digest
from paceline.checkpoints.run_directory import RunDir
from paceline.config.changing import Difference, changes_what_is_computed, differences, plain_options, refuse_changes
from paceline.config.flat_yaml import to_yaml
from paceline.config.reading import served_model
from paceline.config.sections import Config
from paceline.episodes.conversations import Conversations
from paceline.errors import ConfigError
from paceline.metrics.definitions import Record
from paceline.models.places import model_place
from paceline.models.pretrained import read_config
from paceline.rewards.model_files import reward_model_files, sampled_digest
from paceline.rewards.resolving import source_files
from paceline.training.setup.file_names import recorded_base
from paceline.training.setup.inputs import RunInputs
from paceline.types import Task

IdentityPart = Literal[
    "training rows",
    "training messages",
    "held-out rows",
    "held-out messages",
    "prompts",
    "model",
    "model settings",
    "images",
    "environments",
]
"""What a change of an option may change of a run's files as they are read: which rows are taken, what is read from a
row, how the chat template shows it, how the model reads an image, and the rest."""
MESSAGES: tuple[IdentityPart, ...] = ("training messages", "held-out messages", "prompts")
ROWS: tuple[IdentityPart, ...] = ("training rows", "held-out rows")
EXPLAINED: Mapping[str, tuple[IdentityPart, ...]] = {
    **dict.fromkeys(("dataset", "dataset_split", "dataset_size", "eval_share", "seed", "on_bad_row"), ROWS),
    **dict.fromkeys(("eval_dataset", "eval_split", "eval_size"), ("held-out rows",)),
    **dict.fromkeys(("prompt_column", "answer_column", "system_prompt"), MESSAGES),
    **dict.fromkeys(("enable_thinking", "chat_template_kwargs"), ("prompts",)),
    **dict.fromkeys(("max_images_per_prompt", "image_urls"), ROWS),
    **dict.fromkeys(("image_max_pixels", "image_min_pixels"), ("prompts", "images")),
    **dict.fromkeys(("max_prompt_length", "long_prompts"), MESSAGES),
    "reward_funcs": MESSAGES,  # they choose the system message that is there by default
    "model": ("model", "model settings", "prompts"),
    "trust_remote_code": ("model settings",),
    "environment": ("environments", *MESSAGES),
    "sandbox": ("environments",),
}
"""By option, the parts that its change, itself asked for by name, explains. Every other change of a file is refused."""
CONFIG_SETTING = "config.json: "
"""Prefix of digests that are settings of a model's configuration."""
IMAGES = ("image settings", "reading of a sample image")
"""Names of the digests of how the model reads images."""
WEIGHTS = "weights"
"""Name of the digest of a program's own model."""
SAMPLED_NUMBERS = 1000
PLACE_SETTINGS = ("_name_or_path", "transformers_version")
"""Settings of a model's configuration that name its directory and what wrote it."""
SAVED_SETTINGS = ("architectures", "dtype")
"""Settings that saving or loading a model adds to it, so that an object and its files differ in them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunChange:
    """Options and files that a resumed run changes."""

    options: tuple[Difference, ...]
    files: Mapping[str, str]
    """By the option that names it, what changed of a dataset or model."""
    voids_samples: bool
    """True if completions sampled after the checkpoint would now be others."""

    def describe(self) -> list[str]:
        """Return a sentence for each change."""
        return [change.describe() for change in self.options] + [
            f"{_flag(name)} {what}" for name, what in self.files.items()
        ]


def graders(config: Config) -> dict[str, dict[str, str]]:
    """By option and name, a hash of the file of every function that is not built in, and of the files of each reward
    model and each judge's model that the run serves. What such a file imports, and a reward model on the Hub, is not
    looked at."""
    rewards = config.rewards
    held_out = {config.evaluation.eval_reward_func} - {*rewards.functions}
    files = {
        "reward_funcs": {
            **{name: source_files(name) for name in rewards.functions},
            **{name: reward_model_files(name) for name in rewards.reward_models},
        },
        "eval_reward_func": {name: source_files(name) for name in held_out},
        "advantage": {name: source_files(name) for name in (config.advantage.advantage,)},
        "bound": {name: source_files(name) for name in (config.loss.bound,)},
    }
    return {
        option: {name: " ".join(map(sampled_digest, paths)) for name, paths in named.items() if paths}
        for option, named in files.items()
    }


def model_digests(
    config: Config,
    tokenizer: PreTrainedTokenizerBase,
    model: Any = None,
    *,
    has_adapter: bool = False,
    image_processor: Any = None,
) -> dict[str, str]:
    """By name, the settings of a model's configuration, and digests of its weight files on this disk and of its
    tokenizer. Of a program's own `model`, digests of the weights that no checkpoint holds. `image_processor`: that
    of a run with images."""
    digests, settings = dict[str, str](), {}
    if model is None:
        files = model_place(config.model.model)
        settings = read_config(config.model).to_diff_dict()
        folders = [local_path(files.base), *([] if files.adapter is None else [files.adapter])]
        digests = {
            file.name: sampled_digest(file) for folder in folders for file in sorted(folder.glob("*.safetensors"))
        }
    else:
        settings = model.config.to_diff_dict()
        if has_adapter or (config.loss.beta > 0 and not config.loss.ref_sync_steps):
            # a thousand evenly spread numbers of every weight, without those of an adapter, which are trained
            is_adapted, digest = hasattr(model, "peft_config"), hashlib.sha256()
            for name, weight in model.named_parameters():
                if not (is_adapted and weight.requires_grad):
                    numbers = weight.detach().flatten()[:: max(1, weight.numel() // SAMPLED_NUMBERS)]
                    digest.update(f"{name} {tuple(weight.shape)} ".encode() + numbers.float().cpu().numpy().tobytes())
            digests = {WEIGHTS: digest.hexdigest()[:16]}
    parts: Mapping[str, object] = {
        "vocabulary": tokenizer.get_vocab(),
        "special tokens": tokenizer.special_tokens_map,
        "chat template": tokenizer.chat_template,
    }
    shown = {f"{CONFIG_SETTING}{key}": _json(value) for key, value in settings.items() if key not in PLACE_SETTINGS}
    hashed = {name: hashlib.sha256(_json(part).encode()).hexdigest()[:16] for name, part in parts.items()}
    return shown | digests | hashed | ({} if image_processor is None else image_digests(image_processor))


def image_digests(processor: Any) -> dict[str, str]:
    """By name, digests of an image processor's settings, and of what it makes of an image: another version of a library
    may resample otherwise."""
    from PIL import Image  # runs of text need no images

    width, height = 70, 45
    shades = [(x * 255 // width, y * 255 // height, x * y % 256) for y in range(height) for x in range(width)]
    image = Image.frombytes("RGB", (width, height), bytes(shade for pixel in shades for shade in pixel))
    made, digest = processor(images=[image], return_tensors="np"), hashlib.sha256()
    for name in sorted(made):
        values = np.asarray(made[name])
        digest.update(f"{name} {values.shape} ".encode() + values.tobytes())
    settings = hashlib.sha256(_json(processor.to_dict()).encode())
    return dict(zip(IMAGES, (settings.hexdigest()[:16], digest.hexdigest()[:16]), strict=True))


def environment_digests(conversations: Conversations | None) -> dict[str, dict[str, str]]:
    """By name of each environment, its package, the form of its tool calls, and hashes of its tools and of what decides
    its answers."""
    if conversations is None:
        return {}
    return {
        name: {
            "package": spec.package,
            "tools": hashlib.sha256(_json(spec.tools).encode()).hexdigest()[:16],
            "code or content": spec.digest,
            "form of tool calls": conversations.tokens[spec.name].call_format if spec.tools else "",
            **conversations.tokens[spec.name].pinned,
        }
        for name, spec in conversations.specs.items()
    }


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def explained(changed: Collection[str], config: Config) -> frozenset[IdentityPart]:
    """Return the parts that may be otherwise because the options of the names `changed` are.

    Where rows may be left out, for their length or as they are bad, what changes messages changes rows too.
    """
    parts = {part for option in changed for part in EXPLAINED.get(option, ())}
    data = config.data
    if data.long_prompts != "error" or data.on_bad_row == "skip" or {"long_prompts", "on_bad_row"} & {*changed}:
        parts |= {"training rows"} if parts & {"training messages", "prompts"} else set()
        parts |= {"held-out rows"} if parts & {"held-out messages", "prompts"} else set()
        if data.on_bad_row == "skip" and "eval_reward_func" in changed:  # which rows are bad, it says
            parts.add("held-out rows")
    return frozenset(parts)


def identity_of(config: Config, inputs: RunInputs) -> Record:
    """Return the record of a run without a change."""
    return {
        "paceline": __version__,
        "options": plain_options(config),
        "dataset": asdict(tasks_digest(inputs.tasks.tasks)),
        "eval_dataset": {name: asdict(tasks_digest(tasks)) for name, tasks in _held_out(inputs).items()},
        "model": dict(inputs.model_digests),
        "graders": graders(config),
        "environments": environment_digests(inputs.conversations),
        "changes": [],
    }


def find_change(before: Record, config: Config, inputs: RunInputs, *, override: Collection[str]) -> RunChange | None:
    """Return what has changed since the run was recorded; None for nothing.

    Raises:
        ConfigError: something changes what is computed, and is not named by `override`.
    """
    old, new = before["options"], plain_options(config)
    options = refuse_changes(old, new, override=override, written=new)
    # a run that was killed before its record was written has nothing but options
    files = {} if before.keys() == {"options"} else _changed_files(before, config, inputs)
    unnamed = {name: what for name, what in files.items() if name not in override}
    if unnamed:
        listed = ", ".join(f"{_flag(name)} {what}" for name, what in unnamed.items())
        raise ConfigError(
            f"{listed}, so that the run would compute something else than before",
            remedies=[
                "put back what was there",
                f"continue so from the last checkpoint by --override {' '.join(files)}",
            ],
        )
    if not options and not files:
        return None
    telling = any(changes_what_is_computed(change, new, old) for change in options)
    return RunChange(options=options, files=files, voids_samples=telling or bool(files))


def write_identity(
    run_dir: RunDir, before: Record | None, change: RunChange | None, config: Config, inputs: RunInputs, *, step: int
) -> None:
    """Record what a run is; of a resumed one what `before` lacks, and that it continues with `change` after `step`.

    Rollouts sampled later are removed first. A run that is killed in between is not yet changed, and asks for the same
    `--override` again.
    """
    now = {**identity_of(config, inputs), "base": recorded_base(run_dir.path)}
    before = before or {}
    if change is None:
        if now.keys() - before.keys():  # a new run, or one that was killed before its record was written
            run_dir.write_identity({**now, **before})
        return
    if change.voids_samples:
        run_dir.discard_rollouts_after(step)
    entry = {
        "after_step": step,
        "options": {difference.option: {"old": difference.old, "new": difference.new} for difference in change.options},
        "files": dict(change.files),
    }
    history = [*before.get("changes", []), entry]
    header = ""  # the changes as comments at the top of `config.yaml`
    for entry_before in history:
        whats = [Difference(option=name, **values).describe() for name, values in entry_before["options"].items()]
        whats += [f"{_flag(name)} {what}" for name, what in entry_before["files"].items()]
        header += "".join(
            " ".join(f"# after step {entry_before['after_step']}: {what}".split()) + "\n" for what in whats
        )
    run_dir.write_config(header + to_yaml(config))
    run_dir.write_identity(now | {"changes": history})


def _changed_files(before: Record, config: Config, inputs: RunInputs) -> dict[str, str]:
    """Describe, by option, what has changed in the files that it names."""
    changed = {}
    for option, named in graders(config).items():
        old = before["graders"][option]
        others = [name for name in named if name in old and old[name] != named[name]]
        if others:
            is_model = others[0] in config.rewards.reward_models or served_model(others[0]) is not None
            how = "has other files than it had" if is_model else "is of a file with other content than it had"
            changed[option] = f"{others[0]} {how}" + _more(len(others) - 1)
    parts = explained(
        {difference.option for difference in differences(before["options"], plain_options(config))}, config
    )
    if "environments" not in parts:
        changed |= _changed_environments(before["environments"], environment_digests(inputs.conversations))
    was, now = before["model"], inputs.model_digests
    compared = (was.keys() | now.keys()) - {f"{CONFIG_SETTING}{key}" for key in SAVED_SETTINGS}
    weights = {name for name in compared if name == WEIGHTS or name.endswith(".safetensors")}
    if not (weights & was.keys() and weights & now.keys()):  # checkpoints hold every weight of a program's own model
        compared -= weights
    others = sorted(name for name in compared if was.get(name) != now.get(name))
    # prompts are others under another chat template or with other tools, which are named themselves
    is_shown_otherwise = "chat template" in others or "environment" in changed or "prompts" in parts
    others = [
        name
        for name in others
        if "model" not in parts
        and not ("model settings" in parts and name.startswith(CONFIG_SETTING))
        and not ("images" in parts and name in IMAGES)
    ]

    def difference(recorded: Record, tasks: Sequence[Task], messages: IdentityPart) -> str | None:
        compared: Literal["columns", "messages", "prompts"]
        compared = "columns" if messages in parts else "messages" if is_shown_otherwise else "prompts"
        return tasks_difference(TasksDigest.read(recorded), tasks, compared=compared)

    is_compared = "training rows" not in parts
    if is_compared and (what := difference(before["dataset"], inputs.tasks.tasks, "training messages")):
        changed["dataset"] = f"{' '.join(config.data.datasets)} {what}"
    for name, tasks in _held_out(inputs).items():
        recorded = None if "held-out rows" in parts else before["eval_dataset"].get(name)
        if recorded is not None and (what := difference(recorded, tasks, "held-out messages")):
            changed["eval_dataset"] = f"{name} {what}"
    if others:
        changed["model"] = f"{config.model.model} has another {others[0]} than it had" + _more(len(others) - 1)
    return changed


def _changed_environments(before: Record, now: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Describe what has changed in environments of the same names, under the option that names them."""
    others = [
        f"{name} is of {parts[part] or 'no package'} and was of {before[name].get(part) or 'none'}"
        if part == "package"
        else f"{name} has other {part} than it had"
        for name, parts in now.items()
        if name in before
        for part in {**parts, **before[name]}
        if before[name].get(part) != parts.get(part)
    ]
    return {"environment": others[0] + _more(len(others) - 1)} if others else {}


def _more(count: int) -> str:
    return f" (and {count} more differences)" if count > 1 else " (and one more difference)" if count else ""


def _held_out(inputs: RunInputs) -> dict[str, tuple[Task, ...]]:
    return {measured.name: measured.tasks for measured in inputs.evaluators if measured.training is None}


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"
