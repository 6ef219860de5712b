"""`paceline explain`: the objective of a configuration as a formula, and the origin of every option."""

import inspect
from collections.abc import Mapping

from paceline.base_directory import hold_base, named_path
from paceline.cli.arguments import CONFIG, Command, ParsedArguments, parse
from paceline.compat.commands.command import translate
from paceline.compat.commands.layouts import translate_layout_flags
from paceline.config.algorithms import ADVANTAGES, BOUNDS
from paceline.config.building import build_config, following_values
from paceline.config.flat_yaml import option_lines, parse_yaml, yaml_line
from paceline.config.presets import PRESETS, preset_values
from paceline.config.reading import option_name, options, section_classes, values_of
from paceline.config.sections import Config
from paceline.errors import DONE, ConfigError
from paceline.objective.formula import as_text, objective
from paceline.training.setup.configuration import read_configuration, read_run_configuration, read_text, replaced_by
from paceline.training.setup.file_names import run_base

COMMAND = Command(
    name="explain",
    usage="paceline explain [--config FILE] [--option value ...]\n       paceline explain RUN\n"
    "       paceline explain [--repair] -- ANOTHER TOOL'S COMMAND",
    summary="Print the objective of a training run as a formula with its numbers, then every option with its value, "
    "where it came from, and the paper it is of. Reads configuration files only.",
    flags=(CONFIG,),
    options=options(),
)
WIDEST = 28
"""Width of the column of values."""

DAPO = "DAPO, arXiv:2503.14476"
DEEPSEEK = "DeepSeek-V3.2, arXiv:2512.02556"
GRPO = "GRPO, arXiv:2402.03300"
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
    "beta": f"{GRPO}, Eq. 3",
    "ref_sync": TR_DPO,
    "entropy_target": "Skywork-OR1, arXiv:2505.22312",
    "top_entropy_quantile": "Beyond the 80/20 rule, arXiv:2506.01939",
    "off_policy_threshold": f"{DEEPSEEK}, section 3.1",
    "lora_rank": "LoRA, arXiv:2106.09685",
    "zero_stage": "ZeRO, arXiv:1910.02054",
    "num_generations": f"{GRPO}, section 4.1",
}
"""Source of an option, whatever its value."""

VALUE_SOURCES: Mapping[str, Mapping[object, str]] = {
    "advantage": {name: row.source for name, row in ADVANTAGES.items() if row.source is not None},
    "reward_aggregation": {"normalize_then_sum": "GDPO, arXiv:2601.05242"},
    "ratio_level": {"token": f"{GRPO}, Eq. 3", "sequence": "GSPO, arXiv:2507.18071, Eq. 7"},
    "bound": {name: row.source for name, row in BOUNDS.items() if row.source is not None},
    "average": {
        "token": f"{DAPO}, Eq. 8",
        "sequence": f"{GRPO}, Eq. 3",
        "constant": "Dr. GRPO, arXiv:2503.20783, section 3.2",
        "sequence_sum": "LUSPO, arXiv:2602.05261",
        "prompt": "ScaleRL, arXiv:2510.13786, section 3.2",
    },
    "kl": {"forward": f"{GRPO}, Eq. 4, differentiated", "k3": f"{GRPO}, Eq. 4", "k3_ratio": f"{DEEPSEEK}, section 3.1"},
    "rollout_correction": {
        "token_truncate": TRUNCATED,
        "token_mask": MASKED,
        "sequence_truncate": TRUNCATED,
        "sequence_mask": MASKED,
    },
    "optimizer": {"adamw": "AdamW, arXiv:1711.05101", "adamw_8bit": "8-bit optimizers, arXiv:2110.02861"},
}
"""Source of a value of an option."""

FOLLOWING = {
    "rollout_correction": "default with --max-staleness above 0 or --engine-quantization fp8",
    "clip_eps_high": "default with --bound cispo",
}
"""Origin of the defaults that follow from other options."""
DIALECT = "another tool's flag"


def run(argv: list[str]) -> int:
    """Explain a configuration; returns the exit status."""
    if "--" in argv:
        # imported here, as it imports everything that starts a training
        from paceline.cli.translate import read

        flags, command = read(argv)
        translation = translate(command, repair="--repair" in flags)
        arguments = ParsedArguments(flags={}, options=dict(translation.options))
        print(_of_options(arguments, dict.fromkeys(translation.options, DIALECT)), end="")
        return DONE
    if argv and not argv[0].startswith("-"):
        print(_of_run(argv), end="")
        return DONE
    arguments = parse(COMMAND, translate_layout_flags(argv))
    # argv before other tools' layout words were translated
    own_flags = {option_name(word.partition("=")[0]) for word in argv if word.startswith("--")}
    print(
        _of_options(arguments, {name: "flag" if name in own_flags else DIALECT for name in arguments.options}), end=""
    )
    return DONE


def _of_options(arguments: ParsedArguments, flags: dict[str, str]) -> str:
    """Configuration from train's options over their file or recipe."""
    configuration = read_configuration(arguments.options, file=arguments.flags.get("config"))
    file = dict[str, tuple[object, str]]()
    if (ground := configuration.ground) is not None:
        text = read_text(ground, str(ground))
        lines, replaced = option_lines(text), replaced_by(arguments.options)
        file = {
            name: (value, f"{ground.name} line {lines[name]}")
            for name, value in parse_yaml(text, str(ground)).items()
            if name not in replaced
        }
    hold_base(configuration.base)
    config = configuration.config
    return f"{configuration.origin}\n\n{describe(config, _origins(config, flags=flags, file=file))}"


def _of_run(argv: list[str]) -> str:
    """Configuration of a run, with the lines of its `config.yaml`, which holds every option, that are no defaults."""
    if len(argv) > 1:
        raise ConfigError(
            f"`paceline explain RUN` takes one run directory and nothing else, got {argv[1]!r}; leave it out"
        )
    path = named_path(argv[0])
    hold_base(run_base(path))
    config = read_run_configuration(path, flag="paceline explain")
    preset, model, dataset = config.advantage.preset, config.model.model, config.data.dataset
    lines, values = option_lines(read_text(path / "config.yaml", str(path))), values_of(config)
    # values that would hold without the file, too, are not shown as the file's
    held = values_of(build_config({"model": model, "dataset": dataset, "preset": preset})) | following_values(values)
    file = {
        name: (value, f"config.yaml line {lines[name]}")
        for name, value in values.items()
        if name in lines and (name in ("model", "dataset", "preset") or value != held[name])
    }
    origin = f"Options: {path / 'config.yaml'}, which holds every option of the run, whoever gave it."
    return f"{origin}\n\n{describe(config, _origins(config, flags={}, file=file))}"


def _origins(config: Config, *, flags: Mapping[str, str], file: Mapping[str, tuple[object, str]]) -> dict[str, str]:
    """Origin of every option.

    `flags` has the origin of each option that was given as a flag, `file` value and origin of each that a file gives. A
    file's value that is another now was fitted to the flags, as a recipe's warm-up is to a shorter run.
    """
    preset, origins, values = config.advantage.preset, dict[str, str](), values_of(config)
    following = following_values(values)
    for option in options():
        name, value = option.name, values[option.name]
        if name in flags:
            origins[name] = flags[name]
        elif name in file:
            written, origin = file[name]
            origins[name] = origin if written == value else f"{origin}, fitted to the flags"
        elif name in preset_values(preset):
            origins[name] = f"preset {preset}"
        elif name in following:
            origins[name] = FOLLOWING[name]
        else:
            origins[name] = "default" if value == option.default else "follows from others"
    return origins


def source_of(name: str, value: object) -> str | None:
    """Paper and equation of an option with this value; None: it has none.

    >>> source_of("average", "constant")
    'Dr. GRPO, arXiv:2503.20783, section 3.2'
    """
    return OPTION_SOURCES.get(name) or VALUE_SOURCES.get(name, {}).get(value)


def describe(config: Config, origins: Mapping[str, str]) -> str:
    """Formula, source of the preset, then the options by section, each with its value, origin and paper."""
    indented = "".join(f"  {line}\n" for line in as_text(objective(config)).splitlines())
    blocks, values = [f"The objective, minimised:\n{indented}"], values_of(config)
    if config.advantage.preset is not None:
        preset = PRESETS[config.advantage.preset]
        blocks.append(f"Preset {config.advantage.preset}: {preset.source}. It differs from that in {preset.differs}.\n")
    for section, section_class in section_classes().items():
        sentence = " ".join((inspect.getdoc(section_class) or "").split())
        names = [option.name for option in options() if option.section == section]
        texts = [yaml_line(name, values[name]).partition(":")[2].strip() for name in names]
        name_width, text_width = max(map(len, names)), min(WIDEST, max(map(len, texts)))
        blocks.append(f"{section}: {sentence}\n")
        for name, text in zip(names, texts, strict=True):
            source = source_of(name, values[name])
            blocks[-1] += (
                f"  {name:<{name_width}}  {text:<{text_width}}  {origins[name]}{f'  [{source}]' if source else ''}\n"
            )
    return "\n".join(blocks)
