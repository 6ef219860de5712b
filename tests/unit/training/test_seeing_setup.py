"""What a run with images needs before weights are read, and what is refused with images or without."""

from pathlib import Path

import pytest

from paceline.config.building import build_config
from paceline.errors import ConfigError, DataError, ModelError
from paceline.training.setup.checks import check
from paceline.training.setup.preparation import prepare
from tests.support.cluster_runs import options_in
from tests.support.seeing_runs import seeing_options_in, write_seeing_rows


def test_tasks_hold_images_by_hash_and_place_and_the_run_their_store(tmp_path):
    config = build_config(seeing_options_in(tmp_path / "run"))
    inputs = prepare(config, check(config), images=tmp_path / "images")
    counts = [len(made.media) for made in inputs.tasks.tasks]
    assert counts == [1, 1, 1, 1, 1, 0]
    first, second, *_ = (made.media[0].sha256 for made in inputs.tasks.tasks if made.media)
    assert first != second
    assert inputs.pictures.pixels(first).size == (48, 32)
    assert inputs.run_size.images == tmp_path / "images"
    assert prepare(build_config(options_in(tmp_path / "text"))).run_size.images is None


def test_images_of_held_out_rows_alone_are_images_of_the_run(tmp_path):
    options = seeing_options_in(tmp_path / "run")
    held_out = write_seeing_rows(tmp_path / "run", 2, first=10, name="held_out.jsonl")
    (tmp_path / "run" / "rows.jsonl").write_text('{"question": "Which?", "answer": "1"}\n' * 2)
    inputs = prepare(build_config({**options, "eval_dataset": str(held_out), "on_bad_row": "skip"}))
    assert inputs.pictures is not None


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"zero_stage": 2, "cluster": True}, "--zero-stage must be 0 with images in prompts, got 2"),
        ({"tensor_parallel": 2, "cluster": True, "num_consumers": 2}, "--tensor-parallel must be 1 with images"),
        ({"context_parallel": 2, "cluster": True, "num_consumers": 2}, "--context-parallel must be 1 with images"),
        ({"pipeline_parallel": 2, "cluster": True, "num_consumers": 2}, "--pipeline-parallel must be 1 with images"),
        ({"engine": "vllm"}, "--engine must be local with images in prompts, got 'vllm'"),
        (
            {"max_staleness": 1, "cluster": True, "train_projector": True},
            "--max-staleness must be 0 with images in prompts whose encoder is trained, got 1",
        ),
        (
            {"train_vision": True, "vision_learning_rate": 1e-4, "learning_rate": 0.0},
            "--vision-learning-rate must be left out at --learning-rate 0, got 0.0001",
        ),
    ],
)
def test_what_cannot_be_done_with_images_is_refused_by_name(tmp_path, given, sentence):
    config = build_config({**seeing_options_in(tmp_path / "run"), **given})
    with pytest.raises(ConfigError) as refusal:
        prepare(config)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("given", [{"train_vision": True}, {"image_max_pixels": 4096}, {"max_images_per_prompt": 2}])
def test_options_for_images_are_refused_where_no_row_has_one(tmp_path, given):
    config = build_config({**options_in(tmp_path / "run"), **given})
    (option,) = given
    with pytest.raises(ConfigError, match=f"--{option.replace('_', '-')} must be .* without images in prompts"):
        prepare(config)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"train_vision": True, "lora_rank": 2}, "--train-vision must be false with --lora-rank"),
        ({"train_projector": True, "lora_rank": 2}, "--train-projector must be false with --lora-rank"),
        ({"lora_vision": True}, "--lora-vision must be false without --lora-rank"),
    ],
)
def test_an_encoder_is_trained_itself_or_by_an_adapter(given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        build_config({"model": "m", "dataset": "d", **given})


def test_rows_with_images_need_a_model_that_reads_them(tmp_path):
    options = options_in(tmp_path / "run")
    write_seeing_rows(tmp_path / "run")
    with pytest.raises(ModelError, match="image"):
        prepare(build_config(options))


def test_a_row_whose_image_is_not_there_is_refused_before_anything_is_loaded(tmp_path):
    options = seeing_options_in(tmp_path / "run")
    Path(tmp_path / "run" / "seen" / "3.png").unlink()
    with pytest.raises(DataError, match=r"row rows\.jsonl:4.*seen/3\.png"):
        check(build_config(options))
