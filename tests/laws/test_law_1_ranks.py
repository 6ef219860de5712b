"""Law 1 over ranks: each of two processes has half of a step, their summed gradients are that of the whole step."""

import json
import random
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.laws.splitting import FORWARDS, TOLERANCE, Splitter, losses, random_cut, random_samples, relative

CUTS = 8
CASES = [(name, dtype) for name in losses() for dtype in TOLERANCE]


def differences(rank: int, folder: str) -> None:
    """One of two processes: every case, every cut; rank 0 writes down how far the sum is from the whole."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    found = {}
    for number, (name, dtype) in enumerate(CASES):
        splitter = Splitter(random_samples(number), losses()[name], dtype)
        whole = splitter.whole()
        for cut in range(CUTS):
            chance = random.Random(f"{number} {cut}")  # the same on both ranks
            rows = list(range(len(splitter.samples)))
            chance.shuffle(rows)
            share = rows[rank::2]
            gradient = splitter.gradient(random_cut(chance, share), choose=lambda c=chance: c.choice(FORWARDS))
            dist.all_reduce(gradient)
            found[f"{name} {dtype} {cut}"] = relative(gradient, whole)
    if rank == 0:
        Path(folder, "differences.json").write_text(json.dumps(found))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, float]:
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(differences, args=(str(folder),), nprocs=2)
    return json.loads((folder / "differences.json").read_text())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", losses())
def test_two_ranks_sum_to_the_gradient_of_the_whole_step(found, name, dtype):
    for cut in range(CUTS):
        assert found[f"{name} {dtype} {cut}"] <= TOLERANCE[dtype]
