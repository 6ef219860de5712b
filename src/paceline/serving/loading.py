"""From options to a model that responds. Nothing that takes seconds to load is imported at the top."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from typing import TYPE_CHECKING, cast

from paceline.base_directory import hold_base
from paceline.config.reading import option_name
from paceline.config.rules import check_unused
from paceline.config.sampling import EnvironmentConfig
from paceline.config.sections import Config
from paceline.engines.vllm.window import check_vllm
from paceline.errors import ModelError
from paceline.training.setup.configuration import Configuration, given_options, read_configuration
from paceline.training.setup.named_code import allow_named_code

if TYPE_CHECKING:
    from paceline.serving.model import ServedModel

LONGEST = 4096
"""Tokens of a prompt and its completion, unless --max-prompt-length is given or the model reaches less far."""
NO_ROWS: Mapping[str, object] = {"dataset": "arithmetic"}
"""A dataset for the configuration, which has one; no row is read."""


def read_options(flags: Mapping[str, object], *, file: str | None, runs: Collection[str]) -> Configuration:
    """Options of a model that responds, given as for training; environments only where the command names them itself.

    `runs`: options whose code the command runs.

    Raises:
        ConfigError: as `read_configuration`; or code of a run directory is not to be run without a word.
    """
    named = {option_name(name) for name in given_options(flags, file=file)}
    complete = flags if "dataset" in named else {**NO_ROWS, **flags}
    configuration = read_configuration(complete, file=file, for_training=False)
    config = configuration.config
    hold_base(configuration.base)
    allow_named_code(config, configuration.ground, configuration.given, runs=runs)
    if config.engine.engine == "vllm":
        check_vllm(None)
    if "environment" not in named:
        config = replace(config, environment=EnvironmentConfig())
    if "max_prompt_length" not in named:
        longest = max(1, LONGEST - config.sampling.max_completion_length)
        config = replace(config, data=replace(config.data, max_prompt_length=longest))
    return replace(configuration, config=config)


def load(
    config: Config,
    *,
    say: Callable[[str], None],
    loading: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> "ServedModel":
    """Load the model and start its engine; `say` gets notices, imports that take seconds are made within `loading`.

    Raises:
        PacelineError: the model or the engine cannot be used; the sentence says what to change.
    """
    with loading():
        from torch import Tensor

        from paceline.chat.escaping import ChatTokenizer
        from paceline.chat.turns import TurnTokens
        from paceline.models.loading import load_model
        from paceline.models.places import model_place
        from paceline.models.pretrained import end_token_ids, load_tokenizer
        from paceline.models.vision.placeholders import read_placeholders, reads_images
        from paceline.serving.generations import Generations
        from paceline.serving.images import ImagePrompts
        from paceline.serving.model import PromptReader, ServedModel
        from paceline.training.assembly import longest_sequence, make_engine
        from paceline.training.records import engine_sentences, of_machine
        from paceline.training.setup.samplers import sampling_of

    tokenizer = load_tokenizer(config.model)
    images = None
    whole = replace(config.model, model=model_place(config.model.model).base)
    if reads_images(whole):
        placeholders = read_placeholders(whole, config.vision, tokenizer)
        images = ImagePrompts(placeholders=placeholders, most=config.vision.max_images_per_prompt)
    else:
        names = [field.name for field in fields(config.vision)]
        check_unused(config.vision, names, without="a model that reads images", why="this one reads text alone")
    policy = load_model(config.model, vision=config.vision, pictures=None if images is None else images.images)
    engine = make_engine(config, policy, tokenizer, for_training=False)
    ends = end_token_ids(tokenizer, policy.model.generation_config, policy.model.config)
    tokens, problem = None, ""
    try:
        tokens = TurnTokens(cast(ChatTokenizer, tokenizer), switches=config.data.switches, stop_ids=ends)
    except ModelError as error:
        problem = str(error)
    for note in (*of_machine(policy), *engine_sentences(engine), *([problem] if problem else [])):
        say(note)
    length = longest_sequence(config, policy)
    return ServedModel(
        name=config.model.model,
        engine=engine,
        tokenizer=tokenizer,
        end_tokens=ends,
        tokens=tokens,
        chat_problem=problem,
        sampling=sampling_of(config.sampling),
        length=length,
        vocabulary=cast(Tensor, policy.model.get_input_embeddings().weight).shape[0],
        generations=Generations(config.engine.concurrent_sequences),
        prompts=PromptReader(tokenizer, tokens, problem=problem, length=length, images=images),
    )
