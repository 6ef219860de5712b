"""`paceline plan`: batches, memory and time of a configuration, before anything is loaded."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from paceline.cli.arguments import CONFIG, DoorOption, help_page, parse
from paceline.cli.machine import allowed_memory, ask_driver, free_memory
from paceline.cli.train import COMMAND as TRAIN
from paceline.compat.commands.layouts import in_our_words
from paceline.config.layout import Sizes, layout, training_ranks
from paceline.config.sections import Config
from paceline.data.duplicates import also_trained_on, repeated_prompts
from paceline.data.formats import screen
from paceline.data.rows import SAMPLE, WHOLE, Row, spread
from paceline.data.sources import is_file, load_rows
from paceline.errors import DONE, ConfigError
from paceline.rewards.startup import unmet_needs
from paceline.training.plan.batches import batch_plan, describe, service_calls
from paceline.training.plan.describing import (
    describe_layouts,
    describe_memory,
    describe_room,
    describe_sampler,
    describe_time,
    refusal,
    sampler_refusal,
)
from paceline.training.plan.fitting import Fitting
from paceline.training.plan.hardware import CPU, GPUS, Device, Rates, gpu_of
from paceline.training.plan.memory import computed_bytes, sampler_memory, samplers
from paceline.training.plan.seconds import step_time
from paceline.training.plan.shape import ModelShape, read_shape
from paceline.training.setup.checks import Checked, check
from paceline.training.setup.configuration import read_configuration
from paceline.types import Task

PROCESSES = DoorOption(
    name="processes",
    metavar="N",
    help="Processes that torchrun, accelerate or srun would start, those of --sampling-ranks among them; on a cluster "
    "its trainers count. Layouts that fit so many are listed.",
)
GPU = DoorOption(
    name="gpu", metavar="NAME", help=f"Plan for GPUs of this kind instead of for this machine: {', '.join(GPUS)}."
)
CALIBRATE = DoorOption(
    name="calibrate",
    help="Measure for two seconds how fast this machine multiplies and reads, by which the time of a step is planned; "
    "otherwise a GPU's figures are its maker's.",
)
COMMAND = replace(
    TRAIN,
    name="plan",
    usage="paceline plan [--config FILE] [--gpu NAME] [--processes N] [--calibrate] [--option value ...]",
    summary="Print batches, steps, memory and time of a training run. Reads the dataset and the model's config.json "
    "only. Where the run would not fit it ends with status 2 and the one change by which it would.",
    door_options=(CONFIG, GPU, PROCESSES, CALIBRATE),
)


def run(argv: list[str]) -> int:
    """Plan a run; returns the exit status."""
    given = parse(COMMAND, in_our_words(argv))
    if given.help:
        print(help_page(COMMAND), end="")
        return DONE
    configuration = read_configuration(given.options, file=given.door.get("config"))
    config = configuration.config
    print(configuration.origin)
    processes, ranks = given.door.get("processes"), config.parallel.fewest
    if config.cluster.cluster:
        ranks = config.cluster.num_consumers
    elif processes is not None:
        if not processes.isdecimal() or int(processes) < 1:
            raise ConfigError(f"--processes must be a whole number of at least 1, got {processes!r}")
        ranks = training_ranks(config.parallel, int(processes))
    sizes, device = layout(config.parallel, ranks), _device(config, given.door)
    data, checked = config.data, check(config, runs_here=False)
    rows = load_rows(
        data.dataset, split=data.dataset_split, size=data.dataset_size, seed=config.loop.seed, files=checked.files
    )
    tasks = _tasks(rows, config)
    # rows of a large dataset that are left out count as taken, and so among its tasks
    num_tasks = len(tasks) if len(rows) <= WHOLE else len(rows)
    print(f"\n{describe(batch_plan(config, num_tasks), service_calls(config, checked.functions))}\n")
    for sentence in _of_rows(config, checked, tasks):
        print(f"{sentence}\n")
    if too_large := _print_memory_and_time(config, sizes, device, is_calibrated="calibrate" in given.door):
        raise ConfigError(too_large)
    return DONE


def _tasks(rows: Sequence[Row], config: Config) -> list[Task]:
    """The tasks of rows, of a large dataset those that a run looks at, without what a tokenizer makes of them."""
    found = screen(rows if len(rows) <= WHOLE else spread(rows, SAMPLE), config.data, None)
    return [
        Task(
            task_id=row.row_id,
            prompt=asked.prompt if isinstance(asked.prompt, str) else json.dumps(asked.prompt, sort_keys=True),
            prompt_ids=(),
            answer=asked.answer,
            columns=row.given,
        )
        for row, asked in zip(found.rows, found.problems, strict=True)
    ]


def _of_rows(config: Config, checked: Checked, tasks: Sequence[Task]) -> Iterator[str]:
    """What a run would say of its rows before the first step."""
    yield from unmet_needs(checked.functions, tasks)
    if checked.environments:
        return
    yield from repeated_prompts(tasks)
    for name, address in config.data.held_out if config.data.eval_dataset is not None else ():
        if is_file(address, checked.files):  # generators keep their splits apart; what the Hub has is not loaded twice
            rows = load_rows(
                address, split=config.data.eval_split, size=config.evaluation.eval_size, files=checked.files
            )
            yield from (f"{name or address}: {one}" for one in also_trained_on(_tasks(rows, config), tasks))


def _device(config: Config, door: Mapping[str, str]) -> Device:
    if "gpu" not in door:
        here = this_device(gpus=config.model.device != "cpu")
        if config.model.device == "cuda" and here.kind == "cpu":
            raise ConfigError("--device cuda cannot be planned for where no driver shows a GPU; name one with --gpu")
        return here
    if "calibrate" in door:
        raise ConfigError("--calibrate measures this machine and cannot be given with --gpu; leave one of them out")
    if door["gpu"] not in GPUS:
        raise ConfigError(f"--gpu must be one of {', '.join(GPUS)}, got {door['gpu']!r}")
    if config.model.device == "cpu":
        raise ConfigError("--gpu cannot be given with --device cpu; leave one of them out")
    return GPUS[door["gpu"]]


def _print_memory_and_time(config: Config, sizes: Sizes, device: Device, *, is_calibrated: bool) -> str:
    """Print both; returns why it does not fit, or an empty text."""
    shape = read_shape(config.model.model)
    if shape is None:
        print(
            f"Memory is not known: {config.model.model} has a config.json that names its numbers in a way of its own, "
            "or is a name of which the Hub gives none here."
        )
        return ""
    fitting, number_bytes = Fitting(config=config, shape=shape, device=device), computed_bytes(config, shape, device)
    memory = fitting.plan(sizes=sizes)
    several = f"Of each of {sizes.ranks} processes that train:\n" if sizes.ranks > 1 else ""
    print(f"{several}{describe_memory(memory)}\n{describe_room(fitting, sizes, memory)}")
    sampler = sampler_memory(config, shape, sizes, on=device)
    if sampler is not None:
        print(f"Of each of {samplers(config, sizes)} processes that sample:\n{describe_sampler(sampler)}")
    print(f"The model has {shape.parameters:,} parameters.")
    if sizes.ranks > 1:
        print(f"\n{describe_layouts(fitting.layouts(sizes.ranks), sizes.ranks)}")
    if is_calibrated:
        device = calibrated(device, shape, number_bytes, config.model.threads)
    if device.rates is None:
        print("\nHow long a step takes is not known: --calibrate measures this machine for two seconds.")
    else:
        time = step_time(config, shape, memory, device.rates, number_bytes, sizes)
        print(f"\n{describe_time(time, device.rates, device)}")
    if not fitting.has_room(memory):
        return refusal(fitting, sizes, memory)
    return "" if sampler is None or fitting.has_room(sampler) else sampler_refusal(fitting, sampler)


CALIBRATION_SECONDS = 0.5
"""Duration of each of the two measurements."""
PRODUCT_ROWS = {"cpu": 1024, "cuda": 16_384}
"""Rows of the measured product: enough to be limited by arithmetic."""
BYTES_READ = {"cpu": 1 << 28, "cuda": 1 << 31}
"""Bytes to read, more than any cache holds."""


def calibrated(device: Device, shape: ModelShape, number_bytes: int, threads: int) -> Device:
    """The device with measured rates: a product of this model's width, and a sum larger than the caches."""
    import torch

    if device.kind == "cpu" and threads:
        torch.set_num_threads(threads)
    dtype = torch.bfloat16 if number_bytes < 4 else torch.float32
    inner = max(shape.width, shape.layer // (4 * shape.width))
    rows = torch.randn(PRODUCT_ROWS[device.kind], shape.width, device=device.kind).to(dtype)
    weight = torch.randn(inner, shape.width, device=device.kind).to(dtype)
    read = torch.ones(BYTES_READ[device.kind] // 4, device=device.kind)

    def wait() -> None:
        if device.kind == "cuda":
            torch.cuda.synchronize()

    products = 2 * rows.numel() * inner / _seconds_of(lambda: rows @ weight.T, wait)
    return replace(device, rates=Rates(products=products, reading=read.nbytes / _seconds_of(read.sum, wait)))


def _seconds_of(work: Callable[[], object], wait: Callable[[], None]) -> float:
    """Seconds per repetition, without the first."""
    work()
    wait()
    count, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < CALIBRATION_SECONDS:
        for _ in range(4):
            work()
        wait()
        count += 4
    return (time.perf_counter() - begun) / count


def this_device(*, gpus: bool = True, cpuinfo: Path = Path("/proc/cpuinfo")) -> Device:
    """The first GPU that the driver reports; else, or without `gpus`, the CPU with its free memory."""
    if gpus and (cards := ask_driver()):
        return gpu_of(cards[0].name, cards[0].mib)
    free, allowed = free_memory(), allowed_memory()
    memory = min((one for one in (free, allowed) if one is not None), default=None)
    flags = cpuinfo.read_text(encoding="utf-8") if cpuinfo.is_file() else ""
    return replace(CPU, name="this machine's processor", memory=memory, fast_bfloat16=" amx_bf16" in flags)
