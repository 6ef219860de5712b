"""The cost model of benchmarks/: operations, bytes and floors against numbers worked out by hand."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from floors import Rates, Work, floor, limit, rates_of
from phase_floors import against_floors, summarised
from savings import layouts
from step_work import (
    Group,
    Shape,
    Training,
    backward,
    conversion,
    decode,
    forward,
    optimiser,
    prefill,
    score,
    tokens_that_exist,
    trunk,
    update_operations,
)

from tests.support.tiny import tiny_model

SMALL = Shape(layers=2, width=4, heads=2, kv_heads=1, head_size=2, mlp=8, vocabulary=10, tied=True)
QWEN = Shape(layers=24, width=896, heads=14, kv_heads=2, head_size=64, mlp=4864, vocabulary=151_936, tied=True)
GROUPS = [Group(prompt=3, completions=(1, 3))]


def test_weights_are_counted_by_what_they_make():
    assert SMALL.kv_projection == 2 * 4 * 2  # keys and values, width 4 to one head of 2
    assert SMALL.rest_of_layer == 4 * 4 + 4 * 4 + 3 * 4 * 8  # queries, output, three matrices of the MLP
    assert SMALL.multiplied == 2 * (16 + 128) + 40
    assert SMALL.parameters == 328
    assert replace(SMALL, tied=False).parameters == 368
    assert SMALL.cache_per_token == 8


def test_the_parameters_of_a_known_model_are_right_to_a_thousandth():
    assert QWEN.parameters == pytest.approx(494_032_768, rel=1e-3)


def test_products_and_attention_agree_with_a_counter_that_watches_a_model_run():
    model = tiny_model("qwen2")
    model.set_attn_implementation("eager")
    shape, tokens = Shape.of(model.config), 7
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.arange(tokens)[None], use_cache=False)
    # run plainly, every token sees every key (half of them masked) and reaches the head
    products, mixing = trunk(shape, tokens=tokens, pairs=tokens**2, read=tokens, pairs_read=tokens**2)
    assert counter.get_total_flops() == products + mixing + 2 * shape.head * tokens


def test_prefill_computes_each_prompt_once_and_the_last_layer_for_its_last_token():
    work = prefill(SMALL, GROUPS, size=4)
    # layer 1 whole and the last layer's keys and values for 3 tokens, the rest of it for one, the head for one;
    # 6 pairs of query and key in layer 1, 3 in the last, 16 operations each
    assert work.operations == 2 * (160 * 3 + 128) + 16 * (6 + 3) + 2 * 40
    assert work.bytes == 4 * (328 + 3 * 8 + 10)


def test_a_decoding_step_reads_weights_once_and_the_prompt_once_per_group():
    first, second = decode(SMALL, [Group(prompt=3, completions=(1, 3, 3))], size=2)
    # two of three completions live; each sees 3 tokens of the prompt and its own first one
    assert first.operations == 2 * 328 * 2 + 2 * 16 * (2 * 4)
    assert first.bytes == 2 * 328 + 2 * 8 * (3 + 2 * 1) + 2 * 4 * (2 * 10)
    assert second.operations == 2 * 328 * 2 + 2 * 16 * (2 * 5)
    assert second.bytes == 2 * 328 + 2 * 8 * (3 + 2 * 2) + 2 * 4 * (2 * 10)


def test_the_prompt_of_a_group_that_has_ended_is_not_read():
    *_, last = decode(SMALL, [Group(prompt=100, completions=(2, 2)), Group(prompt=3, completions=(3,))], size=4)
    assert last.bytes == 4 * 328 + 4 * 8 * (3 + 2) + 2 * 4 * 10


def test_completions_of_one_token_need_no_decoding():
    assert decode(SMALL, [Group(prompt=3, completions=(1, 1))], size=4) == []


def test_training_forwards_the_prompt_once_and_no_last_token():
    training = Training.of(SMALL, GROUPS)
    assert (training.tokens, training.targets) == (3 + 2, 4)
    assert training.tokens == tokens_that_exist(GROUPS)
    # the last layer's output is needed after the prompt and after two inputs
    assert training.products == 2 * (160 * 5 + 128 * 3)
    # prompt 1 + 2 + 3 pairs; inputs at places 4 and 5; in the last layer 3 pairs for the prompt's last token
    assert training.attention == 16 * (6 + 4 + 5) + 16 * (3 + 4 + 5)
    assert training.head == 2 * 40 * 3


def test_a_group_without_completions_to_train_on_costs_nothing():
    assert Training.of(SMALL, [*GROUPS, Group(prompt=50, completions=())]) == Training.of(SMALL, GROUPS)
    assert tokens_that_exist([Group(prompt=50, completions=())]) == 0


def test_the_backward_pass_is_two_forward_passes_and_two_and_a_half_of_attention():
    training = Training.of(SMALL, GROUPS)
    ahead, back = (make(SMALL, training, size=4, micro_batches=2) for make in (forward, backward))
    assert ahead.operations == 2368 + 432 + 240
    assert back.operations == 2 * (2368 + 240) + 2.5 * 432
    saved = 4 * 5 * 2 * (2 * 4 + 2 * 3 * 2 + 2 * 8)
    assert ahead.bytes == 2 * 4 * 328 + saved
    # gradients: written by the first micro-batch, read and written by the second
    assert back.bytes == 2 * 4 * 328 + saved + 3 * 4 * 328
    assert score(SMALL, training, size=4, micro_batches=2).bytes == 2 * 4 * 328


def test_the_mfu_counts_each_product_three_times_and_two_for_an_adapter():
    training = Training.of(SMALL, GROUPS)
    assert update_operations(training, adapter=False) == 3 * (2368 + 240) + 3.5 * 432
    assert update_operations(training, adapter=True) == 2 * (2368 + 240) + 3.5 * 432


def test_the_optimiser_reads_five_and_writes_three_numbers_per_parameter():
    assert optimiser(SMALL).bytes == 328 * 4 * 8
    assert conversion(SMALL, size=2).bytes == 328 * (4 + 2)
    assert conversion(SMALL, size=4).bytes == 0


RATES = Rates(matrix=100.0, bandwidth=((10.0, 40.0), (1000.0, 10.0)))


def test_the_floor_is_the_slower_of_computing_and_moving():
    computing, moving = Work(operations=500, bytes=10, touched=5000), Work(operations=100, bytes=20, touched=5000)
    assert (floor(computing, RATES), limit(computing, RATES)) == (5.0, "operations")
    assert (floor(moving, RATES), limit(moving, RATES)) == (2.0, "bytes")
    assert floor([computing, moving], RATES) == 7.0


@pytest.mark.parametrize(("touched", "bandwidth"), [(1, 40), (10, 40), (100, 25), (1000, 10), (9999, 10)])
def test_bandwidth_depends_on_how_much_is_touched(touched, bandwidth):
    assert RATES.bandwidth_at(touched) == pytest.approx(bandwidth)


def test_rates_are_the_best_that_was_measured():
    machine = {
        "matrix": [
            {"dtype": "float32", "rate": 2.0},
            {"dtype": "float32", "rate": 3.0},
            {"dtype": "bfloat16", "rate": 9.0},
        ],
        "bandwidth": [
            {"kind": "read", "bytes": 8, "rate": 5.0},
            {"kind": "copy", "bytes": 8, "rate": 6.0},
            {"kind": "read", "bytes": 4, "rate": 7.0},
        ],
    }
    assert rates_of(machine, "float32") == Rates(matrix=3.0, bandwidth=((4, 7.0), (8, 6.0)))
    assert rates_of(machine, "bfloat16").matrix == 9.0


def test_each_layout_forwards_fewer_tokens_than_the_one_before():
    groups = [Group(prompt=3, completions=(1, 3)), Group(prompt=1, completions=(2,))]
    whole, head, packed, shared = layouts(SMALL, groups)
    assert [one.tokens for one in (whole, head, packed, shared)] == [3 * 5, 3 * 5, 3 + 5 + 2, 3 + 2 + 1 + 1]
    # three rows of 3 + 3 - 1 inputs, 15 pairs each; the head sees 15 positions, or the 9 of completions
    assert whole.operations == 2 * (2 * 144 * 15 + 16 * 45) + 2 * 40 * 15
    assert whole.operations - head.operations == 2 * 40 * (15 - 9)
    # rows of 3, 5 and 2 inputs: 6 + 15 + 3 pairs
    assert packed.operations == 2 * (2 * 144 * 10 + 16 * 24) + 2 * 40 * 6
    assert shared.operations < packed.operations


def test_a_measured_step_is_held_against_its_work():
    work = {"prefill": Work(operations=500, bytes=1, touched=1), "decode": [Work(operations=100), Work(bytes=400)]}
    found = against_floors({"prefill": 10.0, "decode": 33.0, "rewards": 2.0}, work, RATES)
    assert found["prefill"] == {"seconds": 10.0, "floor": 5.0, "limit": "operations"}
    assert found["decode"] == {"seconds": 33.0, "floor": 11.0, "limit": "bytes"}
    assert found["rewards"] == {"seconds": 2.0, "floor": None, "limit": None}
    again = against_floors({"prefill": 20.0, "decode": 22.0}, work, RATES)
    over = {name: phase["over"] for name, phase in summarised([found, again]).items() if phase["over"]}
    assert over == {"prefill": 3.0, "decode": 2.5}
