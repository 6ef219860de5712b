"""Accuracy of a model on held-out tasks, outside a run; nothing that takes seconds to load is imported at the top."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, cast

from paceline.config.sections import Config
from paceline.runtime.activity import ACTIVITY
from paceline.training.setup.inputs import RunObjects

if TYPE_CHECKING:
    from paceline.training.evaluation import AccuracyResult


def measure(
    config: Config,
    objects: RunObjects,
    *,
    say: Callable[[str], None],
    is_length_free: bool = False,
    loading: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> "Iterator[AccuracyResult]":
    """Evaluate every held-out set; `say` gets notices before any number, and imports that take seconds are made within
    `loading`. `is_length_free`: nobody chose the length of completions, so it may be what the model leaves.

    Raises:
        PacelineError: a row, the model or a grader cannot be used; the sentence says what to change.
    """
    # loading torch takes seconds: whatever can be refused is refused before these lines
    with loading():
        from paceline.models.pretrained import load_tokenizer, positions_in, read_config
        from paceline.runtime.devices import choose_device
        from paceline.training.setup.held_out import make_evaluators
        from paceline.training.setup.images import with_placeholders
        from paceline.training.setup.preparation import check_eight_bits, conversations_of

    described = read_config(config.model) if objects.model is None else objects.model.config
    if objects.model is None:
        check_eight_bits(config, described, choose_device(config.model))
    limit = positions_in(described)
    tokenizer = objects.tokenizer or load_tokenizer(config.model)
    conversations = conversations_of(config, tokenizer, objects.environments, described, objects.model)
    objects = with_placeholders(config, objects, tokenizer)
    evaluators = make_evaluators(config, tokenizer, objects, conversations, limit=limit, is_length_free=is_length_free)
    for evaluator in evaluators:
        for note in evaluator.notes:
            say(note if len(evaluators) == 1 else f"{evaluator.name}: {note}")
        say(evaluator.detectable)
    # what computes a model takes as long again: whatever needs no weights is refused before these lines
    with loading():
        from paceline.models.loading import adopt_model, load_model
        from paceline.training.assembly import make_engine
        from paceline.training.records import engine_sentences, of_machine

    has_images = any(task.media for evaluator in evaluators for task in evaluator.tasks)
    pictures, vision = objects.images.pictures if has_images and objects.images else None, config.vision
    if objects.model is None:
        policy = load_model(config.model, pictures=pictures, vision=vision)
    else:
        own, processor = objects.model, objects.image_processor
        policy = adopt_model(own, config.model, pictures=pictures, vision=vision, image_processor=processor)
    engine = make_engine(config, policy, tokenizer, for_training=False)
    for note in (*of_machine(policy), *engine_sentences(engine)):
        say(note)
    with nullcontext() if conversations is None else conversations.hosts:
        for evaluator in evaluators:
            ACTIVITY.begin(evaluator.name)
            yield cast("AccuracyResult", evaluator.evaluate(engine, step=0))
