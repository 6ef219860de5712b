"""The list of faults: what is done, what is promised, and the function that does the one and looks for the other."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tests.chaos import clusters, conversing, damage, graders, interruptions, ranks
from tests.chaos.scene import Scene

SKIPPED = "the checkpoint is named and skipped, the one before is used, and the run ends as if nothing had happened"
REFUSED = "refused with status 2 and an error, nothing changed; once it is undone, the resumed run ends the same"
NAMED = "all end, the rank is named; the resumed run ends as if nothing had happened"
STOPPED = (
    "the run stops with status 1 and the function's name; once it is fixed, `--resume` with `--override reward_funcs` "
    "ends the same"
)
INTERRUPTED = "a checkpoint after the current step, status 130; the resumed run ends as if nothing had happened"
ENVIRONMENT_NAMED = "the run stops with status 1 and the first cause; once it is gone, the resumed run ends the same"
UNTOUCHED = "the run ends as if nothing had happened"
KEPT = "status 1 and an error, the last whole checkpoint intact; once the disk works, the resumed run ends the same"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One fault of the list."""

    name: str
    injected: str
    """What is done, as a row of a table says it."""
    promised: str
    done: Callable[[Scene], None]
    """Does it; an AssertionError says that the promise was not kept, `Impossible` that this machine cannot do it."""
    needs: Literal["one process", "a cluster"] = "one process"


def _fault(done: Callable[[Scene], None], injected: str, promised: str, *, cluster: bool = False) -> Fault:
    name = done.__name__.replace("_", " ")
    return Fault(
        name=name, injected=injected, promised=promised, done=done, needs="a cluster" if cluster else "one process"
    )


FAULTS: tuple[Fault, ...] = (
    # files of a run that was stopped
    _fault(damage.truncated_weights, "half of the newest checkpoint's weights is cut off", SKIPPED),
    _fault(damage.flipped_weights, "one bit of the newest checkpoint's weights is changed", SKIPPED),
    _fault(damage.flipped_optimiser, "one bit of the newest checkpoint's optimiser state is changed", SKIPPED),
    _fault(damage.missing_optimiser, "the newest checkpoint's optimiser state is deleted", SKIPPED),
    _fault(damage.missing_progress, "the newest checkpoint's `progress.json` is deleted", SKIPPED),
    _fault(damage.emptied_manifest, "the newest checkpoint's manifest is emptied", SKIPPED),
    _fault(damage.no_newest_checkpoint, "the newest checkpoint is deleted", UNTOUCHED + ", from the checkpoint before"),
    _fault(damage.no_whole_checkpoint, "every checkpoint is damaged", "refused with the name of each, nothing changed"),
    _fault(damage.half_written_checkpoint, "a half-written checkpoint is left behind", "it is removed; " + UNTOUCHED),
    _fault(
        damage.pickles_in_a_checkpoint,
        "a checkpoint contains pickles that run a command, under names that trainers load",
        "none is loaded; " + UNTOUCHED,
    ),
    _fault(damage.torn_metrics_line, "the last line of `metrics.jsonl` is torn", "it is cut and counted; " + UNTOUCHED),
    _fault(
        damage.damaged_metrics_line, "a line in the middle of `metrics.jsonl` is damaged", "refused with its number"
    ),
    _fault(
        damage.torn_journal_line,
        "the last line of the journal is torn",
        "it is cut and counted, committed steps are not generated again; " + UNTOUCHED,
    ),
    _fault(
        damage.damaged_journal_line,
        "a line in the middle of the journal is damaged",
        "it is named, its step is computed again; " + UNTOUCHED,
    ),
    _fault(
        damage.damaged_rollouts,
        "one bit of a committed step's rollouts is changed",
        "they are named and sampled again; " + UNTOUCHED,
    ),
    # what a run is stays
    _fault(damage.changed_option, "`--resume` gets another learning rate", REFUSED + "; accepted with `--override`"),
    _fault(damage.edited_configuration, "`config.yaml` is edited", REFUSED),
    _fault(damage.changed_row, "one answer in the data file is changed", REFUSED),
    _fault(damage.changed_model, "one bit of the model's file is changed", REFUSED),
    _fault(damage.same_command_again, "the command that started the run is given again", REFUSED),
    _fault(interruptions.two_processes, "a second process resumes a run that is still running", REFUSED),
    # signals
    _fault(interruptions.sigterm_in_generation, "SIGTERM while completions are sampled", INTERRUPTED),
    _fault(interruptions.sigterm_in_update, "SIGTERM during an update", INTERRUPTED),
    _fault(interruptions.sigterm_in_save, "SIGTERM while a checkpoint is written", INTERRUPTED),
    _fault(interruptions.sighup, "SIGHUP: the terminal is closed", INTERRUPTED),
    _fault(
        interruptions.sigterm_twice,
        "SIGTERM twice",
        "it ends at once with status 130; resumed from the last checkpoint, it ends as if nothing had happened",
    ),
    _fault(interruptions.stopped_and_continued, "SIGSTOP, and SIGCONT a second later", UNTOUCHED),
    _fault(interruptions.killed_at_every_rename, "SIGKILL before each rename of a checkpoint, one run each", UNTOUCHED),
    _fault(interruptions.killed_in_export, "SIGKILL between the export and the report", UNTOUCHED),
    # disk, clock, terminal
    _fault(interruptions.full_disk_in_save, "the disk is full during a save", KEPT),
    _fault(interruptions.broken_disk_in_save, "the disk has an error during a save", KEPT),
    _fault(interruptions.read_only_disk_in_save, "the disk becomes read-only during a save", KEPT),
    _fault(interruptions.full_disk_at_any_write, "the disk is full at every eighth write of a run, one run each", KEPT),
    _fault(interruptions.small_disk, "a file system of 16 MiB is filled by another program in step 4", KEPT),
    _fault(interruptions.slow_disk, "each of twenty writes takes 0.1 s", UNTOUCHED),
    _fault(
        interruptions.directory_that_cannot_be_written,
        "the run directory cannot be created",
        "refused with status 2, the option and the remedy",
    ),
    _fault(interruptions.clock_jumps, "the clock is set back by an hour", UNTOUCHED),
    _fault(interruptions.closed_output, "standard output is closed (`| head`)", UNTOUCHED),
    _fault(interruptions.odd_path, "a path with spaces, quotes and Unicode, and a umask of 077", UNTOUCHED),
    # reward functions
    _fault(graders.raises, "a reward function raises", STOPPED),
    _fault(graders.leaves_the_program, "a reward function calls `exit`", STOPPED),
    _fault(graders.hangs, "a reward function hangs", STOPPED),
    _fault(graders.returns_nan, "a reward function returns NaN", STOPPED + ", and no weight was NaN"),
    _fault(
        graders.dies_by_a_signal,
        "a reward function ends the process by SIGSEGV",
        "once it is fixed, `--resume` with `--override reward_funcs` ends the same",
    ),
    _fault(graders.is_slow, "a reward function takes 0.2 s more per call", UNTOUCHED),
    _fault(
        graders.may_fail,
        "a reward function raises, and `--max-reward-failure-rate 1` allows it",
        "the run ends, with each failure counted and none of its completions trained on",
    ),
    # conversations
    _fault(conversing.dead_environments, "SIGKILL to every environment from step 2 on", ENVIRONMENT_NAMED),
    _fault(conversing.hung_environments, "every environment hangs from step 2 on", ENVIRONMENT_NAMED),
    _fault(conversing.flooding_environments, "every environment answers with 2 MiB from step 2 on", ENVIRONMENT_NAMED),
    _fault(conversing.wrong_environments, "every environment answers by a wrong type from step 2", ENVIRONMENT_NAMED),
    _fault(conversing.slow_environments, "environments take up to 0.2 s per answer", UNTOUCHED),
    _fault(conversing.reluctant_environments, "four environments cannot begin at their first attempts", UNTOUCHED),
    _fault(
        conversing.environments_may_fail,
        "three environments die, and `--max-reward-failure-rate 1` allows it",
        "the run ends, with each failure counted and none of its conversations trained on",
    ),
    _fault(
        conversing.trainer_killed_between_turns,
        "SIGKILL to the trainer between two turns of a conversation",
        "resumed, " + UNTOUCHED,
    ),
    _fault(conversing.sigterm_between_turns, "SIGTERM between two turns of a conversation", INTERRUPTED),
    _fault(
        conversing.sigterm_while_environments_hang,
        "SIGTERM, and environments hang for longer than `--stop-grace`",
        "it ends with status 130 after the grace; resumed from the last checkpoint, " + UNTOUCHED,
    ),
    # updates
    _fault(graders.no_memory, "an update runs out of memory once", "the update is repeated in smaller micro-batches"),
    _fault(graders.one_nan_gradient, "one gradient is NaN", "that update is left out and counted"),
    _fault(
        graders.nan_gradients_without_end,
        "every gradient from step 3 on is NaN",
        "it stops before it writes a checkpoint, with finite weights and with the batch kept for inspection",
    ),
    # several processes
    _fault(clusters.dead_producer, "SIGKILL to a sampler", "it is replaced; " + UNTOUCHED, cluster=True),
    _fault(clusters.stopped_producer, "SIGSTOP to a sampler", "it is replaced; " + UNTOUCHED, cluster=True),
    _fault(clusters.slow_producer, "a sampler takes longer than `--actor-timeout`", UNTOUCHED, cluster=True),
    _fault(clusters.dead_trainer, "SIGKILL to the trainer", "it restarts by itself; " + UNTOUCHED, cluster=True),
    _fault(clusters.stopped_trainer, "SIGSTOP to the trainer", "it restarts by itself; " + UNTOUCHED, cluster=True),
    _fault(
        clusters.dead_driver,
        "SIGKILL to the driver",
        "no process is left; resumed in one process, the run ends as if nothing had happened",
        cluster=True,
    ),
    _fault(
        clusters.dead_node,
        "SIGKILL to Ray's own process on the machine",
        "the run ends, no process is left; the resumed run ends as if nothing had happened",
        cluster=True,
    ),
    _fault(clusters.dead_vllm_worker, "SIGKILL to a sampler with vLLM", UNTOUCHED, cluster=True),
    _fault(ranks.dead_rank, "SIGKILL to one of two ranks of torchrun", NAMED, cluster=True),
    _fault(ranks.dead_first_rank, "SIGKILL to the first of two ranks", NAMED, cluster=True),
    _fault(ranks.dead_sampling_rank, "SIGKILL to a rank that only samples", NAMED, cluster=True),
    _fault(ranks.stopped_rank, "SIGSTOP to one of two ranks", NAMED, cluster=True),
    _fault(ranks.stopped_sampling_rank, "SIGSTOP to a rank that only samples", NAMED, cluster=True),
    _fault(ranks.slow_rank, "a rank takes longer than `--actor-timeout` for its share", UNTOUCHED, cluster=True),
)
