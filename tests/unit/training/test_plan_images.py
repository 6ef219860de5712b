"""`paceline plan` for models that read images: what is there beside the language model, by hand."""

from dataclasses import replace

from paceline.config.building import build_config
from paceline.config.vision import VisionConfig
from paceline.training.plan.fitting import describe_memory
from paceline.training.plan.images import VisionShape
from paceline.training.plan.memory import memory_plan
from paceline.training.plan.shape import model_shape, read_shape
from paceline.training.setup.preparation import prepare
from tests.support.seeing import seeing_model
from tests.support.seeing_runs import seeing_options_in

REQUIRED = {"model": "m", "dataset": "d"}
SHAPE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 32,
    "vocab_size": 10,
}
SEEING = VisionShape(encoder=600, projector=100, layers=2, width=10, inner=20, patches=4, tokens=50, images=3, most=30)


def test_memory_of_images_by_hand():
    shape = model_shape(SHAPE, parameters=1_000)
    given = {**REQUIRED, "max_prompt_length": 100, "max_completion_length": 30, "save_steps": 0}
    given |= {"dtype": "float32", "micro_batch_tokens": 100_000}
    text = memory_plan(build_config(given), shape)
    frozen = memory_plan(build_config(given), replace(shape, vision=SEEING))
    # 700 weights, and 3 images of 30 tokens, in float32
    assert (frozen.vision, frozen.features) == (2_800, 3 * 30 * shape.width * 4)
    assert frozen.peak == text.peak + frozen.vision + frozen.features
    saving = memory_plan(build_config({**given, "save_steps": 2}), replace(shape, vision=SEEING))
    assert saving.saved == memory_plan(build_config({**given, "save_steps": 2}), shape).saved + 2_800
    projector = memory_plan(build_config({**given, "train_projector": True}), replace(shape, vision=SEEING))
    assert (projector.vision, projector.features) == (2_800 + 100 * 12, 0)
    trained = memory_plan(build_config({**given, "train_vision": True}), replace(shape, vision=SEEING))
    assert frozen.activations == text.activations < projector.activations < trained.activations
    beside = memory_plan(build_config({**given, "beta": 0.1}), replace(shape, vision=SEEING))
    assert beside.vision == 5_600
    # of 4 patches: of each of 2 layers 8 bytes of 10 numbers and 4 of 60 and 40, and what enters the projector
    assert SEEING.kept(VisionConfig(train_vision=True), 4) == 4 * (2 * (8 * 10 + 4 * (60 + 40)) + 4 * 10)
    assert SEEING.kept(VisionConfig(train_projector=True), 4) == 4 * 4 * 10
    assert "what reads images" in describe_memory(frozen)
    assert "what reads images" not in describe_memory(text)


def test_what_reads_images_is_counted_by_the_names_of_its_weights(tmp_path):
    options = seeing_options_in(tmp_path / "run")
    tasks = prepare(build_config(options)).tasks.tasks
    shape, text = read_shape(str(options["model"]), tasks), read_shape(str(options["model"]))
    model = seeing_model("idefics3")
    assert text.vision is None
    assert shape.parameters == text.parameters
    assert shape.vision.projector == sum(weight.numel() for weight in model.model.connector.parameters())
    assert shape.parameters + shape.vision.parameters == model.num_parameters()
    assert (shape.vision.layers, shape.vision.width, shape.vision.patches, shape.vision.images) == (2, 32, 4, 5)
