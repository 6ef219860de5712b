"""Origin of each value of a configuration: a flag, a line of a file, a preset, the default."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from paceline.config.building import build_config, following_values
from paceline.config.flat_yaml import option_lines, yaml_line
from paceline.config.presets import preset_values
from paceline.config.reading import Option, find_option, option_name, options
from paceline.config.sections import Config

DAPO = "DAPO, arXiv:2503.14476"
DEEPSEEK = "DeepSeek-V3.2, arXiv:2512.02556"
GRPO = "GRPO, arXiv:2402.03300"
MINIMAX = "MiniMax-M1, arXiv:2506.13585, Eq. 4 and 5"
MASKED = "When speed kills stability (Liu et al., 2025)"
TRUNCATED = "truncated importance sampling (Yao et al., 2025)"
TR_DPO = "TR-DPO, arXiv:2404.09656"

OPTION_SOURCES: Mapping[str, str] = {
    "overlong_share": f"{DAPO}, Eq. 13",
    "mask_truncated": f"{DAPO}, section 3.4",
    "filter_range": f"{DAPO}, Eq. 11",
    "max_refills": f"{DAPO}, Eq. 11",
    "clip_eps_low": f"{DAPO}, Eq. 8",
    "clip_eps_high": f"{DAPO}, Eq. 8",
    "dual_clip": "dual-clip PPO, arXiv:1912.09729",
    "beta": f"{GRPO}, Eq. 3",
    "ref_sync_steps": TR_DPO,
    "ref_sync_mix": TR_DPO,
    "off_policy_threshold": f"{DEEPSEEK}, section 3.1",
    "lora_rank": "LoRA, arXiv:2106.09685",
    "zero_stage": "ZeRO, arXiv:1910.02054",
    "num_generations": f"{GRPO}, section 4.1",
}
"""Source of an option, whatever its value."""

VALUE_SOURCES: Mapping[str, Mapping[object, str]] = {
    "advantage": {
        "group": f"{GRPO}, section 4.1.2",
        "batch": "REINFORCE++, arXiv:2501.03262",
        "group_mean_batch_std": "REINFORCE++ with baseline, arXiv:2501.03262",
        "leave_one_out": "RLOO, arXiv:2402.14740",
        "none": "Dr. GRPO, arXiv:2503.20783",
    },
    "reward_aggregation": {"normalize_then_sum": "GDPO, arXiv:2601.05242"},
    "ratio_level": {"token": f"{GRPO}, Eq. 3", "sequence": "GSPO, arXiv:2507.18071, Eq. 7"},
    "bound": {"clip": f"{DAPO}, Eq. 8", "cispo": MINIMAX, "sapo": "SAPO, arXiv:2511.20347"},
    "average": {
        "token": f"{DAPO}, Eq. 8",
        "sequence": f"{GRPO}, Eq. 3",
        "constant": "Dr. GRPO, arXiv:2503.20783, section 3.2",
        "prompt": "ScaleRL, arXiv:2510.13786, section 3.2",
    },
    "kl": {
        "forward": f"{GRPO}, Eq. 4, differentiated",
        "k3": f"{GRPO}, Eq. 4",
        "k3_ratio": f"{DEEPSEEK}, section 3.1",
    },
    "rollout_correction": {
        "token_truncate": TRUNCATED,
        "token_mask": MASKED,
        "sequence_truncate": TRUNCATED,
        "sequence_mask": MASKED,
    },
    "optimizer": {
        "adamw": "AdamW, arXiv:1711.05101",
        "adamw_8bit": "8-bit optimizers, arXiv:2110.02861",
    },
}
"""Source of a value of an option."""


def source_of(name: str, value: object) -> str | None:
    """Paper and equation of an option with this value; None: it has none.

    >>> source_of("average", "constant")
    'Dr. GRPO, arXiv:2503.20783, section 3.2'
    """
    if name in OPTION_SOURCES:
        return OPTION_SOURCES[name]
    if name not in VALUE_SOURCES or value not in VALUE_SOURCES[name]:
        return None
    return VALUE_SOURCES[name][value]


FOLLOWS = "follows from others"
DEFAULT = "default"
FOLLOWING = {
    "rollout_correction": "default with --max-staleness above 0",
    "clip_eps_high": "default with --bound cispo",
}
"""Origin of the defaults that follow from other options."""
DIALECT = "another tool's flag"


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """One option of a configuration."""

    option: Option
    value: object
    origin: str
    source: str | None
    """Paper and equation, if there is one."""

    @property
    def text(self) -> str:
        """The value as written in a file."""
        return yaml_line(self.option.name, self.value).partition(":")[2].strip()


def explained(config: Config, *, flags: Mapping[str, str], file: Mapping[str, tuple[object, str]]) -> list[Explained]:
    """Every option, in the order of the sections.

    `flags` has the origin of each option that was given as a flag, `file` value and origin of each that a file gives. A
    file's value that is another now was fitted to the flags, as a recipe's warm-up is to a shorter run.
    """
    preset = config.advantage.preset
    following = following_values({"max_staleness": config.cluster.max_staleness, "bound": config.loss.bound})
    found = []
    for option in options():
        value = getattr(getattr(config, option.section), option.name)
        if option.name in flags:
            origin = flags[option.name]
        elif option.name in file:
            written, origin = file[option.name]
            origin += "" if written == value else ", fitted to the flags"
        elif option.name in preset_values(preset):
            origin = f"preset {preset}"
        elif option.name in following:
            origin = FOLLOWING[option.name]
        else:
            origin = DEFAULT if value == option.default else FOLLOWS
        found.append(Explained(option=option, value=value, origin=origin, source=source_of(option.name, value)))
    return found


def of_file(text: str, values: Mapping[str, object], name: str) -> dict[str, tuple[object, str]]:
    """Value and line of each option in a configuration file."""
    lines = option_lines(text)
    return {option: (value, f"{name} line {lines[option]}") for option, value in values.items()}


def of_run(config: Config, text: str) -> dict[str, tuple[object, str]]:
    """Lines of a run's `config.yaml` that differ from the default; the file holds every option.

    Left out are values that are also what would hold if the file did not have them.
    """
    preset, model, dataset = config.advantage.preset, config.model.model, config.data.dataset
    base = build_config({"model": model, "dataset": dataset, "preset": preset})
    lines = option_lines(text)
    values = {option.name: getattr(getattr(config, option.section), option.name) for option in options()}
    held = {name: _held(base, name) for name in values} | dict(following_values(values))
    return {
        name: (value, f"config.yaml line {lines[name]}")
        for name, value in values.items()
        if name in lines and (name in ("model", "dataset", "preset") or value != held[name])
    }


def of_flags(given: Iterable[str], written: Iterable[str]) -> dict[str, str]:
    """Origin of each option in argv; `written` is argv before other tools' layout words were translated."""
    own = {option_name(word.partition("=")[0]) for word in written if word.startswith("--")}
    return {name: "flag" if name in own else DIALECT for name in given}


def _held(config: Config, name: str) -> object:
    return getattr(getattr(config, find_option(name).section), name)
