"""The cheap stage of setup: what files and names alone can tell, before the libraries that take seconds are loaded."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from paceline.base_directory import local_path
from paceline.checkpoints.existing_runs import is_run
from paceline.config.objective import AdvantageConfig, LossConfig
from paceline.config.reading import base_name, is_code
from paceline.config.sections import Config, EvalConfig
from paceline.data.duplicates import training_rows
from paceline.data.formats import screen
from paceline.data.pictures import PictureStore
from paceline.data.prompts import system_prompt
from paceline.data.row_images import ImageInput
from paceline.data.rows import SAMPLE, WHOLE, Row, spread
from paceline.data.sources import ReadFiles, has_split, is_file, load_rows
from paceline.engines.vllm.window import check_vllm
from paceline.environments import EnvironmentSpec
from paceline.errors import ConfigError
from paceline.models.places import (
    ADAPTER_WEIGHTS,
    check_completion_fits,
    model_place,
    positions_of,
    read_model_config,
)
from paceline.models.weight_headers import check_quantised, check_weights, read_whole
from paceline.objective.advantages import GroupAdvantage
from paceline.reports.trackers import check_trackers
from paceline.rewards.function import BuiltIn, RewardFunction, row_check
from paceline.rewards.model_files import check_reward_model
from paceline.rewards.resolving import BUILT_IN, default_system_prompt, resolve, reward_context
from paceline.runtime.own_code import own_function
from paceline.training.setup.inputs import RunObjects
from paceline.types import RowCheck

if TYPE_CHECKING:
    from paceline.objective.own_loss import PolicyLoss


NO_OBJECTS = RunObjects()


def resolved(config: Config, objects: RunObjects = NO_OBJECTS, *, for_training: bool = True) -> RunObjects:
    """Resolve the reward functions and the system message that the options name, without a look at anything else.

    Not `for_training`, only built-in functions are: what they ask for is measured too.

    Raises:
        RewardError, ConfigError, DataError: one of them is not there.
    """
    measure, functions = config.evaluation.eval_reward_func, config.rewards.functions
    wanted = functions if for_training else [name for name in functions if base_name(name) in BUILT_IN]
    environments: Mapping[str, EnvironmentSpec] = {}
    if config.environment.environment:
        # imported here: most runs have one turn, and what is built in brings asyncio and sqlite
        from paceline.environments.resolving import specs

        environments = specs(config.environment.environment, sandbox=config.rewards.sandbox)
    rewarding = [name for name, spec in environments.items() if spec.has_reward]
    if not config.rewards.names and not rewarding:
        raise ConfigError(
            f"--reward-funcs must name a function, as --environment {' '.join(config.environment.environment)} gives "
            "no reward of its own, got none; give one, for example --reward-funcs accuracy"
        )
    # an environment's own reward says what is right where there is no function, or where it is named
    by_environment = measure in environments or (not config.rewards.names and measure == EvalConfig().eval_reward_func)
    functions_by_name = resolve_functions(config, wanted, objects.functions)
    # one object under one name: a judge has one budget
    known, flag = {**objects.functions, **functions_by_name}, "--eval-reward-func"
    measured = {} if by_environment else resolve_functions(config, [measure], known, flag=flag)
    return replace(
        objects,
        is_resolved=True,
        functions=functions_by_name,
        measure=measured,
        system=system_prompt(config.data, default_system_prompt(functions)),
        environments=environments,
        files=dict(objects.files),
        images=objects.images or unexpanded_images(config),
    )


def unexpanded_images(config: Config) -> ImageInput:
    """Return how images of rows are read before a tokenizer is: nothing says yet how prompts hold them."""
    pictures, most = PictureStore(image_urls=config.vision.image_urls), config.vision.max_images_per_prompt
    return ImageInput(pictures=pictures, placeholders=None, max_images_per_prompt=most)


def own_advantage(options: AdvantageConfig) -> GroupAdvantage | None:
    """Load the function that `--advantage` names; None: it is built in. Raises RewardError where it is not there."""
    name = options.advantage
    return cast(GroupAdvantage, own_function(name, flag="--advantage")) if is_code(name) else None


def own_policy_loss(options: LossConfig) -> "PolicyLoss | None":
    """Load the function that `--bound` names; None: it is built in. Raises RewardError where it is not there."""
    return cast("PolicyLoss", own_function(options.bound, flag="--bound")) if is_code(options.bound) else None


def check(config: Config, objects: RunObjects = NO_OBJECTS, *, runs_here: bool = True) -> RunObjects:
    """Check that everything named by training's options exists, and the rows: all of a file, else the first.

    Not `runs_here`, a model may be a config.json alone, and vLLM, trackers, sandbox and judge may be elsewhere.

    Raises:
        PacelineError: something is not there or cannot be read.
    """
    checked, data = resolved(config, objects), config.data
    if objects.advantage is None:
        own_advantage(config.advantage)
    if objects.policy_loss is None:
        own_policy_loss(config.loss)
    for name in config.rewards.reward_models:
        check_reward_model(name)
    if runs_here:
        check_trackers(config.loop.report_to)
        if config.engine.engine == "vllm":
            check_vllm(None)
    by_functions = row_check(checked.functions)
    are_shared = len(data.datasets) > 1 and all(is_file(dataset, checked.files) for dataset in data.datasets)
    if are_shared:  # how many are taken of each follows from all
        rows, _ = training_rows(
            replace(data, eval_share=None), seed=config.loop.seed, files=checked.files, images=checked.images
        )
        _screen(config, checked, rows, data.datasets[0], by_functions)
    for dataset in () if are_shared else data.datasets:
        rows = _rows(config, checked, dataset, split=data.dataset_split, size=data.dataset_size)
        _screen(config, checked, rows, dataset, by_functions)
    if data.eval_dataset is not None:
        _look_at_held_out_rows(config, checked)
    # behind the rows: a GGUF file is unpacked for it, which takes minutes
    positions = None if objects.model is not None else _look_at_model(config, needs_weights=runs_here)
    if runs_here:
        _look_at_what_they_need((*checked.functions.values(), *checked.measure.values()), checked.environments)
    check_completion_fits(config.sampling.max_completion_length, limit=positions)
    return checked


def check_held_out(config: Config, objects: RunObjects = NO_OBJECTS) -> RunObjects:
    """Check what evaluation's options name, and the first row of each held-out set; raises as `check` does."""
    checked = resolved(config, objects, for_training=False)
    if config.engine.engine == "vllm":
        check_vllm(None)
    _look_at_held_out_rows(config, checked)
    if objects.model is None:
        _look_at_model(config, needs_weights=True)
    _look_at_what_they_need(checked.measure.values(), checked.environments)
    return checked


def refuse_training_rows(config: Config, file: Path | None, named: Collection[str]) -> None:
    """Refuse to measure what a run has trained on its training rows, where it kept no tasks apart.

    `file` is where the configuration came from, `given` the options that the command names itself.

    Raises:
        ConfigError: the run keeps no tasks apart, and the command names none.
    """
    names_tasks = not {"dataset", "dataset_split", "eval_dataset", "eval_share"}.isdisjoint(named)
    if names_tasks or file is None or file.name != "config.yaml" or not is_run(file.parent):
        return
    data, model = config.data, local_path(config.model.model).resolve()
    keeps_apart = data.eval_dataset is not None or data.eval_share is not None
    if keeps_apart or not model.is_relative_to(file.parent.resolve()):
        return
    if data.eval_split == data.dataset_split or not any(
        has_split(dataset, data.eval_split) for dataset in data.datasets
    ):
        raise ConfigError(
            f"the run of {file} kept no tasks apart from --dataset {' '.join(data.datasets)}; give tasks that it has "
            "not seen by --eval-dataset, or a split of them by --eval-split"
        )


def refuse_unread_tasks(config: Config, named: Collection[str], files: ReadFiles | None = None) -> None:
    """Refuse options of an evaluation command that would not change its result.

    `given` are the options that the command names itself, `files` a program's own rows.

    Raises:
        ConfigError: a number of rows to train on, or a split that a set of held-out tasks does not have.
        DataError: nothing lies at the address of a set.
    """
    data = config.data
    if "dataset_size" in named and data.eval_share is None:
        raise ConfigError(
            f"--dataset-size is of the rows that are trained on, got {data.dataset_size}; give --eval-size, the number "
            "of tasks of each held-out set"
        )
    if "eval_split" not in named:
        return
    for _, address in data.held_out:
        if not has_split(address, data.eval_split, files):
            raise ConfigError(
                f"--eval-split must be a split of the held-out tasks, got {data.eval_split!r}, which {address} does "
                "not have; leave it out, or name another"
            )


def resolve_functions(
    config: Config,
    names: Iterable[str],
    objects: Mapping[str, RewardFunction] = MappingProxyType({}),
    *,
    flag: str = "--reward-funcs",
) -> dict[str, RewardFunction]:
    """Resolve the reward functions of these names, which `flag` has, under the options; `given` are a program's own."""
    context = reward_context(config.rewards, config.sampling, seed=config.loop.seed)
    return {name: objects[name] if name in objects else resolve(name, context, flag=flag) for name in names}


def _look_at_model(config: Config, *, needs_weights: bool) -> int | None:
    """Check the files of a local model and the positions in its config.json; the Hub is not asked."""
    label = f"--model {config.model.model}"
    files = model_place(config.model.model, needs_weights=needs_weights)
    if needs_weights and files.adapter is not None:
        read_whole(files.adapter / ADAPTER_WEIGHTS, label)
    base = Path(files.base)
    if not base.is_dir():
        return None
    described = read_model_config(base, label)
    is_adapter_new = config.lora.lora_rank > 0 and files.adapter is None
    check_quantised(described, label, has_adapter=is_adapter_new or files.adapter is not None)
    if needs_weights:
        check_weights(base, described, label, targets=config.lora.lora_targets if is_adapter_new else ())
    return positions_of(described)


def _look_at_what_they_need(functions: Iterable[RewardFunction], environments: Mapping[str, EnvironmentSpec]) -> None:
    """Refuse a host that cannot isolate programs if a function or tool needs it; the sandbox stays open for the run."""
    for spec in environments.values():
        spec.check()
    for function in functions:
        if isinstance(function, BuiltIn) and function.describe is not None:
            function.describe()


def _look_at_held_out_rows(config: Config, checked: RunObjects) -> None:
    data, by_measure = config.data, row_check(checked.measure)
    for _, dataset in data.held_out:
        split = data.eval_split if has_split(dataset, data.eval_split, checked.files) else data.dataset_split
        rows = _rows(config, checked, dataset, split=split, size=config.evaluation.eval_size)
        _screen(config, checked, rows, dataset, by_measure)


def _rows(config: Config, checked: RunObjects, dataset: str, *, split: str, size: int | None) -> Sequence[Row]:
    """Read all rows of a file, or the first row of generated or remote data."""
    size = size if is_file(dataset, checked.files) else 1
    return load_rows(dataset, split=split, size=size, seed=config.loop.seed, files=checked.files)


def _screen(config: Config, checked: RunObjects, rows: Sequence[Row], dataset: str, check: RowCheck | None) -> None:
    # one row says nothing of the others, which may be all that is needed where bad ones are skipped
    if is_file(dataset, checked.files) or config.data.on_bad_row == "stop":
        screen(rows if len(rows) <= WHOLE else spread(rows, SAMPLE), config.data, check, checked.images)
