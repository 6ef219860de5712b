"""What the documents name exists: commands with their options and values, targets, rows, rewards, packages, files."""

import json
import re
import shlex
import subprocess
from contextlib import nullcontext
from itertools import takewhile

import pytest

from paceline.cli import audit, chat, explain, export, plan, replay, rollouts, serve, train, translate
from paceline.cli import eval as eval_command
from paceline.cli.arguments import HelpAsked, parse
from paceline.cli.main import COMMANDS
from paceline.compat.commands.colossalchat.arguments import FIELDS, SHORT, long_flag
from paceline.compat.commands.layouts import NUMBERS, VALUES
from paceline.compat.commands.swift.tables import KNOWN
from paceline.compat.commands.trl import known_flags
from paceline.config.building import build_config
from paceline.config.flat_yaml import parse_yaml
from paceline.config.presets import PRESETS
from paceline.config.reading import options
from paceline.config.sections import DataConfig
from paceline.data.formats import with_prompt
from paceline.data.rows import Row
from paceline.errors import ConfigError
from paceline.rewards.resolving import BUILT_IN, resolve
from tests.support.documents import DOCUMENTS, ROOT, TEXTS, blocks
from tests.test_architecture import FLOOR_OF

README = TEXTS["README.md"]

OPTIONS_OF = {
    "train": train.COMMAND,
    "eval": eval_command.COMMAND,
    "plan": plan.COMMAND,
    "explain": explain.COMMAND,
    "audit": audit.COMMAND,
    "replay": replay.COMMAND,
    "rollouts": rollouts.COMMAND,
    "export": export.COMMAND,
    "serve": serve.COMMAND,
    "chat": chat.COMMAND,
}
OTHERS_FLAGS = {
    *("--only", "--go-on", "--directory", "--logdir", "--generate", "--no-project"),
    *("--security-opt", "--cap-add", "--workload", "--head", "--node-ip-address", "--address", "--temp-dir"),
    *map(long_flag, FIELDS),
    *("--num-tr", "--agentic-type"),
    *("--nproc-per-node", "--multi_gpu", "--num_processes", "--ntasks-per-node", "--shutdown-timeout", "--cpu"),
    *("--build-arg", "--init", "--gpus", "--shm-size", "--signal", "--local-dir", "--repo-type"),
    *("--kill-on-bad-exit", "--wait", "--multi", "--num", "--no-deps", *NUMBERS, *VALUES, "--fsdp2"),
    *(f"--{name.partition('_')[0]}" for name in (*KNOWN, *known_flags())),
}
"""Of docker, Slurm and the Hub's program, of scripts for developers, of Ray, of ColossalChat, of launchers, of layouts
elsewhere, and of ms-swift and TRL, up to the first underscore."""
DOOR_FLAGS = {f"--{door.name.replace('_', '-')}" for command in OPTIONS_OF.values() for door in command.flags} | {
    "--help",
    "--page",
    *translate.FLAGS,
}


def named_file(path: str) -> str:
    """A file that a command in a document names: one of the golden ones."""
    return (ROOT / "tests" / "golden" / "translate" / f"{path}.txt").read_text()


def code_of(text: str) -> list[str]:
    """Lines of blocks, those that end in a backslash joined, and inline spans; not the texts that commands printed."""
    text = re.sub(r"^```text$.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    joined = "".join(block.text.replace("\\\n", "") for block in blocks("", text))
    return joined.splitlines() + re.findall(r"`([^`\n]+)`", text)


def spans(start: str) -> list[str]:
    """Every piece of code in the documents that starts with a word, once."""
    found = (code.strip() for text in TEXTS.values() for code in code_of(text))
    return sorted({code for code in found if code.split() and code.split()[0] == start})


def test_the_documents_are_read_at_all():
    assert len(spans("paceline")) >= 8
    assert len(spans("make")) >= 4


@pytest.mark.parametrize("line", spans("paceline"))
def test_every_command_is_one_that_the_command_line_takes(line):
    words = shlex.split(line)[1:]
    if not words:
        return
    assert words[0] in COMMANDS
    if words[0] in ("report", "doctor"):
        assert not [word for word in words if word.startswith("-") and word != "--page"]
        return
    if words[0] == "translate":
        clashes = "-tMbs 8" in line and "--repair" not in line  # the page's example of numbers that clash
        refusal = pytest.raises(ConfigError, match="add -ibs 2 -tMbs 2 at the end") if clashes else nullcontext()
        with refusal:
            flags, command = translate.read(words[1:] or ["--", "python", "rl_example.py"])
            translate.translate(command, repair="--repair" in flags, read=named_file)
        return
    # a run comes first, and the directory of an export
    begins = len(list(takewhile(lambda word: not word.startswith("-"), words)))
    try:
        given = parse(OPTIONS_OF[words[0]], words[begins:])
    except HelpAsked:
        return
    if given.options and not given.flags:
        # `eval` and the recipe fill in a dataset; the values are what is checked here
        build_config({"model": "embedded", "dataset": "arithmetic", **given.options})


def test_every_option_exists():
    known = {option.flag for option in options()} | DOOR_FLAGS | OTHERS_FLAGS
    named = {
        (name, flag)
        for name, text in TEXTS.items()
        for code in code_of(text)
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", code)
    }
    assert sorted((name, flag) for name, flag in named if flag not in known) == []


@pytest.mark.parametrize("line", spans("make"))
def test_every_target_exists(line):
    words = [word for word in shlex.split(line)[1:] if "=" not in word]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(words) <= targets


def test_the_makefile_calls_commands_that_exist():
    dry_run = subprocess.run(["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = [shlex.split(line) for line in dry_run.splitlines() if re.search(r"bin/paceline train ", line)]
    assert len(lines) == 5
    for line in lines:
        given = parse(train.COMMAND, line[2:])
        build_config({"model": "embedded", "dataset": "arithmetic", **given.options})


def rows_of_the_table() -> list[dict]:
    return [json.loads(row) for row in re.findall(r"^\| `(\{.*?\})` \|", TEXTS["data.md"], re.MULTILINE)]


@pytest.mark.parametrize("row", rows_of_the_table(), ids=lambda row: " ".join(row))
def test_every_row_of_the_table_is_recognised_with_its_answer(row):
    found = with_prompt(Row(row_id="data.md:1", columns=row), DataConfig(dataset="data.md"))
    assert found.prompt == [{"role": "user", "content": "2 + 2?"}]
    assert found.answer == "4"


def test_the_table_has_every_format():
    assert len(rows_of_the_table()) == 5


def test_the_rewards_of_the_table_are_the_built_in_ones():
    table = TEXTS["rewards.md"].split("## Built-in functions")[1].split("\n\n")[1]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(BUILT_IN)


def test_the_reward_function_of_the_example_runs(tmp_path):
    *_, code = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    (tmp_path / "rewards.py").write_text(code)
    brief = resolve(f"{tmp_path / 'rewards.py'}:brief")
    assert brief(prompts=["a", "b"], completions=["x" * 400, "x" * 401]) == [1.0, 0.0]


def test_the_configuration_file_of_the_example_is_one():
    (text,) = re.findall(r"^```yaml\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    assert build_config(parse_yaml(text, "run.yaml")).rewards.reward_weights == (1.0, 0.1)


def test_the_map_shows_every_package_on_its_floor():
    floors = {name: str(floor) for name, floor in FLOOR_OF.items() if name not in {"__main__", "__init__"}}
    table = TEXTS["architecture.md"].split("## Packages and floors")[1].split("## Laws")[0]
    assert {name: floor for floor, name in re.findall(r"^\| (\d+) \| `(\w+)` \|", table, re.MULTILINE)} == floors


def test_the_walk_quotes_its_files():
    """A line that a reader is to look at stands in the file of its section word for word."""
    sections = re.findall(r"^## \d+\. .*?\]\((.+?)\)\n(.+?)(?=^## |\Z)", TEXTS["walk.md"], re.MULTILINE | re.DOTALL)
    assert 10 <= len(sections) <= 16
    for target, text in sections:
        source = (ROOT / "docs" / target).read_text()
        quoted = re.findall(r"`([^`]+)`", text.split("Look at ")[1])
        assert quoted
        assert [line for line in quoted if line not in source] == [], target


def test_the_list_of_decisions_names_each_once():
    listed = re.findall(r"^- \[.+\]\((.+)\)$", TEXTS["decisions/index.md"], re.MULTILINE)
    assert sorted([*listed, "index.md"]) == sorted(path.name for path in (ROOT / "docs/decisions").glob("*.md"))


def test_every_file_that_is_named_is_there():
    place = re.compile(r"`((?:tests|scripts|docs|benchmarks|src/paceline)/[\w./]+)`")
    gone = []
    for document in DOCUMENTS:
        text = document.read_text()
        linked = [document.parent / target for target in re.findall(r"\]\((?!http)([^)#]+)\)", text)]
        named = [ROOT / target for target in place.findall(text)]
        gone += [f"{document.name}: {path}" for path in linked + named if not path.exists()]
    assert gone == []


def test_no_figure_is_left_to_fill_in():
    assert [name for name, text in TEXTS.items() if re.search(r"<<\w+>>", text)] == []


@pytest.mark.parametrize("name", PRESETS)
def test_the_table_of_presets_has_each_ones_values_and_source(name):
    (row,) = [line for line in TEXTS["objectives.md"].splitlines() if line.startswith(f"| `{name}` | `")]
    _, _, values, source, _ = [cell.strip() for cell in row.split("|")]
    assert source == PRESETS[name].source
    written = dict(re.findall(r"`(\w+)` ([^,]+)", values))
    plain = {key: value if isinstance(value, tuple) else (value,) for key, value in PRESETS[name].values.items()}
    assert written == {
        key: " ".join(part if isinstance(part, str) else f"{part:g}" for part in parts) for key, parts in plain.items()
    }


def test_the_page_on_colossalchat_has_every_flag_with_options_that_exist():
    table = TEXTS["colossalchat.md"].split("## Flags")[1].split("## Algorithms")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    written = [row[0] for row in rows]
    spelt = [f"`-{SHORT[name]}`, `{long_flag(name)}`" if name in SHORT else f"`{long_flag(name)}`" for name in FIELDS]
    assert sorted(written) == sorted(spelt)
    known = {option.flag for option in options()}
    assert {flag for row in rows for flag in re.findall(r"^`(--[a-z-]+)`$", row[1])} <= known
