"""Every block of code in the documents is run, or read by what would read it; the rest says why it is not."""

import ast
import contextlib
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from paceline.cli import explain, plan, train
from paceline.cli.arguments import parse
from paceline.cli.main import COMMANDS, main
from paceline.config.building import build_config
from paceline.config.flat_yaml import parse_yaml
from paceline.config.packages import requirements
from paceline.config.sections import DataConfig
from paceline.data.formats import with_prompt
from paceline.data.rows import Row
from paceline.errors import sentence
from paceline.metrics.alarms import RULES, AlarmChange
from tests.support.documents import BLOCKS, ROOT, TEXTS, Block, blocks, commands

FOLLOWED = ("index.md", "python.md", "extending.md", "environments.md", "agents.md", "concepts.md", "trl.md")
"""Pages that are done from top to bottom, in an empty directory: files are written, code and small runs are run."""
PLANNED = {"train": train.COMMAND, "plan": plan.COMMAND, "explain": explain.COMMAND}
LAUNCHERS = ("torchrun", "accelerate", "srun")
OTHERS = {
    "ray": "starts Ray on machines that are not here",
    "pre-commit": "changes the clone's hooks",
    ".": "is the shell's own",
    "docker": "builds and runs images; its files are there, and what it runs of ours is taken",
    "sbatch": "needs Slurm; its files are there",
    "kubectl": "needs a cluster; its files are there",
}
"""Commands of other programs that a block may have beside ours, and why they are not run."""
SLOW = {"audit": "takes half a minute; `tests/unit/rewards/test_audit.py` runs it"}
"""Commands of ours that are read on a page that is followed, and not run."""
RUNNABLE = ("shell", "python", "json", "yaml")
FEW = 1 / 8
"""Of the blocks that could run: the share that may say that it is not run."""


def named(given: Iterator[Block]) -> list:
    return [pytest.param(block, id=str(block)) for block in given]


def to_run(kind: str) -> list:
    return named(b for b in BLOCKS if b.kind == kind and b.reason is None and b.document not in FOLLOWED)


def test_the_documents_have_blocks_of_every_kind():
    kinds = [block.kind for block in BLOCKS if block.reason is None]
    assert min(kinds.count(kind) for kind in ("shell", "python", "json", "yaml")) >= 1
    assert len(kinds) >= 60


def test_a_block_is_read_with_its_kind_its_title_and_why_it_is_not_run():
    command, fence = "    paceline doctor\n", '```json title="a.jsonl"\n{"a": 1}\n```\n'
    text = f"A\n\n{command}\n{fence}<!-- not run: a picture -->\n\n    a ──▶ b\n"
    shell, row, picture = blocks("page.md", text)
    assert (shell.kind, shell.line, shell.reason) == ("shell", 3, None)
    assert (row.kind, row.title, row.text) == ("json", "a.jsonl", '{"a": 1}\n')
    assert (picture.kind, picture.reason) == ("", "a picture")


def test_a_block_that_nothing_can_run_says_why():
    silent = [str(b) for b in BLOCKS if b.kind not in RUNNABLE and b.reason is None]
    assert silent == [], "write <!-- not run: REASON --> above these blocks, or the language behind their fence"


def test_few_blocks_that_could_run_are_left_unrun():
    could = [block for block in BLOCKS if block.kind in RUNNABLE]
    left = [f"{block}: {block.reason}" for block in could if block.reason is not None]
    assert len(left) <= FEW * len(could), left


@pytest.mark.parametrize("block", to_run("json"))
def test_a_row_is_one_that_the_reader_of_data_takes(block):
    for row in rows(block):
        assert with_prompt(Row(row_id=str(block), columns=row), DataConfig(dataset=block.document)).prompt


def rows(block: Block) -> list[dict]:
    """One object over several lines, or one per line."""
    decoder, text, found = json.JSONDecoder(), block.text, []
    while text.strip():
        row, end = decoder.raw_decode(text.lstrip())
        found.append(row)
        text = text.lstrip()[end:]
    return found


@pytest.mark.parametrize("block", to_run("yaml"))
def test_a_file_is_a_configuration_or_a_document_of_another_program(block):
    if re.search(r"^apiVersion:", block.text, re.MULTILINE):
        assert all("kind" in one for one in yaml.safe_load_all(block.text))
    else:
        build_config({"model": "embedded", "dataset": "arithmetic", **parse_yaml(block.text, str(block))})


@pytest.mark.parametrize("block", to_run("python"))
def test_a_piece_of_python_runs(block, tmp_path):
    with contextlib.chdir(tmp_path):
        exec(compile(block.text, str(block), "exec"), {})


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """The files that commands name: `run.yaml` and `rewards.py` of the README, recipes, rows under every name."""
    place = tmp_path_factory.mktemp("workplace")
    (place / "recipes").symlink_to(ROOT / "recipes")
    readme = {block.kind: block.text for block in BLOCKS if block.document == "README.md"}
    (place / "run.yaml").write_text(readme["yaml"])
    (place / "rewards.py").write_text(readme["python"])
    for name in ("train", "test", "math", "rows"):
        (place / f"{name}.jsonl").write_text('{"question": "2 + 2?", "answer": "4"}\n')
    return place


@pytest.mark.parametrize("block", to_run("shell"))
def test_a_command_is_taken_and_a_training_can_be_explained(block, workplace, capsys):
    with contextlib.chdir(ROOT):
        for words in commands(block):
            check_command(ours(words), workplace)


def ours(words: list[str]) -> list[str]:
    """Our command behind a launcher's, or the words as they are."""
    if words[0] in LAUNCHERS:
        return words[words.index("paceline") :]
    if words[:2] == ["docker", "run"]:
        (image,) = [at for at, word in enumerate(words) if word.startswith("paceline:")]
        return ["paceline", *words[image + 1 :]]
    return words


def check_command(words: list[str], workplace: Path) -> None:
    program, *rest = words
    if program == "paceline":
        assert rest[0] in COMMANDS  # its options: `test_readme.py`, which reads inline code as well
        if rest[0] in PLANNED and "--resume" not in rest and not (rest[0] == "explain" and rest[1:2] == ["RUN"]):
            explained(rest[0], rest[1:], workplace)
    elif program == "make":
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert {word for word in rest if "=" not in word} <= targets
    elif program == "pip":
        assert rest[0] in {"install", "wheel", "uninstall"}
        known = requirements(declared())
        asked = [Requirement(word) for word in rest[1:] if re.match(r"[a-z][\w-]*([<>=]|$)", word) and word != "dist"]
        bounded = [one for one in asked if one.specifier and one.name in known]
        assert [str(one) for one in bounded if one.specifier != known[one.name].specifier] == []
    elif program == "python":
        assert rest[0] == "-m" or (ROOT / rest[0]).exists()
    else:
        assert program in OTHERS, f"say in OTHERS why {program} is not run"
        files = [word for word in rest if word.startswith("examples/") or word == "Containerfile"]
        assert [file for file in files if not (ROOT / file).exists()] == []


def declared() -> list[str]:
    """Every requirement of pyproject.toml, extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]


def explained(command: str, rest: list[str], workplace: Path) -> None:
    """The options make a configuration whose objective can be written out: all that a run does before it reads data."""
    given = parse(PLANNED[command], rest)
    options = [word for word in rest if word != "--profile"]
    if given.flags.keys() - {"config", "profile"}:
        options = without(options, *(given.flags.keys() - {"config", "profile"}))
    with contextlib.chdir(workplace):
        assert main(["explain", *options]) == 0


def without(words: list[str], *names: str) -> list[str]:
    """The words without these flags and their values, which are not of the configuration."""
    kept = list(words)
    for name in names:
        at = kept.index(f"--{name}")
        del kept[at : at + 2]
    return kept


@pytest.mark.usefixtures("heeded_signals")
@pytest.mark.parametrize("page", [pytest.param(page, marks=pytest.mark.long) for page in FOLLOWED])
def test_a_page_that_is_followed_from_top_to_bottom_works(page, tmp_path, workplace, capsys):
    scope: dict[str, object] = {}
    sys.path.insert(0, str(tmp_path))
    try:
        with contextlib.chdir(tmp_path):
            for block in [b for b in BLOCKS if b.document == page and b.reason is None]:
                follow(block, tmp_path, workplace, scope)
    finally:
        sys.path.remove(str(tmp_path))
        for name in [name for name in ("rewards", "plain_engine") if name in sys.modules]:
            del sys.modules[name]


def follow(block: Block, place: Path, workplace: Path, scope: dict[str, object]) -> None:
    """Write the file, run the code, or run those commands that need nothing from elsewhere."""
    if block.title is not None:
        (place / block.title).write_text(block.text)
    elif block.kind == "python":
        exec(compile(block.text, str(block), "exec"), scope)
    if block.kind == "json":
        assert rows(block)
    for words in commands(block) if block.kind == "shell" else []:
        if words[0] == "paceline" and words[1] not in SLOW and is_at_hand(words, place):
            assert main(words[1:]) == 0, f"{block}: {' '.join(words)}"
        else:
            check_command(ours(words), workplace)


def is_at_hand(words: list[str], place: Path) -> bool:
    """Whether model and run of a command are the package's own or made on the page."""
    runs = [word for before, word in pairwise(words) if "runs/" in word and before != "--output-dir"]
    return not any("Qwen/" in word for word in words) and all((place / run).exists() for run in runs)


def messages() -> list[str]:
    """What the program may say: every text of its source, with `...` for what is filled in, and its whole errors."""
    found = []
    for file in sorted((ROOT / "src" / "paceline").rglob("*.py")):
        tree = ast.parse(file.read_text())
        constants = {ast.unparse(one.targets[0]): one.value for one in tree.body if isinstance(one, ast.Assign)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr | ast.Constant):
                found.append(said(node))
            parts = {one.arg: one.value for one in node.keywords} if isinstance(node, ast.Call) else {}
            if "remedies" in parts and node.args:
                several = parts["remedies"].elts if isinstance(parts["remedies"], ast.List) else [parts["remedies"]]
                remedies = [said(constants.get(ast.unparse(one), one)) for one in several]
                then = said(parts["then"]) if "then" in parts else ""
                found.append(sentence(said(node.args[0]), remedies, then))
    return found


def said(node: ast.expr) -> str:
    """A text of a source, with `...` for what is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "..." for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "..."


@pytest.mark.long
def test_every_message_of_the_page_on_troubles_is_one_of_the_program():
    said = messages()
    told = re.findall(r"^> (.+)$", TEXTS["troubleshooting.md"], re.MULTILINE)
    alarms = [quote for quote in told if quote.startswith("alarm ")]
    assert len(told) >= 30
    assert [quote for quote in told if quote not in said and quote not in alarms] == []


def test_every_alarm_of_the_page_on_troubles_is_told_so():
    told = {
        AlarmChange(rule=rule, since=5, step=5, begins=True).describe().replace("step 5", "step ...") for rule in RULES
    }
    quoted = set(re.findall(r"^> (alarm .+)$", TEXTS["troubleshooting.md"], re.MULTILINE))
    assert quoted
    assert quoted <= told
