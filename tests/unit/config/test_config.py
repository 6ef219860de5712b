"""Options: the table, one value, the whole configuration, YAML in and out."""

import dataclasses
import subprocess
import sys

import pytest

from paceline.config.building import build_config
from paceline.config.flat_yaml import parse_yaml, to_yaml
from paceline.config.presets import PRESETS
from paceline.config.reading import find_option, options, parse_value, section_classes, suggest
from paceline.errors import ConfigError

REQUIRED = {"model": "some-model", "dataset": "rows.jsonl"}


def read(name, value):
    return parse_value(find_option(name), value)


def test_every_field_of_every_section_is_an_option_with_a_help_text():
    fields = [field.name for section in section_classes().values() for field in dataclasses.fields(section)]
    assert [option.name for option in options()] == fields
    assert all(option.help.endswith((".", ")")) for option in options())


def test_option_names_are_unique_so_that_flags_are_flat():
    names = [option.name for option in options()]
    assert len(names) == len(set(names))


def test_the_help_text_is_the_fields_own_docstring():
    assert find_option("max_prompt_length").help == "Tokens of a prompt, at most."
    assert find_option("clip_eps_low").help == "`clip`: the ratio is held above `1 - clip_eps_low`."


def test_an_option_knows_its_section_default_and_flag():
    option = find_option("clip_eps_low")
    assert (option.section, option.default, option.flag, option.required) == ("loss", 0.2, "--clip-eps-low", False)
    assert [option.name for option in options() if option.required] == ["model", "dataset"]


def test_hyphens_and_underscores_name_the_same_option():
    assert find_option("--learning-rate") is find_option("learning_rate") is find_option("learning-rate")


def test_an_unknown_option_is_refused_with_the_nearest_right_one():
    with pytest.raises(ConfigError, match=r"there is no option --lerning-rate; did you mean --learning-rate\?"):
        find_option("lerning_rate")


def test_a_word_unlike_any_other_gets_the_way_to_the_list():
    assert suggest("qqqq", ["alpha", "beta"], otherwise="see the list") == "see the list"


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("max_steps", "60", 60),
        ("max_steps", 60, 60),
        ("max_steps", "none", None),
        ("max_steps", "", None),
        ("max_steps", None, None),
        ("micro_batch_tokens", "16_384", 16384),
        ("learning_rate", "1e-4", 0.0001),
        ("learning_rate", 0, 0.0),
        ("shuffle", "no", False),
        ("shuffle", "1", True),
        ("shuffle", True, True),
        ("enable_thinking", "null", None),
        ("enable_thinking", "False", False),
        ("kl", "forward", "forward"),
        ("advantage", "none", "none"),
        ("model", "none", "none"),
        ("vllm_memory", "0.3", 0.3),
        ("cluster", "yes", True),
        ("cluster", "auto", "auto"),
        ("vllm_memory", "2GiB", "2GiB"),
        ("system_prompt", "", ""),
        ("system_prompt", "None", None),
        ("reward_funcs", "accuracy,format", ("accuracy", "format")),
        (
            "reward_funcs",
            "accuracy, cosine(max_length=9, max_wrong=0)",
            ("accuracy", "cosine(max_length=9, max_wrong=0)"),
        ),
        ("reward_funcs", "accuracy, format", ("accuracy", "format")),
        ("reward_funcs", ["accuracy", "format"], ("accuracy", "format")),
        ("reward_funcs", ["accuracy,format"], ("accuracy", "format")),
        ("reward_weights", ["1", "0.5"], (1.0, 0.5)),
        ("reward_weights", "1,0.5", (1.0, 0.5)),
        ("reward_weights", 2, (2.0,)),
        ("reward_weights", "none", None),
        ("stop", ["a, b"], ("a, b",)),
        ("stop", "\n", ("\n",)),
        ("stop", (), ()),
    ],
)
def test_text_and_values_become_the_options_type(name, written, value):
    got = read(name, written)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("name", "written", "sentence"),
    [
        ("learning_rate", "1e-5x", r"--learning-rate must be a number, got '1e-5x'; write it as 0\.5 or 1e-6"),
        ("learning_rate", "nan", r"--learning-rate must be a finite number, got 'nan'"),
        ("learning_rate", float("inf"), r"--learning-rate must be a finite number, got inf"),
        ("learning_rate", True, r"--learning-rate must be a number, got True"),
        ("learning_rate", 10**400, r"--learning-rate must be a number"),
        ("max_steps", "3.5", r"--max-steps must be a whole number, got '3\.5'"),
        ("max_steps", 3.0, r"--max-steps must be a whole number, got 3\.0"),
        ("max_steps", True, r"--max-steps must be a whole number, got True"),
        ("num_generations", None, r"--num-generations must be a whole number, got None"),
        ("num_generations", "", r"--num-generations must be a whole number, got ''"),
        ("shuffle", "maybe", r"--shuffle must be true or false, got 'maybe'"),
        ("lr_schedule", "cosin", r"--lr-schedule must be one of constant, linear, cosine, got 'cosin'; .*cosine\?"),
        ("model", 7, r"--model must be text, got 7"),
        ("reward_weights", ["1", "x"], r"--reward-weights must be a number, got 'x'"),
        ("reward_weights", ["1", "inf"], r"--reward-weights must be a finite number, got 'inf'"),
    ],
)
def test_a_wrong_value_is_refused_with_option_value_and_rule(name, written, sentence):
    with pytest.raises(ConfigError, match=sentence):
        read(name, written)


def test_a_configuration_is_the_given_options_over_the_defaults():
    config = build_config({**REQUIRED, "learning-rate": "2e-6", "num_generations": 4})
    assert config.model.model == "some-model"
    assert config.optim.learning_rate == 2e-6
    assert config.sampling.num_generations == 4
    assert config.loss.clip_eps_high == 0.28


def test_missing_required_options_are_named_all_at_once_with_the_remedy():
    with pytest.raises(
        ConfigError, match=r"^missing --model and --dataset; give .* --dataset train.jsonl, or in the --config file$"
    ):
        build_config({})


def test_one_option_in_two_spellings_is_refused():
    with pytest.raises(ConfigError, match=r"--max-steps is given twice"):
        build_config({**REQUIRED, "max-steps": 1, "max_steps": 2})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"warmup_steps": 11, "max_steps": 10}, r"--warmup-steps must be at most --max-steps \(10\), got 11"),
        ({"output_dir": ""}, r"--output-dir must not be empty, got ''"),
        ({"dataset": ""}, r"--dataset must not be empty, got ''"),
        ({"num_generations": 1}, r"--num-generations must be at least 2, got 1"),
        ({"reward_weights": [1, 2]}, r"--reward-weights must give one weight for each of the 1 rewards \(accuracy\)"),
        ({"advantage": "batch", "num_generations": 0}, r"--num-generations must be at least 1, got 0"),
        (
            {"advantage": "batch", "num_generations": 1, "reward_aggregation": "normalize_then_sum"},
            r"--num-generations must be at least 2 with --reward-aggregation normalize_then_sum, got 1",
        ),
        ({"clip_eps_low": 1.5}, r"--clip-eps-low must lie in \[0, 1\), got 1\.5"),
        ({"bound_shape": [1.1]}, r"--bound-shape must be above 1 \+ clip_eps_high, got \(1\.1,\); 3 is usual"),
        ({"bound": "sapo", "bound_shape": [1]}, r"be 2 numbers with --bound sapo, got \(1\.0,\); 1\.0 1\.05 is usual"),
        (
            {"bound": "vespo", "bound_shape": [1, 2, 3, 0]},
            r"--bound-shape must be above 0, got .*; 2\.0 3\.0 3\.0 2\.0",
        ),
        ({"bound": "cispo", "bound_shape": [3]}, "--bound-shape must be none with --bound cispo"),
        ({"bound": "vespo", "ratio_level": "sequence"}, "--ratio-level must be token with --bound vespo"),
        (
            {"bound": "vespo", "rollout_correction": "sequence_mask"},
            "--rollout-correction must be none, token_truncate or token_mask with --bound vespo",
        ),
        ({"top_entropy_quantile": 1.5}, r"--top-entropy-quantile must lie in \[0, 1\], got 1\.5; 0\.2 is usual"),
        ({"entropy_target": [0.2]}, r"--entropy-target must be an entropy, the least .*; 0\.2 0 1 0\.005 is usual"),
        ({"correction_bounds": [3, 2]}, "--correction-bounds must be two numbers from 0 on, the lower first"),
        ({"adam_betas": [0.9]}, r"--adam-betas must be two numbers in \[0, 1\), got"),
        ({"ref_sync": [0.5, 0.6], "beta": 0.1}, r"--ref-sync must be steps and a share in \(0, 1\], got"),
        ({"preset": "grop"}, r"--preset must be one of grpo, .*, got 'grop'; did you mean grpo\?"),
        ({"preset": "dr-grpo"}, r"--preset must be one of .*, got 'dr-grpo'; did you mean dr_grpo"),
        ({"filter_range": [1, 0]}, r"--filter-range must be two numbers, the lower first, got \(1\.0, 0\.0\)"),
        ({"filter_range": [0]}, r"--filter-range must be two numbers"),
        ({"filter_func": "accuracy"}, r"--filter-func must be left out without --filter-range, got 'accuracy'"),
        (
            {"filter_func": "format", "filter_range": [0, 1]},
            r"--filter-func must be one of the rewards \(accuracy\), got 'format'",
        ),
        (
            {"filter_func": "guess", "filter_range": [0, 1], "environment": "guess", "reward_funcs": ()},
            r"--filter-func must be left out here, got 'guess'; where there is no function, the environment's own",
        ),
        (
            {"reward_funcs": "f.py:g,overlong", "overlong_share": 0.2},
            r"--reward-funcs must not name a function overlong with --overlong-share, got .*",
        ),
        *(
            ({"environment": "guess", "turn_credit": 1.0, "prompts_per_step": 2, **others}, message)
            for others, message in (
                ({"advantage": "batch"}, r"--advantage must be group or .* with --turn-credit, got 'batch'"),
                ({"advantage": "mine.py:f"}, r"--advantage must be group or .* with --turn-credit, got 'mine.py:f'"),
                (
                    {"reward_aggregation": "normalize_then_sum"},
                    r"--reward-aggregation must be sum_then_normalize with --turn-credit, got 'normalize_then_sum'",
                ),
            )
        ),
        ({"max_refills": 2}, r"--max-refills must be 0 without --filter-range, got 2"),
        ({"oversampling": 2.0}, r"--oversampling must be 1 without --filter-range, got 2\.0"),
        ({"oversampling": 0.5, "filter_range": [0, 1]}, r"--oversampling must be at least 1, got 0\.5"),
        ({"ref_sync": [5, 0.6]}, r"--ref-sync must be none while --beta is 0, got \(5\.0, 0\.6\)"),
        ({"lora_parameters": ["all-experts"]}, "--lora-parameters must be left out without --lora-rank"),
        ({"lora_rank": 2, "lora_settings": ["target_parameters=[]"]}, "without r, lora_alpha and target_parameters"),
        ({"ref_sync": [5, 1], "beta": 0.1, "lora_rank": 4}, r"--ref-sync must be none with --lora-rank, got \(5"),
        (
            {"num_minibatches": 7, "prompts_per_step": 4, "num_generations": 8},
            r"--num-minibatches must divide the 32 completions of a step, got 7; the nearest that do are 4 and 8",
        ),
        (
            {"engine": "vllm", "vllm_memory": "0GiB"},
            r"--vllm-memory must be a share in \(0, 1\), or a size such as 2GiB",
        ),
        ({"skip_threshold": 0.5}, r"--skip-threshold must be above 1, got 0\.5; 20 is usual"),
        ({"eval_generations": 4}, r"--eval-generations must be 1 at --eval-temperature 0, got 4"),
        ({"on_new_weights": "continue"}, r"--on-new-weights must be finish with --max-staleness 0, got 'continue'"),
        (
            {"on_new_weights": "continue", "cluster": True},
            r"--on-new-weights must be finish with --max-staleness 0, got 'continue'; no weights are made while",
        ),
    ],
)
def test_options_at_odds_are_refused(given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        build_config({**REQUIRED, **given})


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_fills_in_what_is_not_given_and_the_written_yaml_says_the_rest(name):
    config = build_config({**REQUIRED, "preset": name, "clip_eps_low": 0.11})
    flat = {option.name: getattr(getattr(config, option.section), option.name) for option in options()}
    assert flat["clip_eps_low"] == 0.11
    expected = {option: value for option, value in PRESETS[name].values.items() if option != "clip_eps_low"}
    assert {option: flat[option] for option in expected} == expected
    assert build_config(parse_yaml(to_yaml(config), "config.yaml")) == config


@pytest.mark.parametrize(
    ("given", "judge"),
    [
        ({"reward_funcs": "format,accuracy"}, "accuracy"),
        ({"reward_funcs": "format,boxed", "eval_reward_func": "boxed"}, "boxed"),
        ({"reward_funcs": "format,boxed"}, "format"),
        ({"reward_funcs": "format,accuracy", "filter_func": "format"}, "format"),
        ({"reward_funcs": "model:judge"}, "judge"),
    ],
)
def test_a_filter_looks_at_what_says_right_and_the_resolved_configuration_names_it(given, judge):
    assert build_config({**REQUIRED, "preset": "dapo", **given}).advantage.filter_func == judge
    assert build_config({**REQUIRED, **given, "filter_func": None}).advantage.filter_func is None


@pytest.mark.parametrize(
    ("given", "judge"),
    [
        ({"reward_funcs": "format, accuracy(plain=true)"}, "accuracy(plain=true)"),
        ({"reward_funcs": "accuracy(plain=true)", "eval_reward_func": "accuracy"}, "accuracy"),
        ({"reward_funcs": "boxed"}, "accuracy"),
        ({}, "accuracy"),
    ],
)
def test_held_out_answers_are_read_as_in_training_unless_a_grader_is_named(given, judge):
    assert build_config({**REQUIRED, **given}).evaluation.eval_reward_func == judge


def test_a_presets_filter_is_switched_off_by_a_word():
    given = {**REQUIRED, "preset": "dapo", "filter_range": ["none"], "max_refills": "0"}
    assert build_config(given).advantage.filter_range is None


def test_every_preset_has_a_name_that_the_option_takes():
    assert find_option("preset").choices == tuple(PRESETS)


def test_completions_of_one_prompt_may_be_single_where_prompts_are_compared():
    assert build_config({**REQUIRED, "advantage": "batch", "num_generations": 1}).sampling.num_generations == 1


def test_an_advantage_or_a_bound_may_be_code_of_ones_own():
    options = {**REQUIRED, "advantage": "mine.py:f", "bound": "package.losses:g", "num_generations": 1}
    config = build_config(options)
    assert (config.advantage.advantage, config.loss.bound) == ("mine.py:f", "package.losses:g")
    for wrong in ("grup", "mine.py", "mine.py:", ":f"):
        with pytest.raises(
            ConfigError, match=r"--advantage must be one of group, .*, or a function as file\.py:function"
        ):
            build_config({**REQUIRED, "advantage": wrong})
    with pytest.raises(ConfigError, match="--average must be one of token, sequence, "):
        build_config({**REQUIRED, "average": "mine.py:f"})


def test_without_reward_functions_the_answer_is_checked_unless_a_model_judges():
    assert build_config(REQUIRED).rewards.names == ("accuracy",)
    judged = build_config({**REQUIRED, "reward_funcs": "model:judge"})
    assert judged.rewards.weights == {"judge": 1.0}
    both = build_config({**REQUIRED, "reward_funcs": "format,model:judge", "reward_weights": "2,3"})
    assert both.rewards.weights == {"format": 2.0, "judge": 3.0}


def test_a_run_may_warm_up_to_its_last_step():
    assert build_config({**REQUIRED, "warmup_steps": 10, "max_steps": 10}).optim.warmup_steps == 10


def test_yaml_values_are_read_by_the_options_type_not_by_yamls():
    text = """
    # a comment
    model: 0123
    dataset_split: no
    learning-rate: 1e-4
    max_steps: null
    shuffle: off-by-default-is-no-word
    """
    with pytest.raises(ConfigError, match=r"run\.yaml line 7: --shuffle must be true or false"):
        parse_yaml(text, "run.yaml")
    read_text = text.replace("off-by-default-is-no-word", "false")
    assert parse_yaml(read_text, "run.yaml") == {
        "model": "0123",
        "dataset_split": "no",
        "learning_rate": 1e-4,
        "max_steps": None,
        "shuffle": False,
    }


def test_an_empty_file_gives_no_options():
    assert parse_yaml("", "run.yaml") == parse_yaml("# nothing\n", "run.yaml") == {}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("model:\n\tx: 1", r"run\.yaml line 2 is not YAML: .*; indent with spaces"),
        ("model: 'a", r"run\.yaml line 1 is not YAML: .*unexpected end of stream"),
        ("model: a\nmodel: b", r"run\.yaml line 2: model is given a second time"),
        ("max-steps: 1\nmax_steps: 2", r"run\.yaml line 2: max_steps is given a second time"),
        ("model: a\n---\nmodel: b", r"run\.yaml line 2 is not YAML: expected a single document"),
        ("- model", r"run\.yaml must hold lines of `option: value`, got a list"),
        ("just words", r"run\.yaml must hold lines of `option: value`, got a single value"),
        ("lerning_rate: 1", r"run\.yaml line 1: there is no option --lerning-rate; did you mean --learning-rate\?"),
        ("model: {a: 1}", r"run\.yaml line 1: model holds a nested mapping"),
        ("stop: [[a]]", r"run\.yaml line 1: stop holds a nested list"),
        ("stop: &a [*a]", r"run\.yaml line 1: stop holds a nested list"),
        ("model: !!python/object/apply:os.system [ls]", r"model has the tag !!python/object/apply:os\.system"),
        ("model: !!python/name:os.system ''", r"model has the tag !!python/name:os\.system"),
        ("model: !!python/object:a.B {x: 1}", r"model has the tag !!python/object:a\.B"),
        ("stop: [!secret x]", r"run\.yaml line 1: stop has the tag !secret"),
        ("? [a]\n: 1", r"run\.yaml line 1: the name of an option must be a word"),
        ("learning_rate: .inf", r"run\.yaml line 1: --learning-rate must be a number"),
        ("model: \x00", r"run\.yaml is not YAML"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(text, sentence):
    with pytest.raises(ConfigError, match=sentence):
        parse_yaml(text, "run.yaml")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"learning_rate": 1e-7, "adam_eps": 1e-30, "max_steps": 3, "enable_thinking": False, "seed": 2**63 - 1},
        {"system_prompt": "a: b\n\n# c\t'\"é😀\x7f {x} - [y]", "stop": ["\n", "a, b", "none", " ", "#"]},
        {"system_prompt": "", "reward_funcs": ["accuracy", "f.py:g"], "reward_weights": [1, 0.1]},
        {"model": "no", "dataset": "1e5", "dataset_split": "2024-01-01", "eval_dataset": "~", "kl": "forward"},
        {"model": "x" * 300, "prompt_column": "=", "answer_column": "<<", "advantage": "none"},
        {"system_prompt": " leading and trailing \n"},
    ],
)
def test_a_configuration_survives_being_written_and_read(given):
    config = build_config({**REQUIRED, **given})
    assert build_config(parse_yaml(to_yaml(config), "config.yaml")) == config


@pytest.mark.parametrize(
    ("given", "held_out"),
    [
        (None, ((None, "rows"),)),
        ("test.jsonl", ((None, "test.jsonl"),)),
        (["a,b.jsonl"], ((None, "a,b.jsonl"),)),  # no two sets: a comma may be part of a path
        (["easy=a.jsonl", "org/name:config"], (("easy", "a.jsonl"), (None, "org/name:config"))),
        (["./x=1/test.jsonl", "m=x=1.jsonl"], ((None, "./x=1/test.jsonl"), ("m", "x=1.jsonl"))),
    ],
)
def test_held_out_sets_are_addresses_with_or_without_a_name(given, held_out):
    config = build_config({"model": "m", "dataset": "rows", "eval_dataset": given})
    assert config.data.held_out == held_out
    assert build_config(parse_yaml(to_yaml(config), "run.yaml")) == config


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["a.jsonl", "a.jsonl"], "--eval-dataset must name each set once, got "),
        (["a=1.jsonl", "a=2.jsonl"], "NAME=ADDRESS gives one a name"),
        (["a="], "--eval-dataset must hold no empty address"),
        ([], "--eval-dataset must name at least one dataset"),
    ],
)
def test_held_out_sets_that_cannot_be_told_apart_are_refused(given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        build_config({"model": "m", "dataset": "rows", "eval_dataset": given})


def test_written_yaml_names_the_version_and_groups_options_under_their_sections_sentence():
    lines = to_yaml(build_config(REQUIRED)).splitlines()
    assert lines[0].startswith("# paceline 0.")
    place = lines.index("# model: Model, its precision and its device.")
    assert lines[place + 1 : place + 3] == ["model: some-model", "dtype: auto"]
    assert "reward_funcs: [accuracy]" in lines
    assert sum(not line.startswith("#") and line != "" for line in lines) == len(options())


def test_reading_options_needs_no_torch():
    code = "import sys, paceline.config, paceline.cli.main; print(*({'torch', 'transformers'} & set(sys.modules)))"
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert got.stdout.strip() == ""


@pytest.mark.parametrize(
    ("given", "word"), [(True, "true"), (False, "false"), ("yes", "true"), ("0", "false"), ("auto", "auto")]
)
def test_a_switch_with_a_third_word_takes_what_a_plain_switch_takes(given, word):
    config = build_config({"model": "m", "dataset": "d", "gradient_checkpointing": given})
    assert config.model.gradient_checkpointing == word
    assert build_config(parse_yaml(to_yaml(config), "run.yaml")) == config


def test_completions_of_older_weights_are_corrected_towards_the_sampler_unless_it_is_switched_off():
    required = {"model": "m", "dataset": "d"}
    stale = {**required, "cluster": True, "max_staleness": "1"}
    loss = build_config(stale).loss
    assert (loss.rollout_correction, loss.correction_bounds[1]) == ("token_truncate", 2.0)
    assert build_config(required | {"cluster": True}).loss.rollout_correction == "none"
    assert build_config(stale | {"preset": "gspo"}).loss.rollout_correction == "token_truncate"
    for given in ("none", "token_mask"):
        assert build_config(stale | {"rollout_correction": given}).loss.rollout_correction == given
    again = build_config(parse_yaml(to_yaml(build_config(stale | {"rollout_correction": "none"})), "config.yaml"))
    assert again.loss.rollout_correction == "none"


def test_several_datasets_are_a_tuple_and_one_is_its_address():
    one, two = (build_config({"model": "m", "dataset": given}) for given in ("a#5", ["a#5", "b, c.jsonl"]))
    assert (one.data.dataset, one.data.datasets) == ("a#5", ("a#5",))
    assert two.data.dataset == ("a#5", "b, c.jsonl")
    assert build_config(parse_yaml(to_yaml(two), "c.yaml")) == two
    assert build_config({"model": "m", "dataset": ["a"]}).data.dataset == "a"
