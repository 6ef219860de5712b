"""A resumed run is compared with what it was: an option explains the files that it can change, and no other."""

import json
import re

import pytest
from safetensors.torch import load_file, save_file

from paceline.config.building import build_config
from paceline.config.reading import options
from paceline.errors import ConfigError
from paceline.training.identity import EXPLAINED, IMAGES, find_change, identity_of, image_digests
from paceline.training.setup.preparation import prepare
from tests.support.seeing import SEEING
from tests.support.tiny import tiny_model, tiny_tokenizer

FILES = {"dataset", "eval_dataset", "model", "reward_funcs"}
"""Options that name the files which the test changes, all of them."""
OTHERS: dict[str, tuple[object, set[str]]] = {
    # by option: another value, and the files whose change it explains
    "dataset_split": ("all", {"dataset", "eval_dataset"}),
    "dataset_size": (2, {"dataset", "eval_dataset"}),
    "on_bad_row": ("skip", {"dataset", "eval_dataset"}),
    "seed": (5, {"dataset", "eval_dataset"}),
    "eval_split": ("dev", {"eval_dataset"}),
    "eval_size": (3, {"eval_dataset"}),
    "long_prompts": ("drop", {"dataset", "eval_dataset"}),
    "max_prompt_length": (300, set()),
    "system_prompt": ("Think.", set()),
    "enable_thinking": (False, set()),
    "chat_template_kwargs": (("a=1",), set()),
    "prompt_column": ("question", set()),
    "answer_column": ("answer", set()),
    "trust_remote_code": (True, set()),
    "shuffle": (False, set()),
    "learning_rate": (1e-3, set()),
    "temperature": (0.5, set()),
    "num_generations": (4, set()),
    "eval_temperature": (0.5, set()),
    "eval_reward_func": ("format", set()),
    "reward_weights": ((2.0,), set()),
    "dtype": ("float32", set()),
    "max_steps": (3, set()),
    "sandbox": ("none", set()),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, rows to train on and held out, a reward function: all as they were; and the record of that run."""
    place = tmp_path_factory.mktemp("run")
    tiny_model("llama").save_pretrained(place / "model")
    tiny_tokenizer().save_pretrained(place / "model")
    for name, first in (("rows", 0), ("held_out", 50)):
        rows = [{"question": f"{first + number} + 1 =", "answer": str(first + number + 1)} for number in range(6)]
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "mine.py").write_text("def score(completions, **columns):\n    return [1.0 for _ in completions]\n")
    config = build_config(settings(place))
    (place / "record.json").write_text(json.dumps(identity_of(config, prepare(config))))
    for name in ("rows", "held_out"):
        file = place / f"{name}.jsonl"
        file.write_text(file.read_text().replace(" + 1 =", " + 1 = ?", 1))
    weights = place / "model" / "model.safetensors"
    save_file({name: one + 1 for name, one in load_file(weights).items()}, weights, metadata={"format": "pt"})
    (place / "mine.py").write_text("def score(completions, **columns):\n    return [0.5 for _ in completions]\n")
    return place


def settings(place, **given):
    """Options of a run in `place`."""
    rows = {"dataset": str(place / "rows.jsonl"), "eval_dataset": (str(place / "held_out.jsonl"),)}
    names = {"model": str(place / "model"), "reward_funcs": (f"{place / 'mine.py'}:score",), **rows}
    return {**names, "max_completion_length": 4, "max_steps": 2, "prompts_per_step": 1, "num_generations": 2, **given}


def refused(place, override, **given):
    """The options whose files a resumed run with these options is refused for."""
    config = build_config(settings(place, **given))
    record = json.loads((place / "record.json").read_text())
    with pytest.raises(ConfigError) as error:
        find_change(record, config, prepare(config), override=override)
    return set(re.findall(r"--override ([\w ]+)", str(error.value))[0].split())


def test_without_an_override_every_changed_file_is_named(folder):
    assert refused(folder, ()) == FILES


@pytest.mark.sampled(3)
@pytest.mark.parametrize("option", OTHERS)
def test_an_option_explains_only_the_files_that_it_can_change(folder, option):
    value, explained = OTHERS[option]
    assert refused(folder, {option}, **{option: value}) == FILES - explained


def test_options_that_no_case_has_explain_nothing_or_name_files_themselves():
    naming = {*FILES, "eval_share", "environment"}  # of other rows, or of a file that is named
    of_images = {option.name for option in options() if option.section == "vision"}  # test_identity_images.py has them
    assert EXPLAINED.keys() <= OTHERS.keys() | naming | of_images
    assert EXPLAINED.keys() <= {option.name for option in options()}


def test_image_settings_and_what_they_make_of_an_image_are_parts_of_a_model():
    processor = SEEING["qwen2_5_vl"].processor
    (settings, tensors), again = image_digests(processor).values(), image_digests(processor)
    assert list(again) == list(IMAGES)
    assert (settings, tensors) == tuple(again.values())
    other = type(processor).from_dict({**processor.to_dict(), "image_mean": [0.4, 0.5, 0.5]})
    assert not {settings, tensors} & {*image_digests(other).values()}
    renamed = type(processor).from_dict({**processor.to_dict(), "min_frames": 2})
    assert image_digests(renamed)[IMAGES[1]] == tensors
