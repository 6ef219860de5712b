"""The card of a trained model: what the Hub reads, what a person reads, and what it keeps to itself."""

import re
from dataclasses import replace

import pytest
import yaml
from huggingface_hub import ModelCardData, metadata_load
from huggingface_hub.repocard_data import model_index_to_eval_results

from paceline.checkpoints.run_directory import RunDir
from paceline.config.building import build_config
from paceline.config.flat_yaml import to_yaml
from paceline.config.presets import PRESETS
from paceline.metrics.comparisons import compare
from paceline.metrics.statistics import wilson
from paceline.reports.model_card import (
    MARK,
    CardFacts,
    Example,
    HeldOutResult,
    Measured,
    Prompting,
    Source,
    model_card,
    named,
)
from paceline.reports.papers import paper_of
from paceline.training.card import card_facts, write_card

OPTIONS = {"model": "org/base", "dataset": "org/sums:main", "reward_funcs": ["accuracy", "format"]}


def result(name: str = "org/sums:main:test") -> HeldOutResult:
    """Ten tasks, of which four were right before and nine after: six gained, one lost."""
    before = [1.0] * 4 + [0.0] * 6
    after = [0.0] + [1.0] * 9
    return HeldOutResult(
        dataset=named(name, is_local=lambda path: False),
        num_tasks=10,
        before=Measured(step=0, accuracy=wilson(4, 10)),
        after=Measured(step=20, accuracy=wilson(9, 10)),
        comparison=compare(before, after),
        looks=2,
    )


def facts(**changes) -> CardFacts:
    plain = CardFacts(
        name="mine",
        config=build_config({**OPTIONS, "reward_weights": [1.0, 0.2], "preset": "dapo"}),
        base_model=Source(label="org/base", hub="org/base"),
        dataset=Source(label="org/sums:main", hub="org/sums"),
        is_adapter=False,
        prompting=Prompting(has_chat_template=True, system='Think, then say:\n"x" | <answer>.'),
        steps=20,
        versions={"paceline": "0.1.0"},
        results=(result(),),
    )
    return replace(plain, **changes)


def front_matter(card: str) -> dict:
    return yaml.safe_load(card.split("---\n")[1])


def test_the_front_matter_is_read_by_the_hubs_own_library(tmp_path):
    (tmp_path / "README.md").write_text(model_card(facts()))
    data = metadata_load(tmp_path / "README.md")
    known = ModelCardData(**data, ignore_metadata_errors=False)
    assert (known.base_model, known.datasets, known.library_name) == ("org/base", ["org/sums"], "transformers")
    assert known.pipeline_tag == "text-generation"
    name, (read,) = model_index_to_eval_results(data["model-index"])
    assert (name, read.dataset_type, read.dataset_name) == ("mine", "org/sums", "org/sums:main:test")
    assert (read.metric_type, read.metric_value) == ("accuracy", 0.9)
    # Wilson's interval of 9 of 10, by hand: (0.9 + 1.92/10 -+ 1.96 sqrt(0.09/10 + 0.96/100)) / (1 + 3.84/10)
    assert (read.metric_args["low"], read.metric_args["high"]) == (0.5958, 0.9821)
    assert (read.metric_args["before"], read.metric_args["tasks"], read.metric_args["step"]) == (0.4, 10, 20)


def test_before_and_after_stand_side_by_side_with_the_paired_interval_and_the_exact_test():
    card = model_card(facts())
    row = next(line for line in card.splitlines() if line.startswith("| `org/sums"))
    assert "| 40.0 % [16.8, 68.7], step 0 | 90.0 % [59.6, 98.2], step 20 | +50.0 [" in row
    # 7 tasks changed sides, 1 of them for the worse: 2 (1 + 7) / 2^7
    assert row.endswith("| 6, 1 | p = 0.12 |")
    assert "measured 2 times after its first step" in card


def test_an_accuracy_of_layers_in_eight_bits_is_said_to_be_one():
    plain, card = (
        model_card(facts(config=build_config({**OPTIONS, **more}))) for more in ({}, {"engine_quantization": "fp8"})
    )
    _, (read,) = model_index_to_eval_results(front_matter(card)["model-index"])
    assert read.metric_args["engine_quantization"] == "fp8"
    assert "Layers were multiplied in eight bits (e4m3); the weights here are not rounded" in card
    assert "| `engine_quantization` | fp8 |" in card
    assert "eight bits" not in plain
    assert "engine_quantization" not in plain


def test_a_run_that_measured_nothing_says_so_and_has_no_index():
    card = model_card(facts(results=()))
    assert "Nothing was measured on held-out tasks." in card
    assert "model-index" not in front_matter(card)


def test_objective_rewards_and_the_options_that_differ_from_their_defaults_are_told():
    card = model_card(facts())
    assert "| `accuracy` | 1 |\n| `format` | 0.2 |" in card
    assert "R        = 1 * accuracy + 0.2 * format" in card
    assert "Preset `dapo` (DAPO, arXiv:2503.14476" in card
    assert "| `num_generations` | 8 |" in card  # a main one, at its default
    assert "`adam_eps`" not in card  # at its default
    assert "None" not in card


def test_the_same_facts_give_the_same_bytes():
    assert model_card(facts()) == model_card(facts())


def test_what_is_no_name_on_the_hub_is_no_name_in_the_front_matter():
    local = Source(label="rows.jsonl")
    assert not {"base_model", "datasets"} & front_matter(model_card(facts(base_model=local, dataset=local))).keys()


@pytest.mark.parametrize(
    ("address", "local", "source"),
    [
        ("Qwen/Qwen2.5-1.5B-Instruct", False, ("Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-1.5B-Instruct")),
        ("openai/gsm8k:main", False, ("openai/gsm8k:main", "openai/gsm8k")),
        ("data/train.jsonl", True, ("train.jsonl", None)),  # spelt like a name on the Hub, and there
        ("/home/me/secret/rows.jsonl", False, ("rows.jsonl", None)),
        ("runs/mine/final", True, ("final", None)),
        ("arithmetic", False, ("arithmetic", None)),
    ],
)
def test_a_path_of_this_machine_is_its_last_part_alone(address, local, source):
    found = named(address, is_local=lambda name: local)
    assert (found.label, found.hub) == source


def test_texts_cannot_end_a_cell_a_code_span_or_begin_an_element():
    card = model_card(facts(name="a|b\n# c <script>", base_model=Source(label="x`y|z")))
    assert "# a\\|b # c &lt;script>\n" in card
    assert "`x'y\\|z`" in card


def test_the_program_asks_with_the_system_message_of_training_and_an_adapter_is_loaded_with_peft():
    whole, adapter = model_card(facts()), model_card(facts(is_adapter=True))
    program = re.search(r"```python\n(.*?)```", whole, re.DOTALL)[1]
    assert '{"role": "system", "content": "Think, then say:\\n\\"x\\" | <answer>."},' in program
    compile(program, "card", "exec")
    assert "from peft import AutoPeftModelForCausalLM\nfrom transformers import AutoTokenizer\n" in adapter
    assert front_matter(adapter)["library_name"] == "peft"


def test_the_program_asks_a_held_out_task_and_says_its_gold_answer():
    example = Example(prompt="<|user|>2 + 2?<|end|>", answer="4", question="2 + 2?")
    card = model_card(facts(example=example))
    assert "# a held-out task, asked as in the run; its gold answer: 4\nmessages = [" in card
    assert '{"role": "user", "content": "2 + 2?"},' in card
    # of several turns the whole prompt, in which the template stands already
    whole = model_card(facts(example=replace(example, question=None)))
    assert 'prompt = tokenizer("<|user|>2 + 2?<|end|>", return_tensors="pt", add_special_tokens=False)' in whole


def run_with(path, *rights: list[bool]) -> RunDir:
    """A run whose evaluations, ten steps apart, found these tasks right."""
    run = RunDir.create(path, to_yaml(build_config(OPTIONS)))
    for number, right in enumerate(rights):
        found = wilson(sum(right), len(right))
        numbers = {"n": len(right), "accuracy": found.value, "ci_low": found.low, "ci_high": found.high}
        run.append_eval({"set": "sums", "step": 10 * number, **numbers})
        completions = [{"task_id": str(task), "correct": one} for task, one in enumerate(right)]
        run.write_eval_completions("sums", 10 * number, completions)
    return run


def test_of_an_earlier_checkpoint_the_card_tells_what_was_measured_up_to_there(tmp_path):
    run = run_with(tmp_path / "run", [False] * 4, [True, False, False, False], [True] * 4)
    config = build_config({**OPTIONS, "reward_funcs": [f"{tmp_path}/rewards.py:brief"]})
    at_ten, at_end = (card_facts(run, config, tmp_path, step=step) for step in (10, 20))
    assert [found.results[0].after.accuracy.value for found in (at_ten, at_end)] == [0.25, 1.0]
    assert (at_ten.results[0].comparison.gained, at_ten.results[0].looks, at_ten.steps) == (1, 1, 10)
    assert at_end.results[0].comparison.gained == 4
    card = model_card(at_end)
    assert str(tmp_path) not in card
    assert "R        = 1 * rewards.py:brief" in card


def test_a_set_that_was_measured_once_has_its_accuracy_and_no_difference(tmp_path):
    run = run_with(tmp_path / "run", [True, True, True, False])
    found = card_facts(run, build_config(OPTIONS), tmp_path, step=0)
    assert (found.results[0].comparison, found.results[0].looks) == (None, 0)
    (row,) = [line for line in model_card(found).splitlines() if line.startswith("| `sums`")]
    assert "75.0 % [30.1, 95.4], step 0" in row  # Wilson's interval of 3 of 4


def test_a_system_message_whose_file_is_gone_is_named_and_not_made_up(tmp_path):
    config = build_config({**OPTIONS, "system_prompt": f"file:{tmp_path}/system.txt"})
    card = model_card(card_facts(run_with(tmp_path / "run"), config, tmp_path, step=0))
    assert "from `system.txt`, which was not there any more when this card was written" in card


def test_a_readme_that_is_not_ours_stays_and_ours_is_written_anew(tmp_path):
    ours, base = tmp_path / "ours", tmp_path / "base"
    ours.mkdir()
    base.mkdir()
    (base / "README.md").write_text("# The base model's own card\n")
    assert write_card(facts(), base).name == "README-paceline.md"
    assert (base / "README.md").read_text() == "# The base model's own card\n"
    assert write_card(facts(steps=1), ours) == write_card(facts(steps=2), ours) == ours / "README.md"
    assert "in 2 steps of" in (ours / "README.md").read_text()
    edited = (ours / "README.md").read_text().replace(MARK, "My own words.")
    (ours / "README.md").write_text(edited)
    assert write_card(facts(), ours).name == "README-paceline.md"
    assert (ours / "README.md").read_text() == edited


@pytest.mark.parametrize(
    ("options", "said", "eprint"),
    [
        ({"preset": "gspo"}, "The objective is that of [Group Sequence Policy Optimization]", "2507.18071"),
        ({"preset": "bnpo"}, "The objective is nearest to that of [DeepSeekMath", "2402.03300"),
        ({}, "The objective is nearest to that of [DAPO", "2503.14476"),
        ({"bound": "sapo"}, "nearest to that of [Soft Adaptive", "2511.20347"),
        ({"advantage": "leave_one_out"}, "nearest to that of [Back to Basics", "2402.14740"),
        ({"average": "sequence"}, "nearest to that of [DeepSeekMath", "2402.03300"),
    ],
)
def test_the_card_cites_the_paper_of_the_objective(options, said, eprint):
    card = model_card(facts(config=build_config({**OPTIONS, **options})))
    section = card.partition("## Citation")[2]
    assert said in section
    assert f"  eprint = {{{eprint}}},\n" in section
    assert section.count("{") == section.count("}")


def test_every_preset_with_a_paper_has_its_entry():
    for name in PRESETS.keys() - {"bnpo"}:
        assert paper_of(build_config({**OPTIONS, "preset": name})).arxiv in PRESETS[name].source


def test_the_card_links_to_the_trackers_that_show_the_run(tmp_path):
    run = run_with(tmp_path / "run")
    for links in (("https://wandb.ai/me/one",), (), ("https://wandb.ai/me/two", "https://wandb.ai/me/one")):
        run.add_links(links)
    config = build_config(OPTIONS)
    card = model_card(card_facts(run, config, tmp_path, step=20))
    assert "Its curves: <https://wandb.ai/me/one>, <https://wandb.ai/me/two>" in card
    assert "curves" not in model_card(facts())
