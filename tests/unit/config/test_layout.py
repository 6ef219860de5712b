"""How processes are laid out: sizes from options and their number, other tools' names for it, and what is refused."""

import itertools

import pytest

from paceline.cli.arguments import parse
from paceline.cli.main import main
from paceline.cli.train import COMMAND
from paceline.compat.commands.layouts import translate_layout_flags
from paceline.config.building import build_config
from paceline.config.layout import ParallelConfig, Sizes, layout
from paceline.errors import ConfigError

GIVEN = {"model": "m", "dataset": "d"}


@pytest.mark.parametrize(
    ("options", "processes", "sizes"),
    [
        ({}, 4, Sizes(replicate=4)),
        ({"zero_stage": 1}, 4, Sizes(shard=4)),
        ({"tensor_parallel": 2}, 4, Sizes(replicate=2, tensor=2)),
        ({"tensor_parallel": 2, "pipeline_parallel": 2, "zero_stage": 2}, 8, Sizes(pipeline=2, shard=2, tensor=2)),
        ({"zero_stage": 3}, 1, Sizes()),
        ({"context_parallel": 2}, 4, Sizes(replicate=4, context=2)),
        # slices are made for those that share tokens too
        ({"context_parallel": 2, "zero_stage": 3}, 2, Sizes(shard=2, context=2)),
        ({"context_parallel": 2, "zero_stage": 1, "tensor_parallel": 2}, 8, Sizes(shard=4, context=2, tensor=2)),
    ],
)
def test_a_grid_follows_from_the_options_and_the_number_of_processes(options, processes, sizes):
    found = layout(ParallelConfig(**options), processes)
    assert found == sizes
    assert found.ranks == processes


def test_every_grid_holds_all_processes_or_is_refused_with_two_that_do():
    for tensor, pipeline, processes in itertools.product(range(1, 6), range(1, 6), range(1, 25)):
        options = ParallelConfig(tensor_parallel=tensor, pipeline_parallel=pipeline)
        if processes % (tensor * pipeline) == 0:
            assert layout(options, processes).ranks == processes
            continue
        with pytest.raises(ConfigError, match="the nearest that do are") as refusal:
            layout(options, processes)
        for words in str(refusal.value).partition("do are ")[2].split(" and "):
            _, other, _, another = words.split()
            assert processes % (int(other) * int(another)) == 0


def test_tokens_for_a_number_of_processes_that_does_not_divide_them_are_refused_with_those_that_do():
    with pytest.raises(
        ConfigError, match=r"--context-parallel must divide the 4 processes .*, got 3; such are 1, 2, 4"
    ):
        layout(ParallelConfig(context_parallel=3, tensor_parallel=2), 8)


def test_those_that_share_tokens_have_one_share_of_the_samples():
    sizes = layout(ParallelConfig(context_parallel=2, tensor_parallel=2, zero_stage=1), 8)
    assert (sizes.ranks, sizes.shares) == (8, 2)
    assert not Sizes(replicate=4, context=2).splits_the_model


@pytest.mark.parametrize(
    ("option", "value", "rule"),
    [
        ("zero_stage", 4, "be 0, 1, 2 or 3"),
        ("tensor_parallel", 0, "be at least 1"),
        ("context_parallel", 0, "be at least 1"),
        ("offload", ("parameters",), "not name parameters with --zero-stage 0"),
        ("offload", ("weights",), "name some of optimizer, activations, parameters"),
    ],
)
def test_an_option_that_is_wrong_or_without_effect_is_refused(option, value, rule):
    with pytest.raises(ConfigError, match=rf"--{option.replace('_', '-')} must {rule}, got"):
        build_config(GIVEN | {option: value})


def test_an_optimiser_whose_state_cannot_be_sliced_is_refused():
    with pytest.raises(ConfigError, match="--optimizer must be adamw with --zero-stage above 0"):
        build_config(GIVEN | {"zero_stage": 1, "optimizer": "adamw_8bit"})


def test_consumers_of_a_cluster_that_cannot_be_laid_out_are_refused_before_anything_starts():
    with pytest.raises(ConfigError, match=r"must divide the number of processes that train, 3; the nearest"):
        build_config(GIVEN | {"cluster": True, "num_consumers": 3, "tensor_parallel": 2})


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("--deepspeed zero3", {"zero_stage": "3"}),
        ("--deepspeed=zero2_offload", {"zero_stage": "2", "offload": ["parameters"]}),
        ("--fsdp2 --seed 1", {"zero_stage": "3", "seed": "1"}),
        ("--fsdp shard_grad_op", {"zero_stage": "2"}),
        ("--tp 2 --pp_size=4", {"tensor_parallel": "2", "pipeline_parallel": "4"}),
        ("--tensor-parallel-size 2", {"tensor_parallel": "2"}),
        ("--sequence_parallel_size 4", {"context_parallel": "4"}),
        ("--ulysses-sequence-parallel-size=4", {"context_parallel": "4"}),
        ("--cp 2", {"context_parallel": "2"}),
    ],
)
def test_a_layout_is_known_by_the_names_that_other_tools_have_for_it(words, options):
    assert parse(COMMAND, translate_layout_flags(words.split())).options == options


@pytest.mark.parametrize("words", ["--deepspeed zero4", "--deepspeed ds.json", "--fsdp all", "--deepspeed"])
def test_a_layout_that_nobody_knows_is_refused_with_those_that_are(words):
    with pytest.raises(ConfigError, match=r"must be one of|needs a value"):
        translate_layout_flags(words.split())


def test_a_layout_for_several_processes_is_refused_in_one_with_the_way_to_start_them(capsys):
    assert main(["train", "--tp", "2", "--pp", "2"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "--tensor-parallel 2 times --pipeline-parallel 2 needs 4 processes that train, and this is one" in said
    assert "`torchrun --nproc-per-node 4 -m paceline train`" in said
    assert main(["train", "--tp", "2", "--cp", "2"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "--pipeline-parallel 1 times --context-parallel 2 needs 4 processes that train, and this is one" in said


def test_ranks_that_only_sample_are_refused_in_one_process_with_the_way_to_start_them(capsys):
    assert main(["train", "--tp", "2", "--sampling-ranks", "1"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "--sampling-ranks must be 0 in one process, got 1; start `torchrun --nproc-per-node 3 -m paceline" in said
