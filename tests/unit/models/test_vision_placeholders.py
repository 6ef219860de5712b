"""How large models read an image, and what stands for it in a prompt: worked out, and by transformers' own."""

import pytest
import torch
from transformers import AutoConfig, Gemma3Processor, Idefics3Processor, LlavaProcessor
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

from paceline.config.sections import ModelConfig
from paceline.config.vision import VisionConfig
from paceline.errors import ModelError
from paceline.models.vision.limits import idefics_tiles, smart_resize
from paceline.models.vision.placeholders import placeholders_of, read_placeholders
from paceline.models.vision.tower import Vision
from paceline.types import Media
from tests.support.seeing import (
    SEEING,
    HeldPictures,
    picture,
    seeing_model,
    seeing_tokenizer,
    write_seeing_model,
)
from tests.support.tiny import tiny_model, tiny_tokenizer

pytestmark = pytest.mark.sampled(9)

QWEN_2 = {"factor": 28, "least": 3136, "most": 1003520}
QWEN_3 = {"factor": 32, "least": 65536, "most": 16777216}
SIZES = [(64, 64), (96, 64), (64, 96), (200, 10), (16, 16), (7, 300), (640, 480), (33, 31), (1000, 510)]


@pytest.mark.parametrize(
    ("height", "width", "numbers", "expected"),
    [
        (64, 64, QWEN_2, (56, 56)),
        (480, 640, QWEN_2, (476, 644)),
        (1080, 1920, QWEN_2, (728, 1316)),
        (30, 500, QWEN_2, (28, 504)),
        (20, 20, QWEN_2, (56, 56)),
        (480, 640, QWEN_3, (480, 640)),
        (64, 64, QWEN_3, (256, 256)),
    ],
)
def test_sizes_of_qwens_images_are_those_worked_out(height, width, numbers, expected):
    assert smart_resize(height, width, **numbers) == expected


@pytest.mark.parametrize(
    ("edge", "tile", "width", "height", "expected"),
    [
        (1024, 512, 512, 512, (2, 2)),
        (1024, 512, 640, 480, (2, 2)),
        (1024, 512, 64, 64, (2, 2)),
        (1024, 512, 1024, 512, (1, 2)),
        (1000, 512, 1000, 510, (2, 2)),  # 1024 x 522 before it is cut: where transformers' own count says one row
    ],
)
def test_tiles_of_idefics_are_those_that_its_image_processor_makes(edge, tile, width, height, expected):
    processor = Idefics3ImageProcessorPil(
        size={"longest_edge": edge}, max_image_size={"longest_edge": tile}, return_row_col_info=True
    )
    assert idefics_tiles(processor, width, height) == expected
    made = processor(images=[picture(0, width, height)], return_tensors="pt")
    assert made["pixel_values"].shape[1] == expected[0] * expected[1] + 1


@pytest.mark.parametrize("kind", sorted(SEEING))
@pytest.mark.parametrize("size", SIZES)
def test_the_text_of_an_image_has_a_token_for_each_feature(kind, size):
    model = seeing_model(kind)
    placeholders = placeholders_of(model.config, SEEING[kind].processor, seeing_tokenizer(kind))
    image = picture(0, *size)
    processor = SEEING[kind].processor
    if (kind, size) == ("mistral3", (16, 16)):
        with pytest.raises(ModelError, match="cannot be read by a mistral3, which takes no images within 16 x 16"):
            placeholders.text(*size)
        return
    vision = Vision(model=model, pictures=HeldPictures(image), processor=processor, compute_dtype=torch.float32)
    with torch.no_grad():
        (features,) = vision.features([HeldPictures.sha256(image)]).values()
    assert placeholders.num_features(*size) == len(features.rows)


def test_a_qwen_image_is_refused_where_its_edges_differ_too_much():
    placeholders = placeholders_of(
        seeing_model("qwen2_5_vl").config, SEEING["qwen2_5_vl"].processor, seeing_tokenizer("qwen2_5_vl")
    )
    with pytest.raises(ModelError, match=r"an image of 2100 x 10 pixels cannot be read by a qwen2_5_vl, .* 200"):
        placeholders.text(2100, 10)


def own_text(kind, processor, image):
    """Return what a processor of transformers' own makes of a mark and an image, as tokens."""
    made = processor(text=f"a{processor.image_token}b", images=[image], return_tensors="pt", add_special_tokens=False)
    return made["input_ids"][0].tolist()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["idefics3", "llava", "gemma3"])
def test_the_text_of_an_image_is_what_transformers_processor_writes(kind, size):
    tokenizer, image_processor, config = seeing_tokenizer(kind), SEEING[kind].processor, seeing_model(kind).config
    placeholders, image = placeholders_of(config, image_processor, tokenizer), picture(0, *size)
    processor = {
        "idefics3": lambda: Idefics3Processor(image_processor, tokenizer, image_seq_len=4),
        "llava": lambda: LlavaProcessor(
            image_processor,
            tokenizer,
            patch_size=8,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        ),
        "gemma3": lambda: Gemma3Processor(image_processor, tokenizer, image_seq_length=4),
    }[kind]()
    ids = tokenizer.encode(f"a{placeholders.text(*size)}b", add_special_tokens=False)
    assert own_text(kind, processor, image) == ids


@pytest.mark.parametrize(("strategy", "expected"), [("default", 576), ("full", 577)])
def test_llava_has_a_token_for_each_patch_and_maybe_for_the_class(strategy, expected):
    config = AutoConfig.for_model(
        "llava",
        image_token_id=259,
        vision_config={"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14},
        vision_feature_select_strategy=strategy,
    )
    processor = CLIPImageProcessorPil(size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336})
    assert placeholders_of(config, processor, seeing_tokenizer("llava")).num_features(640, 480) == expected


@pytest.mark.parametrize(
    ("kind", "limit", "expected"),
    [
        ("qwen2_5_vl", 32 * 32, 4),  # 2 x 2 features of 16 pixels
        ("idefics3", 32 * 32, 4),  # one tile
        ("internvl", 32 * 32, 4),
        ("gemma4", 70 * 64, 70),
    ],
)
def test_a_limit_of_pixels_makes_images_smaller(kind, limit, expected, tmp_path):
    config = ModelConfig(model=str(write_seeing_model(tmp_path, kind)))
    placeholders = read_placeholders(config, VisionConfig(image_max_pixels=limit), seeing_tokenizer(kind))
    assert placeholders.num_features(640, 480) <= expected


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("llava", {"image_max_pixels": 100}, "--image-max-pixels must be left out, as the model reads every image at"),
        ("idefics3", {"image_min_pixels": 100}, "--image-min-pixels must be left out, as the model makes every image"),
        ("gemma4", {"image_max_pixels": 9}, "--image-max-pixels must be at least 4480, the smallest size"),
    ],
)
def test_a_limit_that_a_model_does_not_have_is_refused(kind, options, message, tmp_path):
    config = ModelConfig(model=str(write_seeing_model(tmp_path, kind)))
    with pytest.raises(ModelError, match=message):
        read_placeholders(config, VisionConfig(**options), seeing_tokenizer(kind))


def test_a_model_that_reads_no_images_is_refused_by_name(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="is a Qwen3ForCausalLM, which is not known to read images, and the prompts"):
        read_placeholders(ModelConfig(model=str(tmp_path)), VisionConfig(), tiny_tokenizer())


def test_a_model_without_image_settings_is_refused_by_name(tmp_path):
    write_seeing_model(tmp_path, "idefics3")
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(ModelError, match=r"its image settings \(preprocessor_config.json\) cannot be read"):
        read_placeholders(ModelConfig(model=str(tmp_path)), VisionConfig(), seeing_tokenizer("idefics3"))


def positions(runs, length):
    """Return positions of a prompt of Qwen 2.5-VL with images of these grids at these places."""
    model = seeing_model("qwen2_5_vl")
    vision = Vision(
        model=model, pictures=HeldPictures(), processor=SEEING["qwen2_5_vl"].processor, compute_dtype=torch.float32
    )
    ids, media = [7] * length, []
    for number, (start, rows, columns) in enumerate(runs):
        count = rows * columns // 4
        ids[start : start + count] = [vision.image_token_id] * count
        media.append(Media(sha256=str(number), start=start, length=count))
        vision._grids[str(number)] = torch.tensor([[1, rows, columns]])
    return vision.positions(ids, media)


def test_an_image_has_rows_and_columns_and_text_goes_on_behind_the_longer_edge():
    found, following = positions([(3, 4, 6)], 12)  # a b vs, 2 x 3 features, ve c d
    assert found.tolist() == [
        [0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7, 8],
        [0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7, 8],
        [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8],
    ]
    assert following == 9


def test_a_second_image_starts_where_the_text_before_it_ends():
    found, following = positions([(3, 4, 6), (12, 4, 4)], 18)
    assert found[:, 12:].tolist() == [[9, 9, 9, 9, 11, 12], [9, 9, 10, 10, 11, 12], [9, 10, 9, 10, 11, 12]]
    assert following == 18 - 5


@pytest.mark.parametrize("size", SIZES)
def test_the_text_of_an_image_is_what_smolvlm_writes(size):
    processor = SmolVLMImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
    placeholders = placeholders_of(seeing_model("smolvlm").config, processor, seeing_tokenizer("smolvlm"))
    marks = ("<fake_token_around_image>", "<image>", "<global-img>")
    assert placeholders.text(*size) == get_image_prompt_string(*idefics_tiles(processor, *size), 4, *marks)
