"""The trainer of a run: the policy with its optimiser, how a step updates it, what is saved and exported."""

import copy
import math
import tempfile
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedTokenizerBase

from paceline.checkpoints.finding import Checkpoint, TrainingState
from paceline.checkpoints.optimizer_state import load_optimizer, load_reference_weights
from paceline.checkpoints.saving import CheckpointWriter, TokenizerFiles, take_checkpoint
from paceline.config.reading import scheduler_of
from paceline.config.sections import Config
from paceline.data.pictures import PictureStore
from paceline.errors import ConfigError
from paceline.models.activation_checkpointing import Activations
from paceline.models.forward import PolicyForward, choose_forward, measure_activations
from paceline.models.loaded import Loaded, export_model
from paceline.models.loading import adopt_model, load_model, restore_weights
from paceline.models.parallel.mesh_ranks import MeshLayout
from paceline.models.parallel.pieces import piece_of, saved_tensors, written_here
from paceline.models.parallel.ranks import ONE_RANK, Ranks
from paceline.models.parallel.staging import StagingBuffers
from paceline.models.policy_and_reference import frozen_copy, load_policy, load_reference, measure_by_twin
from paceline.models.text_part import has_vision
from paceline.objective.schedule import learning_rate, warmup_updates
from paceline.runtime.devices import free_memory
from paceline.training.assembly import fix_lengths
from paceline.training.learner.learner import Learner
from paceline.training.learner.stats import UpdateStats
from paceline.training.memory import Footprint, Recomputing, choose_recomputing, image_cost, least_memory, to_come
from paceline.training.setup.checks import NO_OBJECTS, own_policy_loss
from paceline.training.setup.inputs import RunObjects, RunSize
from paceline.types import RolloutGroup


class SteppedRate:
    """A torch scheduler that can be set to any number of updates, so that a resumed run needs no file of it."""

    def __init__(self, optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
        self.scheduler = scheduler
        self._optimizer = optimizer
        self._start = copy.deepcopy(scheduler.state_dict())
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self.last = self.current
        """Rate of the last counted update; before the first, its rate."""

    @property
    def current(self) -> float:
        """Rate of the next update in the first parameter group."""
        return float(self._optimizer.param_groups[0]["lr"])

    def advance(self, updates: int = 1) -> None:
        """Count updates: one call of the scheduler for each."""
        with warnings.catch_warnings():
            # torch wants to see an update before each call; a step without signal or a resumed run makes none
            warnings.simplefilter("ignore")
            for _ in range(updates):
                self.last = self.current
                self.scheduler.step()

    def go_to(self, updates: int) -> None:
        """Set the rate to that after this many updates from the start."""
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate
        self.scheduler.load_state_dict(copy.deepcopy(self._start))
        self.advance(updates)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trainer:
    """Trains the policy. Where several ranks train, each has one, and all are called alike."""

    config: Config
    tokenizer: PreTrainedTokenizerBase
    run_size: RunSize
    policy: Loaded
    learner: Learner
    rate: SteppedRate | None
    """The torch scheduler that sets the learning rate; None where the options' schedule does."""
    writer: CheckpointWriter
    tokenizer_files: TokenizerFiles
    recomputing: Recomputing | None
    """Choice of activation checkpointing by free memory; None where the options decide."""

    @property
    def policy_version(self) -> int:
        """Updates that the weights have seen."""
        return self.learner.policy_version

    def update(self, number: int, groups: Sequence[RolloutGroup]) -> tuple[UpdateStats, float]:
        """Run all updates of a step; returns their statistics and the last learning rate.

        A scheduler of torch counts every update, also those that a step without signal does not make.
        """
        learner, optim = self.learner, self.config.optim
        if self.rate is None:
            rate = learning_rate(
                number,
                peak=optim.learning_rate,
                schedule=optim.lr_schedule,
                warmup_steps=optim.warmup_steps,
                total_steps=self.run_size.total_steps,
                min_ratio=optim.min_lr_ratio,
            )
            stats = learner.step(groups, learning_rate=rate)
        else:
            before = learner.policy_version
            stats = learner.step(groups, learning_rate=None, after_update=self.rate.advance)
            self.rate.advance(updates_per_step(self.config) - (learner.policy_version - before))
            rate = self.rate.last
        every = self.config.loss.ref_sync_steps
        if every and number % every == 0:
            learner.sync_reference()
        return stats, rate

    def save(self, root: Path, state: TrainingState, protected: Collection[int]) -> tuple[str, ...]:
        """Begin a checkpoint of weights, optimiser and counts, on which the next step depends.

        Raises:
            TrainingError: a weight is not finite, so that no checkpoint is made of it.
            StorageError: it, or the one before it, cannot be written.
        """
        self.writer.take(wait=True)  # of ranks that nobody asks; the first one's was asked for
        self.learner.check_weights()
        ranks = self.learner.ranks
        group = ranks.side_group()
        if self.config.loss.entropy_target is not None and math.isfinite(self.learner.entropy_control[1]):
            coef, entropy = self.learner.entropy_control
            state = replace(state, entropy_coef=coef, last_entropy=entropy)
        taken = take_checkpoint(
            root,
            state,
            loaded=self.policy,
            tokenizer=self.tokenizer_files,
            optimizer=self.learner.optimizer,
            keep=self.config.loop.save_total_limit,
            reference=self.learner.reference if self.config.loss.ref_sync_steps else None,
            protected=protected,
            ranks=ranks,
            staging=self.writer.staging,
        )
        self.writer.begin(taken, group)
        return taken.sentences

    def measure(self, groups: Sequence[RolloutGroup]) -> UpdateStats:
        """Report what an update would find in these groups, without an update."""
        return self.learner.measure(groups)

    def saved(self, wait: bool) -> Checkpoint | None:
        """Return the checkpoint that was begun once it is on disk; None while it is not and nobody waits."""
        return self.writer.take(wait=wait)

    def footprint(self) -> Footprint:
        """Count the bytes over all ranks, which call this together. A program's own optimiser counts as the options'.

        Raises:
            RankLost: another rank is gone, or silent for too long.
        """
        config, policy, ranks = self.config, self.policy, self.learner.ranks
        pieces = {name: piece_of(tensor) for name, tensor in saved_tensors(policy.model).items()}
        trained = {
            name for name, parameter in policy.model.named_parameters(remove_duplicate=False) if parameter.requires_grad
        }
        mine, _ = written_here(pieces, ranks)
        here = {"whole": 0, "trained": 0, "numbers": 0}
        for name in mine:
            size = pieces[name].tensor
            here["whole"] += size.nbytes
            here["trained"] += size.nbytes if name in trained else 0
            here["numbers"] += size.numel() if name in trained else 0
        sums = ranks.collect(here)
        whole, moved, numbers = (int(sum(numbers_of_rank[key] for numbers_of_rank in sums)) for key in here)
        saved = whole if policy.adapter is None else moved
        merged = policy.adapter is None or config.lora.merge_lora
        reference = whole if config.loss.ref_sync_steps else 0
        return Footprint(
            checkpoint=saved + numbers * config.optim.moment_bytes + reference, final=whole if merged else moved
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore weights, optimiser, rate and counts of a checkpoint in a trainer that was built without it."""
        restore_weights(self.policy, checkpoint.model)
        _go_on(self.learner, checkpoint)
        if self.rate is not None:
            self.rate.go_to(checkpoint.state.step * updates_per_step(self.config))

    def export(self, folder: Path) -> None:
        """Write the model as transformers or peft loads it, on the first rank; raises as `check_weights` does."""
        self.learner.check_weights()
        ranks, merge = self.learner.ranks, self.config.lora.merge_lora
        if ranks.size == 1 or self.policy.adapter is None or not merge:
            dtype = final_dtype(self.config)
            export_model(self.policy, self.tokenizer, folder, merge=merge, ranks=ranks, dtype=dtype)
            return
        writer = self.policy.weights_writer(ranks)
        if ranks.rank == 0:  # no rank may have all of the model that the adapter belongs on: it is read once more
            with tempfile.TemporaryDirectory(prefix="paceline-") as saved:
                writer.write(Path(saved))
                export_saved(self.config, Path(saved), self.tokenizer, folder)


def make_trainer(
    config: Config,
    tokenizer: PreTrainedTokenizerBase,
    run_size: RunSize,
    objects: RunObjects = NO_OBJECTS,
    *,
    checkpoint: Checkpoint | None = None,
    ranks: Ranks = ONE_RANK,
    pictures: PictureStore | None = None,
) -> Trainer:
    """Read the weights, from the checkpoint where there is one, and build the trainer on them.

    A program's own model is taken as it is: `restore` puts a checkpoint into it. `pictures`: images of prompts, where
    these are in this process; None: in the folder of `run_size`, if there are any.
    """
    pictures = pictures or (None if run_size.images is None else PictureStore(run_size.images))
    policy, forward, reference, measure = _models(config, objects, checkpoint, ranks, pictures)
    # bytes left where activations go, once the first update has made what stays
    if "activations" in config.optim.offload:
        free = free_memory(torch.device("cpu"))
    elif (free := free_memory(policy.model.device)) is not None:
        free -= to_come(config.optim, policy)
    padded = forward.kind == "padded"
    recomputing = choose_recomputing(
        config, policy, measure, padded=padded, longest_prompt=run_size.longest_prompt, free=least_memory(free, ranks)
    )
    optim = config.optim
    if recomputing is not None:
        optim = replace(optim, micro_batch_tokens=recomputing.micro_batch_tokens)
    learner = Learner(
        policy,
        forward,
        reference=reference,
        loss=config.loss,
        optim=optim,
        temperature=config.sampling.temperature,
        max_completion_length=config.sampling.max_completion_length,
        optimizer=objects.optimizer,
        vision_learning_rate=config.vision.vision_learning_rate,
        image_cost=image_cost(policy, measure),
        policy_loss=objects.policy_loss or own_policy_loss(config.loss),
        ranks=ranks,
    )
    rate, updates = None, run_size.total_steps * updates_per_step(config)
    if objects.make_scheduler is not None:
        rate = SteppedRate(learner.optimizer, objects.make_scheduler(learner.optimizer, updates))
    elif optim.lr_scheduler is not None:
        rate = SteppedRate(learner.optimizer, make_scheduler(optim.lr_scheduler, learner.optimizer, total=updates))
    if checkpoint is not None:
        _go_on(learner, checkpoint)
        if rate is not None:
            rate.go_to(checkpoint.state.step * updates_per_step(config))
    is_locked = policy.model.device.type == "cuda"
    staging = StagingBuffers(partial(free_memory, torch.device("cpu")), is_locked=is_locked)
    return Trainer(
        config=config,
        tokenizer=tokenizer,
        run_size=run_size,
        policy=policy,
        learner=learner,
        rate=rate,
        writer=CheckpointWriter(staging if config.loop.background_save else None),
        tokenizer_files=TokenizerFiles(tokenizer),
        recomputing=recomputing,
    )


def make_scheduler(text: str, optimizer: torch.optim.Optimizer, *, total: int) -> Any:
    """Make transformers' scheduler for `total` updates, as `--lr-scheduler` says it; call `step()` after each.

    Raises:
        ConfigError: transformers cannot make it of these parameters.
    """
    from transformers import get_scheduler  # here: its module loads peft and what that loads, seconds

    name, parameters = scheduler_of(text)
    warmup = cast(float, parameters.pop("warmup", 0))
    try:
        return get_scheduler(
            name,
            optimizer,
            num_warmup_steps=warmup_updates(warmup, total),
            num_training_steps=total,
            scheduler_specific_kwargs=parameters,
        )
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ConfigError(f"--lr-scheduler must be such that it can be made, got {text}: {error}") from error


def updates_per_step(config: Config) -> int:
    """Updates that a step makes where its completions carry signal."""
    return config.optim.num_iterations * config.optim.num_minibatches


def _go_on(learner: Learner, checkpoint: Checkpoint) -> None:
    load_optimizer(checkpoint, learner.optimizer, learner.policy.model, learner.ranks)
    state = checkpoint.state
    learner.policy_version = state.policy_version
    if state.entropy_coef is not None and state.last_entropy is not None:
        learner.entropy_control = state.entropy_coef, state.last_entropy
    if learner.loss.ref_sync_steps and learner.reference is not None:
        load_reference_weights(checkpoint, learner.reference.model)


def _models(
    config: Config, objects: RunObjects, checkpoint: Checkpoint | None, ranks: Ranks, pictures: PictureStore | None
) -> tuple[Loaded, PolicyForward, Loaded | None, Callable[[], Activations]]:
    """Load the policy, its forward pass, the reference, and a function that measures its activations.

    Ranks read their parts alone; of a program's own model each has all of it, and leaves its part.
    """
    weights, seed = None if checkpoint is None else checkpoint.model, config.loop.seed
    # a PeftModel has the adapter that the options describe
    adapter = objects.adapter or (None if hasattr(objects.model, "peft_config") else config.lora)
    mesh = ranks.parallel_layout if isinstance(ranks.parallel_layout, MeshLayout) else None
    measure: Callable[[], Activations]
    reference: Loaded | None = None
    if mesh is not None:
        if objects.model is None:
            policy, forward = load_policy(config.model, adapter, parallel_layout=mesh, checkpoint=weights, seed=seed)
        else:
            if objects.optimizer is not None:
                raise ConfigError(
                    "optimizers must be (None, None) where ranks share the weights out, whose parameters are others "
                    "then; leave it out, or train copies (--zero-stage 0)"
                )
            policy = adopt_model(objects.model, config.model, adapter, seed=seed)
            if config.loss.beta and policy.adapter is None:
                reference = frozen_copy(policy)
                mesh.apply(reference.model, reference.compute_dtype)
            forward = choose_forward(policy.model, policy.compute_dtype)
            mesh.apply(policy.model, policy.compute_dtype)
        fix_lengths(config, policy)
        measure = partial(measure_by_twin, policy, forward)
    else:
        options = config.vision
        if objects.model is None:
            policy = load_model(config.model, adapter, checkpoint=weights, seed=seed, pictures=pictures, vision=options)
        else:
            policy = adopt_model(
                objects.model,
                config.model,
                adapter,
                seed=seed,
                pictures=pictures,
                vision=options,
                image_processor=objects.image_processor,
            )
        fix_lengths(config, policy)
        forward = choose_forward(policy.model, policy.compute_dtype, policy.vision)
        # an offload has hooks of its own, and torch applies the innermost only
        measure = partial(measure_activations, policy.model, forward, policy.compute_dtype)
    forward = replace(forward, offload="activations" in config.optim.offload)
    if config.loss.beta == 0:
        return policy, forward, None, measure
    if config.loss.ref_sync_steps and policy.adapter is not None:
        raise ConfigError(
            f"--ref-sync must be none with an adapter, got {config.loss.ref_sync}; "
            "the reference is the model without it"
        )
    if objects.model is None:
        reference = load_reference(policy, config.model, parallel_layout=mesh, pictures=pictures, vision=config.vision)
    elif reference is None:
        reference = frozen_copy(policy)
    fix_lengths(config, reference)
    return policy, forward, reference, measure


def export_saved(config: Config, saved: Path, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write what transformers or peft loads, from a model's weights, whole or in pieces, or an adapter's.

    The weights fit in main memory.

    Raises:
        ModelError: the weights cannot be read, or are an adapter that cannot be merged.
    """
    loaded = load_model(
        replace(config.model, device="cpu"),
        config.lora,
        checkpoint=saved,
        seed=config.loop.seed,
        pictures=PictureStore() if has_vision(saved) else None,
        vision=config.vision,
    )
    export_model(loaded, tokenizer, folder, merge=config.lora.merge_lora, dtype=final_dtype(config))


def final_dtype(config: Config) -> torch.dtype | None:
    """Return the precision that `--final-dtype` names; None: that of the model's own files."""
    name = config.model.final_dtype
    return None if name == "base" else cast(torch.dtype, getattr(torch, name))
