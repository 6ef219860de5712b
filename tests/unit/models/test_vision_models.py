"""Models that read images: what stands for an image, and hidden states against the model's own forward pass."""

import inspect
import json
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from transformers import AutoImageProcessor, AutoModelForImageTextToText

from paceline.config.building import build_config
from paceline.config.sections import ModelConfig
from paceline.config.vision import VisionConfig
from paceline.errors import ModelError
from paceline.models.forward import choose_forward
from paceline.models.loaded import export_model
from paceline.models.loading import load_model
from paceline.models.pretrained import load_tokenizer
from paceline.models.vision.placeholders import read_placeholders
from paceline.models.vision.tower import Vision
from paceline.objective.micro_batches import one_turn, pack
from paceline.training.trainer import export_saved
from tests.support.seeing import SEEING, HeldPictures, picture, prompt_with, seeing_tokenizer, write_seeing_model

pytestmark = pytest.mark.sampled(4)

KINDS = sorted(SEEING)
PADDED = ("gemma3", "gemma4, blocks")
"""Kinds in which tokens of an image see each other."""
LIMITED = {"qwen2_5_vl": 32 * 64, "idefics3": 32 * 32, "internvl": 2 * 32 * 32, "gemma4": 70 * 64}
"""Pixels of an image, at most, in kinds that have such a limit."""
EXACT = {"qwen3_5": 1e-4, "gemma4": 1e-4, "gemma4, blocks": 1e-4}
"""Differences that rounding explains, where not all of a model computes in float64: a scan and norms do not."""
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


def own_states(kind, loaded, sample):
    """Return the hidden state before each completion token, by the model's own forward pass from pixels."""
    ids, inputs = torch.tensor([[*sample.prompt_ids, *sample.completion_ids[:-1]]]), {}
    if images := [PICTURES.pixels(image.sha256) for image in sample.prompt_media]:
        arguments = {"patch_size": {"height": 16, "width": 16}} if kind == "mistral3" else {}
        made = loaded.vision.processor(images=images, return_tensors="pt", **arguments)
        inputs = {name: made[name] for name in loaded.vision.family.tensors if name in made}
        kinds = (ids == loaded.vision.image_token_id).int()
        known = inspect.signature(loaded.model.base_model.forward).parameters
        inputs |= {name: kinds for name in ("mm_token_type_ids", "token_type_ids") if name in known}
    with torch.no_grad():
        states = loaded.model.base_model(input_ids=ids, use_cache=False, **inputs).last_hidden_state[0]
    return states[len(sample.prompt_ids) - 1 :]


def test_hidden_states_are_those_of_the_models_own_forward_pass(kind, loaded, placeholders):
    samples = samples_of(kind, placeholders)
    forward = choose_forward(loaded.model, torch.float64, loaded.vision)
    assert (forward.kind == "packed") == (kind not in PADDED), forward.reason
    wanted = torch.cat([own_states(kind, loaded, sample) for sample in samples])
    with torch.no_grad():
        chosen = forward(loaded.model, packed_batch(samples))
        padded = replace(forward, kind="padded")(loaded.model, packed_batch(samples))
    torch.testing.assert_close(chosen, wanted, rtol=0, atol=EXACT.get(kind, 1e-10))
    torch.testing.assert_close(padded, wanted, rtol=0, atol=EXACT.get(kind, 1e-10))


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
        chosen = forward(loaded.model, packed_batch(samples))
        padded = replace(forward, kind="padded")(loaded.model, packed_batch(samples))
    torch.testing.assert_close(chosen, padded, rtol=0, atol=EXACT.get(kind, 1e-10))
    assert loaded.vision.counts["encoded"] == 2  # each image once, for two groups and two passes


def names_in(directory):
    with safe_open(directory / "model.safetensors", "pt") as file:
        return set(file.keys())


def test_an_exported_model_is_read_again_with_the_same_names_and_logits(kind, directories, tmp_path):
    config = ModelConfig(model=str(directories[kind]), device="cpu", dtype="float32")
    loaded = load_model(config, vision=VisionConfig(image_max_pixels=LIMITED.get(kind)), pictures=PICTURES)
    export_model(loaded, seeing_tokenizer(kind), tmp_path, merge=False)
    again = AutoModelForImageTextToText.from_pretrained(tmp_path)
    ids = torch.tensor([[7, 8, 9, 10]])
    with torch.no_grad():
        assert torch.equal(again(input_ids=ids).logits, loaded.model(input_ids=ids).logits)
    assert names_in(tmp_path) == names_in(directories[kind])
    reloaded = load_model(ModelConfig(model=str(tmp_path), device="cpu", dtype="float32"), pictures=PICTURES)
    for image in (FIRST, SECOND):
        key = PICTURES.sha256(image)
        here, there = (one.vision.features([key])[key].rows for one in (loaded, reloaded))
        assert torch.equal(here, there)
    made = json.loads((tmp_path / "preprocessor_config.json").read_text())
    assert not made["image_processor_type"].endswith("Pil")  # other programs choose a form of their own


def test_settings_of_images_and_text_together_are_exported_with_the_limits_of_the_run(tmp_path):
    source = write_seeing_model(tmp_path / "model", "idefics3")
    processor = SEEING["idefics3"].processor.to_dict()
    together = {"processor_class": "Idefics3Processor", "image_seq_len": 4, "image_processor": processor}
    (source / "processor_config.json").write_text(json.dumps(together))
    (source / "preprocessor_config.json").unlink()
    config = ModelConfig(model=str(source), device="cpu", dtype="float32")
    loaded = load_model(config, vision=VisionConfig(image_max_pixels=32 * 32), pictures=PICTURES)
    export_model(loaded, seeing_tokenizer("idefics3"), tmp_path / "final", merge=False)
    written = json.loads((tmp_path / "final" / "processor_config.json").read_text())
    assert written["image_seq_len"] == 4
    assert written["image_processor"]["size"] == {"longest_edge": 32}
    assert AutoImageProcessor.from_pretrained(tmp_path / "final", backend="pil").size["longest_edge"] == 32


def test_a_chat_template_that_stands_apart_is_read(tmp_path):
    source = write_seeing_model(tmp_path, "idefics3")
    (source / "chat_template.jinja").unlink()
    (source / "chat_template.json").write_text(json.dumps({"chat_template": "{{ messages[0]['content'] }}"}))
    assert load_tokenizer(ModelConfig(model=str(source))).chat_template == "{{ messages[0]['content'] }}"


@pytest.mark.parametrize("kind", ["idefics3", "qwen2_5_vl"])
@pytest.mark.parametrize("rank", [0, 2])
def test_saved_weights_of_a_model_that_reads_images_are_exported_whole(kind, rank, directories, tmp_path):
    named = {"model": str(directories[kind]), "device": "cpu", "dtype": "float32", "dataset": "arithmetic"}
    config = build_config({**named, "lora_rank": rank, "merge_lora": rank > 0, "reward_funcs": "math"})
    loaded = load_model(config.model, config.lora, pictures=PICTURES)
    (tmp_path / "saved").mkdir()
    loaded.weights_writer().write(tmp_path / "saved")
    export_saved(config, tmp_path / "saved", seeing_tokenizer(kind), tmp_path / "final")
    again = AutoModelForImageTextToText.from_pretrained(tmp_path / "final")
    ids = torch.tensor([[7, 8, 9, 10]])
    with torch.no_grad():
        assert torch.equal(again(input_ids=ids).logits, loaded.model(input_ids=ids).logits)
    assert (tmp_path / "final" / "preprocessor_config.json").is_file()


class Forgetful(Vision):
    """A vision that leaves one thing out of what the language model is given."""

    forgotten = ""

    def of(self, model, **changed):
        made = super().of(model, **changed)
        made.__class__ = type(self)
        return made

    def packed(self, model, batch):
        return self._without(super().packed(model, batch))

    def padded(self, model, batch, rows):
        return self._without(super().padded(model, batch, rows))

    def _without(self, arguments):
        if self.forgotten == "rows and columns":
            arguments["position_ids"] = arguments["position_ids"][:1].expand(3, -1, -1)
        elif self.forgotten == "deepstack":
            arguments = {name: value for name, value in arguments.items() if name in ("inputs_embeds", "position_ids")}
        return arguments

    def placed(self, model, batch):
        if self.forgotten == "order":
            hashes = [image.sha256 for image in batch.media]
            media = zip(batch.media, reversed(hashes), strict=True)
            batch = replace(batch, media=tuple(replace(image, sha256=sha256) for image, sha256 in media))
        return super().placed(model, batch)

    @property
    def is_causal(self):
        return self.forgotten == "blocks" or super().is_causal


@pytest.mark.parametrize(
    ("kind", "forgotten"),
    [
        ("idefics3", "order"),
        ("qwen2_5_vl", "rows and columns"),
        ("qwen3_vl", "rows and columns"),
        ("qwen3_vl", "deepstack"),
        ("gemma3", "blocks"),
    ],
)
def test_a_model_whose_images_are_misread_is_refused_before_training(kind, forgotten, directories):
    loaded = load_model(ModelConfig(model=str(directories[kind]), device="cpu", dtype="float32"), pictures=PICTURES)
    choose_forward(loaded.model, torch.float32, loaded.vision)  # as it should be
    vision = loaded.vision.of(loaded.model)
    vision.__class__ = type(Forgetful.__name__, (Forgetful,), {"forgotten": forgotten})
    with pytest.raises(ModelError, match=r"hidden states of prompts with images differ by .* from the model's own"):
        choose_forward(loaded.model, torch.float32, vision)
