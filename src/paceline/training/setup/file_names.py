"""Names of files in options: which part of a value is one, and the directory that a run's names stand in."""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from paceline.base_directory import base_directory, expanded
from paceline.checkpoints.existing_runs import refuse_links
from paceline.config.flat_yaml import parse_yaml
from paceline.config.reading import option_name
from paceline.errors import PacelineError
from paceline.models.places import DIRECTORIES

_COUNT = r"(?P<after>(?:#\d+)?)"
_CODE = r"(?P<path>[^()]*\.py)(?P<after>:.*)"
_FORMS: Mapping[str, tuple[str, ...]] = {
    "model": (r"(?P<before>)(?P<path>.+)(?P<after>)",),
    "dataset": (rf"(?P<before>)(?P<path>.+?){_COUNT}",),
    "eval_dataset": (rf"(?P<before>(?:[\w.-]+=)?)(?P<path>.+?){_COUNT}",),
    "reward_funcs": (
        r"(?P<before>judge:)(?P<path>(?!https?:)[^()]+)(?P<after>.*)",
        r"(?P<before>model:)(?P<path>.+)(?P<after>)",
        rf"(?P<before>){_CODE}",
    ),
    "advantage": (rf"(?P<before>){_CODE}",),
    "environment": (
        r"(?P<before>(?:[A-Za-z_][\w-]*=)?search:)(?P<path>.+)(?P<after>)",
        rf"(?P<before>(?:[A-Za-z_][\w-]*=)?(?:harness:)?){_CODE}",
    ),
    "system_prompt": (r"(?P<before>file:)(?P<path>.+)(?P<after>)",),
    "output_dir": (r"(?P<before>)(?P<path>.+)(?P<after>)",),
}
_SAME_FORM = {"eval_reward_func": "reward_funcs", "bound": "advantage"}


def run_base(run: Path) -> Path:
    """Return the directory that the relative names of a run's config.yaml stand in: where the run was started.

    `identity.json` has its position beside the run, which holds where a whole project was moved, and its absolute name,
    which holds where the run alone was; the one below which more of the named files lie is right. A run that was killed
    before it was written has the caller's directory.
    """
    refuse_links(run)
    known = [base_directory()]
    try:
        recorded = json.loads((run / "identity.json").read_text(encoding="utf-8"))["base"]
        known = [Path(os.path.normpath(run.resolve() / recorded["relative"])), Path(recorded["absolute"]), *known]
    except (OSError, ValueError, KeyError, TypeError):
        return known[0]
    try:
        options = parse_yaml((run / "config.yaml").read_text(encoding="utf-8-sig"), "config.yaml")
    except (OSError, UnicodeDecodeError, PacelineError):  # refused by who reads it
        return known[0]
    names = [path for option, value in options.items() if option != "output_dir" for path in _paths(option, value)]
    known = [directory for directory in known if directory.is_dir()]
    return max(known, key=lambda directory: sum((directory / name).exists() for name in names))


def recorded_base(run: Path) -> dict[str, str]:
    """Return what `run_base` reads: the present base by its position beside a run directory, and by its whole name."""
    base = base_directory()
    return {"relative": os.path.relpath(base, run.resolve()), "absolute": str(base)}


def seen_from(
    base: Path, options: Mapping[str, object], recorded: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Return options of a command with names that lead to the same files from another base directory.

    A name of a file that `recorded` names too, however it is spelled there, becomes that spelling.
    """
    here, renamed = base_directory(), dict[str, object]()
    for spelling, value in options.items():
        option = option_name(spelling)
        known = {} if recorded is None or option not in recorded else _places(base, option, recorded[option])
        renamed[spelling] = _renamed(option, value, partial(_from, base, here, option, known))
    return renamed


def same_names(old: Mapping[str, object], old_base: Path, new: Mapping[str, object]) -> dict[str, object]:
    """Return recorded options in which a file that `new` names too has the name that it has there."""
    renamed = dict(old)
    for option in old.keys() & new.keys():
        known = _places(base_directory(), option, new[option])
        renamed[option] = _renamed(option, old[option], partial(_respelled, old_base, known))
    return renamed


def _respelled(base: Path, known: Mapping[Path, str], name: str) -> str:
    return known.get(_real(base / name), name)


def _from(base: Path, here: Path, option: str, known: Mapping[Path, str], name: str) -> str:
    """Return the name by which a file that is called `name` in `here` is called in `base`."""
    from paceline.data.sources import is_generator  # loads numpy, which explaining does without

    path = expanded(name)
    is_shipped = (option == "model" and name in DIRECTORIES) or (option.endswith("dataset") and is_generator(name))
    if is_shipped or (option != "output_dir" and not (here / path).exists()):
        return name
    if (spelling := known.get(_real(here / path))) is not None:
        return spelling
    if base == here or path.is_absolute():
        return name
    target = Path(os.path.normpath(here / path))
    return str(target.relative_to(base) if target.is_relative_to(base) else target)


def _places(base: Path, option: str, value: object) -> dict[Path, str]:
    """Return the names of files in a value by the real paths of those that exist."""
    paths = ((base / expanded(name), name) for name in _paths(option, value))
    return {_real(path): name for path, name in paths if path.exists()}


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _paths(option: str, value: object) -> Iterator[str]:
    names = list[str]()
    _renamed(option, value, lambda name: names.append(name) or name)  # type: ignore[func-returns-value]
    return iter(names)


def _renamed(option: str, value: object, rename: Callable[[str], str]) -> object:
    """Return a value with every file name in it replaced by `rename`."""
    if isinstance(value, list | tuple):
        return [_renamed(option, item, rename) for item in value]
    if not isinstance(value, str):
        return value
    for form in _FORMS.get(_SAME_FORM.get(option, option), ()):
        if (match := re.fullmatch(form, value, re.DOTALL)) is not None:
            after = re.sub(r"(?<=[(\s,]rubric=)[^,()]+", lambda rubric: rename(rubric[0]), match["after"])
            return f"{match['before']}{rename(match['path'])}{after}"
    return value
