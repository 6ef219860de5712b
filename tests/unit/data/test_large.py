"""Datasets that are too large to be read whole: the same rows and tasks, each when it is needed."""

import gzip
import json
from dataclasses import asdict

import pyarrow
import pytest
from pyarrow import parquet

from paceline.checkpoints.digests import TasksDigest, tasks_difference, tasks_digest
from paceline.compat.trl.datasets import make_tasks, read_rows
from paceline.config.sections import DataConfig
from paceline.data.rows import SAMPLE, WHOLE, Row
from paceline.data.sources import load_rows
from paceline.data.tasks import LargeTasks, build_tasks
from paceline.errors import DataError
from paceline.training.rollouts.sampler import TaskSampler
from tests.support.tiny import tiny_tokenizer

SIZE = WHOLE + 500
WORDS = [{"prompt": f"{number} + 1", "answer": str(number + 1)} for number in range(SIZE)]


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same rows as lines, packed lines and a table; the lines with blanks and a broken one among them."""
    folder = tmp_path_factory.mktemp("large")
    lines = [json.dumps(row) for row in WORDS]
    text = "\n".join(["\ufeff" + lines[0], "", " \t", *lines[1:-1], " " + lines[-1], "{", "  "])
    (folder / "rows.jsonl").write_text(text, encoding="utf-8")
    with gzip.open(folder / "rows.jsonl.gz", "wt", encoding="utf-8") as packed:
        packed.write(text)
    parquet.write_table(pyarrow.Table.from_pylist(WORDS), folder / "rows.parquet")
    cells = "".join(f"{row['prompt']},{row['answer']}\n" for row in WORDS)
    (folder / "rows.csv").write_text(f"prompt,answer\n{cells}1,2,3\n")
    return folder


def options(**given):
    return DataConfig(dataset="rows.jsonl", **given)


def listed(columns):
    return [Row(row_id=f"rows.jsonl:{number}", columns=each) for number, each in enumerate(columns, start=1)]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_a_line_is_read_when_it_is_needed_and_keeps_its_number(folder, name):
    rows = load_rows(str(folder / name), split="train", size=None)
    assert not isinstance(rows, list)
    assert len(rows) == SIZE + 1
    assert [(rows[place].row_id, rows[place].columns) for place in (0, 1, SIZE - 1)] == [
        (f"{name}:1", WORDS[0]),
        (f"{name}:4", WORDS[1]),  # behind two blank lines
        (f"{name}:{SIZE + 2}", WORDS[-1]),
    ]
    assert f"line {SIZE + 3}: is not valid JSON" in rows[-1].unreadable
    assert [row.row_id for row in rows[:2]] == [f"{name}:1", f"{name}:4"]
    with pytest.raises(IndexError):
        rows[SIZE + 1]


def test_a_table_is_read_row_by_row_and_its_first_rows_alone_where_so_many_are_asked_for(folder):
    rows = load_rows(str(folder / "rows.parquet"), split="train", size=None)
    assert not isinstance(rows, list)
    assert len(rows) == SIZE
    assert (rows[SIZE - 1].row_id, rows[SIZE - 1].columns) == (f"rows.parquet:{SIZE}", WORDS[-1])
    assert len(load_rows(str(folder / "rows.parquet"), split="train", size=WHOLE + 1)) == WHOLE + 1
    assert isinstance(load_rows(str(folder / "rows.parquet"), split="train", size=WHOLE), list)


def test_a_csv_file_is_read_row_by_row_and_a_broken_row_is_named(folder):
    rows = load_rows(str(folder / "rows.csv"), split="train", size=None)
    assert not isinstance(rows, list)
    assert (rows[SIZE - 1].row_id, rows[SIZE - 1].columns) == (f"rows.csv:{SIZE}", WORDS[-1])
    assert f"row {SIZE + 1} (up to line {SIZE + 2}): has 3 cells" in rows[SIZE].unreadable
    assert load_rows(str(folder / "rows.csv"), split="train", size=2) == rows[:2]


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in WORDS))
    rows = load_rows(str(path), split="train", size=None)
    with path.open("a") as file:
        file.write("{}\n")
    with pytest.raises(DataError, match=r"rows\.jsonl: was changed while a run was reading it"):
        rows[0]


@pytest.mark.long
def test_a_large_datasets_tasks_are_those_of_the_same_rows_read_whole(tokenizer):
    rows = listed([*WORDS[:-1], {**WORDS[-1], "rare": 1}])
    large = build_tasks(rows, tokenizer, options(), system=None)
    whole = build_tasks(rows, tokenizer, options(), system=None, whole=True)
    assert isinstance(large.tasks, LargeTasks)
    assert not isinstance(whole.tasks, LargeTasks)
    assert (len(large.tasks), len(large.looked_at), len(large.lengths)) == (SIZE, SAMPLE, SAMPLE)
    assert [large.tasks[place].prompt_ids for place in (0, 7, SIZE - 1)] == [
        whole.tasks[place].prompt_ids for place in (0, 7, SIZE - 1)
    ]
    assert large.tasks[SIZE - 1].columns["rare"] == 1
    of_large, of_whole = (TaskSampler(tasks=one.tasks, seed=3, shuffle=True) for one in (large, whole))
    assert [(task.task_id, times) for task, times in of_large.take(5)] == [
        (task.task_id, times) for task, times in of_whole.take(5)
    ]


def test_a_row_that_is_left_out_is_passed_over_and_counts_as_taken(tokenizer):
    rows = listed([WORDS[0], {"text": "no prompt"}, {"prompt": "too long for that"}, *WORDS[3:]])
    data = options(on_bad_row="skip", long_prompts="drop", max_prompt_length=12)
    large = build_tasks(rows, tokenizer, data, system=None)
    task_sampler = TaskSampler(tasks=large.tasks, seed=0, shuffle=False)
    assert [task.task_id for task, _ in task_sampler.take(2)] == ["rows.jsonl:1", "rows.jsonl:4"]
    assert task_sampler.position == 4  # however it is taken in pieces
    again = TaskSampler(tasks=large.tasks, seed=0, shuffle=False)
    assert [again.take(1)[0][0].task_id for _ in range(2)] == ["rows.jsonl:1", "rows.jsonl:4"]
    assert again.position == 4
    assert large.tasks.last_left_out.startswith("row rows.jsonl:3: its prompt has 18 tokens, above")


def test_a_row_that_stops_a_run_stops_it_when_it_is_taken(tokenizer):
    rows = listed([WORDS[0], {"text": "no prompt"}, {"prompt": "too long for that"}, *WORDS[3:]])
    large = build_tasks(rows, tokenizer, options(max_prompt_length=12), system=None)
    with pytest.raises(DataError, match=r"^row rows\.jsonl:2: no known format has the columns text"):
        large.tasks[1]
    with pytest.raises(DataError, match=r"^row rows\.jsonl:3: its prompt has 18 tokens, above --max-prompt-length 12;"):
        large.tasks[2]


def test_what_tasks_are_held_to_is_asked_of_those_that_are_taken_later(tokenizer):
    large = build_tasks(listed([WORDS[0], {"prompt": "odd"}, *WORDS[2:]]), tokenizer, options(), system=None)

    def refuse_odd(tasks):
        for task in tasks:
            if task.prompt == "odd":
                raise DataError(f"row {task.task_id}: is odd")

    large.add_check(refuse_odd)
    assert large.tasks[0].prompt == "0 + 1"
    with pytest.raises(DataError, match=r"row rows\.jsonl:2: is odd"):
        large.tasks[1]


@pytest.mark.long
def test_a_pass_without_one_usable_row_ends(tokenizer):
    rows = listed([WORDS[0], *({"text": "x"} for _ in range(SIZE - 1))])
    data = options(on_bad_row="skip")
    task_sampler = TaskSampler(tasks=build_tasks(rows, tokenizer, data, system=None).tasks, seed=0, shuffle=False)
    task_sampler.take(2)
    assert task_sampler.position == SIZE + 1  # the one row of the next pass
    rows[0] = Row(row_id="rows.jsonl:1", columns={})
    with pytest.raises(DataError, match=f"none of the {SIZE} rows can be used; the last: row"):
        task_sampler.take(1)


@pytest.mark.long
def test_a_large_file_is_known_again_by_all_its_bytes(tmp_path, tokenizer):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in WORDS))

    def tasks():
        rows = load_rows(str(path), split="train", size=None)
        return build_tasks(rows, tokenizer, DataConfig(dataset=str(path)), system=None).tasks

    before = tasks_digest(tasks())
    assert (before.rows, len(before.blocks), before.of) == (SIZE, 1, "rows")
    recorded = json.loads(json.dumps(asdict(before)))
    assert (TasksDigest.read(recorded), tasks_difference(before, tasks())) == (before, None)
    path.write_text(path.read_text().replace('"17 + 1"', '"17 + 2"'))
    assert tasks_difference(before, tasks()) == "has other content than it had"


def test_the_trainers_rows_stay_where_they_are_and_reach_functions_whole(tokenizer):
    rows = [{**row, "level": place} for place, row in enumerate(WORDS)]
    held = read_rows(rows, "train_dataset", limit=None)
    assert held is rows
    large = make_tasks(held, tokenizer, options(), name="train_dataset")
    task = large.tasks[SIZE - 1]
    assert (task.task_id, task.answer) == (f"train:{SIZE}", str(SIZE))
    assert task.columns["paceline_row"] == rows[-1]


def test_a_long_stream_is_read_ahead_into_a_file(tokenizer):
    stream = ({**row, "place": place} for place, row in enumerate(WORDS))
    held = read_rows(Stream(stream), "train_dataset", limit=WHOLE + 100)
    assert not isinstance(held, list)
    assert len(held) == WHOLE + 100
    assert held[WHOLE + 99] == {**WORDS[WHOLE + 99], "place": WHOLE + 99}
    odd = Stream({"prompt": "a", "thing": object()} for _ in range(WHOLE + 1))
    with pytest.raises(DataError, match=r"rows 1 to 1024 of a stream cannot be read ahead into a table"):
        read_rows(odd, "train_dataset", limit=None)


class Stream:
    def __init__(self, rows):
        self._rows = rows

    def __iter__(self):
        return iter(self._rows)
