"""Weights on their way: the same bits behind them as before, in buckets, and an accident is noticed."""

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from paceline.errors import TrainingError
from paceline.kernels.checksums import fingerprint
from paceline.models.parallel.process_group import RankLost
from paceline.workers import weight_sync
from paceline.workers.weight_sync import (
    Manifest,
    WeightsChecksum,
    WeightsGroup,
    buckets_of,
    check_copies,
    give_weights,
    manifest_of,
    read_bucket,
    taken,
    weights_in,
    write_weights,
)
from tests.support.tiny import tiny_model


def sent(model, *, version: int = 3):
    """A manifest and its buckets, as read-only copies: what arrives in another process."""
    manifest = manifest_of(model, version=version, policy_version=7)
    buckets = [[array.copy() for array in read_bucket(model, names)] for names in manifest.buckets]
    for array in (array for bucket in buckets for array in bucket):
        array.flags.writeable = False
    return manifest, buckets


def write(model, manifest, buckets) -> None:
    write_weights(model, manifest, weights_in(model, manifest, buckets))


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_what_arrives_is_what_left_bit_by_bit(kind, recwarn):
    here, there = tiny_model(kind, seed=1), tiny_model(kind, seed=2)
    manifest, buckets = sent(here)
    write(there, manifest, buckets)
    for one, other in zip(here.parameters(), there.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not [warning for warning in recwarn if "not writable" in str(warning.message)]


def test_only_what_is_trained_travels():
    model = tiny_model("qwen2")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.model.norm.weight.requires_grad_(True)
    manifest, buckets = sent(model)
    assert manifest.buckets == (("model.norm.weight",),)
    assert buckets[0][0].nbytes == model.model.norm.weight.nbytes


def test_of_an_adapter_no_more_than_its_matrices_travels_at_most_a_twentieth_of_the_weights():
    peft = pytest.importorskip("peft")
    width, inner, words, rank = 256, 512, 1024, 4
    sizes = {"vocab_size": words, "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    here, there = (Qwen2ForCausalLM(Qwen2Config(**sizes, **heads, tie_word_embeddings=False)) for _ in range(2))
    there.load_state_dict(here.state_dict())
    everything = manifest_of(here, version=1, policy_version=1).nbytes
    for model in (here, there):
        peft.get_peft_model(model, peft.LoraConfig(r=rank, target_modules="all-linear", init_lora_weights=False))
    manifest, buckets = sent(here)
    # A [rank, inputs] and B [outputs, rank] of four layers of attention and three of the gated ones
    assert manifest.nbytes == 2 * 4 * rank * (4 * (width + width) + 3 * (width + inner))
    assert manifest.nbytes == sum(array.nbytes for bucket in buckets for array in bucket) <= 0.05 * everything
    write(there, manifest, buckets)
    assert all(torch.equal(one, other) for one, other in zip(here.parameters(), there.parameters(), strict=True))


def test_buckets_hold_every_parameter_once_and_no_more_bytes_than_allowed(monkeypatch):
    model = tiny_model("qwen2")
    sizes = {name: parameter.nbytes for name, parameter in model.named_parameters()}
    monkeypatch.setattr(weight_sync, "BUCKET_BYTES", 2 * max(sizes.values()))
    buckets = buckets_of(sizes)
    assert [name for names in buckets for name in names] == list(sizes)
    assert len(buckets) > 1
    assert all(sum(sizes[name] for name in names) <= weight_sync.BUCKET_BYTES for names in buckets)


def test_one_flipped_bit_on_the_way_is_refused():
    here, there = tiny_model("qwen2", seed=1), tiny_model("qwen2", seed=2)
    manifest, buckets = sent(here)
    array = buckets[0][1].copy()
    array[len(array) // 2] ^= np.uint8(1)
    buckets[0][1] = array
    with pytest.raises(TrainingError, match=r"weights of version 3 arrived as \w{16}, they left as \w{16}"):
        write(there, manifest, buckets)


def test_the_weights_of_another_version_are_not_taken_for_these():
    here, there = tiny_model("qwen2", seed=1), tiny_model("qwen2", seed=2)
    manifest, buckets = sent(here)
    with pytest.raises(TrainingError, match="version 4"):
        write(there, replace(manifest, version=4, fingerprint=manifest.fingerprint ^ 1), buckets)


# --- to a rank that only samples: each in the manifest's order, into the parameter of its name

CPU = torch.device("cpu")


class Gives:
    """The first rank's end of a way within this process."""

    def __init__(self) -> None:
        self.sent = deque[Tensor]()

    def broadcast(self, tensor: Tensor) -> None:
        self.sent.append(tensor.clone())


class Takes:
    """The other end."""

    def __init__(self, sent: deque[Tensor]) -> None:
        self.sent = sent

    def broadcast(self, tensor: Tensor) -> None:
        tensor.copy_(self.sent.popleft())


def layers(*values: float) -> nn.Sequential:
    model = nn.Sequential(*(nn.Linear(2, 1, bias=False) for _ in values))
    for layer, value in zip(model, values, strict=True):
        nn.init.constant_(layer.weight, value)
    return model


def test_weights_come_into_the_parameters_of_their_names_and_the_others_stay():
    there, gives = layers(1.0, 2.0, 3.0), Gives()
    for parameter in there.parameters():
        parameter.requires_grad_(False)
    third, first = torch.full((2, 1), 8.0).T, torch.full((1, 2), 7.0)
    found = fingerprint([third.contiguous(), first])
    buckets = ("2.weight",), ("0.weight",)
    manifest = Manifest(version=1, policy_version=1, buckets=buckets, nbytes=16, fingerprint=found)
    give_weights(gives, manifest, {"0.weight": first, "2.weight": third}, CPU)
    write_weights(there, manifest, taken(Takes(gives.sent), there, manifest))
    assert [parameter.tolist() for parameter in there.parameters()] == [[[7.0, 7.0]], [[2.0, 2.0]], [[8.0, 8.0]]]
    assert not gives.sent


def test_a_bit_that_flips_in_a_broadcast_is_refused():
    there, gives = layers(1.0), Gives()
    manifest = Manifest(version=1, policy_version=1, buckets=(("0.weight",),), nbytes=8, fingerprint=5)
    give_weights(gives, manifest, {"0.weight": torch.full((1, 2), 7.0)}, CPU)
    with pytest.raises(TrainingError, match="weights of version 1 arrived as"):
        write_weights(there, manifest, taken(Takes(gives.sent), there, manifest))


@pytest.mark.long
def test_who_waits_for_weights_that_do_not_come_knows_in_the_end():
    store = dist.HashStore()

    def join(number: int) -> WeightsGroup:
        return WeightsGroup(store, rank=number, size=2, device=CPU, timeout=5)

    with ThreadPoolExecutor(2) as threads:
        first, last = threads.map(join, range(2))
    with pytest.raises(RankLost, match="weights were sent to the ranks that sample when another rank went away"):
        last.broadcast(torch.zeros(3))
    del first


# --- copies of the same weights are compared after every update, and the rank with others is named


def held(part: tuple[int, ...], fingerprint: int) -> WeightsChecksum:
    return WeightsChecksum(part=part, fingerprint=fingerprint)


def test_ranks_with_the_same_part_and_the_same_bits_go_on():
    check_copies([held((0,), 7), held((1,), 8), None, held((0,), 7), held((1,), 8)], policy_version=3, who="rank")


def test_a_copy_with_other_bits_is_named_with_the_first_one_of_its_part():
    copies = [held((0,), 7), held((1,), 8), None, held((0,), 7), held((1,), 9)]
    with pytest.raises(TrainingError, match=r"rank 4 has weights 0{15}9 after update 3, rank 1 has 0{15}8; they must"):
        check_copies(copies, policy_version=3, who="rank")
