"""Law 1 over layouts: however a model and its samples lie on ranks, gradients, weights and reports are those of one."""

import functools
import json

import pytest
import torch

from tests.laws.layouts import ALL, FAMILIES, LAYOUTS, LOSSES, OPTIMS, alone, file_name, work
from tests.laws.splitting import relative
from tests.support.forked import fork_ranks

pytestmark = pytest.mark.long

EXACT, FLOAT32 = 1e-10, 1e-5
COMPUTED_TWICE = 4
"""A prompt whose completions several ranks share is computed by each, and idle passes count too: at most so often."""
FEW = ("llama, one embedding", "qwen2, LoRA")
"""Families that more than two ranks are tried with: all families are with what their layouts are made of."""


def families_of(layout: str) -> tuple[str, ...]:
    if LAYOUTS[layout][0].ranks == 2:
        return tuple(FAMILIES)
    return FEW if "tensor" in layout else FEW[:1]


CASES = [
    *((layout, family, "everything", "many micro-batches") for layout in LAYOUTS for family in families_of(layout)),
    *(
        (layout, "qwen2", loss, optim)
        for layout in ("ZeRO-3 over 2", "pipeline 2")
        for loss in LOSSES
        for optim in OPTIMS
    ),
]
CASES += [("ZeRO-3 over 2", name, "everything", "many micro-batches") for name in ALL]
CASES += [("tensor 2", "qwen3_moe", "everything", "many micro-batches")]  # each rank has some experts whole
CASES = list(dict.fromkeys(CASES))
by_case = pytest.mark.parametrize("case", CASES, ids=[file_name(*case) for case in CASES])


@functools.cache
def whole(family: str, loss: str, optim: str):
    return alone(family, loss, optim)


def one_process(case: tuple[str, str, str, str]):
    return whole(*case[1:])


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Of each case: what the ranks hold, and what they report."""
    folder, results = tmp_path_factory.mktemp("ranks"), {}
    most = max(LAYOUTS[layout][0].ranks for layout in LAYOUTS)
    fork_ranks(work, str(folder), CASES, count=most)
    for case in CASES:
        place, ranks = folder / file_name(*case), range(LAYOUTS[case[0]][0].ranks)
        held = [torch.load(place / f"rank-{rank}.pt", weights_only=True) for rank in ranks]
        said = [json.loads((place / f"rank-{rank}.json").read_text()) for rank in ranks]
        results[case] = held, said
    return results


@by_case
def test_every_gradient_is_that_of_one_process(found, case):
    *_, gradients, loss = one_process(case)
    held, said = found[case]
    assert {name for one in held for name in one["gradients"]} == set(gradients)
    for one in held:
        for name, gradient in one["gradients"].items():
            assert relative(gradient, gradients[name]) < FLOAT32, name
    assert [one["loss"] for one in said] == pytest.approx([loss] * len(said), rel=FLOAT32)


@by_case
def test_steps_end_with_the_weights_of_one_process(found, case):
    weights = one_process(case)[0]
    held, _ = found[case]
    for one in held:
        for name, weight in one["weights"].items():
            assert relative(weight, weights[name]) < EXACT, name


@by_case
def test_ranks_that_hold_the_same_hold_the_same_bits(found, case):
    held, _ = found[case]
    for name in {name for one in held for name in one["weights"]}:
        first, *others = (one["weights"][name] for one in held if name in one["weights"])
        assert all(torch.equal(first, other) for other in others), name


@by_case
def test_every_rank_reports_what_one_process_reports(found, case):
    wanted = one_process(case)[1]
    for one in found[case][1]:
        for shared, expected in zip(one["stats"], wanted, strict=True):
            forwarded, at_least = shared.pop("tokens_forwarded"), expected["tokens_forwarded"]
            assert at_least <= forwarded <= COMPUTED_TWICE * at_least
            shared["micro_batch_tokens"] *= LAYOUTS[case[0]][0].context  # each rank's budget
            assert shared == pytest.approx({key: value for key, value in expected.items() if key != "tokens_forwarded"})
