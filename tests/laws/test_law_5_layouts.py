"""Law 5 over layouts: what four ranks have saved any other ranks go on with, in any layout, as the four would have."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

from paceline.config.sections import ModelConfig
from paceline.models.loaded import export_model
from paceline.models.loading import load_model, restore_weights
from paceline.models.parallel.pieces import files_of, open_stored
from paceline.models.parallel.ranks import ONE_RANK
from tests.laws.checkpoints import CASES, READERS, WRITERS, fresh, go_on, merging, resumed, save, work
from tests.laws.layouts import file_name, llama_with_one_embedding
from tests.laws.splitting import relative
from tests.support.forked import fork_ranks
from tests.support.tiny import tiny_tokenizer

pytestmark = pytest.mark.long

EXACT = 1e-12
by_case = pytest.mark.parametrize("case", CASES, ids=[file_name(*case) for case in CASES])
by_reader = pytest.mark.parametrize("reader", READERS)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("four")
    fork_ranks(work, str(folder), count=4)
    return folder


def agree(found, wanted) -> None:
    (loss, weights), (wanted_loss, wanted_weights) = found, wanted
    assert loss == pytest.approx(wanted_loss, rel=EXACT, abs=EXACT)
    assert weights.keys() == wanted_weights.keys()
    assert max(relative(weights[name], wanted_weights[name]) for name in weights) < EXACT


def next_step(written: Path, case):
    return torch.load(written.joinpath(*case, "next.pt"), weights_only=True)


@by_case
def test_one_process_goes_on_with_what_four_ranks_saved(written, case):
    half, damaged = resumed(case[1], written.joinpath(*case, "checkpoints"), ONE_RANK)
    assert damaged == ()
    agree(go_on(half), next_step(written, case))


@by_reader
@by_case
def test_other_ranks_go_on_with_what_four_ranks_saved(written, case, reader):
    for rank in range(READERS[reader][0].ranks):
        found = torch.load(written.joinpath(*case, f"{reader}-{rank}.pt"), weights_only=True)
        agree(found, next_step(written, case))


@by_case
def test_four_ranks_export_the_files_that_one_process_exports(written, case, tmp_path):
    half, _ = resumed(case[1], written.joinpath(*case, "checkpoints"), ONE_RANK)
    export_model(half.policy, tiny_tokenizer(), tmp_path, merge=False)
    theirs, ours = (
        {path.name: path.read_bytes() for path in folder.iterdir()}
        for folder in (written.joinpath(*case, "final"), tmp_path)
    )
    assert theirs == ours
    assert any(name.endswith(".safetensors") for name in ours)


def test_an_adapter_on_four_ranks_is_merged_into_the_files_that_one_process_makes(written, tmp_path):
    merging(ONE_RANK).export(tmp_path)
    theirs, ours = (
        {path.name: path.read_bytes() for path in folder.iterdir()} for folder in (written / "merged", tmp_path)
    )
    assert theirs == ours


@by_case
def test_whole_parameters_come_in_the_order_of_the_whole_model_and_to_the_first_rank_alone(written, case):
    names = [json.loads(written.joinpath(*case, f"names-{rank}.json").read_text()) for rank in range(4)]
    model = fresh(case[1], ONE_RANK).policy.model
    assert names[0] == [name for name, one in model.named_parameters() if one.requires_grad]
    assert names[1:] == [[], [], []]


@pytest.mark.parametrize("writer", WRITERS)
def test_nothing_is_written_twice(written, writer):
    place = written.joinpath(writer, "qwen2", "checkpoints", "step-000002")
    alone = save(fresh("qwen2", ONE_RANK), written / "alone" / writer)
    size = sum(one.numel() * 8 for one in fresh("qwen2", ONE_RANK).policy.model.parameters())
    for pattern, copies in (("model/*.safetensors", 1), ("optimizer*.safetensors", 2)):
        found = sum(path.stat().st_size for path in place.glob(pattern))
        assert copies * size <= found < 1.1 * copies * size + 40_000
    assert (alone.path / "model" / "model.safetensors").is_file()


def test_copies_are_saved_as_one_process_saves_them(written):
    place = written.joinpath("4 replicas", "qwen2", "checkpoints", "step-000002")
    found = sorted(str(path.relative_to(place)) for path in place.rglob("*.safetensors"))
    assert found == ["model/model.safetensors", "optimizer.safetensors"]


@pytest.mark.parametrize("file", ["model/pieces-00002-of-00004.safetensors", "optimizer-00003-of-00004.safetensors"])
@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_a_damaged_file_of_one_rank_is_named_and_the_checkpoint_before_it_is_taken(written, tmp_path, file, damage):
    good = written.joinpath("ZeRO-3 over 4", "qwen2", "checkpoints", "step-000002")
    for step in (1, 2):
        shutil.copytree(good, tmp_path / f"step-{step:06d}")
    path = tmp_path / "step-000002" / file
    content = path.read_bytes()
    path.unlink()
    if damage == "flipped":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    half, (sentence,) = resumed("qwen2", tmp_path, ONE_RANK)
    assert str(path) in sentence
    assert "skipped" in sentence
    agree(go_on(half), next_step(written, ("ZeRO-3 over 4", "qwen2")))


def test_a_rank_that_cannot_write_ends_the_checkpoint_for_all_of_them(written):
    for rank in range(4):
        assert "rank 2: " in (written / f"full-{rank}").read_text()
        said = (written / f"full-{rank}").read_text()
        assert re.search(r"No space left on device; a checkpoint needs [\d,]+ bytes, [\d,]+ are free; make room", said)
    assert list((written / "full").iterdir()) == []


def test_what_an_optimiser_keeps_of_slices_alone_is_refused(written):
    for rank in range(4):
        sentence = (written / f"refused-{rank}").read_text()
        assert sentence.startswith("AdamW keeps 'rows' in a shape of its own for slices of parameters")


@pytest.mark.parametrize("writer", ["ZeRO-3 over 4", "2 replicas of ZeRO-3 over 2"])
def test_torch_reads_the_pieces_as_a_distributed_checkpoint(written, writer):
    half, _ = resumed("qwen2", written.joinpath(writer, "qwen2", "checkpoints"), ONE_RANK)
    wanted = half.policy.model.state_dict()
    found = {name: torch.zeros_like(one) for name, one in wanted.items()}
    place = written.joinpath(writer, "qwen2", "checkpoints", "step-000002", "model")
    dcp.load(found, storage_reader=HuggingFaceStorageReader(str(place)), no_dist=True)
    assert all(torch.equal(found[name], one) for name, one in wanted.items())


def test_stages_are_saved_and_gathered_as_the_whole_model(written):
    model, other = (llama_with_one_embedding(torch.float64, seed) for seed in (0, 1))
    wanted = [(name, one.detach()) for name, one in model.model.named_parameters()]
    for rank in range(4):
        found = torch.load(written / "stages" / f"{rank}.pt", weights_only=True)
        assert [name for name, _ in found] == [name for name, _ in wanted]
        assert all(torch.equal(one, whole) for (_, one), (_, whole) in zip(found, wanted, strict=True))
    restore_weights(other, written / "stages")
    assert all(torch.equal(one, whole) for one, (_, whole) in zip(other.model.parameters(), wanted, strict=True))
    assert other.model.lm_head.weight is other.model.model.embed_tokens.weight


def test_what_is_cut_in_two_directions_is_whole_again(written):
    with open_stored(files_of(written / "two directions", "cut")) as stored:
        for name, shape in (("0.weight", (7, 6)), ("1.weight", (5, 7))):
            assert torch.equal(stored.read(name), torch.arange(shape[0] * shape[1]).view(shape))


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_a_rank_reads_its_own_part_of_a_model_and_computes_what_the_whole_one_does(written, kind):
    place = written / "start" / kind
    whole = load_model(ModelConfig(model=str(place))).model
    assert len(list(place.glob("*.safetensors"))) > 1
    for rank in range(4):
        found, logits, local, kept = torch.load(place / f"{rank}.pt", weights_only=True)
        for (name, one), (theirs, weight) in zip(found, whole.named_parameters(), strict=True):
            assert name == theirs
            assert torch.equal(one, weight)
        assert local == pytest.approx(sum(one.numel() for one in whole.parameters()) / 2, rel=0.05)
        assert torch.allclose(logits, whole(torch.tensor([[1, 2, 3]])).logits, atol=1e-5)
        assert kept == "packed"
