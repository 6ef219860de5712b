"""A cluster whose head has no GPU and whose other node has three, which are numbers to Ray: actors go to them."""

from collections.abc import Iterator

import pytest

from paceline.cli.main import main
from tests.support.cluster_runs import options_in

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def gpus() -> Iterator[str]:
    """The address of the cluster."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "num_gpus": 0, "include_dashboard": False})
    cluster.add_node(num_cpus=3, num_gpus=3)
    cluster.wait_for_nodes()
    yield cluster.address
    cluster.shutdown()


def words(place, address: str, **more: object) -> list[str]:
    options = {**options_in(place), "max_steps": 1, "eval_size": 2, "device": "auto", "cluster": address, **more}
    return ["train", *(f"--{name}={value}" for name, value in options.items()), f"--output-dir={place / 'run'}"]


def test_each_actor_takes_a_gpu_of_the_cluster_and_is_said_to(tmp_path, gpus, capsys):
    assert main(words(tmp_path / "a", gpus, num_producers=2)) == 0
    printed = capsys.readouterr().out
    for number in range(3):
        assert f"a CPU, although Ray gave it GPU {number}: torch finds no CUDA device there" in printed


def test_more_actors_than_gpus_are_refused_with_both_numbers(tmp_path, gpus, capsys):
    assert main(words(tmp_path / "b", gpus, num_producers=3)) == 2
    error = capsys.readouterr().err
    assert "one trainer and 3 samplers need 4 CPUs and 4 GPUs" in error
    assert "has 7 CPUs and 3 GPUs on 2 machines" in error
