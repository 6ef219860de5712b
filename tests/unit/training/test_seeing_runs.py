"""Runs whose prompts hold images: what is trained, at which rates, by which adapter, and what is kept of it."""

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from paceline.config.building import build_config
from paceline.models.activations import saved_bytes
from paceline.models.forward import measure_activations
from paceline.objective.cutting import input_tokens
from paceline.objective.micro_batches import pack
from paceline.training.backend import one_process
from paceline.training.learner.samples import samples_of
from paceline.training.session import train
from paceline.training.setup.checks import check
from paceline.training.setup.preparation import prepare_request
from paceline.training.setup.run_request import RunRequest
from tests.support.cluster_runs import options_in
from tests.support.seeing_runs import seeing_options_in

SEEING_PARTS = ("vision_model", "connector", "visual")


def backend_in(place: Path, kind: str = "idefics3", **more):
    config = build_config({**seeing_options_in(place, kind), **more})
    request = RunRequest(config=config, output_dir=place / "run")
    return one_process(config, prepare_request(request, check(config)))


def updated(place: Path, kind: str = "idefics3", **more):
    """A backend after one step, and its weights before it."""
    backend = backend_in(place, kind, learning_rate=0.01, **more)
    before = {name: weight.detach().clone() for name, weight in backend.trainer.policy.model.named_parameters()}
    groups = backend.sampler.sample(backend.task_sampler.take, 4).groups
    stats, _ = backend.update(1, groups)
    assert stats.updates == 1
    return backend, before


def moved(backend, before) -> dict[str, bool]:
    after = dict(backend.trainer.policy.model.named_parameters())
    return {name: not torch.equal(after[name], weight) for name, weight in before.items()}


def sees(name: str) -> bool:
    return any(part in name.split(".") for part in SEEING_PARTS)


@pytest.mark.parametrize("kind", ["idefics3", "qwen2_5_vl"])
def test_an_encoder_is_frozen_unless_it_is_asked_for(tmp_path, kind):
    backend, before = updated(tmp_path / "run", kind)
    changes = moved(backend, before)
    assert not any(change for name, change in changes.items() if sees(name))
    assert any(change for name, change in changes.items() if not sees(name))
    vision, learner = backend.trainer.policy.vision, backend.trainer.learner
    assert vision.counts["encoded"] == 3  # of the four prompts one has none; engine and trainer share features
    moments = {id(parameter) for parameter in learner.optimizer.state}
    assert moments.isdisjoint(map(id, vision.parameters()))


@pytest.mark.parametrize("kind", ["idefics3", "qwen2_5_vl"])
def test_a_trained_encoder_and_projector_change_in_every_part(tmp_path, kind):
    backend, before = updated(tmp_path / "run", kind, train_vision=True, train_projector=True)
    changes = moved(backend, before)
    assert [name for name, change in changes.items() if sees(name) and not change] == []
    assert backend.trainer.policy.vision._kept == {}  # the engine is to see with the new weights


def test_a_projector_is_trained_alone(tmp_path):
    backend, before = updated(tmp_path / "run", train_projector=True)
    changes = {name: change for name, change in moved(backend, before).items() if sees(name)}
    assert {name.split(".")[1] for name, change in changes.items() if change} == {"connector"}


def test_what_reads_images_has_a_rate_of_its_own(tmp_path):
    rates = {"train_vision": True, "vision_learning_rate": 0.002, "weight_decay": 0.1}
    backend, _ = updated(tmp_path / "run", **rates)
    groups = backend.trainer.learner.optimizer.param_groups
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [
        (0.01, 0.1),
        (0.01, 0.0),
        (0.002, 0.1),
        (0.002, 0.0),
    ]
    of_vision = {id(parameter) for group in groups[2:] for parameter in group["params"]}
    trained = {id(parameter) for parameter in backend.trainer.policy.vision.parameters() if parameter.requires_grad}
    assert of_vision == trained


@pytest.mark.parametrize("targets", ["all-linear", "q_proj"])
def test_an_adapter_leaves_out_what_reads_images(tmp_path, targets):
    pytest.importorskip("peft")
    backend, _ = updated(tmp_path / "run", lora_rank=2, lora_targets=(targets,))
    adapted = {name for name, parameter in backend.trainer.policy.model.named_parameters() if parameter.requires_grad}
    assert adapted
    assert not any(map(sees, adapted))
    backend.export(tmp_path / "final")
    saved = load_file(tmp_path / "final" / "adapter_model.safetensors")
    assert not any(map(sees, saved))
    assert not backend.trainer.policy.vision.is_trained


def test_an_adapter_reaches_what_reads_images_where_it_is_asked_to(tmp_path):
    pytest.importorskip("peft")
    backend, before = updated(tmp_path / "run", lora_rank=2, lora_vision=True, beta=0.1)
    changes = {name for name, change in moved(backend, before).items() if change}
    assert any(map(sees, changes))
    assert all("lora_" in name for name in changes)


def test_a_reference_of_a_trained_encoder_sees_with_its_first_weights(tmp_path):
    backend, before = updated(tmp_path / "run", train_vision=True, train_projector=True, beta=0.1)
    policy, reference = backend.trainer.policy, backend.trainer.learner.reference
    assert reference.vision is not policy.vision
    assert all(torch.equal(weight, before[name]) for name, weight in reference.model.named_parameters())
    frozen = backend_in(tmp_path / "frozen", beta=0.1).trainer
    assert frozen.learner.reference.vision is frozen.policy.vision


def test_runs_of_text_load_nothing_that_reads_images(tmp_path):
    config = build_config({**options_in(tmp_path / "run"), "max_steps": 1})
    request = RunRequest(config=config, output_dir=tmp_path / "run" / "run")
    inputs = prepare_request(request, check(config))
    assert (inputs.pictures, inputs.run_size.images) == (None, None)
    assert train(request, inputs, console=Console(file=io.StringIO()))
    assert not list((tmp_path / "run" / "run" / "images").glob("*"))


def test_micro_batches_are_cut_by_what_is_kept_of_images(tmp_path):
    assert backend_in(tmp_path / "frozen").trainer.learner._image_cost == 0
    # a kind without marks between the rows of an image
    backend = backend_in(tmp_path / "trained", "qwen2_5_vl", train_vision=True, train_projector=True)
    policy, learner = backend.trainer.policy, backend.trainer.learner
    samples = samples_of(backend.sampler.sample(backend.task_sampler.take, 4).groups)
    batch = pack(samples, [0.0] * len(samples), range(len(samples)), dtype=torch.float32)
    forward = learner.runner.forward
    kept = saved_bytes(policy.model, lambda: forward(policy.model, batch))
    of_token = measure_activations(policy.model, forward, torch.float32).all_layers
    tokens = input_tokens(samples, range(len(samples)), image_cost=learner._image_cost)
    assert tokens * of_token == pytest.approx(kept, rel=0.15)
    assert input_tokens(samples, range(len(samples))) * of_token < 0.8 * kept
