"""Which ranks of a launch train and which sample, in ranges and in words, and what is refused."""

import pytest

from paceline.config.building import build_config
from paceline.config.layout import ParallelConfig
from paceline.errors import ConfigError
from paceline.workers.torchrun.environment import check_launched, launched
from paceline.workers.torchrun.rank import Roles, roles_of

TORCHRUN = {
    "RANK": "0",
    "WORLD_SIZE": "7",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "7",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
GIVEN = {"model": "embedded", "dataset": "arithmetic"}


@pytest.mark.parametrize(
    ("apart", "training", "sampling", "sentence"),
    [
        (0, range(7), range(7), "7 ranks sample and train together"),
        (1, range(6), range(6, 7), "ranks 0 to 5 train, rank 6 samples"),
        (2, range(5), range(5, 7), "ranks 0 to 4 train, ranks 5 and 6 sample"),
        (6, range(1), range(1, 7), "rank 0 trains, ranks 1 to 6 sample"),
    ],
)
def test_the_last_ranks_sample_and_the_others_train(apart, training, sampling, sentence):
    found = roles_of(ParallelConfig(sampling_ranks=apart), 7)
    assert found == Roles(training=training, sampling=sampling)
    assert (found.are_apart, found.sentence) == (apart > 0, sentence)


def test_a_layout_is_that_of_the_ranks_that_train():
    check_launched(
        build_config(GIVEN | {"sampling_ranks": 1, "tensor_parallel": 3, "pipeline_parallel": 2}), launched(TORCHRUN)
    )
    with pytest.raises(ConfigError, match=r"--tensor-parallel 7 .* number of processes that train, 6;"):
        check_launched(build_config(GIVEN | {"sampling_ranks": 1, "tensor_parallel": 7}), launched(TORCHRUN))


def test_ranks_of_which_none_would_train_are_refused():
    with pytest.raises(ConfigError, match="--sampling-ranks must be below the number of ranks, 7, got 7; the others"):
        check_launched(build_config(GIVEN | {"sampling_ranks": 7}), launched(TORCHRUN))


def test_fewer_than_none_and_a_cluster_are_refused():
    with pytest.raises(ConfigError, match="--sampling-ranks must be at least 0, got -1"):
        build_config(GIVEN | {"sampling_ranks": -1})
    with pytest.raises(
        ConfigError, match="--sampling-ranks must be 0 with --cluster, got 1; there --num-producers sample"
    ):
        build_config(GIVEN | {"sampling_ranks": 1, "cluster": True})
