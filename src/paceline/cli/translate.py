"""`paceline translate`: another tool's command as Paceline's, with notes on differences."""

import os
import subprocess
import sys
from collections.abc import Sequence

from paceline.base_directory import expanded
from paceline.cli import train
from paceline.compat.commands.command import translate
from paceline.compat.commands.shell import script_of
from paceline.compat.commands.translation import as_comments, as_shell, as_words, as_yaml
from paceline.config.reading import suggest
from paceline.errors import DONE, ConfigError

USAGE = """usage: paceline translate [--repair] [--yaml] [--run] -- COMMAND
       paceline translate [--repair] [--yaml] [--run] SCRIPT.sh

Print the `paceline train` that another tool's command amounts to, below comments that say what means something else,
what was wrong there, what is not here yet and what has no effect. COMMAND is the whole of it; a script is only read:

    python rl_example.py --dataset D --model M -t 4 -i 4 ...              ColossalChat
    NPROC_PER_NODE=4 swift rlhf --rlhf_type grpo --model M --dataset D    ms-swift
    trl grpo --config run.yaml --num_processes 4                          TRL
    bash grpo.sh                                                          a shell script with one of these

--repair   Take the nearest numbers that work where those of COMMAND are refused by its own tool.
--yaml     Print a file for `paceline train --config` in the place of a command.
--run      Train, after the comments are printed.
"""
FLAGS = ("--repair", "--yaml", "--run")


def run(argv: list[str]) -> int:
    """Translate a command; returns the exit status, with `--run` that of the training."""
    if argv and argv[0] in ("-h", "--help"):
        print(USAGE, end="")
        return DONE
    flags, command = read(argv)
    translation = translate(command, repair="--repair" in flags, read=_text_of, environment=os.environ)
    print(as_comments(translation.notes), end="")
    if "--run" in flags:
        os.environ.update(translation.environment)
        words = as_words(translation.options)
        if not translation.launch:
            return train.run(words)
        # several processes, with torchrun of this Python
        start = [sys.executable, "-m", "torch.distributed.run", *translation.launch, "-m", "paceline", "train"]
        return subprocess.run([*start, *words], check=False).returncode
    print(as_yaml(translation.options) if "--yaml" in flags else as_shell(translation), end="")
    return DONE


def _text_of(path: str) -> str:
    try:
        return expanded(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}, which the command names, cannot be read as text ({error}); check it") from None


def read(argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Parse our flags, which come first, and behind `--` the other tool's command.

    Raises:
        ConfigError: there is no command, or a flag that is not known.
    """
    script = next((at for at, word in enumerate(argv) if not word.startswith("--")), None)
    if script is not None and script_of(argv[script:]) is not None and "--" not in argv[:script]:
        argv = [*argv[:script], "--", *argv[script:]]
    if "--" not in argv or argv[-1] == "--":
        raise ConfigError("`paceline translate` needs a command behind --; write `paceline translate -- python ...`")
    border = argv.index("--")
    for word in argv[:border]:
        if word not in FLAGS:
            near = suggest(word, FLAGS, otherwise=f"there are {', '.join(FLAGS)}, and the command stands behind --")
            raise ConfigError(f"`paceline translate` has no flag {word}; {near}")
    return argv[:border], argv[border + 1 :]
