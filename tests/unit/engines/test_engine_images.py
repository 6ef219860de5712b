"""Prompts with images in the local engine: each completion is that of its own image, on every decoding path."""

import inspect
from contextlib import nullcontext

import pytest
import torch

from paceline.config.sections import ModelConfig
from paceline.config.vision import VisionConfig
from paceline.engines import Sampling
from paceline.engines.local.decoder import PlainDecoder, RecomputingDecoder
from paceline.engines.local.fused import FusedDecoder
from paceline.models.head import measured_head
from paceline.models.loading import load_model
from paceline.models.vision.placeholders import read_placeholders
from tests.support.exact import Float64Kept
from tests.support.seeing import SEEING, HeldPictures, picture, prompt_with, seeing_tokenizer, write_seeing_model

KINDS = sorted(SEEING)
WIDE, OTHER, TALL = picture(1), picture(2), picture(3, 32, 48)
PICTURES = HeldPictures(WIDE, OTHER, TALL)
SAMPLING = Sampling(max_completion_length=12)


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    return {kind: write_seeing_model(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def read(directory, dtype=torch.float64):
    loaded = load_model(ModelConfig(model=str(directory), device="cpu", dtype="float32"), pictures=PICTURES)
    loaded.model.to(dtype)
    loaded.vision.compute_dtype = dtype
    return loaded


@pytest.fixture
def loaded(kind, directories):
    return read(directories[kind])


@pytest.fixture
def show(kind, directories):
    placeholders = read_placeholders(ModelConfig(model=str(directories[kind])), VisionConfig(), seeing_tokenizer(kind))

    def shown(text, *images):
        ids, media = prompt_with(seeing_tokenizer(kind), placeholders, text, *images)
        return tuple(ids), tuple(media)

    return shown


def own_logits(loaded, ids, media):
    """Return the logits of a row by the model's own forward pass, from pixels."""
    row, inputs, vision = torch.tensor([ids]), {}, loaded.vision
    if media:
        images = [PICTURES.pixels(image.sha256) for image in media]
        made = vision.processor(images=images, return_tensors="pt", **vision.family.arguments(loaded.model.config))
        inputs = {name: made[name] for name in vision.family.tensors if name in made}
        kinds = torch.zeros_like(row, dtype=torch.int)
        for image in media:
            run = slice(image.start, image.start + image.length)
            kinds[0, run] = row[0, run] == vision.image_token_id
        known = inspect.signature(loaded.model.base_model.forward).parameters
        inputs |= {name: kinds for name in ("mm_token_type_ids", "token_type_ids") if name in known}
    with torch.no_grad():
        return loaded.model(input_ids=row, use_cache=False, **inputs).logits[0]


def decoders(loaded):
    model, dtype, vision = loaded.model, loaded.model.dtype, loaded.vision
    head = measured_head(model)
    return {
        "recomputing": RecomputingDecoder(model, dtype, vision),
        "plain": PlainDecoder(model, dtype, vision),
        "fused": FusedDecoder(model, dtype, None, head=head, vision=vision),
    }


FUSED = {
    "idefics3",
    "smolvlm",
    "llava",
    "pixtral",
    "mistral3",
    "internvl",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_5",
}
"""Kinds that decode fused."""
ROUNDED = {"glm4v", "gemma4", "gemma4, blocks"}
"""Kinds whose own forward pass rounds to float32 on the way."""


def shown_prompts(show):
    """Return equal tokens with two images, two images of unequal shape, and text alone, as tokens and images."""
    shown = [show("look {} what?", WIDE), show("look {} what?", OTHER), show("{} or {}", TALL, WIDE), show("no image")]
    assert shown[0][0] == shown[1][0]
    return [list(column) for column in zip(*shown, strict=True)]


@pytest.mark.parametrize("path", ["recomputing", "plain", "fused"])
def test_decoding_step_by_step_gives_the_logits_of_one_pass_from_pixels(kind, loaded, show, path):
    if path == "fused" and kind not in FUSED:
        pytest.skip("decodes by the model's own forward pass")
    prompts, media = shown_prompts(show)
    rows = [[0, 1], [2], [3], [4]]
    fed = torch.arange(5 * 6).view(6, 5) * 7919 % 256
    exact = nullcontext() if kind in ROUNDED else Float64Kept()
    with exact:
        decoder = decoders(loaded)[path]
        with torch.inference_mode(decoder.refills):
            decoder.begin(5, max(map(len, prompts)) + len(fed))
            after = decoder.admit(prompts, rows, media)
            stepped = torch.stack([decoder.step(tokens) for tokens in fed])
        for number, members in enumerate(rows):
            for row in members:
                whole = own_logits(loaded, (*prompts[number], *fed[:, row].tolist()), media[number])
                got = torch.cat([after[number][None], stepped[:, row]])
                wanted = whole[len(prompts[number]) - 1 :]
                torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5 if kind in ROUNDED else 1e-10)
