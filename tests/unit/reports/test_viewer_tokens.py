"""The pieces shown for tokens join to the recorded text, or the viewer says why not."""

import pytest

from paceline.errors import ModelError
from paceline.reports.viewer.documents import Pieces, load_pieces, texts_of, tokens_of
from tests.support.tiny import tiny_tokenizer
from tests.unit.reports.viewed_runs import rollout


def ids_of(text: str) -> list[int]:
    """One token per byte."""
    return list(tiny_tokenizer()(text, add_special_tokens=False)["input_ids"])


class SentencePieces:
    """A decoder that strips the space of a text's first word, as those of the SentencePiece kind do."""

    def decode(self, ids, skip_special_tokens=True):
        return "".join(" word" if one == 1 else "s" for one in ids).removeprefix(" ")


@pytest.fixture(scope="module")
def pieces():
    return Pieces(tiny_tokenizer().backend_tokenizer)


@pytest.mark.parametrize("text", ["plain", "naïve", "日本", "a😀b", "é" * 3, "\ufffd and more"])
def test_pieces_join_to_the_text_and_each_token_has_one(pieces, text):
    found = pieces.split(ids_of(text))
    assert "".join(found) == text
    assert len(found) == len(text.encode())


def test_a_character_of_several_tokens_is_the_last_ones(pieces):
    assert pieces.split(ids_of("é!")) == ["", "é", "!"]


def test_bytes_that_never_become_a_character_are_shown_as_what_decoders_give(pieces):
    assert "".join(pieces.split(ids_of("😀")[:2])) == "\N{REPLACEMENT CHARACTER}"


def test_a_word_keeps_the_space_that_its_token_stands_for():
    assert Pieces(SentencePieces()).split([1, 2, 1]) == [" word", "s", " word"]


def test_special_tokens_are_shown_and_known_as_such(pieces):
    record = rollout(1, 0, "ab", token_ids=[*ids_of("ab"), 258])
    (row,) = tokens_of([record], pieces, [])["rows"]
    assert (row["special"], row["agrees"]) == ([2], True)
    assert tokens_of([record], pieces, [])["texts"] == ["a", "b", "<|end|>"]


def test_tokens_that_do_not_join_to_the_recorded_text_say_so(pieces):
    (row,) = tokens_of([rollout(1, 0, "other", token_ids=[97])], pieces, [])["rows"]
    assert not row["agrees"]


def test_a_record_without_tokens_has_no_row_and_keeps_its_place(pieces):
    records = [rollout(1, 0, "a", token_ids=None), rollout(1, 1, "b")]
    first, second = tokens_of(records, pieces, [{}, {"entropy": {"float32": ""}}])["rows"]
    assert first is None
    assert second["entropy"] == {"float32": ""}


def test_notes_of_rollouts_are_by_function_and_those_of_held_out_ones_their_grades():
    found = texts_of([rollout(1, 0, "a", notes={"code": "2 of 3"}), {**rollout(1, 1, "b", notes=None), "note": "late"}])
    assert found["notes"] == [{"code": "2 of 3"}, {"grade": "late"}]


def test_the_tokenizer_of_the_run_itself_comes_before_that_of_its_model(tmp_path):
    assert load_pieces(tmp_path, "embedded").split([426])[0] == "<think>"
    (tmp_path / "final").mkdir()
    tiny_tokenizer().backend_tokenizer.save(str(tmp_path / "final" / "tokenizer.json"))
    assert load_pieces(tmp_path, "embedded").split(ids_of("a")) == ["a"]


@pytest.mark.parametrize("model", ["nowhere/at-all", "/no/such/place", None])
def test_a_run_without_a_tokenizer_says_where_one_was_looked_for(tmp_path, model):
    with pytest.raises(ModelError, match=r"no tokenizer\.json was found"):
        load_pieces(tmp_path, model)


def test_a_damaged_tokenizer_is_named(tmp_path):
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "tokenizer.json").write_text('{"version": 1}')
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        load_pieces(tmp_path, None)


@pytest.mark.parametrize("token", [10**400, -1, 1 << 32, "x", None, 1.5, True, [1]])
def test_what_is_no_token_is_shown_as_text_alone(pieces, token):
    assert tokens_of([rollout(1, 0, "a", token_ids=[97, token])], pieces, [])["rows"] == [None]
