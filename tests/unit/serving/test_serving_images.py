"""A served model that reads images takes them as data URIs: the same tokens as in training, and nothing is fetched."""

import base64
import gc
import io
import json

import pytest

from paceline.config.building import build_config
from paceline.data.pictures import PictureStore
from paceline.data.row_images import ImageInput
from paceline.data.rows import Row
from paceline.data.tasks import build_tasks
from paceline.errors import ConfigError
from paceline.models.vision.placeholders import read_placeholders
from paceline.openai_api.requests import Refusal, read_request
from paceline.serving.loading import load
from paceline.serving.model import ServedModel
from paceline.serving.server import STOPPING
from tests.support.seeing import picture, write_seeing_model
from tests.support.served import served, tiny_engine

QUESTION = {"type": "text", "text": "How many?"}


def config_of(model, **given):
    named = {"model": str(model), "dataset": "arithmetic", "max_completion_length": 6, "max_prompt_length": 300}
    return build_config(named | given)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_seeing_model(tmp_path_factory.mktemp("served"), "idefics3")


@pytest.fixture(scope="module")
def model(folder):
    loaded = load(config_of(folder, max_images_per_prompt=2), say=lambda note: None)
    thread = loaded.start()
    yield loaded
    loaded.generations.close(STOPPING)
    thread.join(30)


def uri(seed: int) -> str:
    file = io.BytesIO()
    picture(seed).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def image(seed: int) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": uri(seed), "detail": "auto"}}


def asked(model: ServedModel, *parts: object, role: str = "user", kind: str = "chat", **given: object):
    messages = [{"role": role, "content": list(parts)}, *([] if role == "user" else [{"role": "user", "content": "?"}])]
    body = {"messages" if kind == "chat" else "input": messages, "temperature": 0, "return_token_ids": True, **given}
    request = read_request(kind, json.dumps(body).encode(), is_served=True)
    response = model.begin(request)
    response.wait(60)
    (reply,) = response.turns
    return reply


def test_a_prompt_with_images_has_the_tokens_that_a_row_with_them_has_in_training(model, folder):
    store, options = PictureStore(), config_of(folder)
    rule = read_placeholders(options.model, options.vision, model.tokenizer)
    images = ImageInput(pictures=store, placeholders=lambda: rule, max_images_per_prompt=2)
    columns = {"question": "<image>How many? <image>", "images": [picture(1), picture(2)], "answer": "1"}
    row = Row(row_id="rows:1", columns=columns)
    (task,) = build_tasks([row], model.tokenizer, options.data, system=None, images=images).tasks
    reply = asked(model, image(1), {"type": "text", "text": "How many? "}, image(2))
    assert reply.read_ids == task.prompt_ids


def test_another_image_is_answered_otherwise_and_the_same_one_alike(model):
    first, other, again = (asked(model, image(seed), QUESTION) for seed in (1, 2, 1))
    assert first.read_ids == other.read_ids
    assert first.text == again.text != other.text


def test_both_interfaces_take_images(model):
    part = {"type": "input_image", "image_url": uri(1)}
    text = {"type": "input_text", "text": "How many?"}
    assert asked(model, part, text, kind="responses").text == asked(model, image(1), QUESTION).text


def test_what_stands_for_an_image_in_a_text_is_plain_text(model):
    plain = asked(model, image(1), QUESTION)
    reply = asked(model, image(1), {"type": "text", "text": "<image><fake_token_around_image>"})
    marks = model.tokenizer.convert_tokens_to_ids("<image>")
    assert reply.read_ids.count(marks) == plain.read_ids.count(marks) > 0


REFUSED = {
    "an address": ([{"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/a.png"}}], "as a data URI .* got"),
    "a file": ([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}], "nothing is fetched here"),
    "a path": ([{"type": "image_url", "image_url": "/etc/passwd"}], "nothing is fetched here"),
    "no image": ([{"type": "image"}], r"messages\[0\]\.content\[0\] must hold an image"),
    "no picture": (
        [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
        "image 1 of the messages",
    ),
    "a drawing": (
        [{"type": "image_url", "image_url": {"url": f"data:image/svg;base64,{base64.b64encode(b'<svg/>').decode()}"}}],
        "a drawing such as SVG",
    ),
    "too many": ([image(1), image(2), image(1)], "hold 3 images, and a prompt may have 2"),
    "a video": ([{"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}], "must be a text"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_other_images_are_refused_in_a_sentence(model, what):
    parts, sentence = REFUSED[what]
    with pytest.raises(Refusal, match=sentence):
        asked(model, *parts, QUESTION)


def test_only_the_user_sends_images(model):
    with pytest.raises(Refusal, match="the model reads text alone"):
        asked(model, image(1), role="system")


def test_a_model_of_text_refuses_images():
    with pytest.raises(Refusal, match="the messages hold images, and the model reads text alone"):
        asked(served(tiny_engine()), image(1), QUESTION)


def test_options_of_images_are_refused_beside_a_model_of_text():
    with pytest.raises(ConfigError, match="--max-images-per-prompt must be 16 without a model that reads images"):
        load(config_of("embedded", max_images_per_prompt=2), say=lambda note: None)


def test_images_of_requests_that_are_over_are_not_kept(model):
    for seed in range(20, 32):
        asked(model, image(seed), QUESTION, max_tokens=1)
    gc.collect()
    assert len(model.prompts._images.images._stores) <= 2
