"""Two nodes made on one machine: a run that loses the second one on its way is the run of one process."""

from collections.abc import Iterator

import pytest

from tests.support.cluster_runs import CLUSTER, completions, train, weights

SECOND = "PACELINE_TEST_SECOND_NODE"
"""In the environment of everything that runs on the second node."""


@pytest.fixture
def two_nodes() -> Iterator[str]:
    """The address of a cluster whose second node has room for one actor."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 3, "include_dashboard": False})
    cluster.add_node(num_cpus=1, env_vars={SECOND: "1"})
    cluster.wait_for_nodes()
    yield cluster.address
    cluster.shutdown()


def test_a_run_on_two_nodes_of_which_one_is_lost_is_that_of_one_process(tmp_path, alone, two_nodes):
    # two steps of both, and two of the first: the trap springs on the second node alone
    options = (*CLUSTER, "--cluster", two_nodes, "--actor-timeout", 10)
    run = train(tmp_path / "run", *options, trap=f"SIGKILL node:{SECOND} run/rollouts/step-000002.jsonl")
    assert weights(run) == weights(alone)
    assert completions(run) == completions(alone)
