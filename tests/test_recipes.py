"""Recipes are read by the program, say what `paceline plan` says of them, and cover every model, task and machine."""

import json
import re
from collections import Counter
from dataclasses import replace

import pytest

from paceline.cli.arguments import parse
from paceline.cli.train import COMMAND
from paceline.config.building import build_config
from paceline.rewards.resolving import resolve
from paceline.training.plan.shape import read_shape
from scripts.recipes import HARDWARE, MODELS, PAGE, ROOT, TASKS, page, planned, recipes, row
from tests.test_documents import LAUNCHERS

RECIPES = [pytest.param(one, id=one.path.stem) for one in recipes()]
PARAMETERS = {
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "google/gemma-3-1b-it": 999_885_952,
    "unsloth/gpt-oss-20b-BF16": 20_914_757_184,
    "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
    "meta-llama/Llama-3.2-3B-Instruct": 3_212_749_824,
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M-Instruct": 361_821_120,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1_711_376_384,
    "HuggingFaceTB/SmolLM3-3B": 3_075_098_624,
}
"""As the headers of the published weights count them; those of Qwen3.5 count a tower too."""
GAME = {"metadata": {"numbers": [94, 4, 61, 6], "target": 309, "expression": "94*4 - 61 - 6"}}


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """What a head says of its plan, by the recipe's name."""
    place = tmp_path_factory.mktemp("plans")
    return {one.path.name: planned(one, place) for one in recipes()}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_begins_with_what_plan_says_of_it(recipe, plans):
    assert recipe.text == recipe.with_plan(plans[recipe.path.name]), "run `make recipes`"


def test_the_page_has_every_recipe_with_its_plan(plans):
    text = PAGE.read_text()
    assert text == page(text, [row(one, plans[one.path.name]) for one in recipes()]), "run `make recipes`"


@pytest.mark.long
def test_every_recipe_fits_other_cards_of_its_size_too(tmp_path):
    for recipe in recipes():
        text = recipe.text.replace("--gpu rtx-4090", "--gpu l4").replace("--gpu h100", "--gpu a100-80gb")
        assert any(line.startswith("Peak ") for line in planned(replace(recipe, text=text), tmp_path))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("model", PARAMETERS)
def test_a_planned_shape_has_the_parameters_of_the_published_weights(model, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MODELS[model]))
    assert read_shape(str(tmp_path)).parameters == PARAMETERS[model]


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_commands_of_a_recipe_start_its_own_file_on_as_many_cards_as_it_names(recipe):
    config, name = build_config(recipe.options), f"recipes/{recipe.path.name}"
    train, plan = recipe.commands[-2:]
    assert (plan[:2], plan[plan.index("--config") + 1]) == (["paceline", "plan"], name)
    words = train[train.index("paceline") :]
    assert parse(COMMAND, words[2:]).flags == {"config": name}
    cards = 1
    for number in re.findall(r"\d+", recipe.path.stem.rpartition("-")[2])[:-1]:
        cards *= int(number)
    started = {word: int(train[at + 1]) for at, word in enumerate(train) if word in ("--nnodes", "--nproc-per-node")}
    if train[0] in LAUNCHERS:
        assert started.get("--nnodes", 1) * started["--nproc-per-node"] == cards
        assert plan[plan.index("--processes") + 1] == str(cards)
    else:
        on_ray = config.cluster.num_producers + config.cluster.num_consumers
        assert cards == (on_ray if config.cluster.cluster else 1)
    assert ("rtx-4090" in plan) == recipe.path.stem.endswith("24gb")


def test_every_model_task_and_machine_has_a_recipe_and_every_run_its_own_directory():
    configs = [build_config(one.options) for one in recipes()]
    assert {config.model.model for config in configs} == set(MODELS)
    names = [one.path.stem for one in recipes()]
    assert [task for task in TASKS if not any(f"-{task}-" in name for name in names)] == []
    assert {name.rpartition("-")[2] for name in names} == set(HARDWARE)
    assert Counter(config.loop.output_dir for config in configs).most_common(1)[0][1] == 1


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("<think>94*4 is 376</think> <answer>94*4 - 61 - 6</answer>", 1.0),
        ("<answer> (94 * 4) - (6 + 61) </answer>", 1.0),
        ("<answer>1</answer> no: <answer>94*4-6-61</answer>", 1.0),
        ("<answer>309</answer>", 0.0),  # the target, which `accuracy` takes for any expression of its value
        ("<answer>94*4 - 67</answer>", 0.0),
        ("<answer>94*4 - 61 - 6 + 0</answer>", 0.0),
        ("<answer>94*4 - 61 - 6 = 309</answer>", 0.0),
        ("<answer>94/(4-4) - 61 - 6</answer>", 0.0),
        ("<answer>94**4 - 61 - 6</answer>", 0.0),
        ("<answer>94*4 - 61 -</answer>", 0.0),
        ("<answer>94(4) - 61 - 6</answer>", 0.0),
        ("<answer>094*4 - 61 - 6</answer>", 0.0),
        ("94*4 - 61 - 6", 0.0),
        ("<answer>" + "(" * 150 + "94", 0.0),
        ("<answer>" + "-" * 190 + "9</answer>", 0.0),
    ],
)
def test_countdown_pays_for_an_expression_of_the_given_numbers_alone(text, score):
    solves = resolve(f"{ROOT / 'recipes' / 'countdown.py'}:solves")
    assert solves(completions=[text], reasoning_gym=[GAME]) == [score]
