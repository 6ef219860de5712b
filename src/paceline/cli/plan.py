"""`paceline plan`: batches and memory of a configuration, before anything is loaded."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from paceline.base_directory import hold_base
from paceline.chat.escaping import ChatTokenizer
from paceline.cli.arguments import CONFIG, CommandFlag, parse
from paceline.cli.libraries import loading_libraries
from paceline.cli.machine import allowed_memory, ask_driver, free_memory
from paceline.cli.train import COMMAND as TRAIN
from paceline.compat.commands.layouts import translate_layout_flags
from paceline.config.layout import Sizes, layout, training_ranks
from paceline.config.reading import served_judges
from paceline.config.rules import require
from paceline.config.sampling import EngineConfig
from paceline.config.sections import Config
from paceline.data.duplicates import (
    also_trained_on,
    held_out_rows,
    refuse_overlap,
    repeated_prompts,
    training_rows,
)
from paceline.data.formats import screen
from paceline.data.prompts import length_histogram
from paceline.data.rows import SAMPLE, WHOLE, Row, spread
from paceline.data.sources import has_split, is_on_disk
from paceline.data.tasks import build_tasks
from paceline.errors import DONE, ConfigError, ModelError
from paceline.models.places import model_place
from paceline.rewards.function import row_check
from paceline.rewards.judges.judge import judge_settings
from paceline.rewards.judges.own_service import serve_options
from paceline.rewards.startup import unmet_needs
from paceline.training.plan.batches import batch_plan, describe, service_calls
from paceline.training.plan.fitting import (
    Fitting,
    describe_layouts,
    describe_memory,
    describe_room,
    describe_sampler,
    refusal,
    sampler_refusal,
)
from paceline.training.plan.memory import BFLOAT16_BYTES, computed_bytes, judge_memory, sampler_memory, samplers
from paceline.training.plan.shape import BFLOAT16_UNITS, CPU, GPUS, Device, ModelShape, gpu_of, read_shape
from paceline.training.setup.checks import check
from paceline.training.setup.configuration import read_configuration
from paceline.training.setup.inputs import RunObjects
from paceline.training.setup.named_code import allow_named_code
from paceline.types import RowCheck, Task

PROCESSES = CommandFlag(
    name="processes",
    metavar="N",
    help="Processes that torchrun, accelerate or srun would start, those of --sampling-ranks among them; on a cluster "
    "its trainers count. Layouts that fit so many are listed.",
)
GPU = CommandFlag(
    name="gpu", metavar="NAME", help=f"Plan for GPUs of this kind instead of for this machine: {', '.join(GPUS)}."
)
COMMAND = replace(
    TRAIN,
    name="plan",
    usage="paceline plan [--config FILE] [--gpu NAME] [--processes N] [--option value ...]",
    summary="Print batches, steps and memory of a training run. Reads the dataset, and of the model its "
    "config.json and, where it is on this disk, its tokenizer. Where the run would not fit "
    "it ends with status 2 and the one change by which it would.",
    flags=(CONFIG, GPU, PROCESSES),
)


def run(argv: list[str]) -> int:
    """Plan a run; returns the exit status."""
    arguments = parse(COMMAND, translate_layout_flags(argv))
    configuration = read_configuration(arguments.options, file=arguments.flags.get("config"))
    hold_base(configuration.base)
    config = configuration.config
    allow_named_code(config, configuration.ground, configuration.given)
    print(configuration.origin)
    processes, ranks = arguments.flags.get("processes"), config.parallel.fewest
    if config.cluster.cluster:
        ranks = config.cluster.num_consumers
    elif processes is not None:
        if not processes.isdecimal() or int(processes) < 1:
            raise ConfigError(f"--processes must be a whole number of at least 1, got {processes!r}")
        ranks = training_ranks(config.parallel, int(processes))
        if int(processes) > 1:
            refuse_spread(config.engine, int(processes))
    sizes, device = layout(config.parallel, ranks), _device(config, arguments.flags)
    data, checked = config.data, check(config, runs_here=False)
    rows, apart = training_rows(data, seed=config.loop.seed, files=checked.files, images=checked.images)
    if apart:
        print(f"\n{len(apart):,} rows are held out by --eval-share, and {len(rows):,} are trained on.")
    reader = RowReader(config, checked)
    tasks, lines = reader.read(rows, row_check(checked.functions))
    # rows of a large dataset that are left out count as taken, and so among its tasks
    num_tasks = len(tasks) if len(rows) <= WHOLE else len(rows)
    print(f"\n{describe(batch_plan(config, num_tasks), service_calls(config, checked.functions))}\n")
    for sentence in (*lines, *_of_rows(config, checked, tasks, reader)):
        print(f"{sentence}\n")
    config = replace(config, data=replace(data, max_prompt_length=reader.longest_prompt))
    if too_large := _print_memory(config, sizes, _beside_judges(config, device), tasks):
        raise ConfigError(too_large)
    return DONE


class RowReader:
    """Makes the tasks of rows, and refuses what a run refuses; with the model's tokenizer where it is on this disk."""

    def __init__(self, config: Config, checked: RunObjects) -> None:
        self._config, self._checked = config, checked
        self.longest_prompt = config.data.max_prompt_length
        """Tokens of the longest prompt, where a tokenizer could count them; else the limit."""
        model = model_place(config.model.model, needs_weights=False)
        folders = [Path(model.base), *([] if model.adapter is None else [model.adapter])]
        # with an environment prompts show its tools, which a run asks for
        self._is_exact = not checked.environments and any(
            (folder / name).is_file() for folder in folders for name in TOKENIZER_FILES
        )

    def read(
        self, rows: Sequence[Row], by_functions: RowCheck | None, *, whole: bool = False
    ) -> tuple[list[Task], list[str]]:
        """Return the tasks and what a run says of them; without a tokenizer no prompt has a length.

        Of a large dataset these are the tasks that a run looks at, unless `whole`.
        """
        if self._is_exact:
            return self._tokenised(rows, by_functions, whole=whole)
        seen = rows if whole or len(rows) <= WHOLE else spread(rows, SAMPLE)
        screened = screen(seen, self._config.data, None, self._checked.images)
        tasks = [
            Task(
                task_id=row.row_id,
                prompt=row.prompt
                if isinstance(row.prompt, str)
                else json.dumps(row.prompt, sort_keys=True, default=str),
                prompt_ids=(),
                answer=row.answer,
                columns=row.reward_columns,
            )
            for row in screened.rows
        ]
        return tasks, []

    def _tokenised(
        self, rows: Sequence[Row], by_functions: RowCheck | None, *, whole: bool
    ) -> tuple[list[Task], list[str]]:
        with loading_libraries():  # seconds, which a plan without a local tokenizer does not take
            from paceline.models.pretrained import load_tokenizer, positions_in, read_config
            from paceline.training.setup.held_out import check_prompts_fit, of_rows
            from paceline.training.setup.images import with_placeholders

        config = self._config
        tokenizer, limit = load_tokenizer(config.model), positions_in(read_config(config.model))
        built = build_tasks(
            rows,
            cast(ChatTokenizer, tokenizer),
            config.data,
            system=self._checked.system,
            check=by_functions,
            whole=whole,
            images=with_placeholders(config, self._checked, tokenizer).images,
        )
        check_prompts_fit(built.looked_at, limit=limit, completion=config.sampling.max_completion_length)
        if whole:
            return [*built.looked_at], []
        self.longest_prompt = built.longest_prompt
        return [*built.looked_at], [length_histogram(built.lengths), *of_rows(built)]


TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
"""Files of which a directory with a tokenizer has one."""


def refuse_spread(engine: EngineConfig, processes: int) -> None:
    """Refuse, as a launch of so many processes would, a vLLM that is spread over devices."""
    right, rule = engine.vllm_tensor_parallel == 1, f"be 1 in each of {processes} processes that a launcher starts"
    why = "every rank that samples has a vLLM in its process; the samplers of --cluster may spread theirs"
    require(right, "vllm_tensor_parallel", engine.vllm_tensor_parallel, rule, why)


def refuse_eight_bits(engine: EngineConfig, shape: ModelShape, device: Device, number_bytes: int) -> None:
    """Refuse, as a run would, layers in eight bits that the engine cannot read or the device cannot multiply."""
    problem = None
    if not shape.planned:
        problem = "the fused decoder does not know this model's family"
    elif device.kind == "cuda" and number_bytes != BFLOAT16_BYTES:
        problem = "on CUDA its products give bfloat16, and the model computes in float32"
    elif not device.float8:
        problem = f"it needs compute capability 8.9 or higher, which {device.name} has not"
    right, rule = engine.engine_quantization == "none" or problem is None, "be none for this model on this device"
    require(right, "engine_quantization", engine.engine_quantization, rule, problem or "")


def _of_rows(config: Config, checked: RunObjects, tasks: Sequence[Task], reader: RowReader) -> Iterator[str]:
    """Sentences of a run on its rows before the first step."""
    yield from unmet_needs(checked.functions, tasks)
    for name, spec in checked.environments.items():
        if spec.settings:
            yield f"environment {name!r}: {'; '.join(f'{key}: {value}' for key, value in spec.settings.items())}"
    if checked.environments:
        return
    yield from repeated_prompts(tasks)
    data, files = config.data, checked.files
    for label, address in data.held_out if data.eval_share is None else ():
        if not is_on_disk(address, files):  # generators keep their splits apart; what the Hub has is not loaded twice
            continue
        if data.eval_dataset is None and not has_split(address, data.eval_split, files):
            continue
        size, seed = config.evaluation.eval_size, config.loop.seed
        rows, _ = held_out_rows(data, address, size=size, seed=seed, files=files)
        held_out, _ = reader.read(rows, row_check(checked.measure), whole=True)
        if data.allow_overlap:
            yield from (f"{label or address}: {sentence}" for sentence in also_trained_on(held_out, tasks))
        else:
            refuse_overlap(label or address, held_out, tasks)


def _device(config: Config, flags: Mapping[str, str]) -> Device:
    if "gpu" not in flags:
        device, spread_over = this_device(gpus=config.model.device != "cpu"), config.engine.vllm_tensor_parallel
        if spread_over > 1 and device.kind == "cuda":
            gpus = len(ask_driver())
            rule = f"be at most {gpus}, the GPUs that the driver shows"
            require(spread_over <= gpus, "vllm_tensor_parallel", spread_over, rule, "plan for other GPUs with --gpu")
        if config.model.device == "cuda" and device.kind == "cpu":
            raise ConfigError("--device cuda cannot be planned for where no driver shows a GPU; name one with --gpu")
        return device
    if flags["gpu"] not in GPUS:
        raise ConfigError(f"--gpu must be one of {', '.join(GPUS)}, got {flags['gpu']!r}")
    if config.model.device == "cpu":
        raise ConfigError("--gpu cannot be given with --device cpu; leave one of them out")
    return GPUS[flags["gpu"]]


def _beside_judges(config: Config, device: Device) -> Device:
    """Print the memory of judges that the run serves itself; return the device with the memory that they leave."""
    taken, served = 0, {}
    for name in served_judges(config):
        judge = judge_settings(name)
        served[judge.model, serve_options(judge)] = judge
    for judge in served.values():
        try:
            shape = read_shape(judge.model)
        except ModelError as error:
            raise ConfigError(f"--reward-funcs judge:{judge.model} cannot be served: {error}") from error
        if shape is None:
            print(f"Memory of the judge {judge.model} is not known, and is not counted.\n")
            continue
        memory = judge_memory(config, shape, judge, on=device)
        print(f"Of the process that serves the judge {judge.model}:\n{describe_sampler(memory)}\n")
        taken += memory.peak
    if not taken or device.memory is None:
        return device
    return replace(device, name=f"{device.name} beside the judge", memory=max(0, device.memory - taken))


def _print_memory(config: Config, sizes: Sizes, device: Device, tasks: Sequence[Task]) -> str:
    """Print the memory of each process; return why it does not fit, or an empty text."""
    shape = read_shape(config.model.model, tasks)
    if shape is None:
        print(
            f"Memory is not known: {config.model.model} has a config.json that names its numbers in a way of its own, "
            "or is a name of which the Hub gives none here."
        )
        return ""
    fitting, number_bytes = Fitting(config=config, shape=shape, device=device), computed_bytes(config, shape, device)
    refuse_eight_bits(config.engine, shape, device, number_bytes)
    memory = fitting.plan(sizes=sizes)
    several = f"Of each of {sizes.ranks} processes that train:\n" if sizes.ranks > 1 else ""
    print(f"{several}{describe_memory(memory)}\n{describe_room(fitting, sizes, memory)}")
    sampler = sampler_memory(config, shape, sizes, on=device)
    if sampler is not None:
        devices = config.engine.vllm_tensor_parallel
        each = f", on each of its {devices} devices" if devices > 1 else ""
        print(f"Of each of {samplers(config, sizes)} processes that sample{each}:\n{describe_sampler(sampler)}")
    print(f"The model has {shape.parameters:,} parameters.")
    if sizes.ranks > 1:
        print(f"\n{describe_layouts(fitting.layouts(sizes.ranks), sizes.ranks)}")
    if not fitting.has_room(memory):
        return refusal(fitting, sizes, memory)
    return "" if sampler is None or fitting.has_room(sampler) else sampler_refusal(fitting, sampler)


def this_device(*, gpus: bool = True, cpuinfo: Path = Path("/proc/cpuinfo")) -> Device:
    """Return the first GPU that the driver reports; else, or without `gpus`, the CPU with its free memory."""
    if gpus and (cards := ask_driver()):
        return gpu_of(cards[0].name, cards[0].mib)
    free, allowed = free_memory(), allowed_memory()
    memory = min((limit for limit in (free, allowed) if limit is not None), default=None)
    flags = cpuinfo.read_text(encoding="utf-8") if cpuinfo.is_file() else ""
    return replace(
        CPU,
        name="this machine's processor",
        memory=memory,
        fast_bfloat16=any(units in flags for units in BFLOAT16_UNITS),
    )
