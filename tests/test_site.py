"""The documentation site: a page for each reward and preset, made from the code; links that lead somewhere."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import is_dataclass
from pathlib import Path

import pytest

import paceline.types
from paceline.cli import train
from paceline.cli.arguments import parse
from paceline.compat.trl.arguments import NOT_OFFERED
from paceline.compat.trl.fields import MEANINGS
from paceline.config.building import build_config
from paceline.config.presets import PRESETS
from paceline.config.reading import options
from paceline.errors import PacelineError
from paceline.metrics.definitions import METRICS
from paceline.rewards.function import annotations
from paceline.rewards.resolving import BUILT_IN
from scripts.site_pages import pages
from tests.support.documents import ROOT, blocks, commands

PAGES = pages()


def test_every_reward_has_a_page_with_its_parameters():
    assert {path for path in PAGES if path.startswith("rewards/")} == {f"rewards/{name}.md" for name in BUILT_IN}
    for name, maker in BUILT_IN.items():
        shown = set(re.findall(r"^\| `(\w+)` \|", PAGES[f"rewards/{name}.md"], re.MULTILINE))
        assert shown >= set(annotations(maker)), name


def test_every_preset_has_a_page_with_its_values_and_its_formula():
    assert {path for path in PAGES if path.startswith("presets/")} == {f"presets/{name}.md" for name in PRESETS}
    for name, preset in PRESETS.items():
        page = PAGES[f"presets/{name}.md"]
        assert set(re.findall(r"\.\./options\.md#([\w-]+)", page)) == {key.replace("_", "-") for key in preset.values}
        assert preset.source in page
        assert preset.differs in page
        assert "loss     = " in page


def test_every_option_and_every_metric_is_on_its_page():
    assert re.findall(r"^### `--([\w-]+)`", PAGES["options.md"], re.MULTILINE) == [o.flag[2:] for o in options()]
    assert set(re.findall(r"^\| `(\w+)` \|", PAGES["metrics.md"], re.MULTILINE)) >= set(METRICS)


def test_the_page_of_trls_fields_names_each_that_is_refused_or_changes_nothing_with_the_reason():
    silent = {name: one.text for name, one in MEANINGS.items() if one.kind in ("refused", "idle")}
    reasons = silent | dict(NOT_OFFERED)
    rows = [line.strip("| ").split(" | ") for line in PAGES["trl-fields.md"].splitlines() if line.startswith("| `")]
    written = {name: row[1] for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert {name: written[name] for name in reasons} == reasons


def test_the_tutorial_has_a_page_with_every_cell_of_its_notebook():
    cells = json.loads((ROOT / "docs" / "tutorial.ipynb").read_text())["cells"]
    code = [block.text.strip() for block in blocks("tutorial.md", PAGES["tutorial.md"]) if block.kind == "python"]
    assert code == ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_the_worked_numbers_of_a_page_are_those_of_the_code():
    assert "The greatest score is 2.8" in PAGES["rewards/gsm8k.md"]
    assert "| `ngram` | a whole number | `3` |" in PAGES["rewards/repetition.md"]
    assert "| [`--clip-eps-high`](../options.md#clip-eps-high) | `0.28` |" in PAGES["presets/dapo.md"]
    assert "clip(r_t, 1 - 0.2, 1 + 0.28)" in PAGES["presets/dapo.md"]


@pytest.mark.parametrize("path", sorted(path for path in PAGES if "/" in path))
def test_the_commands_of_a_generated_page_make_configurations(path):
    lines = [words for block in blocks(path, PAGES[path]) if block.kind == "shell" for words in commands(block)]
    assert lines
    for words in lines:
        build_config(parse(train.COMMAND, words[2:]).options)


def kinds_of(error: type) -> list[type]:
    own = [one for one in error.__subclasses__() if one.__module__ == error.__module__]
    return [*own, *(kind for one in own for kind in kinds_of(one))]


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="needs mkdocs-material")
def test_the_site_is_built_without_a_warning_and_asks_no_other_host(tmp_path: Path):
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert (built.returncode, built.stdout) == (0, ""), built.stderr
    for page in (*PAGES, *(str(file.relative_to(ROOT / "docs")) for file in (ROOT / "docs").rglob("*.md"))):
        assert (tmp_path / page).with_suffix(".html").exists(), page
    reference = set(re.findall(r'<h\d id="([\w.]+)"', (tmp_path / "reference.html").read_text()))
    errors = [f"paceline.errors.{kind.__name__}" for kind in (PacelineError, *kinds_of(PacelineError))]
    records = [f"paceline.types.{name}" for name, one in vars(paceline.types).items() if is_dataclass(one)]
    assert reference >= {*(f"paceline.{name}" for name in paceline.__all__), *records, *errors}
    asked = r'(?:src|data-src)="https?:|<link[^>]+href="https?:|@import[^;]+https?:|url\(["\']?https?:'
    files = [file for file in tmp_path.rglob("*") if file.suffix in (".html", ".css")]
    assert [str(file) for file in files if re.search(asked, file.read_text())] == []
