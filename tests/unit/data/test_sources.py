"""Every source gives the same rows, and one that cannot be read is refused with its place and a remedy."""

import codecs
import contextlib
import gzip
import json
import re
import sys

import pytest

from paceline.config.sections import DataConfig
from paceline.data.files import read_file
from paceline.data.formats import screen
from paceline.data.generated import FIRST_SEEDS
from paceline.data.sources import has_split, load_rows, shares
from paceline.errors import ConfigError, DataError
from tests.support.screen import Screen

ROWS = [{"question": "1+1?", "answer": "2"}, {"question": "2+2?", "answer": "4"}, {"question": "ß?", "answer": "ä"}]

CSV = 'question,answer\n1+1?,2\n"2+2?",4\nß?,ä\n'.encode()


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def loaded(path, size=None):
    return [dict(row.columns) for row in load_rows(str(path), split="any", size=size)]


def refusal(path):
    with pytest.raises(DataError) as caught:
        load_rows(str(path), split="train", size=None)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", lines(ROWS)),
        ("a.jsonl", codecs.BOM_UTF8 + lines(ROWS)),
        ("a.jsonl", lines(ROWS).replace(b"\n", b"\r\n")),
        ("a.jsonl", lines(ROWS).rstrip()),
        ("a.ndjson", lines(ROWS).replace(b"\n", b"\n \n")),
        ("A.JSONL", lines(ROWS)),
        ("a.jsonl.gz", gzip.compress(lines(ROWS), mtime=0)),
        ("a.json.gz", gzip.compress(codecs.BOM_UTF8 + json.dumps(ROWS).encode(), mtime=0)),
        ("a.json", json.dumps(ROWS, indent=2).encode()),
        ("a.json", codecs.BOM_UTF8 + lines(ROWS)),
        ("a.csv", CSV),
        ("a.csv", codecs.BOM_UTF8 + CSV.replace(b"\n", b"\r\n\r\n")),
        ("a.csv.gz", gzip.compress(CSV, mtime=0)),
    ],
)
def test_the_same_rows_come_out_of_every_way_to_write_them(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert loaded(tmp_path / name) == ROWS


def test_a_parquet_table_gives_the_same_rows(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    assert loaded(tmp_path / "a.parquet") == ROWS
    assert loaded(tmp_path / "a.parquet", size=2) == ROWS[:2]


def test_a_row_is_named_after_its_line_and_size_takes_the_first(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_bytes(b"\n" + lines(ROWS))
    rows = load_rows(str(path), split="train", size=2)
    assert [row.row_id for row in rows] == ["train.jsonl:2", "train.jsonl:3"]


def test_a_line_separator_inside_a_string_does_not_end_the_row(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines([{"question": "one\u2028two\x85three"}]))
    assert loaded(tmp_path / "a.jsonl") == [{"question": "one\u2028two\x85three"}]


def screen_unreadable(path):
    rows = load_rows(str(path), split="train", size=None)
    screen([row for row in rows if row.unreadable], DataConfig(dataset=str(path)), None)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a": \n', "line 2: is not valid JSON"),
        ("a.jsonl", b"[" * 100_000, "line 1: is not valid JSON"),
        ("a.jsonl", b'{"a": 1}\n[1]\n', "line 2: holds a JSON list"),
        ("a.jsonl", b"null", "line 1: holds a JSON NoneType"),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xe4"}\n', r"line 2: is not UTF-8 text \(byte 8\)"),
        ("a.jsonl", b"", "holds no rows"),
        ("a.jsonl", b"\n \n", "holds no rows"),
        ("a.json", b"[]", "holds no rows"),
        ("a.json", b'[{"a": 1}, 2]', "item 2: holds a JSON int"),
        ("a.json", b'[{"a": 1}', "a.json: is not valid JSON"),
        ("a.jsonl.gz", b"not packed", "cannot be read"),
        ("a.jsonl.gz", gzip.compress(lines(ROWS), mtime=0)[:-12], "cannot be read"),
        ("a.parquet", b"not a table", "is not a parquet file"),
        ("a.parquet", b"", "is not a parquet file"),
        ("a.csv", b"a,b\n", "holds no rows"),
        ("a.csv", b"a,b\n1,2\n1,2,3\n", r"row 2 \(up to line 3\): has 3 cells where the header names 2 columns"),
        ("a.csv", b"a,b,\n1,2,3\n", r"has 3 cells where the header names 2 columns"),
        ("a.csv", b"a,a\n1,2\n", "must name each column once"),
        ("a.csv", b'a,b\n"1,2\n', "line 2: is not CSV"),
        ("a.csv", b"a,b\n\xe4,2\n", "is not UTF-8 text; save the file as CSV UTF-8"),
        ("a.xlsx", b"", r"python -c \"import pandas; pandas\.read_excel\(.a\.xlsx.\)\.to_csv\(.a\.csv., index=False"),
        ("a.txt", b"a,b\n", r"must end in one of \.jsonl"),
        ("rows", b"{}", r"must end in one of \.jsonl"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_place(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        screen_unreadable(tmp_path / name)


def test_a_cell_of_csv_is_a_text_whatever_it_looks_like(tmp_path):
    (tmp_path / "a.csv").write_text('n,text\n007,"a ""b"", c\n d"\n1e3,\n')
    rows = load_rows(str(tmp_path / "a.csv"), split="train", size=None)
    assert [(row.row_id, row.columns) for row in rows] == [
        ("a.csv:1", {"n": "007", "text": 'a "b", c\n d'}),
        ("a.csv:2", {"n": "1e3", "text": ""}),
    ]


@pytest.mark.parametrize("address", ["https://example.org/a.jsonl", "s3://bucket/a.parquet"])
def test_an_address_on_the_network_is_refused_with_the_next_step(address):
    assert "download the file and give its path" in refusal(address)


def test_a_line_that_is_no_row_is_left_out_by_name_where_bad_rows_are_skipped(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"question": "2 + 2?"}\n{"question": \n[1]\n{"question": "3 + 3?"}\n')
    rows = load_rows(str(tmp_path / "a.jsonl"), split="train", size=None)
    screened = screen(rows, DataConfig(dataset="a.jsonl", on_bad_row="skip"), None)
    assert [row.row_id for row in screened.rows] == ["a.jsonl:1", "a.jsonl:4"]
    assert ["line 2: is not valid JSON" in screened.skipped[0], "line 3: holds" in screened.skipped[1]] == [True, True]


def test_a_missing_file_names_what_lies_beside_it(tmp_path):
    (tmp_path / "train.jsonl").touch()
    assert "there is no 'trian.jsonl'" in refusal(tmp_path / "trian.jsonl")
    assert "nearest: train.jsonl" in refusal(tmp_path / "trian.jsonl")


def test_a_missing_directory_is_named_and_not_the_file_in_it(tmp_path):
    (tmp_path / "data").mkdir()
    assert "there is no 'dat'" in refusal(tmp_path / "dat" / "train.jsonl")
    assert "nearest: data" in refusal(tmp_path / "dat" / "train.jsonl")


def test_a_slip_in_a_local_path_is_not_looked_up_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train").touch()
    for slip in ("data/trian", "datta/train.jsonl", "./trian"):
        assert "there is no" in refusal(slip)


@pytest.mark.parametrize(("name", "hint"), [("arithmetics", "arithmetic"), ("gsm8k", "org/name"), ("", "must name")])
def test_a_bare_name_that_is_nothing_is_refused_with_what_there_is(tmp_path, monkeypatch, name, hint):
    monkeypatch.chdir(tmp_path)
    assert hint in refusal(name)


def test_very_long_and_odd_names_are_refused_in_words():
    for name, rule in (("x" * 5000, "has 5000 bytes between slashes"), ("a\0b", "has a zero byte")):
        with pytest.raises(ConfigError, match=rule):
            load_rows(name, split="train", size=None)


def test_a_directory_has_the_splits_that_its_files_name(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "sums"
    folder.mkdir()
    (folder / "train.jsonl").write_bytes(lines(ROWS))
    (folder / "test.jsonl").write_bytes(lines(ROWS[:1]))
    rows = load_rows(str(folder), split="train", size=2)
    assert [(row.row_id, dict(row.columns)) for row in rows] == [("sums/train:1", ROWS[0]), ("sums/train:2", ROWS[1])]
    assert has_split(str(folder), "test")
    assert not has_split(str(folder), "validation")
    with pytest.raises(DataError, match=r"no split 'dev'; its splits: train, test \(--dataset-split"):
        load_rows(str(folder), split="dev", size=None)


def test_bars_of_reading_a_directory_are_drawn_on_a_terminal_only(tmp_path, monkeypatch):
    utils = pytest.importorskip("datasets.utils")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    drawn = {}
    for is_terminal in (True, False):
        folder = tmp_path / f"rows-{is_terminal}"  # one that was read before is not read again
        folder.mkdir()
        (folder / "train.jsonl").write_bytes(lines(ROWS))
        with contextlib.redirect_stderr(Screen(is_terminal=is_terminal)) as screen:
            load_rows(str(folder), split="train", size=None)
        drawn[is_terminal] = "Generating train split" in screen.getvalue()
    assert drawn == {True: True, False: False}
    assert not utils.are_progress_bars_disabled()  # those of a program's own data stay as they were


def test_a_directory_that_save_to_disk_wrote_is_read_as_the_dataset_it_is(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"test": datasets.Dataset.from_list(ROWS)}).save_to_disk(str(tmp_path / "more"))
    assert [dict(row.columns) for row in load_rows(str(tmp_path / "one"), split="train", size=None)] == ROWS
    assert has_split(str(tmp_path / "more"), "test")
    assert not has_split(str(tmp_path / "more"), "train")


def test_an_empty_directory_is_refused_with_its_name(tmp_path):
    assert f"--dataset {tmp_path}: cannot be loaded" in refusal(tmp_path)


def test_generators_always_have_a_held_out_split_and_files_never(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines(ROWS))
    assert has_split("arithmetic", "test")
    assert has_split("reasoning_gym:chain_sum", "test")
    assert not has_split(str(tmp_path / "a.jsonl"), "train")
    with pytest.raises(DataError, match="there is no"):
        has_split(str(tmp_path / "b.jsonl"), "train")


def test_arithmetic_gives_rows_of_the_split_that_was_asked_for():
    train = load_rows("arithmetic", split="train", size=20)
    test = load_rows("arithmetic", split="test", size=20)
    assert len(train) == 20
    assert train[0].row_id == "arithmetic/train:1"
    assert {row.columns["question"] for row in train}.isdisjoint(row.columns["question"] for row in test)
    assert train[:5] == load_rows("arithmetic", split="train", size=5)


def test_reasoning_gym_rows_keep_what_their_own_scoring_needs():
    gym = pytest.importorskip("reasoning_gym")
    row = load_rows("reasoning_gym:leg_counting", split="train", size=3)[2]
    entry = row.columns["reasoning_gym"]
    score = gym.get_score_answer_fn(entry["metadata"]["source_dataset"])
    assert row.row_id == "reasoning_gym:leg_counting/train:3"
    assert row.columns["question"] == entry["question"]
    assert score(row.columns["answer"], entry) == 1.0
    assert score("no", entry) == 0.0


def test_reasoning_gym_splits_share_no_item():
    # Item i is drawn from seed + i, so the splits' seeds must lie further apart than a split is long.
    pytest.importorskip("reasoning_gym")
    train = load_rows("reasoning_gym:chain_sum", split="train", size=200)
    test = load_rows("reasoning_gym:chain_sum", split="test", size=200)
    questions = {row.columns["question"] for row in train}
    assert len(questions) > 190
    assert questions.isdisjoint(row.columns["question"] for row in test)
    assert FIRST_SEEDS["test"] - FIRST_SEEDS["train"] >= 10**9
    assert train == load_rows("reasoning_gym:chain_sum", split="train", size=200)


def test_parameters_of_a_reasoning_gym_task_stand_in_brackets_and_no_question_is_in_both_splits():
    # 9 + 9 possible sums and differences of two digits each way: without a split by question the sets would be the same
    pytest.importorskip("reasoning_gym")
    task = "reasoning_gym:chain_sum(min_terms=2, max_terms=2, min_digits=1, max_digits=1)"
    rows = {split: load_rows(task, split=split, size=300) for split in ("train", "test")}
    questions = {split: {row.columns["question"] for row in found} for split, found in rows.items()}
    assert questions["train"].isdisjoint(questions["test"])
    assert len(questions["train"] | questions["test"]) > 100
    # a held-out question counts once, a task may be trained on again
    assert len(rows["test"]) == len(questions["test"]) < 300 == len(rows["train"])
    assert all(re.search(r": \d [+-] \d =$", question) for question in questions["train"])
    assert has_split(task, "test")


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ("(max_term=2)", "there is no parameter 'max_term'; it takes min_terms, max_terms"),
        ("(max_terms)", "'max_terms' is no parameter; write parameter=value"),
        ("(max_terms=2", r"the bracket is not closed; write reasoning_gym:chain_sum\(parameter=value\)"),
        ("(min_terms=5, max_terms=2)", "does not go together"),
        ("(max_terms=many)", "does not go together"),
    ],
)
def test_wrong_parameters_of_a_reasoning_gym_task_are_refused(parameters, sentence):
    pytest.importorskip("reasoning_gym")
    with pytest.raises(DataError, match=sentence):
        load_rows(f"reasoning_gym:chain_sum{parameters}", split="test", size=5)


def test_a_reasoning_gym_task_of_one_question_has_one_split():
    pytest.importorskip("reasoning_gym")
    task = "reasoning_gym:count_bits(min_n=5, max_n=5)"  # whose question belongs to the test split by its text
    assert len(load_rows(task, split="test", size=3)) == 1
    with pytest.raises(DataError, match="has no question in the split 'train'; take other parameters"):
        load_rows(task, split="train", size=3)


@pytest.mark.parametrize(
    ("dataset", "split", "message"),
    [
        ("reasoning_gym:chain_sums", "train", "nearest: chain_sum"),
        ("reasoning_gym:", "train", "no such task"),
        ("reasoning_gym", "train", "no such task"),
        ("reasoning_gym:chain_sum", "validation", "'train' and 'test', got 'validation'"),
        ("reasoning_gym:composite", "train", "no defaults to run on"),
        ("arithmetic", "validation", "'train' and 'test', got 'validation'"),
    ],
)
def test_a_generator_that_cannot_be_used_is_refused(dataset, split, message):
    pytest.importorskip("reasoning_gym")
    with pytest.raises(DataError, match=message):
        load_rows(dataset, split=split, size=1)


def test_without_the_optional_package_the_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    assert "pip install 'reasoning-gym>=0.1.25'" in refusal("reasoning_gym:chain_sum")


def numbered(path, *numbers):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f'{{"question": "{number}"}}\n' for number in numbers))
    return str(path)


def names(dataset, **given):
    return [row.row_id for row in load_rows(dataset, split="train", **{"size": None, "seed": 1, **given})]


def test_several_datasets_are_joined_in_their_order(tmp_path):
    one, two = numbered(tmp_path / "a.jsonl", 1, 2), numbered(tmp_path / "b.jsonl", 3)
    assert names((one, two)) == ["a.jsonl:1", "a.jsonl:2", "b.jsonl:1"]
    assert names((one, two), size=2) == ["a.jsonl:1", "b.jsonl:1"]  # one of each, at least
    same = numbered(tmp_path / "other" / "a.jsonl", 4)
    assert names((one, same)) == ["1/a.jsonl:1", "1/a.jsonl:2", "2/a.jsonl:1"]


@pytest.mark.parametrize(
    ("size", "counts", "taken"),
    [
        (10, [80, 20], [8, 2]),
        (4, [1000, 10], [3, 1]),  # in proportion it would be none
        (7, [3, 3, 3], [3, 2, 2]),
        (100, [3, 4], [3, 4]),
        (3, [3, 3, 3], [1, 1, 1]),
        (2, [1, 1], [1, 1]),
    ],
)
def test_several_datasets_share_the_rows_to_take(size, counts, taken):
    assert shares(size, counts) == taken
    assert sum(taken) == min(size, sum(counts))


def test_fewer_rows_than_datasets_are_refused(tmp_path):
    places = tuple(numbered(tmp_path / f"{name}.jsonl", 1, 2) for name in "abc")
    with pytest.raises(
        DataError, match=r"--dataset-size must be at least 3, one row of each dataset, got 2; take more"
    ):
        names(places, size=2)


def test_a_number_behind_an_address_draws_rows_by_the_seed(tmp_path):
    one, two = numbered(tmp_path / "a.jsonl", *range(9)), numbered(tmp_path / "b.jsonl", 3)
    drawn = names((f"{one}#4", two))
    assert len(set(drawn)) == 5
    assert drawn[-1] == "b.jsonl:1"
    assert drawn == names((f"{one}#4", two))
    assert drawn != names((f"{one}#4", two), seed=2)
    assert sorted(names(f"{one}#9")) == sorted(names(one))


def test_more_rows_than_there_are_repeat_all_before_any_comes_a_third_time(tmp_path):
    drawn = names(numbered(tmp_path / "a.jsonl", 1, 2, 3) + "#7")
    plain = ["a.jsonl:1", "a.jsonl:2", "a.jsonl:3"]
    assert sorted(drawn[:3]) == plain
    assert sorted(drawn[3:6]) == [f"{name}#2" for name in plain]
    assert drawn[6] in [f"{name}#3" for name in plain]
    with pytest.raises(DataError, match="must take at least one row, got #0"):
        names(str(tmp_path / "a.jsonl") + "#0")


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("question;answer\nWhat is 1,5 + 2?;3,5\n", {"question": "What is 1,5 + 2?", "answer": "3,5"}),
        ("question\tanswer\na;b\t3\n", {"question": "a;b", "answer": "3"}),
        ('"a;b",answer\n1,2\n', {"a;b": "1", "answer": "2"}),
        ("question\nOne; two?\n", {"question": "One; two?"}),
        ("question, answer\n1+1?, 2\n", {"question": "1+1?", "answer": "2"}),
        ('question, "answer"\n"a, b", "3"\n', {"question": "a, b", "answer": "3"}),
        ("question ,answer\n a,3\n", {"question": " a", "answer": "3"}),
        ("sep=;\r\nquestion;answer\r\n1,5 + 2?;3,5\r\n", {"question": "1,5 + 2?", "answer": "3,5"}),
        ("sep=|\nquestion|answer\na|3\n", {"question": "a", "answer": "3"}),
        ("question,answer,\na,3,\n", {"question": "a", "answer": "3"}),
        ("question;answer;;\na;3;;\n", {"question": "a", "answer": "3"}),
        ("question;answer;a,b\n1,5?;2;x\n", {"question": "1,5?", "answer": "2", "a,b": "x"}),
        ("question\tanswer\ta,b\nq\t2\tx\n", {"question": "q", "answer": "2", "a,b": "x"}),
        ("question,answer;unit\na,3\n", {"question": "a", "answer;unit": "3"}),
        (",question,answer\n0,a,3\n", {"Unnamed: 0": "0", "question": "a", "answer": "3"}),  # with pandas' index
        ("note,answer\n" + "x" * 200_000 + ",3\n", {"note": "x" * 200_000, "answer": "3"}),
    ],
)
def test_a_table_is_read_as_spreadsheets_and_pandas_write_it(tmp_path, text, columns):
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    (row,) = read_file(tmp_path / "a.csv", size=None)
    assert row.columns == columns
