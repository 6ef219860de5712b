"""Search: passages by BM25 in one order on every machine, from text, Markdown and rows."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paceline.environments import Observation
from paceline.environments.builtin.search import PASSAGE_WORDS, SearchTool, digest_of, index_of, pieces
from paceline.environments.tools import ToolEnvironment
from paceline.errors import ConfigError
from tests.unit.environments.test_tools import contents, turn


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "animals.txt").write_text("The otter swims in rivers.\n\nThe mole digs tunnels.\n")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "Zürich.md").write_text("# Zürich\n\nThe Limmat is one of its rivers.\n")
    (tmp_path / "rows.jsonl").write_text(
        '{"title": "Nile", "text": "A river in Africa."}\n\n{"contents": "Rivers, rivers, rivers!"}\n'
    )
    (tmp_path / "rivers.csv").write_text("rivers\n")
    return tmp_path


def asked(folder: Path, query: str) -> tuple[str, int]:
    environment = ToolEnvironment([SearchTool(str(folder))])
    environment.begin({}, 0)
    observation = environment.observe(turn(("search", {"query": query})))
    assert isinstance(observation, Observation)
    environment.close()
    return str(contents(observation)[0]), observation.failed_calls


def test_the_best_passages_come_first_with_their_names(folder):
    text, failed = asked(folder, "which rivers are there?")
    assert text == (
        "[1] rows.jsonl:3\nRivers, rivers, rivers!\n\n"
        "[2] Nile\nA river in Africa.\n\n"
        "[3] animals.txt\nThe otter swims in rivers.\n\nThe mole digs tunnels."
    )
    assert failed == 0


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("MOLE", "[1] animals.txt"),
        ("zurich", "[1] deep/Zürich.md"),
        ('africa" OR name:x NEAR(', "[1] Nile"),
        ("nile", "[1] Nile"),
        ("submarine", "Nothing was found."),
    ],
)
def test_a_query_is_words_whatever_it_holds(folder, query, first):
    assert asked(folder, query)[0].split("\n")[0] == first


@pytest.mark.parametrize("query", ["", "?!", '"*"'])
def test_a_query_without_words_is_told_so(folder, query):
    assert asked(folder, query) == ("Error: the query has no words", 1)


def test_equal_passages_come_in_the_order_of_their_names_from_any_thread(tmp_path):
    for name in ("c", "a", "b", "d"):
        (tmp_path / f"{name}.txt").write_text("the same words")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: [one.name for one in index_of(tmp_path).find("words")], range(20)))
    assert found == [["a.txt", "b.txt", "c.txt"]] * 20


def test_a_long_document_is_found_by_its_passage(tmp_path):
    (tmp_path / "book.txt").write_text("\n\n".join(f"Chapter {n}. {'filler ' * 90}" for n in range(30)) + " needle")
    (found,) = index_of(tmp_path).find("needle")
    assert found.text.startswith("Chapter 29.")
    assert len(found.text.split()) <= PASSAGE_WORDS


def test_a_paragraph_longer_than_a_passage_is_cut_between_words():
    assert [len(piece.split()) for piece in pieces("word " * 250)] == [120, 120, 10]
    assert list(pieces(" \n\n\n ")) == []


def test_the_digest_changes_with_a_name_and_with_a_content(folder):
    before = digest_of(folder)
    assert digest_of(folder) == before
    (folder / "rivers.csv").write_text("other\n")
    assert digest_of(folder) == before
    (folder / "animals.txt").rename(folder / "beasts.txt")
    renamed = digest_of(folder)
    (folder / "beasts.txt").write_text("other")
    assert len({before, renamed, digest_of(folder)}) == 3


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"x", "there is no document in the folder; documents are its files .txt, .md, .jsonl"),
        ("a.txt", b"\xff\xfe\x00", "a.txt: it is not UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{', "a.jsonl:2: the row is no JSON"),
        ("a.jsonl", b'{"body": "a"}', "a.jsonl:1: the row has no text; name its column text or contents or content"),
    ],
)
def test_a_folder_that_cannot_be_read_says_where(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        index_of(tmp_path)


def test_a_document_that_is_a_link_out_of_the_folder_is_refused_by_name_and_never_left_out(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "rivers.txt"
    elsewhere.write_text("a zeppelin\n")
    (folder / "inside.txt").symlink_to(folder / "animals.txt")
    inside = digest_of(folder)
    (folder / "outside.txt").symlink_to(elsewhere)
    with pytest.raises(ConfigError, match=r"outside\.txt is a link to a file outside the folder; copy the file"):
        digest_of(folder)
    # one that came after the run had begun
    assert index_of(folder).find("zeppelin") == []
    (folder / "outside.txt").unlink()
    assert digest_of(folder) == inside


def test_a_folder_that_there_is_not_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"--environment search:.*nowhere: there is no such folder; check the path"):
        digest_of(tmp_path / "nowhere")
