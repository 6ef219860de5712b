"""Rollouts from their lines again, bit for bit."""

import json
from dataclasses import replace

import pytest

from paceline.config.objective import AdvantageConfig
from paceline.rewards.function import BuiltIn, Grade
from paceline.training.replaying import regrouped
from paceline.training.rollouts.records import rollout_metrics, rollout_records
from paceline.training.rollouts.restoring import batch_about, restorable_lines, restored_batch, restored_groups
from paceline.types import Completion, Media, WeightChange
from tests.support.scripted import completion, scripted_sampler, taking, task

THIRD = 0.3333333432674408
"""The float32 nearest to a third, and not the float64."""


def right(completions: list[str], **columns: object) -> list[float]:
    return [float(text == "right") for text in completions]


def fragile(completions: list[str], **columns: object) -> list[float]:
    if "odd" in completions:
        raise ArithmeticError("odd")
    return [0.1 * len(text) for text in completions]


def said(completions: list[str], **columns: object) -> list[Grade]:
    return [Grade(value=None if text == "right" else -0.0, note=f"{text}\ud83d") for text in completions]


def drawn(text: str, *logprobs: float, **fields: object) -> Completion:
    return replace(completion(text), token_ids=tuple(range(len(logprobs))), logprobs=logprobs, **fields)


WORDS = [
    [drawn("right", -THIRD, -0.0), drawn("wrong", -1 / 3, finish_reason="length")],
    [drawn("right", -1e-30), drawn("right", -2.0, -3.0, weight_changes=(WeightChange(token=1, policy_version=4),))],
    [drawn("odd", -1.0), drawn("odd", float("-inf"))],
    [drawn("wrong", -1.0), drawn("wrong", -1.0)],
]
WEIGHTS = {"right": 1.0, "fragile": 0.25, "said": 3.0}
OPTIONS = {
    "plain": {},
    "filtered": {"filter_range": (0.0, 1.0), "filter_func": "right"},
    "surplus": {"filter_range": (-1.0, 1.5), "filter_func": "right", "oversampling": 2.0},
    "masked, penalised": {"mask_truncated": True, "overlong_share": 0.5, "advantage": "leave_one_out"},
}


def batch_of(options):
    functions = {"right": right, "fragile": fragile, "said": BuiltIn(name="said", call=said, gold=None)}
    sampler = scripted_sampler(WORDS, functions, WEIGHTS, AdvantageConfig(**options), max_failure_rate=1.0)
    tasks = [task(str(number), answer=None) for number in range(4)]
    return sampler.sample(taking(tasks), 2 if "oversampling" in options else 4)


def records_of(batch) -> list[dict]:
    lines = list(restorable_lines(batch.groups))
    assert all(line.endswith(b"}\n") and line.count(b"\n") == 1 for line in lines)
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_batch_that_went_through_its_lines_is_the_batch(options):
    batch = batch_of(options)
    again = restored_batch(json.loads(json.dumps(batch_about(batch))), restored_groups(records_of(batch)))
    assert again == batch
    assert repr(again.groups) == repr(batch.groups)  # -0.0 equals 0.0


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_line_has_all_that_readers_are_told(options):
    batch = batch_of(options)
    for line, record in zip(records_of(batch), rollout_records(batch.groups), strict=True):
        assert line | record == line


def test_images_of_a_prompt_come_back_in_its_task_and_its_first_span_and_stand_once_in_a_group():
    media = (Media(sha256="ab" * 32, start=1, length=9), Media(sha256="cd" * 32, start=12, length=4))
    shown, plain = batch_of({}).groups[:2]
    first, *behind = shown.rollouts[0].trajectory.spans
    spans = (replace(first, media=media), *behind)
    rollouts = tuple(
        replace(rollout, trajectory=replace(rollout.trajectory, spans=(spans[0], *rollout.trajectory.spans[1:])))
        for rollout in shown.rollouts
    )
    shown = replace(shown, task=replace(shown.task, media=media), rollouts=rollouts)
    batch = replace(batch_of({}), groups=(shown, plain))
    lines = records_of(batch)
    assert [line.get("images") for line in lines] == [
        [{"sha256": "ab" * 32, "start": 1, "length": 9}, {"sha256": "cd" * 32, "start": 12, "length": 4}],
        *[None] * 3,
    ]
    assert restored_groups(lines) == batch.groups
    assert batch_about(batch)["images"] == ["ab" * 32, "cd" * 32]
    assert "images" not in batch_about(batch_of({}))


def test_a_number_that_is_not_finite_is_named_and_written_nowhere():
    (group, *_) = batch_of({}).groups
    spoilt = replace(group, rollouts=[replace(group.rollouts[0], rewards={"right": float("nan")})])
    with pytest.raises(ValueError, match="right must be a finite number to be recorded, got nan"):
        list(restorable_lines([spoilt]))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_batch_grouped_again_under_its_own_options_is_the_batch(options):
    batch = batch_of(options)
    again = regrouped(batch, AdvantageConfig(**options), weights=WEIGHTS, max_completion_length=100)
    assert again == batch


def test_other_options_weigh_the_same_rewards_anew_and_leave_filtered_groups_missing():
    options = AdvantageConfig(advantage="none", filter_range=(0.0, 1.0), filter_func="right")
    again = regrouped(batch_of({}), options, weights={**WEIGHTS, "fragile": 0.0}, max_completion_length=100)
    assert [group.dropped for group in again.groups] == [None, "filtered", "filtered", "filtered"]
    assert again.missing == 3
    # rewards 1 + 0 and 0 + 3 * -0.0: half a point above and below their mean
    assert [rollout.advantage for rollout in again.groups[0].rollouts] == [0.5, -0.5]


def test_logprobs_take_four_bytes_each_where_they_are_float32_and_eight_where_a_bit_would_be_lost():
    first, second, *_ = records_of(batch_of({}))
    assert first["logprobs"] == {"float32": "q6qqvgAAAIA="}  # beaa_aaab and 8000_0000, the last byte first
    assert list(second["logprobs"]) == ["float64"]


def test_a_prompts_tokens_stand_once_in_each_group():
    records = records_of(batch_of({}))
    assert [record["sample"] for record in records if "prompt_ids" in record] == [0] * 4


def test_images_of_prompts_are_counted_and_their_tokens_are_a_share_of_the_prompts():
    media = (Media(sha256="ab" * 32, start=1, length=3), Media(sha256="cd" * 32, start=4, length=1))
    batch = batch_of({})
    first = replace(batch.groups[0].task, prompt_ids=tuple(range(6)), media=media)
    rest = [replace(group, task=replace(group.task, prompt_ids=(1, 2))) for group in batch.groups[1:]]
    numbers = rollout_metrics(replace(batch, groups=(replace(batch.groups[0], task=first), *rest)))
    assert (numbers["images"], numbers["image_tokens_share"]) == (2, 4 / 12)
    assert not {"images", "image_tokens_share"} & rollout_metrics(batch).keys()
