"""`paceline export`: a run's checkpoint to a directory that transformers or peft loads, or llama.cpp."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from paceline.base_directory import hold_base, working_directory
from paceline.checkpoints.finding import newest_checkpoint, read_checkpoint, run_and_checkpoint
from paceline.checkpoints.run_directory import RunDir
from paceline.checkpoints.run_files import holds_something
from paceline.cli.arguments import Command, CommandFlag, before_flags, directories, parse
from paceline.cli.libraries import loading_libraries
from paceline.config.reading import options
from paceline.config.sections import Config
from paceline.errors import DONE, CheckpointError, ConfigError
from paceline.models.gguf import check_written, write_gguf
from paceline.models.places import ADAPTER_CONFIG, FINAL, holds_model, model_place
from paceline.training.setup.configuration import read_run_configuration
from paceline.training.setup.file_names import run_base
from paceline.training.setup.named_code import allow_named_code

FORMAT = CommandFlag(
    name="format",
    metavar="FORMAT",
    help="gguf: the directory also gets model.gguf, a file for llama.cpp, with matrices in BF16, or in another type, "
    "such as gguf:Q8_0. It holds a whole model, so a run that trained an adapter needs --merge-lora true for it.",
)
TAKEN = ("trust_remote_code", "final_dtype")
COMMAND = Command(
    name="export",
    usage="paceline export RUN [DIRECTORY] [--format gguf] [--final-dtype float32] [--trust-remote-code true]",
    summary="Writes the newest model of a run: that of its newest whole checkpoint, whatever ranks wrote it, or "
    "`final` where the run ended after it. It is a directory that transformers loads, or peft where an "
    "adapter was trained, with a card of what the run measured up to there. RUN may also be one of its "
    "checkpoints, such as runs/mine/checkpoints/step-000100. Without DIRECTORY it is the run's `final`. Takes "
    "the memory of one whole model. Where the run's model came with Python code of its own, --trust-remote- "
    "code has to be said here too.",
    flags=(FORMAT,),
    options=tuple(option for option in options() if option.name in TAKEN),
)


def run(argv: list[str]) -> int:
    """Export a checkpoint; returns the exit status."""
    operands, words = before_flags(argv)
    arguments = parse(COMMAND, words)
    directory, *target = directories(operands, command="export", form="RUN [DIRECTORY]", at_most=2)
    kind = _gguf_type(arguments.flags["format"]) if "format" in arguments.flags else None
    root, named = run_and_checkpoint(directory, working_directory())
    config = read_run_configuration(root, flag="export", given=arguments.options)
    hold_base(run_base(root))
    allow_named_code(config, root / "config.yaml", arguments.options, runs=TAKEN)
    out = target[0] if target else root / FINAL
    if not target and holds_model(out):
        raise ConfigError(
            f"export {root}: its final model is in {out} already; load it from there, or name a directory for another "
            "precision, format or checkpoint"
        )
    if holds_something(out):
        raise ConfigError(f"export would write into {out}, which is there; name a directory that is not")
    saved, step = _newest_model(root, named, arguments.options)
    if kind is not None:
        _check_gguf(config, saved, kind)
    # Loading torch takes seconds: whatever can be refused is refused before these lines.
    with loading_libraries():
        from paceline.models.pretrained import load_tokenizer
        from paceline.training.card import card_facts, write_card
        from paceline.training.trainer import export_saved

    if saved == root / FINAL:
        try:
            shutil.copytree(saved, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.gguf"))
        except OSError as error:
            raise ConfigError(f"export cannot write {out} ({error}); name a directory where you may write") from error
    else:
        export_saved(config, saved, load_tokenizer(replace(config.model, model=str(working_directory() / saved))), out)
    if kind is not None:
        write_gguf(out, out / "model.gguf", kind)
    card = write_card(card_facts(RunDir(root), config, out, step=step), out)
    print(f"step {step}: {out} (its card: {card.name})")
    return DONE


def _newest_model(root: Path, named: Path | None, chosen: Mapping[str, object]) -> tuple[Path, int]:
    """The saved model to export, and its step: of the checkpoint that is named, of the newest, or the final one."""
    checkpoint, damaged = newest_checkpoint(root / "checkpoints") if named is None else (read_checkpoint(named), ())
    for sentence in damaged:
        print(sentence)
    newest, ended = 0 if checkpoint is None else checkpoint.state.step, RunDir(root).summary()
    # a run that goes on has no summary
    if named is None and ended and newest < ended["final_step"] and holds_model(root / FINAL):
        model_place(str(working_directory() / root / FINAL))  # refused here where a part of it is gone
        if "final_dtype" in chosen:
            raise ConfigError(
                f"--final-dtype needs a checkpoint, and the newest model of the run is only in {root / FINAL}; leave "
                "it out, or name an earlier checkpoint"
            )
        return root / FINAL, int(ended["final_step"])
    if checkpoint is None:
        raise CheckpointError(f"export {root} has no checkpoint yet; train with --save-steps, or until the run ends")
    return checkpoint.model, newest


def _gguf_type(value: str) -> str:
    """The type of the matrices that a value of --format asks for."""
    form, _, kind = value.partition(":")
    if form != "gguf":
        raise ConfigError(
            f"--format must be gguf or gguf:TYPE, got {value!r}; without it transformers' files are written"
        )
    return kind or "BF16"


def _check_gguf(config: Config, saved: Path, kind: str) -> None:
    """Refuse what cannot be a GGUF file before anything is written."""
    if (saved / ADAPTER_CONFIG).is_file() and not config.lora.merge_lora:
        raise ConfigError(
            f"--format gguf needs a whole model, and {saved} holds an adapter; export it without --format, and merge "
            "it with peft"
        )
    has_own = (saved / "config.json").is_file()
    described = saved if has_own else Path(model_place(config.model.model).base)
    if described.is_dir():  # else it lies on the Hub
        check_written(described, kind)
