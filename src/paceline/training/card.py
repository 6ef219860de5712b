"""The model card of a trained model, from the run's records."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import cast

from paceline import __version__
from paceline.base_directory import local_path
from paceline.chat.templates import Tokenizer
from paceline.checkpoints.run_directory import IMAGES, RunDir
from paceline.checkpoints.run_files import write_or_explain
from paceline.config.sections import Config
from paceline.data.prompts import apply_template, system_prompt
from paceline.errors import DataError
from paceline.metrics.comparisons import compare_records
from paceline.metrics.definitions import Record
from paceline.metrics.statistics import Interval
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
from paceline.rewards.resolving import default_system_prompt

LIBRARIES = ("paceline", "torch", "transformers", "datasets", "peft")
CARD = "README.md"
LONGEST, LONGEST_ANSWER = 1500, 100
"""Characters of a prompt and of an answer that the card prints."""
PLACE = "THE-QUESTION"
"""Pattern of a question in a prompt."""
BESIDE = "README-paceline.md"
"""Name of the card beside a file of that name that is not Paceline's."""


def card_facts(run_dir: RunDir, config: Config, folder: Path, *, step: int) -> CardFacts:
    """Collect the facts on the model in `folder`, with the weights after `step`; later evaluations are left out.

    Raises:
        CheckpointError: a record cannot be read.
    """
    evaluations = [
        record
        for record in run_dir.evals()
        if record["step"] <= step
        and all(record.get(name) is not None for name in ("n", "accuracy", "ci_low", "ci_high"))
    ]
    from paceline.models.pretrained import is_text_part  # it brings transformers, which exporting has loaded

    is_adapter = (folder / "adapter_config.json").is_file()
    versions = dict.fromkeys(LIBRARIES if is_adapter else LIBRARIES[:-1], "not installed")
    for library in versions:
        with suppress(PackageNotFoundError):
            versions[library] = version(library)
    versions["paceline"] = __version__  # a source tree need not be installed
    # one dataset as a source, or several as one that is nowhere
    sources = [_source(address) for address in config.data.datasets]
    joined = Source(label=", ".join(source.label for source in sources))
    has_template, missing = (folder / "chat_template.jinja").is_file(), config.data.system_prompt_file
    if missing is not None and not local_path(missing).is_file():
        prompting = Prompting(has_chat_template=has_template, missing_file=Path(missing).name)
    else:
        system = system_prompt(config.data, default_system_prompt(config.rewards.functions))
        prompting = Prompting(has_chat_template=has_template, system=system)
    # the result on each held-out set, from its evaluations, oldest first
    results = list[HeldOutResult]()
    for name in dict.fromkeys(record["set"] for record in evaluations):
        records = [record for record in evaluations if record["set"] == name]
        first, last, comparison = records[0], records[-1], None
        if len(records) > 1:
            before, after = (run_dir.eval_completions(name, record["step"]) for record in (first, last))
            comparison = compare_records(before, after)
        results.append(
            HeldOutResult(
                dataset=_source(name),
                num_tasks=last["n"],
                before=_measured(first) if len(records) > 1 else None,
                after=_measured(last),
                comparison=comparison,
                looks=len(records) - 1,
            )
        )
    example, has_images = None, (run_dir.path / IMAGES).is_dir()
    if evaluations and not has_images:  # of the first set, as it was measured last
        name = evaluations[0]["set"]
        last = [record for record in evaluations if record["set"] == name][-1]
        example = _example(run_dir.eval_completions(name, last["step"]), prompting, config, folder)
    return CardFacts(
        name=run_dir.path.resolve().name,
        config=config,
        base_model=_source(config.model.model),
        dataset=sources[0] if len(sources) == 1 else joined,
        is_adapter=is_adapter,
        is_text_part=is_text_part(config.model) and not has_images,
        has_images=has_images,
        prompting=prompting,
        steps=step,
        versions=versions,
        results=tuple(results),
        example=example,
        links=run_dir.links(),
        labels={name: _source(name).label for name in config.rewards.names if "/" in name},
    )


def _example(records: Sequence[Record], prompting: Prompting, config: Config, folder: Path) -> Example | None:
    """A held-out task of one turn that was answered right, or else the first one; None where there is none to print."""
    known = [
        record
        for record in records
        if isinstance(record.get("answer"), str) and len(record["prompt"]) <= LONGEST and "episode" not in record
    ]
    if not known:
        return None
    record = next((candidate for candidate in known if candidate["correct"]), known[0])
    answer, question = " ".join(record["answer"].split()), None
    if prompting.has_chat_template and prompting.missing_file is None:
        from paceline.models.pretrained import load_tokenizer

        tokenizer = load_tokenizer(replace(config.model, model=str(folder)))
        system = [] if prompting.system is None else [{"role": "system", "content": prompting.system}]
        messages = [*system, {"role": "user", "content": PLACE}]
        with suppress(DataError):  # a template that refuses these messages was not asked so
            rendered = apply_template(cast(Tokenizer, tokenizer), messages, config.data.switches, "of the card")
            before, _, after = rendered.partition(PLACE)
            if record["prompt"].startswith(before) and record["prompt"].endswith(after):
                question = record["prompt"][len(before) : len(record["prompt"]) - len(after)]
    return Example(prompt=record["prompt"], answer=answer[:LONGEST_ANSWER], question=question)


def write_card(facts: CardFacts, folder: Path) -> Path:
    """Write the card into the model's directory, beside a file of that name that is not Paceline's; returns its path.

    Raises:
        StorageError: the disk refused.
    """
    path = folder / CARD
    if path.is_file() and MARK not in path.read_text(encoding="utf-8", errors="replace"):
        path = folder / BESIDE
    write_or_explain(path, model_card(facts).encode())
    return path


def _source(address: str) -> Source:
    return named(address, is_local=lambda name: local_path(name).exists())


def _measured(record: Record) -> Measured:
    accuracy = Interval(value=record["accuracy"], low=record["ci_low"], high=record["ci_high"])
    return Measured(step=record["step"], accuracy=accuracy)
