"""The files of a trainer's run: where it starts or resumes, transformers' names of checkpoints, card and upload.

`output_dir/checkpoint-{global_step}` has the files of a checkpoint, those of its `model/` also beside the others, so
that `from_pretrained` opens that name as it opens one of TRL's. They are hard links, or copies where the disk has none:
a program may remove, rename, move and pack the directory as one of TRL's, and it is whole without the run.
"""

import dataclasses
import json
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from transformers import TrainerState

from paceline.base_directory import local_path
from paceline.checkpoints.existing_runs import LOCK, WRITTEN, WriteLock, holds_work
from paceline.checkpoints.finding import Checkpoint, free_name, original, originals
from paceline.checkpoints.run_directory import RunDir
from paceline.checkpoints.run_files import link_or_copy, write_or_explain
from paceline.compat.trl.building import TrainingJob
from paceline.compat.trl.translation import objective_fields
from paceline.compat.vocabulary import changed
from paceline.errors import CheckpointError, ConfigError, ModelError, StorageError, first_line
from paceline.models.places import FINAL
from paceline.reports.model_card import named as named_dataset
from paceline.training.card import card_facts, write_card
from paceline.training.trainer import updates_per_step

STATE_FILE = "trainer_state.json"
PREFIX = "checkpoint-"
PROGRESS = "progress.json"


def resume_point(output_dir: Path, resume: str | Path | bool | None, *, named: str) -> Path | bool:
    """Return where a session resumes from: False for a new run, True for the newest checkpoint, or a path.

    `output_dir` is absolute, `named` how the program calls it; a relative `resume` stands in the same directory.

    ConfigError for a run that nothing says to go on with, CheckpointError for another run's checkpoint or TRL's.
    """
    root = output_dir / "checkpoints"
    if resume is None or resume is False:
        if holds_work(output_dir):
            raise ConfigError(existing_run(named))
        return False
    if resume is True or local_path(resume).resolve() in (output_dir.resolve(), root.resolve()):
        if not (output_dir / "config.yaml").exists():
            for folder in sorted(output_dir.glob(f"{PREFIX}*")):
                _refuse_trl_checkpoint(folder, folder)
        return True
    folder = local_path(resume).resolve()
    _refuse_trl_checkpoint(folder, resume)
    checkpoint = folder if folder.parent == root.resolve() else original(folder, root)
    if checkpoint is None:
        raise CheckpointError(
            f"resume_from_checkpoint must be a checkpoint of output_dir ({named}/{PREFIX}...) that is still in its "
            f"checkpoints/, got {resume}; give True for the newest one, set output_dir to the run that it belongs to, "
            "or give its model/ directory as the model of a new run"
        )
    return root / checkpoint.name


def set_run_aside(output_dir: Path) -> str:
    """Move what an earlier `train()` of one trainer wrote, transformers' names too; a sentence that says where.

    A process killed in between leaves a run that goes on from its checkpoints, or a place without config.yaml that is
    no run and is refused as such.

    Raises:
        CheckpointError: another process writes to the directory.
        StorageError: the disk refused.
    """
    sentence = "train() was called before: this run starts from its weights"
    if not output_dir.exists():
        return sentence
    try:
        with ExitStack() as releasing:
            releasing.callback(WriteLock(output_dir).release)
            names = belongings(output_dir)
            if not names:
                return sentence
            folder = free_name(output_dir / "aside", "run")
            folder.mkdir(parents=True)
            for name in names:
                (output_dir / name).rename(folder / name)
    except OSError as error:
        raise StorageError(f"{output_dir} cannot be written ({error.strerror}); make it writable") from error
    return f"{sentence}, and what it wrote is in {folder}"


def belongings(output_dir: Path) -> list[str]:
    """Return the names of a run's files; those that a resume needs come last, the checkpoints after the rest."""
    last = ("config.yaml", "checkpoints")
    names = [folder.name for folder in named_directories(output_dir).values()]
    names += [name for name in WRITTEN if name not in (LOCK, "aside", *last)]
    return [name for name in (*names, *last) if (output_dir / name).exists()]


def existing_run(output_dir: object) -> str:
    """Error text for a directory that already holds a run, with the remedy."""
    return (
        f"output_dir {output_dir} already holds a run; continue it with train(resume_from_checkpoint=True), "
        "or give another directory"
    )


def _refuse_trl_checkpoint(folder: Path, named: object) -> None:
    """Refuse transformers' own checkpoint: it has a trainer state, and no progress file."""
    if (folder / STATE_FILE).exists() and not (folder / PROGRESS).exists():
        raise CheckpointError(
            f"{named} is a checkpoint that TRL (transformers' Trainer) wrote, whose optimiser state cannot be gone on "
            f"with here; start a new run from its weights with model={str(named)!r}"
        )


def name_checkpoint(output_dir: Path, checkpoint: Checkpoint, global_step: int) -> Path:
    """Make the directory by which transformers knows a checkpoint, whole or not at all (StorageError).

    A directory of that name that is not ours stays, and the checkpoint keeps its own name alone.
    """
    folder = output_dir / f"{PREFIX}{global_step}"
    with _refused_by_the_disk(folder):
        if _is_ours(folder):
            shutil.rmtree(folder)
        if folder.exists():
            return checkpoint.path
        draft = checkpoint.path.with_name(f"draft-{folder.name}")  # what is left of a killed attempt goes with others
        for file in sorted(path for path in checkpoint.path.rglob("*") if path.is_file()):
            target = draft / file.relative_to(checkpoint.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            if file.name == STATE_FILE:  # the one file that programs write anew
                shutil.copyfile(file, target)
            else:
                link_or_copy(file, target)
        draft.rename(folder)
    return folder


def add_model_files(folder: Path, checkpoint: Checkpoint) -> None:
    """Put the files of a checkpoint's model beside its other files, unless a program saved some of these names."""
    with _refused_by_the_disk(folder):
        for file in sorted(checkpoint.model.iterdir()) if folder != checkpoint.path else ():
            target = folder / file.name
            if file.is_dir() and not target.exists():
                shutil.copytree(file, target)
            elif not target.exists():
                link_or_copy(file, target)


def forget(output_dir: Path, numbers: Collection[int]) -> None:
    """Remove our directories of these global steps, if they are there."""
    named = named_directories(output_dir)
    for number in named.keys() & {*numbers}:
        shutil.rmtree(named[number])


def named_directories(output_dir: Path) -> dict[int, Path]:
    """Return our directories under transformers' names, by the global step in the name."""
    numbered = ((folder.name.removeprefix(PREFIX), folder) for folder in sorted(output_dir.glob(f"{PREFIX}*")))
    return {int(number): folder for number, folder in numbered if number.isdecimal() and _is_ours(folder)}


def named_checkpoints(output_dir: Path) -> frozenset[int]:
    """Return the global steps of those whose checkpoint is still in the run."""
    named, root = named_directories(output_dir), output_dir / "checkpoints"
    there = originals(named.values(), root)
    return frozenset(number for number, folder in named.items() if folder in there)


def step_of_name(checkpoint: str, updates_per_step: int) -> int:
    """Return the step of a checkpoint from its path, by its global step or by its own name.

    >>> step_of_name("runs/a/checkpoint-6", 2), step_of_name("/data/a/checkpoints/step-000003", 2)
    (3, 3)
    """
    kind, _, number = Path(checkpoint).name.rpartition("-")
    return int(number) if kind == "step" else int(number) // updates_per_step


def _is_ours(folder: Path) -> bool:
    return not folder.is_symlink() and (folder / PROGRESS).is_file()


@contextmanager
def _refused_by_the_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{folder} cannot be written ({error.strerror}); make room for it, then train(resume_from_checkpoint=True)"
        ) from error


def write_state(state: TrainerState, folder: Path) -> None:
    """Write the state of a checkpoint to a file, whole or not at all; StorageError if the disk refuses."""
    content = json.dumps(dataclasses.asdict(state), indent=2, sort_keys=True) + "\n"
    write_or_explain(folder / STATE_FILE, content.encode())


def write_metrics(folder: Path, split: str, metrics: Mapping[str, Any], *, combined: bool) -> None:
    """Write `{split}_results.json`, and these numbers over those that `all_results.json` has (StorageError)."""
    named = {f"{split}_results.json": dict(metrics)}
    if combined:
        everything = folder / "all_results.json"
        known = json.loads(everything.read_text(encoding="utf-8")) if everything.is_file() else {}
        named[everything.name] = {**known, **metrics}
    for name, numbers in named.items():
        write_or_explain(folder / name, json.dumps(numbers, indent=4, sort_keys=True).encode())


SHOWN = ("reward", "eval_reward", "train_loss", "entropy", "kl")
"""Metrics whose newest values show whether the run learned."""


def publish_card(job: TrainingJob, state: TrainerState, folder: Path, card: Mapping[str, Any]) -> Path:
    """Write the card with the trainer's own numbers; `card` may hold `model_name`, `dataset_name` and `tags`."""
    args, dataset, tags = job.args, card.get("dataset_name"), card.get("tags")
    chosen = args.load_best_model_at_end and state.best_model_checkpoint is not None
    updates = state.best_global_step if chosen else state.global_step
    step = (updates or 0) // updates_per_step(job.config)
    recorded = card_facts(RunDir(job.output_dir), job.config, folder, step=step)
    # fields that decide the objective; with a preset, the preset and the fields changed beside it
    names = objective_fields()
    if args.preset is None:
        objective = {name: getattr(args, name) for name in ("loss_type", *names)}
    else:
        objective = {"preset": args.preset, **{name: getattr(args, name) for name in names if changed(args, name)}}
    newest = {name: value for line in state.log_history for name, value in line.items()}
    facts = replace(
        recorded,
        name=card.get("model_name") or recorded.name,
        # the program's own object has no public name
        dataset=None if dataset is None else named_dataset(dataset, is_local=lambda path: local_path(path).exists()),
        is_adapter=job.trainer.policy.adapter is not None,
        prompting=replace(recorded.prompting, has_chat_template=job.inputs.tokenizer.chat_template is not None),
        tags=tuple([tags] if isinstance(tags, str) else tags or []),
        numbers={name: float(newest[name]) for name in SHOWN if isinstance(newest.get(name), int | float)},
        fields=objective,
    )
    folder.mkdir(parents=True, exist_ok=True)
    return write_card(facts, folder)


def upload(job: TrainingJob, state: TrainerState, message: str, card: Mapping[str, Any]) -> str:
    """Export the model with its card to `final/` and upload it; returns the commit's address (ModelError: refused)."""
    unknown = set(card) - {"model_name", "dataset_name", "tags"}
    if unknown:
        raise ConfigError(
            f"push_to_hub must not have {sorted(unknown)[0]!r}; it takes model_name, dataset_name and tags"
        )
    args, folder = job.args, job.output_dir / FINAL
    job.export(folder)
    publish_card(job, state, folder, card)
    api = HfApi(token=args.hub_token)
    try:
        repository = api.create_repo(
            args.hub_model_id or job.output_dir.name, private=args.hub_private_repo, exist_ok=True
        )
        commit = api.upload_folder(
            repo_id=repository.repo_id, folder_path=str(folder), commit_message=message, revision=args.hub_revision
        )
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelError(f"push_to_hub: {first_line(error)}; the model is in {folder}") from error
    return str(commit)
