"""What a rank of a launch samples from: the trained weights themselves, or a copy that is what all parts make."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.config import Config, build_config
from paceline.engines import Request, Sampling
from paceline.parallel import Meeting, process_group
from paceline.spmd.working import Seat, WorkingRank
from paceline.train import Extent
from tests.cluster_runs import options_in
from tests.laws.layouts import CPU, groups_of

LAYOUTS: dict[str, dict[str, object]] = {
    "copies": {},
    "ZeRO-3": {"zero_stage": 3},
    "context": {"context_parallel": 2},
    "tensor": {"tensor_parallel": 2},
    "pipeline": {"pipeline_parallel": 2},
}
WHOLE = ("copies", "context")
"""Where each rank has all of the weights."""
SAMPLING = Sampling(max_completion_length=8)
REQUESTS = [Request(prompt_ids=(65 + number, 66), keys=(number, 100 + number)) for number in range(4)]
EXTENT = Extent(total_steps=2, longest_prompt=9)


def sampled(rank: WorkingRank) -> list[dict[str, Any]]:
    groups = rank.generate(REQUESTS, SAMPLING)
    return [
        {"tokens": list(one.token_ids), "logprobs": list(one.logprobs), "version": one.policy_version}
        for group in groups
        for one in group
    ]


def steps(config: Config, seat: Seat) -> dict[str, Any]:
    """What a rank samples before and after an update, and what the way of its weights to the engine was."""
    rank = WorkingRank(seat, {}, config, EXTENT, None)
    before, chance = sampled(rank), random.Random(5)
    rank.update(1, groups_of((3, 2, 4, 1), chance))
    handover, again = rank.renew(), rank.renew()
    return {"before": before, "after": sampled(rank), "nbytes": handover.nbytes, "again": again.nbytes}


def work(number: int, size: int, folder: str, options: dict[str, object]) -> None:
    """One rank, every layout."""
    torch.set_num_threads(1)
    seat = Seat(rank=number, size=size, device=CPU, cores=1)
    with process_group(Meeting(file=Path(folder, "meeting")), rank=number, size=size, device=CPU, timeout=60):
        found = {name: steps(build_config({**options, **layout}), seat) for name, layout in LAYOUTS.items()}
    Path(folder, f"{number}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("working")
    options = options_in(folder / "model")
    torch.multiprocessing.spawn(work, args=(2, str(folder), options), nprocs=2)
    return [json.loads((folder / f"{number}.json").read_text()) for number in range(2)]


@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_every_rank_samples_what_one_with_copies_samples(found, number, layout, when):
    wanted, one = found[0]["copies"][when], found[number][layout][when]
    assert [completion["tokens"] for completion in one] == [completion["tokens"] for completion in wanted]
    for completion, other in zip(one, wanted, strict=True):
        assert completion["logprobs"] == pytest.approx(other["logprobs"], abs=1e-5)
        assert completion["version"] == (1 if when == "after" else 0)


def test_the_update_moves_what_is_sampled_from(found):
    before, after = (found[0]["copies"][when][0]["logprobs"][0] for when in ("before", "after"))
    assert abs(before - after) > 1e-4


def test_only_a_copy_takes_bytes_and_only_where_it_is_old(found):
    for rank in found:
        whole, others = (
            {rank[layout]["nbytes"] for layout in LAYOUTS if (layout in WHOLE) == is_whole}
            for is_whole in (True, False)
        )
        assert whole == {0}
        assert others == {found[0]["ZeRO-3"]["nbytes"]} != {0}
        assert all(one["again"] == 0 for one in rank.values())
