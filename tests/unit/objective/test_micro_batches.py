"""Micro-batches hold every prompt once and each completion's own context, within the budget and evenly."""

from dataclasses import replace

import pytest
import torch

from paceline.objective.cutting import cut, even_runs, input_tokens, share_out
from paceline.objective.micro_batches import Sample, pack, padded_attention, padded_rows, token_weights
from paceline.types import Media
from tests.support.episodes import sample as make_sample


def sample(group: int, prompt: str, completion: str, advantage: float = 1.0) -> Sample:
    return make_sample(
        group=group,
        prompt_ids=prompt,
        completion_ids=completion,
        logprobs=[-0.1 * place for place in range(len(completion))],
        advantage=advantage,
    )


STEP = [sample(0, "pq", "abc", 1.0), sample(0, "pq", "d", -1.0), sample(1, "r", "ef", 0.5)]


def text(ids: torch.Tensor) -> str:
    return "".join(map(chr, ids.tolist()))


def test_a_packed_batch_holds_each_prompt_once_and_no_padding():
    batch = pack(STEP, [0.1, 0.2, 0.3], [0, 1, 2], dtype=torch.float64)
    assert text(batch.input_ids) == "pq" + "r" + "ab" + "" + "e"
    assert batch.position_ids.tolist() == [0, 1, 0, 2, 3, 1]
    assert text(batch.targets) == "abc" + "d" + "ef"
    # a and d follow the prompt's last token, b follows a, c follows b, e follows r, f follows e
    assert text(batch.input_ids[batch.sources]) == "qab" + "q" + "re"
    assert batch.lengths.tolist() == [3, 1, 2]
    assert batch.num_targets == 6
    assert batch.weights.tolist() == [0.1, 0.1, 0.1, 0.2, 0.3, 0.3]
    assert batch.advantages.tolist() == [1.0, 1.0, 1.0, -1.0, 0.5, 0.5]
    assert batch.rollout_logprobs.tolist() == pytest.approx([0, -0.1, -0.2, 0, 0, -0.1])


def test_a_completion_sees_its_own_prompt_and_itself_up_to_each_token():
    batch = pack(STEP, [0.1] * 3, [0, 1, 2], dtype=torch.float32)
    layout = padded_attention(batch)
    tokens = torch.cat([layout.prompt_index[layout.prompt_of_sample], layout.completion_index], dim=1)

    def seen(row: int, query: int) -> str:
        return text(batch.input_ids[tokens[row][layout.mask[row, 0, query]]])

    assert [seen(0, 0), seen(0, 1)] == ["pqa", "pqab"]
    assert seen(2, 0) == "re"
    blocks = torch.cat([layout.prompt_index.flatten(), layout.completion_index.flatten()])
    assert text(batch.input_ids[blocks[layout.unpad]]) == text(batch.input_ids)


def test_padded_rows_hold_prompt_and_completion_of_each_sample():
    batch = pack(STEP, [0.1] * 3, [0, 1, 2], dtype=torch.float32)
    rows = padded_rows(batch)
    assert [text(batch.input_ids[i[r]]) for i, r in zip(rows.index, rows.real, strict=True)] == ["pqab", "pq", "re"]
    assert text(batch.input_ids[rows.index.flatten()[rows.sources]]) == text(batch.input_ids[batch.sources])


@pytest.mark.parametrize(
    ("average", "weights"),
    [
        ("token", [1 / 6, 1 / 6, 1 / 6]),
        ("sequence", [1 / 9, 1 / 3, 1 / 6]),
        ("constant", [1 / 30, 1 / 30, 1 / 30]),
        ("prompt", [1 / 8, 1 / 8, 1 / 4]),
        ("sequence_sum", [1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_weights_are_each_averages_share_of_the_whole_step(average, weights):
    assert token_weights(STEP, average=average, max_completion_length=10) == pytest.approx(weights)


@pytest.mark.parametrize(
    ("average", "whole"),
    [("token", 1.0), ("sequence", 0.5), ("constant", 0.25), ("prompt", 1.0), ("sequence_sum", 2.5)],
)
def test_a_masked_sample_counts_as_a_completion_without_tokens(average, whole):
    # four completions of 5 tokens, two of them masked: 10 tokens, 4 completions; 4 x 10 of the longest allowed
    kept, masked = sample(0, "pq", "abcde"), replace(sample(0, "pq", "abcde"), masked=True)
    weights = token_weights([kept, masked, kept, masked], average=average, max_completion_length=10)
    assert (weights[1], weights[3]) == (0.0, 0.0)
    assert 5 * sum(weights) == pytest.approx(whole)


def test_samples_of_a_group_stay_together_and_prompts_count_once_in_the_budget():
    step = [sample(0, "p" * 10, "abcde"), sample(1, "q" * 10, "abcde"), sample(0, "p" * 10, "abcde")]
    assert cut(step, trained=[0, 1, 2], micro_batch_tokens=18) == [[0, 2], [1]]
    assert cut(step, trained=[0, 1, 2], micro_batch_tokens=17) == [[0], [2], [1]]
    assert cut(step, trained=[0, 1, 2], micro_batch_tokens=32) == [[0, 2, 1]]


def lengths(runs: list[range]) -> list[int]:
    return [len(run) for run in runs]


def test_runs_are_as_few_as_the_limit_allows_and_the_costliest_as_cheap_as_it_can_be():
    # full ones would be 4 + 1; the same two runs can be 3 + 2
    assert lengths(even_runs([2] * 5, limit=8)) == [3, 2]
    # two runs in order: 5+1 | 6 costs 6, anything else 7 or more
    assert lengths(even_runs([5, 1, 6], limit=11)) == [2, 1]
    assert lengths(even_runs([5, 1, 6], limit=12)) == [3]
    # 3 on top of each run: 3+4+4 fits 11, 3+4+4+4 does not
    assert lengths(even_runs([4] * 4, limit=14, fixed=3)) == [2, 2]
    assert lengths(even_runs([4] * 4, limit=10, fixed=3)) == [1, 1, 1, 1]
    assert lengths(even_runs([0, 9, 0], limit=4)) == [1, 1, 1]
    assert even_runs([], limit=4) == []


def test_micro_batches_are_filled_evenly_with_whole_groups():
    # five groups of 3 + 2 * 4 = 11 tokens: three fit in 40 tokens, and 33 + 22 is what two micro-batches come to
    step = [sample(group, "pqr", "abcde") for group in range(5) for _ in range(2)]
    cuts = cut(step, trained=range(10), micro_batch_tokens=44)
    assert cuts == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]]


def test_a_group_above_the_budget_is_cut_evenly_and_forwards_its_prompt_in_each_piece():
    # 10 + 7 * 4 = 38 tokens; at most 22 hold the prompt and three completions, so three pieces: 3 + 3 + 1 or 3 + 2 + 2
    step = [sample(0, "p" * 10, "abcde") for _ in range(7)]
    assert cut(step, trained=range(7), micro_batch_tokens=37) == [[0, 1, 2, 3], [4, 5, 6]]
    assert max(map(len, cut(step, trained=range(7), micro_batch_tokens=22))) == 3


def test_a_group_is_not_cut_where_it_fits_into_a_micro_batch_of_its_own():
    # 12 tokens each: cutting the second one would fill the first micro-batch of 20, and forward its prompt twice
    step = [sample(group, "pqrs", "abcde") for group in range(3) for _ in range(2)]
    assert cut(step, trained=range(6), micro_batch_tokens=20) == [[0, 1], [2, 3], [4, 5]]


def test_padded_rows_fill_the_budget_with_every_place_of_every_row():
    # a prompt of 2000 and 32 completions of 60: 3,888 packed tokens, and 65,888 places in rows of 2,059
    step = [sample(0, "p" * 2000, "c" * 60) for _ in range(32)]
    (packed,) = cut(step, trained=range(32), micro_batch_tokens=4200)
    assert input_tokens(step, packed) == 3888
    rows = cut(step, trained=range(32), micro_batch_tokens=4200, layout="padded")
    assert [len(members) for members in rows] == [2] * 16
    for members in (packed, rows[0]):
        batch = pack(step, [1.0] * 32, members, dtype=torch.float32)
        places = padded_rows(batch).index.numel()
        assert places == batch.num_forwarded("padded") == input_tokens(step, members, "padded") == 2059 * len(members)
        assert batch.num_forwarded("packed") == len(batch.input_ids)


def test_padded_rows_stand_by_length_and_in_as_few_micro_batches_as_that_allows():
    # rows of 11, 3, 11, 3 and 5 tokens: 3 + 3 + 5 fill three rows of 5, and two of 11 the other micro-batch
    step = [sample(at % 2, "pp", "c" * (length - 1)) for at, length in enumerate((11, 3, 11, 3, 5))]
    assert cut(step, trained=range(5), micro_batch_tokens=22, layout="padded") == [[0, 2], [4, 1, 3]]
    assert cut(step, trained=range(5), micro_batch_tokens=10, layout="padded") == [[0], [2], [4], [1, 3]]
    assert lengths(even_runs([5, 2, 2, 2, 2], limit=8, rows=[1] * 5)) == [1, 4]
    assert lengths(even_runs([2] * 5, limit=8, rows=[1] * 5)) == [3, 2]


def test_ranks_share_padded_rows_out_one_by_one():
    # rows of 12, 12, 3 and 9 tokens; packed the group of the first two would stay whole
    samples = [*of_group(0, 11, 11), *of_group(1, 2, 8)]
    assert share_out(samples, trained=range(4), ranks=2, layout="padded") == [[0, 3], [1, 2]]


def test_samples_may_be_packed_in_any_order_and_in_part():
    batch = pack(STEP, [0.1, 0.2, 0.3], [2, 0], dtype=torch.float64)
    assert batch.samples == (2, 0)
    assert text(batch.targets) == "ef" + "abc"
    assert batch.lengths.tolist() == [2, 3]
    assert batch.weights.tolist() == [0.3, 0.3, 0.1, 0.1, 0.1]
    assert text(batch.input_ids[batch.sources]) == "re" + "qab"


@pytest.mark.parametrize("average", ["token", "sequence", "prompt"])
def test_weights_of_a_step_sum_to_one_over_its_tokens(average):
    weights = token_weights(STEP, average=average, max_completion_length=10)
    assert sum(w * len(s.completion_ids) for w, s in zip(weights, STEP, strict=True)) == pytest.approx(1.0)


def of_group(group: int, *lengths: int) -> list[Sample]:
    """Completions of these lengths after a prompt of 2 tokens."""
    return [sample(group, "pp", "c" * length) for length in lengths]


def test_ranks_share_whole_groups_out_by_their_tokens():
    samples = [*of_group(0, 1, 1), *of_group(1, 9), *of_group(2, 4, 4)]
    assert share_out(samples, trained=range(5), ranks=1) == [[0, 1, 2, 3, 4]]
    # input tokens with a prompt of 2: group 0 has 2, group 1 has 10, group 2 has 8; an even share is 10
    assert share_out(samples, trained=range(5), ranks=2) == [[2], [0, 1, 3, 4]]


def test_a_group_above_an_even_share_is_cut_and_a_rank_may_get_nothing():
    samples = of_group(0, 5, 5, 5, 5)
    # 2 + 4 * 4 input tokens; an even share of 9 holds the prompt and one completion
    assert share_out(samples, trained=range(4), ranks=2) == [[0, 2], [1, 3]]
    assert share_out(samples, trained=[3], ranks=3) == [[3], [], []]
    assert share_out(samples, trained=[], ranks=2) == [[], []]


def with_images(group: int, *lengths: int) -> Sample:
    image = [Media(sha256=f"{number:064x}", start=0, length=length) for number, length in enumerate(lengths)]
    return replace(sample(group, "prompt", "abc"), prompt_media=tuple(image))


def test_images_count_for_what_a_trained_encoder_keeps_of_them():
    # a prompt of 6 tokens, 4 of them an image's, and 2 inputs behind it: 8 tokens, and 3 more for each of the image's
    step = [with_images(0, 4), with_images(1, 4), with_images(2)]
    assert [input_tokens(step, [row], image_cost=3.0) for row in range(3)] == [20, 20, 8]
    assert cut(step, trained=range(3), micro_batch_tokens=24) == [[0, 1, 2]]
    assert cut(step, trained=range(3), micro_batch_tokens=24, image_cost=3.0) == [[0], [1], [2]]
    assert cut(step, trained=range(3), micro_batch_tokens=28, image_cost=3.0) == [[0], [1, 2]]
    assert cut(step, trained=range(3), micro_batch_tokens=40, image_cost=3.0, layout="padded") == [[0, 1], [2]]
    assert share_out(step, trained=range(3), ranks=2) == [[0, 2], [1]]
    # four prompts without images weigh as much as one with an image of 8 tokens
    step = [with_images(0, 8), *(with_images(group) for group in range(1, 5))]
    assert share_out(step, trained=range(5), ranks=2, image_cost=3.0) == [[0], [1, 2, 3, 4]]


def test_completions_of_a_prompt_share_its_images():
    step = [with_images(0, 2, 2), replace(with_images(0, 2, 2), advantages=(-1.0,)), with_images(1, 4)]
    batch = pack(step, [0.0] * 3, [2, 0, 1], dtype=torch.float32)
    # prompts of 6 tokens, that of group 1 first
    assert [(image.sha256[-1], image.start, image.length) for image in batch.media] == [
        ("0", 0, 4),
        ("0", 6, 2),
        ("1", 6, 2),
    ]
