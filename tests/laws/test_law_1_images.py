"""Law 1 for prompts with images: encoder, projector and language model have one gradient however a step is cut."""

import contextlib
import random

import pytest
import torch

from paceline.config.objective import LossConfig
from tests.laws.splitting import FORWARDS, Splitter, random_cut, relative, samples_with_images
from tests.support.exact import Float64Kept

MORE = ("smolvlm", "llava", "mistral3", "internvl", "qwen2_vl", "glm4v", "qwen3_5", "gemma4", "gemma4, blocks")
KINDS = ["idefics3", "qwen2_5_vl", "qwen3_vl", "gemma3", *(pytest.param(kind, marks=pytest.mark.long) for kind in MORE)]
IN_FLOAT32 = "glm4v"
"""A kind that interpolates its positions in float32, whatever the model's precision."""
PADDED_ALONE = ("gemma3", "gemma4, blocks")


@pytest.mark.parametrize("kind", KINDS)
def test_images_give_one_gradient_however_a_step_is_cut_and_laid_out(kind):
    bound = 1e-5 if kind == IN_FLOAT32 else 1e-10
    with contextlib.nullcontext() if kind == IN_FLOAT32 else Float64Kept():
        splitter, chance = Splitter(samples_with_images(kind), LossConfig(), torch.float64, kind=kind), random.Random(0)
        vision, everyone = splitter.learner.policy.vision, range(len(splitter.samples))
        ways = FORWARDS[1:] if kind in PADDED_ALONE else FORWARDS
        whole = splitter.gradient([everyone], choose=lambda: ways[0])
        towers = [parameter.grad for parameter in vision.parameters() if parameter.grad is not None]
        assert min(gradient.norm() for gradient in towers) > 0
        sevenths = [list(everyone[start::7]) for start in range(7) if everyone[start::7]]
        for cut in ([everyone[::2], everyone[1::2]], sevenths, random_cut(chance, everyone)):
            for way in ways:
                assert relative(splitter.gradient(cut, choose=lambda way=way: way), whole) <= bound


@pytest.mark.parametrize("kind", ["idefics3", "qwen3_vl"])
def test_a_frozen_encoder_sees_each_image_once_and_has_no_gradient(kind):
    splitter = Splitter(samples_with_images(kind), LossConfig(), torch.float64, kind=kind)
    vision = splitter.learner.policy.vision
    for parameter in vision.parameters():
        parameter.requires_grad_(False)
    vision.forget()
    vision.counts["encoded"] = 0
    splitter.gradient([[row] for row in range(len(splitter.samples))])
    assert vision.counts["encoded"] == 2
    assert all(parameter.grad is None for parameter in vision.parameters())
    assert all(not image.rows.requires_grad for image in vision.features(vision._kept).values())
