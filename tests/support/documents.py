"""The documents as blocks of code: what kind each is, what file it makes, and why one is not run.

A block is fenced with its language, or indented, and then a shell's, JSON's or Python's by how it begins. One that
cannot be run stands below a comment that says why: `<!-- not run: a picture -->`.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    + sorted(ROOT.glob("docs/**/*.md"))
    + sorted(ROOT.glob("benchmarks/results/*.md"))
    + [ROOT / "examples" / "README.md"]
)
TEXTS = {str(document.relative_to(ROOT)).removeprefix("docs/"): document.read_text() for document in DOCUMENTS}

PROGRAMS = (
    *("paceline", "make", "pip", "python", "torchrun", "accelerate", "srun", "sbatch", "ray", "pre-commit", "."),
    *("docker", "kubectl", "ssh", "git", "curl"),
)
"""By whose name an indented block is a shell's."""
BEGINNINGS = {"python": ("def ", "import ", "from ", "class "), "json": ('{"',)}
"""By which an indented block is of a language."""
NAMES = {"sh": "shell", "bash": "shell", "console": "shell", "py": "python", "yml": "yaml", "jsonl": "json"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One block of code."""

    document: str
    """As in `TEXTS`."""
    line: int
    """Of its first line, or its fence, from 1."""
    kind: str
    """`shell`, `python`, `json`, `yaml`; another word, or none, for what can only be left alone."""
    text: str
    title: str | None
    """The file that the page has it be."""
    reason: str | None
    """Why it is not run, as its comment says; None: it is."""

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks(document: str, text: str) -> Iterator[Block]:
    """Every block of a text, in order."""
    lines = text.splitlines()
    at, reason = 0, None
    while at < len(lines):
        fence, indented = re.match(r"```(\w*)(.*)", lines[at]), _is_indented(lines, at)
        if not fence and not indented:
            comment = re.fullmatch(r"<!-- not run: (.+) -->", lines[at])
            reason = comment[1] if comment else reason if not lines[at] else None
            at += 1
            continue
        end = _end_of_fence(lines, at) if fence else _end_of_indent(lines, at)
        inside = lines[at + 1 : end - 1] if fence else [line[4:] for line in lines[at:end]]
        title = re.search(r'title="(.+?)"', fence[2]) if fence else None
        yield Block(
            document=document,
            line=at + 1,
            kind=NAMES.get(fence[1], fence[1]) if fence else _kind(inside[0]),
            text="\n".join(inside).strip("\n") + "\n",
            title=title[1] if title else None,
            reason=reason,
        )
        at, reason = end, None


def _is_indented(lines: list[str], at: int) -> bool:
    return lines[at].startswith("    ") and (at == 0 or not lines[at - 1].strip())


def _end_of_fence(lines: list[str], at: int) -> int:
    return next(end for end in range(at + 1, len(lines)) if lines[end].startswith("```")) + 1


def _end_of_indent(lines: list[str], at: int) -> int:
    end = at
    while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
        end += 1
    return end


def _kind(first: str) -> str:
    word = re.sub(r"^(\w+=\S+ )+", "", first).split()[0]
    if word in PROGRAMS:
        return "shell"
    return next((kind for kind, starts in BEGINNINGS.items() if first.startswith(starts)), "")


def commands(block: Block) -> list[list[str]]:
    """The commands of a shell's block as words, without assignments before them and comments behind them."""
    lines = block.text.replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [_without_assignments(line) for line in words if line]


def _without_assignments(words: list[str]) -> list[str]:
    return words[1:] if re.fullmatch(r"\w+=.*", words[0]) else words


BLOCKS = [block for name, text in TEXTS.items() for block in blocks(name, text)]
