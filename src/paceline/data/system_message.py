"""System message of a run: from a file, an option, or the reward functions' default."""

import os
from pathlib import Path

from paceline.config.sections import DataConfig
from paceline.errors import ConfigError, DataError

TEXT_FILES = (".txt", ".md", ".jinja")


def system_prompt(data: DataConfig, default: str | None) -> str | None:
    """Return the system message: `system_prompt_file`, else `system_prompt` (empty: None), else `default`.

    Raises:
        ConfigError: `system_prompt` looks like the name of a file: a path must never be the prompt.
        DataError: the file cannot be read or is empty.
    """
    if data.system_prompt_file is not None:
        return _read(data.system_prompt_file)
    if data.system_prompt is None:
        return default
    if _is_file_name(data.system_prompt):
        raise ConfigError(
            f"--system-prompt must be the message itself, got the name of a file {data.system_prompt!r}; "
            "use --system-prompt-file"
        )
    return data.system_prompt if data.system_prompt.strip() else None


def is_explicit(data: DataConfig) -> bool:
    """Return True if the user chose the system message, or none at all."""
    return data.system_prompt is not None or data.system_prompt_file is not None


def _is_file_name(value: str) -> bool:
    looks_so = not any(character.isspace() for character in value) and value.lower().endswith(TEXT_FILES)
    return looks_so or os.path.isfile(value)


def _read(name: str) -> str:
    try:
        text = Path(name).expanduser().read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"--system-prompt-file {name}: cannot be read as UTF-8 text ({error}); check the path"
        ) from error
    if not text:
        raise DataError(f"--system-prompt-file {name}: is empty; for no system message use --system-prompt ''")
    return text
