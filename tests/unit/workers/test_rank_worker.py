"""What a rank of a launch samples from: the trained weights themselves, a copy that is what all parts make, or one that
other ranks' weights are handed to."""

import json
import os
import random
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from paceline.checkpoints.finding import TrainingState
from paceline.config.building import build_config
from paceline.config.sections import Config
from paceline.engines import Request, Sampling
from paceline.models.parallel.process_group import Meeting, process_group
from paceline.training.setup.inputs import RunSize
from paceline.workers.torchrun.rank import RankWorker, Roles
from paceline.workers.weight_sync import Manifest, WeightsGroup
from tests.laws.layouts import CPU, groups_of
from tests.support.cluster_runs import options_in
from tests.support.forked import fork_ranks

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
RUN_SIZE = RunSize(total_steps=2, longest_prompt=9)
TRAINING, APART = 2, 2
"""Ranks that train, and the one that samples for them."""


TOGETHER = Roles(training=range(TRAINING), sampling=range(TRAINING))
SEPARATE = Roles(training=range(TRAINING), sampling=range(APART, APART + 1))


def built(rank: RankWorker, config: Config, checkpoint: Path | None = None) -> RankWorker:
    found = replace(rank)
    found.build(config, RUN_SIZE, checkpoint)
    return found


def sampled(rank: RankWorker) -> list[dict[str, Any]]:
    groups = rank.sampler.generate(REQUESTS, SAMPLING)
    return [
        {"tokens": list(one.token_ids), "logprobs": list(one.logprobs), "version": one.policy_version}
        for group in groups
        for one in group
    ]


def update(rank: RankWorker) -> dict[str, Any] | None:
    held = rank.trainer.update(1, groups_of((3, 2, 4, 1), random.Random(5))).held
    return None if held is None else {"part": list(held.part), "fingerprint": held.fingerprint}


def renewed(rank: RankWorker) -> dict[str, Any]:
    found = rank.renew(1)
    return {"nbytes": found.transfer.nbytes, "fingerprint": found.held and found.held.fingerprint}


def steps(config: Config, own: RankWorker) -> dict[str, Any]:
    """What a rank samples before and after an update, and what the way of its weights to the engine was."""
    rank = built(own, config)
    before, held = sampled(rank), update(rank)
    return {"before": before, "held": held, "way": renewed(rank), "again": renewed(rank), "after": sampled(rank)}


def handed_on(rank: RankWorker, said: dist.Store, key: str) -> dict[str, Any]:
    """Keep the trained weights as version 1 and hand them on; `said` brings the manifest, as a call would."""
    manifest = rank.trainer.hold(1)
    if manifest is not None:
        said.set(key, json.dumps(asdict(manifest)))
        rank.load(manifest)
    return {"nbytes": manifest.nbytes if manifest else 0, "kept": list(rank.trainer.kept)}


def steps_apart(config: Config, own: RankWorker, root: Path, said: dist.Store) -> dict[str, Any]:
    """The same where the last rank samples and the others train; and what it samples from their checkpoint."""
    keys = f"{root.name} updated", f"{root.name} saved"
    if own.rank == APART:
        rank = built(own, config)
        found = {"before": sampled(rank)}
        rank.load(Manifest(**json.loads(said.get(keys[0]))))
        found["after"] = sampled(rank)
        rank.load(Manifest(**json.loads(said.get(keys[1]))))  # the checkpoint is there when these weights have come
        resumed = built(own, config, root / "step-000001")
        return {**found, "resumed": sampled(resumed)}
    rank = built(own, config)
    found = {"held": update(rank), "way": handed_on(rank, said, keys[0])}
    rank.trainer.trainer.save(root, TrainingState(step=1, position=4, policy_version=1), ())
    assert rank.trainer.trainer.saved(True) is not None  # on every rank: what follows reads it
    handed_on(rank, said, keys[1])
    return found


def broadcast_group_of(number: int, folder: str) -> WeightsGroup | None:
    if number not in (0, APART):
        return None
    store = dist.FileStore(str(Path(folder, "sampling")), 2)
    return WeightsGroup(store, rank=int(number == APART), size=2, device=CPU, timeout=60)


def work(number: int, folder: str, options: Mapping[str, object]) -> None:
    """One rank, every layout."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    configs = {name: build_config({**options, **layout}) for name, layout in LAYOUTS.items()}
    found = dict[str, Any]()
    with ExitStack() as open_groups:
        if number < TRAINING:
            meeting = Meeting(file=Path(folder, "meeting"))
            group = process_group(meeting, rank=number, size=TRAINING, device=CPU, timeout=60)
            open_groups.enter_context(group)
            own = RankWorker(rank=number, roles=TOGETHER, device=CPU, cores=1)
            found["together"] = {name: steps(config, own) for name, config in configs.items()}
        group = broadcast_group_of(number, folder)
        own = RankWorker(rank=number, roles=SEPARATE, device=CPU, cores=1, broadcast_group=group)
        said = dist.FileStore(str(Path(folder, "said")), TRAINING + 1)
        found["apart"] = {name: steps_apart(config, own, Path(folder, name), said) for name, config in configs.items()}
    Path(folder, f"{number}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    folder = tmp_path_factory.mktemp("working")
    options = options_in(folder / "model")
    fork_ranks(work, str(folder), options, count=TRAINING + 1)
    return [json.loads((folder / f"{number}.json").read_text()) for number in range(TRAINING + 1)]


@pytest.fixture(scope="module")
def found(everything):
    return [rank["together"] for rank in everything[:TRAINING]]


@pytest.fixture(scope="module")
def apart(everything):
    return [rank["apart"] for rank in everything]


def are_alike(one: list[dict[str, Any]], wanted: list[dict[str, Any]], *, version: int) -> None:
    assert [completion["tokens"] for completion in one] == [completion["tokens"] for completion in wanted]
    for completion, other in zip(one, wanted, strict=True):
        assert completion["logprobs"] == pytest.approx(other["logprobs"], abs=2e-5)
        assert completion["version"] == version


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", range(TRAINING))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("when", "version"), [("before", 0), ("after", 1)])
def test_every_rank_samples_what_one_with_copies_samples(found, number, layout, when, version):
    are_alike(found[number][layout][when], found[0]["copies"][when], version=version)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("when", "version"), [("before", 0), ("after", 1), ("resumed", 1)])
def test_a_rank_that_only_samples_samples_what_one_that_trains_too_would(found, apart, layout, when, version):
    wanted = found[0]["copies"]["before" if version == 0 else "after"]
    are_alike(apart[APART][layout][when], wanted, version=version)


def test_the_update_moves_what_is_sampled_from(found):
    before, after = (found[0]["copies"][when][0]["logprobs"][0] for when in ("before", "after"))
    assert abs(before - after) > 1e-4


def test_only_a_copy_takes_bytes_and_only_where_it_is_old(found):
    for rank in found:
        whole, others = (
            {rank[layout]["way"]["nbytes"] for layout in LAYOUTS if (layout in WHOLE) == is_whole}
            for is_whole in (True, False)
        )
        assert whole == {0}
        assert others == {found[0]["ZeRO-3"]["way"]["nbytes"]} != {0}
        assert all(one["again"] == {"nbytes": 0, "fingerprint": None} for one in rank.values())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_first_rank_keeps_what_it_hands_on_and_no_other_does(found, apart, layout):
    first, second = (rank[layout]["way"] for rank in apart[:TRAINING])
    assert first == {"nbytes": found[0]["ZeRO-3"]["way"]["nbytes"], "kept": [1]}
    assert second == {"nbytes": 0, "kept": []}


def test_copies_tell_what_they_hold_after_an_update_and_parts_have_nothing_to_compare(found, apart):
    for ranks in (found, apart[:TRAINING]):
        for layout in WHOLE:
            first, second = (rank[layout]["held"] for rank in ranks)
            assert first == second
            assert first["part"] == [0, 0, 0]
        assert all(rank[layout]["held"] is None for rank in ranks for layout in LAYOUTS if layout not in WHOLE)
