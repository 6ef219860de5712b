"""The pure parts of the trainer: names, the wall between two signatures, datasets, the log."""

import functools
import math
import re
from dataclasses import replace

import pytest
import torch
from datasets import Dataset

from paceline import GRPOTrainer
from paceline.compat.trl.datasets import (
    ROW,
    check_columns,
    columns_of,
    held_out_sets,
    make_tasks,
    read_rows,
    row_loader,
)
from paceline.compat.trl.history import averaged, num_tokens, step_numbers, summary, tracker_numbers
from paceline.compat.trl.rewards import RewardLog, adapted, as_list, make_graders, reward_names
from paceline.config.sections import DataConfig
from paceline.data.rows import WHOLE
from paceline.errors import ConfigError, DataError
from paceline.metrics.definitions import METRICS
from paceline.rewards.function import RewardContext, compares_group, needs_group, row_check
from paceline.rewards.resolving import resolve
from paceline.rewards.scoring.scores import score
from paceline.training.rollouts.rounds import RolloutBatch
from paceline.types import Rollout, RolloutGroup
from tests.support.scripted import task, trajectory
from tests.support.tiny import tiny_tokenizer

DATA = DataConfig(dataset="train_dataset")


def shorter(completions, **columns):
    return [-len(one) for one in completions]


def test_rewards_are_named_by_function_and_by_the_last_part_of_a_models_path():
    class Judge:
        def __call__(self, completions, **columns):
            return [0.0] * len(completions)

    sources = [shorter, functools.partial(shorter), "org/judge", Judge(), "elsewhere/judge"]
    assert reward_names(sources) == ("shorter", "shorter_2", "judge", "Judge", "judge_2")


def test_one_source_is_a_list_of_one_and_none_is_refused():
    assert as_list(shorter) == [shorter]
    with pytest.raises(ConfigError, match="No reward source provided: reward_funcs must hold at least one"):
        as_list(None)


def test_built_in_functions_keep_their_own_signature():
    context, given = RewardContext(max_completion_length=40), resolve("boxed")
    sources = ["accuracy", "cosine(min_wrong=-1)", given]
    graders = make_graders(("accuracy", "cosine", "given"), sources, None, context={}, built_in=context)
    assert graders.functions["given"] is given
    scores = {
        name: one(prompts=["?"], completions=[r"\boxed{1}"], completion_ids=[[1] * 40], answer=["2"])
        for name, one in graders.functions.items()
    }
    # a wrong answer of all 40 tokens: the cosine has come from -1 to 0
    assert scores == {"accuracy": [0.0], "cosine": [pytest.approx(0.0)], "given": [0.0]}


def test_a_function_gets_the_columns_of_the_dataset_unchanged_and_no_argument_that_it_does_not_name():
    rows = [{"prompt": "2 + 2 =", "answer": "so\n#### 4", "meta": {"level": 1}}]
    (made,) = make_tasks(rows, tiny_tokenizer(), DATA, name="train").tasks
    assert made.answer == "4"
    seen = {}

    def grade(prompts, completions, answer, meta):
        seen.update(prompts=prompts, completions=completions, answer=answer, meta=meta)
        return [1.0]

    scores = score({"grade": adapted(grade, {"trainer_state": None})}, [made], [trajectory("4")], timeout=60.0)
    assert scores.values["grade"] == (1.0,)
    assert seen == {"prompts": ["2 + 2 ="], "completions": ["4"], "answer": ["so\n#### 4"], "meta": [{"level": 1}]}


def test_tensors_and_awaited_lists_are_rewards():
    made = task("1")
    made = type(made)(**{name: getattr(made, name) for name in made.__slots__} | {"columns": {ROW: {"prompt": "x"}}})

    async def later(completions, **columns):
        return torch.ones(len(completions))

    functions = {"now": adapted(lambda completions, **columns: torch.zeros(1), {}), "later": adapted(later, {})}
    scores = score(functions, [made], [trajectory("4")], timeout=60.0)
    assert scores.values == {"now": (0.0,), "later": (1.0,)}


def test_nan_from_a_function_is_none_and_counted_and_infinity_a_failure():
    (made,) = make_tasks([{"prompt": "a"}], tiny_tokenizer(), DATA, name="train").tasks
    results = [1.0, math.nan, math.inf]
    functions = {
        "trl": adapted(lambda completions, **columns: torch.tensor(results), {}),
        "ours": lambda completions: results,
    }
    scores = score(functions, [made] * 3, [trajectory("x")] * 3, timeout=60.0)
    assert scores.values == {"trl": (1.0, None, None), "ours": (1.0, None, None)}
    assert scores.failed == {"trl": (2,), "ours": (1, 2)}
    assert scores.tallies["trl"].nans == 1
    assert scores.notes["trl"][1] == "NaN, which counts as None"


def test_completions_of_a_prompt_do_not_share_its_messages_and_columns():
    rows = [{"prompt": [{"role": "user", "content": "2 + 2"}], "keys": ["a", "b"]}]
    tasks = make_tasks(rows, tiny_tokenizer(), DATA, name="train").tasks * 2
    seen = []

    def judge(prompts, completions, keys, **columns):
        for messages, said, left in zip(prompts, completions, keys, strict=True):
            messages.append(said[0])
            left.pop()
        seen.append([(len(messages), len(left)) for messages, left in zip(prompts, keys, strict=True)])
        return [0.0] * len(prompts)

    for _ in range(2):
        score({"judge": adapted(judge, {})}, tasks, [trajectory("4")] * 2, timeout=60.0)
    assert seen == [[(2, 1)] * 2] * 2
    assert rows[0]["keys"] == ["a", "b"]


def test_a_function_that_needs_groups_needs_them_as_the_trainers_too():
    assert compares_group(adapted(needs_group(lambda completions, **columns: []), {}))
    assert not compares_group(adapted(lambda completions, **columns: [], {}))


def test_rows_of_different_columns_give_none_where_one_is_missing():
    rows = [{"prompt": "a", "level": 3}, {"prompt": "b"}]
    tasks = make_tasks(rows, tiny_tokenizer(), DATA, name="train").tasks
    seen = []

    def grade(level, **columns):
        seen.append(level)
        return [0.0, 0.0]

    score({"grade": adapted(grade, {})}, tasks, [trajectory("x")] * 2, timeout=60.0)
    assert seen == [[3, None]]


def test_a_dataset_that_holds_no_prompts_is_refused_by_its_name():
    with pytest.raises(DataError, match="row eval_dataset:2 is a str"):
        read_rows([{"prompt": "a"}, "b"], "eval_dataset", limit=None)
    with pytest.raises(ConfigError, match="got a dict"):
        check_columns({"train": []}, "train_dataset")


def test_a_transform_that_makes_the_prompts_is_judged_by_the_first_row():
    raw = Dataset.from_list([{"question": "a", "level": 1}, {"question": "b", "level": 2}])
    made = raw.with_transform(lambda rows: {"prompt": [f"{one}?" for one in rows["question"]]})
    check_columns(made, "train_dataset")
    rows = read_rows(made, "train_dataset", limit=None)
    assert [row["prompt"] for row in rows] == ["a?", "b?"]
    assert columns_of(made, range(WHOLE + 1)) == ["prompt"]
    with pytest.raises(DataError, match="train_dataset has no column `prompt`, its columns: question, level"):
        check_columns(raw, "train_dataset")


def test_a_stream_is_read_no_further_than_asked():
    stream = iter([{"prompt": str(number)} for number in range(5)])
    assert [row["prompt"] for row in read_rows(stream, "train_dataset", limit=2)] == ["0", "1"]
    assert next(stream)["prompt"] == "2"


def test_one_held_out_set_has_the_plain_name():
    assert list(held_out_sets([{"prompt": "a"}])) == ["eval_dataset"]
    assert list(held_out_sets({"easy": [], "hard": []})) == ["easy", "hard"]
    assert held_out_sets(None) == {}


def test_the_log_averages_what_is_there_and_keeps_the_newest_count():
    steps = [{"reward": 1.0, "num_tokens": 10, "kl": None}, {"reward": 3.0, "num_tokens": 30, "kl": None}]
    assert averaged(steps) == {"reward": 2.0, "num_tokens": 30, "kl": None}


def test_the_gradient_norm_of_a_line_is_that_of_its_last_step_and_what_no_update_measured_is_left_out():
    steps = [{"grad_norm": 4.0, "entropy": 2.0, "loss": 1.0}, {"grad_norm": 1.0, "loss": 3.0}]
    assert averaged(steps) == {"grad_norm": 1.0, "entropy": 2.0, "loss": 2.0}
    record = {name: 0.0 for name in METRICS} | {"rewards": {}, "prompts": 1, "clock": {"total": 1.0}, "kl": None}
    rollout = Rollout(trajectory=trajectory("abc"), rewards={}, reward=0.0, advantage=0.0)
    batch = RolloutBatch(
        groups=(RolloutGroup(task=task("1"), rollouts=(rollout,)),),
        scores=score({}, [], [], timeout=60.0),
        refills=0,
        missing=0,
        generate_seconds=0.0,
        reward_seconds=0.0,
    )
    assert step_numbers({**record, "entropy": 0.5}, batch, num_tokens=0)["entropy"] == 0.5
    assert {"entropy", "kl"}.isdisjoint(step_numbers({**record, "entropy": None}, batch, num_tokens=0))


def test_the_summary_holds_what_was_not_logged_yet_but_not_the_numbers_of_an_update():
    pending = [{"loss": 1.0, "learning_rate": 0.2, "reward": 1.0}, {"loss": 3.0, "learning_rate": 0.1, "reward": 2.0}]
    assert summary({"train_loss": 0.5}, pending) == {"train_loss": 0.5, "reward": 1.5}
    assert summary({"train_loss": 0.5}, []) == {"train_loss": 0.5}


def test_a_loader_gives_lists_of_rows_in_the_order_asked_for():
    rows = [{"prompt": letter} for letter in "abc"]
    batches = list(row_loader(rows, batch_size=2, order=[2, 0, 1], num_workers=0))
    assert [[row["prompt"] for row in batch] for batch in batches] == [["c", "a"], ["b"]]
    streamed = row_loader(iter(rows), batch_size=2, order=None, num_workers=4)
    assert streamed.num_workers == 0
    assert [[row["prompt"] for row in batch] for batch in streamed] == [["a", "b"], ["c"]]


def test_trackers_get_training_and_evaluation_in_two_groups():
    logs = {"rewards/<lambda>/mean": 1.0, "eval_reward": 2.0, "note": "text", "kl": None}
    assert tracker_numbers(logs) == {"train/rewards/_lambda_/mean": 1.0, "eval/reward": 2.0}


def test_tokens_of_a_prompt_count_for_each_of_its_completions():
    rollout = Rollout(trajectory=trajectory("abc"), rewards={}, reward=0.0, advantage=0.0)
    group = RolloutGroup(task=task("1", prompt="12345"), rollouts=(rollout, rollout))
    batch = RolloutBatch(
        groups=(group,),
        scores=score({}, [], [], timeout=60.0),
        refills=0,
        missing=0,
        generate_seconds=0.0,
        reward_seconds=0.0,
    )
    assert num_tokens(batch) == 2 * (5 + 3)


def test_metrics_of_reward_functions_are_averaged_and_taken_once():
    log = RewardLog()
    log.log_metric("found", 1.0)
    log.log_metric("found", 0.0)
    assert log.take_metrics() == {"found": 0.5}
    assert log.take_metrics() == {}


def test_what_a_built_in_function_has_against_a_row_is_seen_in_all_of_its_columns():
    good = {"prompt": "?", "test_cases": {"inputs": ["1"], "outputs": ["1"]}}
    bad = {"prompt": "?", "test_cases": {"inputs": ["1"], "outputs": []}}
    check = row_check({"code": resolve("code")})
    with pytest.raises(DataError, match=r"row train:2"):
        make_tasks([good, bad], tiny_tokenizer(), DATA, name="train", check=check)
    kept = make_tasks([good, bad], tiny_tokenizer(), replace(DATA, on_bad_row="skip"), name="train", check=check)
    assert [one.task_id for one in kept.tasks] == ["train:1"]
    assert len(kept.skipped) == 1


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("data_collator", "nothing is collated"),
        ("model_init", "give model=model_init()"),
        ("compute_loss_func", "the loss is the objective that args describe"),
        ("compute_metrics", "there are no predictions to compute on"),
        ("preprocess_logits_for_metrics", "there are no predictions to compute on"),
        ("train_datasets", "did you mean train_dataset?"),
    ],
)
def test_arguments_of_transformers_trainers_are_refused_with_the_reason(name, reason):
    with pytest.raises(ConfigError, match=rf"GRPOTrainer('s| has no argument) {name}.*{re.escape(reason)}"):
        GRPOTrainer("no-such/model", **{name: len})
