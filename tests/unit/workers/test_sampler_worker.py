"""A sampler's process: the weights that it samples from are those that it was given last, or offered since."""

import numpy as np
import pytest

from paceline.config.building import build_config
from paceline.engines import Request, Sampling, sample_key
from paceline.workers.weight_sync import Manifest, manifest_of, read_bucket
from paceline.workers.worker import SamplerWorker
from tests.support.cluster_here import sampler_of
from tests.support.cluster_runs import options_in
from tests.support.tiny import tiny_model

CONTINUE = {"cluster": True, "max_staleness": 1, "on_new_weights": "continue"}
SAMPLING = Sampling(max_completion_length=8)
ASKED = [Request(prompt_ids=(1, 2, 3), keys=(sample_key(0, "test", "one", 0, 0),))]


def weights(version: int) -> tuple[Manifest, list[list[np.ndarray]]]:
    """Of a version that 10 updates a step have made."""
    model = tiny_model("qwen2", seed=version)
    manifest = manifest_of(model, version=version, policy_version=10 * version)
    return manifest, [read_bucket(model, names) for names in manifest.buckets]


def give(call, version: int) -> None:
    manifest, buckets = weights(version)
    call(manifest, *buckets)


def sampled(process: SamplerWorker) -> tuple[tuple[int, ...], int]:
    ((completion,),) = process.generate(ASKED, SAMPLING)
    return completion.token_ids, completion.policy_version


@pytest.fixture
def options(tmp_path) -> dict[str, object]:
    return options_in(tmp_path / "place")


def test_weights_that_are_offered_are_taken_when_completions_are_sampled_and_of_several_the_last(options):
    process = sampler_of(build_config(options | CONTINUE))
    give(process.load, 1)
    first = sampled(process)
    give(process.offer, 2)
    give(process.offer, 3)
    third = sampled(process)
    give(process.load, 3)
    assert (first[1], third[1]) == (10, 30)
    assert first[0] != third[0]
    assert sampled(process) == third


def test_weights_that_are_not_newer_are_left_alone(options):
    process = sampler_of(build_config(options | CONTINUE))
    give(process.load, 2)
    expected = sampled(process)
    give(process.offer, 1)
    assert sampled(process) == expected
    give(process.offer, 2)
    assert sampled(process) == expected
