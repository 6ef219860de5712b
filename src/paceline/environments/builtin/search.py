"""`search:FOLDER`: passages of the documents in a folder, by SQLite's full-text index.

Documents are the files `.txt`, `.md` and `.jsonl` of the folder and of those in it. A row of `.jsonl` is a document:
its text is the column `text`, `contents` or `content`, its name the column `title` or `id`, else the file's name with
its line. Documents are cut into passages of at most `PASSAGE_WORDS` words, at blank lines where there are some.

| the query        | the observation                                                  |
|------------------|------------------------------------------------------------------|
| matches passages | the best `MOST_FOUND` by BM25, each below a line `[NUMBER] NAME` |
| matches none     | `Nothing was found.`                                             |
| has no words     | `Error: the query has no words`                                  |

A passage matches if it has any word of the query; case, accents and English endings do not count. Equally good passages
come in the order of their names.
"""

import json
import re
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from paceline.chat.tools import text_schema
from paceline.environments.tools import CallError, Tool, tool
from paceline.errors import ConfigError

KINDS = (".txt", ".md", ".jsonl")
TEXT_COLUMNS, NAME_COLUMNS = ("text", "contents", "content"), ("title", "id")
PASSAGE_WORDS = 120
MOST_FOUND = 3
MOST_WORDS = 64  # Words of a query that are looked for


SCHEMA = text_schema(
    "search",
    "Search the documents and return the passages that fit best.",
    query="Words to look for.",
)


class Passage(NamedTuple):
    """A piece of a document."""

    name: str
    text: str


class Index:
    """Passages of a folder in memory, for any number of threads."""

    def __init__(self, passages: Iterator[Passage]) -> None:
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._lock = threading.Lock()
        self._database.execute("CREATE VIRTUAL TABLE passages USING fts5(name, text, tokenize = 'porter unicode61')")
        self._database.executemany("INSERT INTO passages VALUES (?, ?)", passages)

    def find(self, query: str, most: int = MOST_FOUND) -> list[Passage]:
        """Return the passages that match any word of the query, the best first; equally good ones by name and place.

        Raises:
            ValueError: the query has no words.
        """
        words = re.findall(r"\w+", query)[:MOST_WORDS]
        if not words:
            raise ValueError("the query has no words")
        asked = " OR ".join(f'"{word}"' for word in words)
        with self._lock:
            rows = self._database.execute(
                "SELECT name, text FROM passages WHERE passages MATCH ? ORDER BY bm25(passages), name, rowid LIMIT ?",
                (asked, most),
            ).fetchall()
        return [Passage(*row) for row in rows]


class SearchTool:
    """`Toolset` of one tool over the index of a folder, which all episodes of a process share."""

    tools: Sequence[Tool]

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self.tools = [tool(self.search)]

    def begin(self, seed: int) -> None:
        """Do nothing: every episode finds the same."""

    def search(self, query: str) -> str:
        """Search the documents and return the passages that fit best.

        Args:
            query: Words to look for.
        """
        index = index_of(self._folder)
        try:
            hits = index.find(query)
        except ValueError as error:
            raise CallError(f"Error: {error}") from error
        passages = [f"[{number}] {name}\n{text}" for number, (name, text) in enumerate(hits, 1)]
        return "\n\n".join(passages) or "Nothing was found."

    def close(self) -> None:
        """Do nothing."""


_BUILDING = threading.Lock()


def index_of(folder: Path) -> Index:
    """Return the index of a folder; it is built once per process."""
    with _BUILDING:
        return _built(folder.resolve())


@lru_cache(maxsize=4)
def _built(folder: Path) -> Index:
    # a link out of the folder is refused where a run begins; one that came since then is not read
    files = documents(folder, refuse_links=False)
    return Index(passage for file in files for passage in passages(file, str(file.relative_to(folder))))


def documents(folder: Path, *, refuse_links: bool = True) -> list[Path]:
    """Return the documents of a folder, by name; links to files outside are refused, or else left out.

    Raises:
        ConfigError: there is no such folder, or none in it, or one is a link to a file outside.
    """
    if not folder.is_dir():
        raise ConfigError(f"--environment search:{folder}: there is no such folder", remedies=["check the path"])
    here = folder.resolve()
    files = sorted(file for file in folder.rglob("*") if file.suffix in KINDS and file.is_file())
    outside = [file for file in files if not file.resolve().is_relative_to(here)]
    if outside and refuse_links:
        raise ConfigError(
            f"--environment search:{folder}: {outside[0].relative_to(folder)} is a link to a file outside the folder",
            remedies=["copy the file into the folder", "name the folder that holds the files"],
        )
    if not files:
        raise ConfigError(
            f"--environment search:{folder}: there is no document in the folder",
            remedies=[f"documents are its files {', '.join(KINDS)}"],
        )
    return [file for file in files if file not in outside]


def digest_of(folder: Path) -> str:
    """Return a hash of the names and contents of a folder's documents."""
    digest = blake2b(digest_size=16)
    for file in documents(folder):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(folder)}\x00{len(content)}\x00".encode("utf-8", "surrogateescape"))
        digest.update(content)
    return digest.hexdigest()


def passages(file: Path, name: str) -> Iterator[Passage]:
    """Yield the passages of a document, or of the documents in it.

    Raises:
        ConfigError: it is no text, or a row of it has no text.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"document {file}: it is not UTF-8 ({error.reason})", remedies=["convert it"]) from error
    if file.suffix != ".jsonl":
        yield from (Passage(name, piece) for piece in pieces(text))
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield from _row_passages(line, f"{name}:{number}", f"document {file}:{number}")


def _row_passages(line: str, position: str, label: str) -> Iterator[Passage]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{label}: the row is no JSON ({error})", remedies=["correct it"]) from error
    columns = row if isinstance(row, dict) else {}
    text = next((columns[name] for name in TEXT_COLUMNS if isinstance(columns.get(name), str)), None)
    if text is None:
        raise ConfigError(f"{label}: the row has no text", remedies=[f"name its column {' or '.join(TEXT_COLUMNS)}"])
    title = next((columns[name] for name in NAME_COLUMNS if columns.get(name) is not None), position)
    yield from (Passage(str(title), piece) for piece in pieces(text))


def pieces(text: str, most: int = PASSAGE_WORDS) -> Iterator[str]:
    r"""Cut a text at blank lines into pieces of at most so many words; a longer paragraph is cut between words.

    >>> list(pieces("a b\n\nc\n\nd e f g h", most=3))
    ['a b\n\nc', 'd e f', 'g h']
    """
    piece, size = list[str](), 0
    for paragraph in re.split(r"\n\s*\n", text):
        for part in _parts(paragraph.strip(), most):
            words = len(part.split())
            if size + words > most and piece:
                yield "\n\n".join(piece)
                piece, size = [], 0
            piece.append(part)
            size += words
    if piece:
        yield "\n\n".join(piece)


def _parts(paragraph: str, most: int) -> Iterator[str]:
    words = paragraph.split()
    if 0 < len(words) <= most:
        yield paragraph
    elif words:
        yield from (" ".join(words[at : at + most]) for at in range(0, len(words), most))
