"""A resumed run with images is compared by how the model reads them, and by their pixels."""

import json

import pytest
from PIL import Image

from paceline.config.building import build_config
from paceline.errors import ConfigError
from paceline.training.identity import IMAGES, find_change, identity_of
from paceline.training.setup.preparation import prepare
from tests.support.seeing import picture, write_seeing_model


@pytest.fixture
def place(tmp_path):
    write_seeing_model(tmp_path / "model", "qwen2_5_vl")
    lines = []
    for number in range(3):
        picture(number).save(tmp_path / f"{number}.png")
        lines.append(json.dumps({"question": "How many?", "image": f"{number}.png", "answer": str(number)}) + "\n")
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    return tmp_path


def config_of(place, **given):
    named = {"model": str(place / "model"), "dataset": str(place / "rows.jsonl"), "max_completion_length": 4}
    return build_config({**named, "max_steps": 2, "prompts_per_step": 1, "num_generations": 2, **given})


def recorded(place):
    config = config_of(place)
    return json.loads(json.dumps(identity_of(config, prepare(config))))


def change(record, place, override=(), **given):
    config = config_of(place, **given)
    return find_change(record, config, prepare(config), override=override)


def test_the_same_files_are_the_same_run(place):
    record = recorded(place)
    assert set(IMAGES) <= record["model"].keys()
    assert change(record, place) is None


def test_image_settings_that_were_edited_are_another_model(place):
    record, file = recorded(place), place / "model" / "preprocessor_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps(settings | {"image_mean": [0.1, 0.2, 0.3]}))
    with pytest.raises(ConfigError, match="has another image settings than it had"):
        change(record, place)
    assert change(record, place, override=("model",)).files.keys() == {"model"}


def test_one_pixel_is_another_row(place):
    record, image = recorded(place), Image.open(place / "1.png").convert("RGB")
    image.putpixel((5, 5), (0, 0, 0))
    image.save(place / "1.png")
    with pytest.raises(ConfigError, match=r"other content than it had, first in row rows\.jsonl:2"):
        change(record, place)


def test_the_same_pixels_in_another_file_are_the_same_row(place):
    record = recorded(place)
    Image.open(place / "1.png").save(place / "1.bmp")
    (place / "1.bmp").rename(place / "1.png")
    assert change(record, place) is None


@pytest.mark.parametrize(
    ("option", "value"),
    [("image_max_pixels", 1024), ("max_images_per_prompt", 3), ("image_urls", True)],
)
def test_an_option_of_images_is_changed_by_name_and_explains_what_it_changes(place, option, value):
    record = recorded(place)
    with pytest.raises(ConfigError, match=f"continue so from the last checkpoint by --override {option}"):
        change(record, place, **{option: value})
    changed = change(record, place, override=(option,), **{option: value})
    assert [difference.option for difference in changed.options] == [option]
    assert not changed.files


def test_what_is_trained_of_the_encoder_never_changes(place):
    record = recorded(place)
    for option in ("train_vision", "train_projector"):
        with pytest.raises(ConfigError, match="which a run cannot change"):
            change(record, place, override=(option,), **{option: True})
