"""No line tells a user to install Paceline from an index, where anybody could have registered the name."""

import re

import pytest
from packaging.requirements import Requirement

from paceline.config.packages import install_command, requirements
from tests.support.documents import ROOT

PLACES = ("src", "docs", "examples", "recipes", "scripts", "benchmarks", "README.md", "CONTRIBUTING.md", "mkdocs.yml")
DEPLOYMENT = ("Containerfile", "Makefile")
KINDS = {".py", ".md", ".yaml", ".yml", ".sh", ".sbatch", ".ipynb", ".js", ".css", ".toml", ""}
OWN_NAME = re.compile(
    r"paceline\[[\w{,-]"  # an extra
    r"|\b(?:pip3?|uv|uv pip|pipx|uv tool|conda)\b (?:install|add|download)\b[^`\n#]*[\s'\"]paceline\b(?![/.\w-])"
    r"|--(?:upgrade|force-reinstall) paceline\b"
)
"""Lines by which an installer would look for the name on an index."""


def files():
    for place in (*PLACES, *DEPLOYMENT):
        path = ROOT / place
        found = [path] if path.is_file() else sorted(path.rglob("*"))
        yield from (one for one in found if one.is_file() and one.suffix in KINDS and "embedded" not in one.parts)


def test_no_line_installs_paceline_by_its_name():
    lines = [(path, line) for path in files() for line in path.read_text().splitlines()]
    assert len(lines) > 10_000
    assert [f"{path.relative_to(ROOT)}: {line.strip()}" for path, line in lines if OWN_NAME.search(line)] == []


@pytest.mark.parametrize(
    "line",
    [
        "pip install 'paceline[ray]'",
        "pip install -U paceline",
        "run: pip install --upgrade paceline",
        "uv add paceline",
        "`paceline[wandb]`",
        "f\"pip install 'paceline[{extra}]'\"",
    ],
)
def test_such_a_line_would_be_found(line):
    assert OWN_NAME.search(line)


def test_every_extra_has_a_command_of_packages_with_the_bounds_of_the_metadata():
    assert install_command("ray") == "pip install 'ray<2.61,>=2.60'"
    assert install_command("gguf", "accelerate") == "pip install 'gguf>=0.17' 'accelerate>=1.10'"
    assert install_command("something-else") == "pip install something-else"
    for name, known in requirements().items():
        given = install_command(name).removeprefix("pip install ").strip("'")
        assert Requirement(given).specifier == known.specifier
