"""What a run that is gone on with may have otherwise: a rule for each option, a refusal that lists what differs."""

import pytest

from paceline.config.building import build_config
from paceline.config.changing import RULES, override_names, plain_options, refuse_changes, rule_of
from paceline.config.reading import options
from paceline.errors import ConfigError


def values(**given):
    return plain_options(build_config({"model": "m", "dataset": "d", **given}))


def test_every_option_has_exactly_one_rule():
    named = [name for names in RULES.values() for name in names]
    assert sorted(named) == sorted(option.name for option in options())


@pytest.mark.parametrize("section", ["advantage", "loss", "sampling"])
def test_no_option_of_what_is_optimised_or_sampled_may_change_freely(section):
    names = [option.name for option in options() if option.section == section]
    assert {rule_of(name) for name in names} <= {"by name", "never"}


@pytest.mark.parametrize(
    "given",
    [
        {"save_steps": 5, "save_total_limit": 9, "report_to": ("tensorboard",)},
        {"eval_steps": 3},
        {"reward_timeout": 5.0, "micro_batch_tokens": 99},
        {"cluster": True, "num_producers": 2},
        {"max_steps": 900},  # the learning rate is constant
    ],
    ids=str,
)
def test_what_changes_no_number_may_simply_be_otherwise(given):
    found = refuse_changes(values(), values(**given), override=(), written=given)
    assert {one.option for one in found} == set(given)


def test_an_option_at_the_runs_own_value_is_no_difference():
    assert refuse_changes(values(beta=0.1), values(beta="1e-1"), override=()) == ()


def test_what_changes_the_maths_is_refused_with_every_old_and_new_value_and_the_way_out():
    old, new = values(learning_rate=1e-6), values(learning_rate=2e-6, stop=["END"], save_steps=7)
    with pytest.raises(ConfigError) as refused:
        refuse_changes(old, new, override=(), written=("learning_rate", "stop", "save_steps"))
    assert str(refused.value) == (
        "--stop is END and was none, --learning-rate is 2e-06 and was 1e-06, with which the run would compute "
        "something else than before; leave them as before, or continue so from the last checkpoint by "
        "--override stop learning_rate"
    )


def test_an_option_that_is_named_may_be_otherwise_and_the_one_beside_it_may_not():
    old, new = values(), values(learning_rate=2e-6, beta=0.1)
    found = refuse_changes(old, new, override=("learning_rate", "beta"))
    assert [(one.option, one.old, one.new) for one in found] == [
        ("beta", 0.0, 0.1),
        ("learning_rate", 1e-6, 2e-6),
    ]
    with pytest.raises(ConfigError, match=r"^--beta is 0\.1 and was 0\.0 \(config\.yaml was edited\), with which"):
        refuse_changes(old, new, override=("learning_rate",))


def test_no_override_changes_what_a_checkpoint_is_of():
    with pytest.raises(ConfigError, match=r"--lora-rank is 8 and was 0, which a run cannot change, as a checkpoint"):
        refuse_changes(values(), values(lora_rank=8), override=("lora_rank",), written=("lora_rank",))


def test_the_length_of_a_run_changes_its_steps_where_the_learning_rate_falls_towards_the_end():
    old, new = values(max_steps=10, lr_schedule="cosine"), values(max_steps=20, lr_schedule="cosine")
    with pytest.raises(ConfigError, match="--max-steps is 20 and was 10"):
        refuse_changes(old, new, override=(), written=("max_steps",))


def test_options_to_override_are_named_in_any_spelling_and_a_wrong_one_is_refused():
    assert override_names(["--learning-rate", "beta,top_p"]) == {"learning_rate", "beta", "top_p"}
    with pytest.raises(ConfigError, match="there is no option --lerning-rate; did you mean --learning-rate"):
        override_names(["lerning_rate"])


def test_epochs_say_nothing_of_a_run_whose_steps_are_given():
    before, after = {"max_steps": 10, "num_epochs": 3.0}, {"max_steps": 10, "num_epochs": 1.0}
    assert [one.option for one in refuse_changes(before, after, override=())] == ["num_epochs"]
    with pytest.raises(ConfigError, match="--max-steps is none and was 10"):
        refuse_changes(before, {"max_steps": None, "num_epochs": 2.0}, override=("num_epochs",))
