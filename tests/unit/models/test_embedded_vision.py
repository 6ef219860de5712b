"""The tokenizer, image processor and model that ship with the package for pictures of shapes."""

import io
from itertools import islice
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

import paceline
from paceline.cli.arguments import parse
from paceline.cli.train import COMMAND as TRAIN
from paceline.data.shapes import problems, shape_rows
from paceline.models.places import DIRECTORIES
from paceline.training.setup.configuration import read_configuration

EMBEDDED = Path(paceline.__file__).parent / "models" / DIRECTORIES["embedded-vision"]
PICTURE = "<fake_token_around_image><global-img>" + "<image>" * 9 + "<fake_token_around_image>"


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(EMBEDDED)


def prompt(question: str) -> str:
    return f"<|user|>{PICTURE}{question}<|end|><|assistant|>"


def test_a_run_that_names_the_model_has_its_recipe_for_a_ground():
    configuration = read_configuration(parse(TRAIN, ["--model", "embedded-vision", "--max-steps", "2"]).options)
    assert (configuration.config.data.dataset, configuration.config.optim.warmup_steps) == ("shapes", 2)
    assert "the embedded-vision recipe and the flags given" in configuration.origin


def test_the_model_loads_with_its_end_token_and_is_small(tokenizer):
    weights = EMBEDDED / "model.safetensors"
    assert weights.stat().st_size <= 1_000_000
    assert {tensor.dtype for tensor in load_file(weights).values()} == {torch.float32}
    model = AutoModelForImageTextToText.from_pretrained(EMBEDDED)
    assert model.config.text_config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.config.image_token_id == tokenizer.convert_tokens_to_ids("<image>")


def test_the_chat_template_writes_parts_and_plain_texts(tokenizer):
    parts = [{"type": "image"}, {"type": "text", "text": "How many circles are there?"}]
    for content, picture in ((parts, "<image>"), ("How many circles are there?", "")):
        messages = [{"role": "user", "content": content}]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert text == f"<|user|>{picture}How many circles are there?<|end|><|assistant|>"


def test_prompts_and_completions_are_within_the_lengths_of_the_recipe(tokenizer):
    for problem in islice(problems("train"), 300):
        assert len(tokenizer.encode(prompt(problem.question))) <= 22
        assert len(tokenizer.encode(problem.completion + "<|end|>")) <= 40
        assert tokenizer.decode(tokenizer.encode(problem.completion)) == problem.completion


def test_a_picture_of_the_dataset_keeps_its_pixels():
    image = Image.open(io.BytesIO(shape_rows("test", 1)[0]["image"])).convert("RGB")
    processor = AutoImageProcessor.from_pretrained(EMBEDDED, backend="pil")
    (((tile,),),) = (processor(images=[image], return_tensors="pt")["pixel_values"],)
    plain = torch.tensor(list(image.tobytes()), dtype=torch.float32).reshape(48, 48, 3).permute(2, 0, 1)
    torch.testing.assert_close(tile, plain / 127.5 - 1)


@torch.no_grad()
def test_the_model_sees_every_shape_when_it_is_led_along_the_list(tokenizer):
    # It has to be led to go on alone: the most probable colours and kinds are right, if it is shown the right picture.
    model = AutoModelForImageTextToText.from_pretrained(EMBEDDED).eval()
    processor = AutoImageProcessor.from_pretrained(EMBEDDED, backend="pil")
    chosen = list(islice(problems("test"), 60))
    rows = shape_rows("test", 60)
    images = [Image.open(io.BytesIO(row["image"])).convert("RGB") for row in rows]
    pixels = torch.cat([processor(images=[image], return_tensors="pt")["pixel_values"] for image in images])
    stops = tokenizer.convert_tokens_to_ids(["</think>", ";"])
    for shown, least, most in ((pixels, 0.9, 1.0), (pixels.roll(1, dims=0), 0.0, 0.1)):
        right = 0
        for problem, picture in zip(chosen, shown, strict=True):
            start = tokenizer.encode(prompt(problem.question))
            ids = torch.tensor([start + tokenizer.encode(problem.completion)])
            logits = model(input_ids=ids[:, :-1], pixel_values=picture[None]).logits[0, len(start) - 1 :]
            logits[:, stops] = -torch.inf
            wanted = ids[0, len(start) :]
            right += bool(((logits.argmax(-1) == wanted) | torch.isin(wanted, torch.tensor(stops))).all())
        assert least <= right / len(chosen) <= most
