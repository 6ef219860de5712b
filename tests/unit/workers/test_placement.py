"""Where actors of a cluster go: GPUs by the cluster's resources, refusals with its numbers, the sentences on it."""

import pytest

from paceline.config.building import build_config
from paceline.config.sections import Config
from paceline.errors import ConfigError
from paceline.workers.placement import Location, Share, check_room, gpus_of, location_sentences

HEAD, WORKER = {"CPU": 4.0}, {"CPU": 8.0, "GPU": 1.0}


def config(**options: object) -> Config:
    return build_config({"model": "M", "dataset": "D", "cluster": "auto", **options})


@pytest.mark.parametrize(
    ("options", "available", "gpus"),
    [
        ({}, 3, (1, 1)),
        ({"device": "cuda"}, 3, (1, 1)),
        ({}, 0, (0, 0)),
        ({"device": "cpu"}, 3, (0, 0)),
        ({"engine": "vllm", "vllm_tensor_parallel": 2}, 3, (1, 2)),
    ],
)
def test_the_clusters_gpus_decide_what_an_actor_takes(options, available, gpus):
    assert gpus_of(config(**options), available=available, where="the cluster at auto") == gpus


def test_cuda_is_refused_where_the_cluster_has_no_gpu():
    with pytest.raises(ConfigError, match=r"--device must be cpu or auto here, got 'cuda'; the cluster at auto has no"):
        gpus_of(config(device="cuda"), available=0, where="the cluster at auto")


def room(nodes: list[dict[str, float]], trainers: tuple[int, Share], samplers: tuple[int, Share]) -> None:
    check_room(nodes, trainers, samplers, where="the cluster at auto")


def test_one_process_per_gpu_fits_beside_a_head_without_any():
    share = Share(cpus=1, gpus=1)
    room([HEAD, WORKER, WORKER, WORKER], (1, share), (2, share))


@pytest.mark.parametrize(
    ("nodes", "trainers", "samplers", "numbers"),
    [
        ([HEAD, WORKER, WORKER], 1, 2, "need 3 CPUs and 3 GPUs, .* has 20 CPUs and 2 GPUs on 3 machines"),
        ([{"CPU": 3.0}], 2, 2, "2 trainers and 2 samplers need 4 CPUs and 0 GPUs, .* 3 CPUs and 0 GPUs on one machine"),
    ],
)
def test_too_small_a_cluster_is_refused_with_its_numbers(nodes, trainers, samplers, numbers):
    share = Share(cpus=1, gpus=1 if any("GPU" in node for node in nodes) else 0)
    with pytest.raises(ConfigError, match=numbers):
        room(nodes, (trainers, share), (samplers, share))


def test_a_sampler_that_spreads_over_two_gpus_needs_both_on_one_machine():
    one, two = (1, Share(cpus=1, gpus=1)), (1, Share(cpus=1, gpus=2))
    room([{"CPU": 4.0, "GPU": 2.0}, WORKER], one, two)
    with pytest.raises(ConfigError, match="3 GPUs, none split between machines"):
        room([WORKER, WORKER, WORKER], one, two)


def test_actors_are_named_by_machine_and_an_open_cluster_is_said():
    def location(node: str, has_token: bool) -> Location:
        return Location(node=node, device="GPU 0 (H100)", has_token=has_token)

    found = [("trainer 0", location("10.0.0.2", True)), ("sampler 0", location("10.0.0.3", True))]
    assert [*location_sentences(found)] == ["trainer 0 on 10.0.0.2, GPU 0 (H100); sampler 0 on 10.0.0.3, GPU 0 (H100)"]
    _, warning = location_sentences([*found, ("sampler 1", location("10.0.0.3", False))])
    assert warning.startswith("this Ray cluster asks for no token: whoever reaches its ports can run programs")
    assert "`ray get-auth-token --generate`" in warning
