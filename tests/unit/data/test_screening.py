"""Unusable rows stop the run or are left out with a sentence each, as the options say."""

import pytest

from paceline.config.sections import DataConfig
from paceline.data.formats import screen
from paceline.data.rows import Row
from paceline.data.tasks import build_tasks
from paceline.errors import DataError
from tests.support.tiny import tiny_tokenizer

COLUMNS = ({"question": "a?"}, {"text": "b"}, {"question": ""}, {"question": "d?", "tests": "bad"}, {"question": "e?"})
ROWS = [Row(row_id=f"a.jsonl:{number}", columns=columns) for number, columns in enumerate(COLUMNS, start=1)]


def refuse_bad_tests(columns, row_id):
    if columns.get("tests") == "bad":
        raise DataError(f"row {row_id}: its tests are bad")


def screened(rows, mode, check=refuse_bad_tests):
    return screen(rows, DataConfig(dataset="a.jsonl", on_bad_row=mode), check)


def test_the_first_bad_row_stops_with_its_own_sentence():
    with pytest.raises(DataError, match=r"^row a\.jsonl:2: no known format has the columns text"):
        screened(ROWS, "stop")
    with pytest.raises(DataError, match=r"^row a\.jsonl:4: its tests are bad$"):
        screened([ROWS[0], *ROWS[3:]], "stop")


def test_skipping_leaves_out_every_bad_row_with_one_sentence_each():
    got = screened(ROWS, "skip")
    assert [row.row_id for row in got.rows] == ["a.jsonl:1", "a.jsonl:5"]
    assert [row.prompt for row in got.rows] == [[{"role": "user", "content": text}] for text in ("a?", "e?")]
    assert [sentence.partition(": ")[0] for sentence in got.skipped] == [f"row a.jsonl:{n}" for n in (2, 3, 4)]


def test_without_a_check_only_the_prompt_and_the_answer_count():
    assert len(screened(ROWS, "skip", check=None).rows) == 3


def test_skipping_everything_is_refused_with_the_first_reason():
    with pytest.raises(DataError, match=r"skip leaves no row: none of the 2 .* the first: row a\.jsonl:2: no known"):
        screened(ROWS[1:3], "skip")


def test_tasks_are_made_of_what_is_left_and_tell_what_is_not():
    data = DataConfig(dataset="a.jsonl", on_bad_row="skip")
    taskset = build_tasks(ROWS, tiny_tokenizer(), data, system=None, check=refuse_bad_tests)
    assert [task.task_id for task in taskset.tasks] == ["a.jsonl:1", "a.jsonl:5"]
    assert (len(taskset.skipped), len(taskset.lengths), taskset.dropped) == (3, 2, 0)
    with pytest.raises(DataError, match=r"^row a\.jsonl:2: "):
        build_tasks(ROWS, tiny_tokenizer(), DataConfig(dataset="a.jsonl"), system=None)
