"""Law 1 for models that read images: one gradient, however prompts with images are cut, ordered, packed or padded."""

import random
from dataclasses import replace

import pytest
import torch

from paceline.config.objective import LossConfig, OptimConfig
from paceline.config.sections import ModelConfig
from paceline.config.vision import VisionConfig
from paceline.models.forward import choose_forward
from paceline.models.loading import load_model
from paceline.models.vision.placeholders import read_placeholders
from paceline.objective.micro_batches import pack, token_weights
from paceline.training.learner.learner import Learner
from tests.laws.splitting import MAX_LENGTH, TEMPERATURE, random_cut, relative
from tests.support.episodes import sample
from tests.support.exact import Float64Kept
from tests.support.seeing import SEEING, HeldPictures, picture, prompt_with, seeing_tokenizer, write_seeing_model

EXACT = 1e-10
SEEN = [picture(1), picture(2, 40, 24), picture(3, 24, 40)]
OTHER = picture(4)
"""An image of the size of the first one."""
PROMPTS = [("which {} is it?", (0,)), ("{} or {}: which?", (1, 2)), ("no picture", ()), ("again {}!", (0,))]
"""Texts and the images in them: one, two, none, and one that another prompt has too."""


@pytest.fixture(scope="module", params=sorted(SEEING))
def directory(request, tmp_path_factory):
    return write_seeing_model(tmp_path_factory.mktemp(request.param), request.param)


def half(directory, vision):
    """A learner in float64 whose policy reads images, and rows of prompts with images and without."""
    config, tokenizer = ModelConfig(model=str(directory), device="cpu"), seeing_tokenizer(directory.name.rstrip("0"))
    loaded = load_model(config, pictures=HeldPictures(*SEEN, OTHER), vision=vision)
    loaded.model.double()
    loaded, loaded.vision.compute_dtype = replace(loaded, compute_dtype=torch.float64), torch.float64
    placeholders = read_placeholders(config, VisionConfig(), tokenizer)
    chance, samples = random.Random(0), []
    for group, (text, images) in enumerate(PROMPTS):
        ids, media = prompt_with(tokenizer, placeholders, text, *(SEEN[image] for image in images))
        for _ in range(chance.randint(1, 3)):
            completion = [chance.randrange(256) for _ in range(chance.randint(1, MAX_LENGTH))]
            row = sample(
                group=group,
                prompt_ids=tuple(ids),
                completion_ids=(*completion, placeholders.image_token_id),  # sampled, it is an ordinary token
                logprobs=(-5.0,) * (len(completion) + 1),
                advantage=chance.gauss(0, 1),
            )
            samples.append(replace(row, prompt_media=tuple(media)))
    with Float64Kept():
        learner = Learner(
            loaded,
            choose_forward(loaded.model, torch.float64, loaded.vision),
            reference=None,
            loss=LossConfig(),
            optim=OptimConfig(),
            temperature=TEMPERATURE,
            max_completion_length=MAX_LENGTH,
        )
    return learner, samples


def gradient(learner, samples, cuts, *, kind=None):
    """Of the whole step from micro-batches of `cuts`, of every parameter that has one."""
    model = learner.policy.model
    model.zero_grad()
    weights = token_weights(samples, average="token", max_completion_length=MAX_LENGTH)
    if kind is not None:
        learner.runner.forward = replace(learner.runner.forward, kind=kind)
    with Float64Kept():
        for rows in cuts:
            learner.backward([pack(samples, weights, rows, dtype=torch.float64)], first=True)
    moved = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    return torch.cat(moved).clone()


@pytest.mark.parametrize("is_trained", [False, True])
def test_the_gradient_does_not_hang_on_how_images_are_cut_apart(directory, is_trained):
    learner, samples = half(directory, VisionConfig(train_vision=is_trained, train_projector=is_trained))
    assert learner.policy.vision.is_trained is is_trained
    rows, chance = range(len(samples)), random.Random(1)
    whole = gradient(learner, samples, [rows])
    assert relative(gradient(learner, samples, random_cut(chance, rows)), whole) <= EXACT
    assert relative(gradient(learner, samples, [[row] for row in reversed(rows)]), whole) <= EXACT
    assert relative(gradient(learner, samples, [rows], kind="padded"), whole) <= EXACT
    assert relative(gradient(learner, samples, random_cut(chance, rows), kind="padded"), whole) <= EXACT
    # and it does hang on the images
    swapped = [
        replace(row, prompt_media=(replace(row.prompt_media[0], sha256=HeldPictures.sha256(OTHER)),))
        if row.group == 0
        else row
        for row in samples
    ]
    assert relative(gradient(learner, swapped, [rows], kind="packed"), whole) > 1e-3


def test_a_frozen_encoder_computes_each_image_once_and_has_no_gradient(directory):
    learner, samples = half(directory, VisionConfig())
    vision = learner.policy.vision
    vision.forget()
    before = vision.counts["encoded"]
    for _ in range(3):
        gradient(learner, samples, [[row] for row in range(len(samples))])
    assert vision.counts["encoded"] - before == len(SEEN)
    assert all(parameter.grad is None for parameter in vision.parameters())


def test_a_trained_encoder_computes_each_image_once_per_micro_batch(directory):
    learner, samples = half(directory, VisionConfig(train_vision=True, train_projector=True))
    vision = learner.policy.vision
    before = vision.counts["encoded"]
    gradient(learner, samples, [range(len(samples))])  # four prompts, of which two have the same image
    assert vision.counts["encoded"] - before == len(SEEN)
