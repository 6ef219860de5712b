"""Models that read images: what stands for an image, and hidden states against the model's own forward pass."""

from dataclasses import replace

import pytest
import torch

from paceline.config.sections import ModelConfig
from paceline.config.vision import VisionConfig
from paceline.models.forward import choose_forward
from paceline.models.loading import load_model
from paceline.models.vision.placeholders import read_placeholders
from paceline.objective.micro_batches import one_turn, pack
from tests.support.seeing import SEEING, HeldPictures, picture, prompt_with, seeing_tokenizer, write_seeing_model

KINDS = sorted(SEEING)
FIRST, SECOND = picture(1), picture(2, 32, 48)
PICTURES = HeldPictures(FIRST, SECOND)


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    return {kind: write_seeing_model(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def loaded(kind, directories):
    loaded = load_model(ModelConfig(model=str(directories[kind]), device="cpu", dtype="float32"), pictures=PICTURES)
    loaded.model.double()  # float64 tells a mistake from rounding
    loaded.vision.compute_dtype = torch.float64
    return loaded


@pytest.fixture
def placeholders(kind, directories):
    return read_placeholders(ModelConfig(model=str(directories[kind])), VisionConfig(), seeing_tokenizer(kind))


def samples_of(kind, placeholders, *, last=65):
    """Return four completions of three prompts: one image with two completions, two images, and text alone."""
    tokenizer = seeing_tokenizer(kind)
    prompts = [
        prompt_with(tokenizer, placeholders, "look {} what?", FIRST),
        prompt_with(tokenizer, placeholders, "{} or {} now", SECOND, FIRST),
        prompt_with(tokenizer, placeholders, "no image"),
    ]
    samples = []
    for group, text in [(0, "a cat"), (0, "two"), (1, "three dogs"), (2, "none")]:
        ids, media = prompts[group]
        completion = (*tokenizer.encode(text), last, 258)
        sample = one_turn(group=group, prompt_ids=tuple(ids), completion_ids=completion, advantage=1.0)
        samples.append(replace(sample, prompt_media=tuple(media)))
    return samples


def packed_batch(samples):
    return pack(samples, [1.0] * len(samples), range(len(samples)), dtype=torch.float64)


def own_states(loaded, sample):
    """Return the hidden state before each completion token, by the model's own forward pass from pixels."""
    ids, inputs = torch.tensor([[*sample.prompt_ids, *sample.completion_ids[:-1]]]), {}
    if images := [PICTURES.pixels(image.sha256) for image in sample.prompt_media]:
        made = loaded.vision.processor(images=images, return_tensors="pt")
        inputs = {name: made[name] for name in loaded.vision.family.tensors}
        if loaded.vision.family.axes > 1:
            inputs["mm_token_type_ids"] = (ids == loaded.vision.image_token_id).int()
    with torch.no_grad():
        states = loaded.model.base_model(input_ids=ids, use_cache=False, **inputs).last_hidden_state[0]
    return states[len(sample.prompt_ids) - 1 :]


def test_hidden_states_are_those_of_the_models_own_forward_pass(kind, loaded, placeholders):
    samples = samples_of(kind, placeholders)
    forward = choose_forward(loaded.model, torch.float64, loaded.vision)
    assert forward.kind == "packed", forward.reason
    wanted = torch.cat([own_states(loaded, sample) for sample in samples])
    with torch.no_grad():
        packed = forward(loaded.model, packed_batch(samples))
        padded = replace(forward, kind="padded")(loaded.model, packed_batch(samples))
    torch.testing.assert_close(packed, wanted, rtol=0, atol=1e-10)
    torch.testing.assert_close(padded, wanted, rtol=0, atol=1e-10)


def test_swapped_images_give_other_hidden_states(kind, loaded, placeholders):
    samples = samples_of(kind, placeholders)[2:3]
    forward = choose_forward(loaded.model, torch.float64, loaded.vision)
    ids, media = prompt_with(seeing_tokenizer(kind), placeholders, "{} or {} now", SECOND, SECOND)
    other = [replace(samples[0], prompt_ids=tuple(ids), prompt_media=tuple(media))]
    with torch.no_grad():
        states = [forward(loaded.model, packed_batch(rows)) for rows in (samples, other)]
    assert (states[0] - states[1]).abs().max() > 0.1


def test_a_sampled_image_token_is_an_ordinary_token(kind, loaded, placeholders):
    samples = samples_of(kind, placeholders, last=placeholders.image_token_id)
    forward = choose_forward(loaded.model, torch.float64, loaded.vision)
    with torch.no_grad():
        packed = forward(loaded.model, packed_batch(samples))
        padded = replace(forward, kind="padded")(loaded.model, packed_batch(samples))
    torch.testing.assert_close(packed, padded, rtol=0, atol=1e-10)
    assert loaded.vision.counts["encoded"] == 2  # each image once, for two groups and two passes
