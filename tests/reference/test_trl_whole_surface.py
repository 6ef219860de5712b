"""Every public name of TRL 1.16's trainer and configuration and of accelerate's Accelerator is here or has a reason."""

import pytest

from paceline import GRPOConfig, GRPOTrainer
from paceline.compat.trl import scripts, surface
from tests.reference.beside_trl import trainer_of
from tests.support.tiny import tiny_model, tiny_tokenizer

trl = pytest.importorskip("trl", reason="make test-reference installs it")


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    place = tmp_path_factory.mktemp("both")
    args = GRPOConfig(str(place), per_device_train_batch_size=2, num_generations=2, max_completion_length=4)
    ours = GRPOTrainer(tiny_model(), len_of, args, [{"prompt": "a"}], processing_class=tiny_tokenizer())
    return trainer_of(place), ours


def len_of(completions, **columns):
    return [len(text) for text in completions]


def test_every_name_of_the_trainer_is_here_or_has_its_reason(both):
    theirs, ours = both
    assert sorted(public(theirs) - public(ours) - {*surface.STATE}) == []
    private = {name for name in vars(theirs) if name.startswith("_")} - {*dir(ours)}
    assert sorted(private - surface.NOT_HERE.keys() - {*surface.STATE}) == []
    assert sorted({*surface.NOT_HERE} & vars(ours).keys()) == []


def test_every_method_of_the_trainer_is_called_or_refused(both):
    theirs, _ = both
    methods = {name for name in dir(type(theirs)) if not name.startswith("__") and callable(getattr(theirs, name))}
    assert sorted(methods - GRPOTrainer._originals.keys()) == []


def test_every_name_of_the_configuration_is_here(both):
    theirs, ours = both
    assert sorted(public(theirs.args) - public(ours.args)) == []


def test_every_name_of_the_accelerator_is_here_or_has_its_reason(both):
    theirs, ours = both
    assert sorted(public(theirs.accelerator) - public(ours.accelerator) - scripts.REASONS.keys()) == []
    assert sorted(scripts.REASONS.keys() & public(ours.accelerator)) == []


def test_every_name_of_a_process_state_is_here(both):
    theirs, ours = both
    assert sorted(public(theirs.args.distributed_state) - public(ours.args.distributed_state)) == []
