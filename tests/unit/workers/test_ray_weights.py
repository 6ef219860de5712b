"""Weights on their way: the same bits behind them as before, in buckets, and an accident is noticed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from paceline.errors import TrainingError
from paceline.workers.ray import weights
from paceline.workers.ray.weights import buckets_of, manifest_of, read_bucket, trained_parameters, write_buckets
from tests.tiny import tiny_model


def sent(model, *, version: int = 3):
    """A manifest and its buckets, as read-only copies: what arrives in another process."""
    manifest = manifest_of(model, version=version, policy_version=7)
    buckets = [[array.copy() for array in read_bucket(model, names)] for names in manifest.buckets]
    for array in (array for bucket in buckets for array in bucket):
        array.flags.writeable = False
    return manifest, buckets


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_what_arrives_is_what_left_bit_by_bit(kind, recwarn):
    here, there = tiny_model(kind, seed=1), tiny_model(kind, seed=2)
    manifest, buckets = sent(here)
    write_buckets(there, manifest, buckets)
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
    write_buckets(there, manifest, buckets)
    assert all(torch.equal(one, other) for one, other in zip(here.parameters(), there.parameters(), strict=True))


def test_buckets_hold_every_parameter_once_and_no_more_bytes_than_allowed(monkeypatch):
    model = tiny_model("qwen2")
    sizes = {name: parameter.nbytes for name, parameter in trained_parameters(model).items()}
    monkeypatch.setattr(weights, "BUCKET_BYTES", 2 * max(sizes.values()))
    buckets = buckets_of(sizes)
    assert [name for names in buckets for name in names] == list(sizes)
    assert len(buckets) > 1
    assert all(sum(sizes[name] for name in names) <= weights.BUCKET_BYTES for names in buckets)


def test_one_flipped_bit_on_the_way_is_refused():
    here, there = tiny_model("qwen2", seed=1), tiny_model("qwen2", seed=2)
    manifest, buckets = sent(here)
    array = buckets[0][1].copy()
    array[len(array) // 2] ^= np.uint8(1)
    buckets[0][1] = array
    with pytest.raises(TrainingError, match=r"weights of version 3 arrived as \w{16}, they left as \w{16}"):
        write_buckets(there, manifest, buckets)


def test_the_weights_of_another_version_are_not_taken_for_these():
    here, there = tiny_model("qwen2", seed=1), tiny_model("qwen2", seed=2)
    manifest, buckets = sent(here)
    with pytest.raises(TrainingError, match="version 4"):
        write_buckets(there, replace(manifest, version=4, fingerprint=manifest.fingerprint ^ 1), buckets)
