"""vLLM in the processes of a launcher's ranks: the run of the local engine in float32, in every way of weights."""

import pytest
from safetensors.numpy import load

from paceline.checkpoints.run_directory import RunDir
from paceline.engines.vllm.window import check_vllm
from paceline.errors import ConfigError
from tests.support.cluster_runs import completions, options_in, weights
from tests.support.ranked_runs import torchrun

try:
    check_vllm("cpu")
except ConfigError as missing:
    pytest.skip(str(missing), allow_module_level=True)

VLLM = ("--engine=vllm", "--concurrent-sequences=16", "--vllm-memory=0.05GiB", "--max-prompt-length=64")
LAYOUTS = {
    "on the trained weights": ((), 2),
    "on a copy of slices": (("--zero-stage=3",), 2),
    "ahead of those that train": (("--sampling-ranks=1", "--max-staleness=1", "--zero-stage=2"), 3),
    "with an adapter": (("--sampling-ranks=1", "--lora-rank=2", "--merge-lora"), 2),
}


def run_in(place, *more, ranks) -> RunDir:
    given = [f"--{name}={value}" for name, value in options_in(place, kind="llama").items()]
    done = torchrun("train", *given, *more, f"--output-dir={place / 'run'}", ranks=ranks)
    assert done.returncode == 0, done.stderr
    return RunDir(place / "run")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_that_sample_with_vllm_make_the_run_of_the_local_engine(tmp_path, layout):
    more, ranks = LAYOUTS[layout]
    ours, theirs = (run_in(tmp_path / name, *more, *engine, ranks=ranks) for name, engine in (("v", VLLM), ("l", ())))
    assert [[(one["completion"], one["rewards"]) for one in step] for step in completions(ours)] == [
        [(one["completion"], one["rewards"]) for one in step] for step in completions(theirs)
    ]
    mine, wanted = load(weights(ours)), load(weights(theirs))
    assert max(abs(mine[name] - wanted[name]).max() for name in wanted) < 1e-4
