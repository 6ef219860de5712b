"""Files of a run that hold completions, and their records as columns, for lists, filters and rules of suspicion."""

import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.metrics.definitions import Record
from paceline.reports.page.reading import RunRecord, value_at

TRAINING = "training"
"""What the pages call the set of a run's rollouts; held-out sets have their own names."""
ENDS: Mapping[str, str] = {
    "done": "ended by its environment",
    "max_turns": "all turns used up",
    "length": "cut at the limit",
    "failed": "its environment failed",
    "timed_out": "its environment took too long",
}
"""Why an episode ended, in the words of the page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPart:
    """The completions of one step of training, or of one evaluation."""

    key: str
    """Letters, digits and hyphens: its name in addresses and files."""
    set_name: str
    step: int
    file: Path
    signature: tuple[int, int]
    """Bytes and time of change in ns: another one says that the file is to be read again."""


def parts_of(run: RunRecord) -> tuple[RunPart, ...]:
    """Training first, then the held-out sets by name, each in the order of its steps."""
    listed = [("rollouts", TRAINING, step, file) for step, file in sorted(run.rollout_files.items())]
    for (name, step), file in sorted(run.completion_files.items()):
        listed.append((f"eval-{zlib.crc32(name.encode()):08x}", name, step, file))
    parts = []
    for kind, name, step, file in listed:
        with suppress(FileNotFoundError):  # where a resumed run has removed the file since it was listed
            status = file.stat()
            signature = status.st_size, status.st_mtime_ns
            parts.append(RunPart(key=f"{kind}-{step:06d}", set_name=name, step=step, file=file, signature=signature))
    return tuple(parts)


REQUIRED = ("task_id", "prompt", "completion", "completion_tokens", "finish_reason", "reward")
"""A line without these is no completion: counted, and said on the page."""
PREVIEW = 110
"""Characters of a completion in the list; of a longer one its beginning and its end."""
LOOP_CHARACTERS = 200
"""A shorter text is not asked how often it repeats itself."""

GRADE = "grade"
"""Name of the one reward of a held-out completion on the pages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletionColumns:
    """The completions of one part: one entry per group, then one per completion, in the order of the file."""

    part: RunPart
    unreadable: int
    """Lines that are no completion."""
    tasks: tuple[str, ...]
    prompts: tuple[str, ...]
    answers: tuple[str | None, ...]
    """The gold answers, where the dataset has them."""
    sizes: tuple[int, ...]
    """Completions of each group; they sum to B."""
    rewards: tuple[float | None, ...]
    of_functions: dict[str, tuple[float | None, ...]]
    """By reward function, what it gave."""
    advantages: tuple[float | None, ...]
    """None of held-out completions."""
    tokens: tuple[int, ...]
    finish: tuple[str, ...]
    dropped: tuple[str | None, ...]
    previews: tuple[str, ...]
    texts: tuple[int, ...]
    """A checksum of each completion without the space around it: equal for equal texts."""
    turns: tuple[int, ...]
    """Turns of the model; 0 of what is no conversation."""
    ends: tuple[str | None, ...]
    """How a conversation ended, as `EpisodeEnd` has it."""
    failed_calls: tuple[int, ...]
    """Tool calls whose result was an error."""
    seconds: tuple[float, ...]
    """Wall seconds that environments took for their observations."""
    packed: tuple[float, ...]
    """How much shorter zlib makes a text, as the share that is left; 1.0 for those below `LOOP_CHARACTERS`."""

    @property
    def is_training(self) -> bool:
        """Return True for rollouts, False for held-out completions."""
        return self.part.set_name == TRAINING


def columns_of(part: RunPart, records: Sequence[Record], unreadable: int) -> CompletionColumns:
    """The columns of records that have the `REQUIRED` keys."""
    groups = grouped(records)
    names = dict.fromkeys(name for record in records for name in rewards_of(record))
    episodes = [episode_of(record) for record in records]
    texts = [str(record["completion"]).strip().encode("utf-8", "replace") for record in records]
    return CompletionColumns(
        part=part,
        unreadable=unreadable,
        tasks=tuple(str(group[0]["task_id"]) for group in groups),
        prompts=tuple(str(group[0]["prompt"]) for group in groups),
        answers=tuple(answer_of(group[0]) for group in groups),
        sizes=tuple(len(group) for group in groups),
        rewards=tuple(value_at(record, "reward") for record in records),
        of_functions={name: tuple(value_at(rewards_of(record), name) for record in records) for name in names},
        advantages=tuple(value_at(record, "advantage") for record in records),
        tokens=tuple(int(value_at(record, "completion_tokens") or 0) for record in records),
        finish=tuple(str(record["finish_reason"]) for record in records),
        dropped=tuple(None if record.get("dropped") is None else str(record["dropped"]) for record in records),
        previews=tuple(preview(str(record["completion"])) for record in records),
        texts=tuple(zlib.crc32(text) << 32 | zlib.adler32(text) for text in texts),
        turns=tuple(0 if episode is None else len(episode["turns"]) for episode in episodes),
        ends=tuple(None if episode is None else str(episode["end"]) for episode in episodes),
        failed_calls=tuple(int(_sum_of_turns(episode, "failed_calls")) for episode in episodes),
        seconds=tuple(_sum_of_turns(episode, "seconds") for episode in episodes),
        # level 1: twice as fast as the default, and a loop is short at any level
        packed=tuple(
            len(zlib.compress(text, 1)) / len(text) if len(text) >= LOOP_CHARACTERS else 1.0 for text in texts
        ),
    )


def grouped(records: Sequence[Record]) -> list[list[Record]]:
    """Records of one prompt that stand together; a sample numbered 0 begins another group of the same prompt."""
    groups: list[list[Record]] = []
    for record in records:
        if not groups or groups[-1][0]["task_id"] != record["task_id"] or record.get("sample") == 0:
            groups.append([])
        groups[-1].append(record)
    return groups


def rewards_of(record: Record) -> Record:
    """Return the rewards by function; of a held-out completion its grade."""
    rewards = record.get("rewards")
    return rewards if isinstance(rewards, dict) else {GRADE: record["reward"]}


def episode_of(record: Record) -> Record | None:
    """The conversation of a completion, where it is one."""
    episode = record.get("episode")
    return episode if isinstance(episode, dict) else None


def _sum_of_turns(episode: Record | None, key: str) -> float:
    return 0.0 if episode is None else sum(value_at(turn, key) or 0.0 for turn in episode["turns"])


def answer_of(record: Record) -> str | None:
    """The gold answer, where the dataset has one."""
    return None if record.get("answer") is None else str(record["answer"])


def preview(text: str) -> str:
    """A line of at most `PREVIEW` characters.

    >>> preview("<think>  1 + 1\\n= 2</think>")
    '<think> 1 + 1 = 2</think>'
    """
    start, end = text[: 4 * PREVIEW], text[-2 * PREVIEW :]
    line = " ".join(start.split())
    if len(text) <= 4 * PREVIEW and len(line) <= PREVIEW:
        return line
    return f"{line[: PREVIEW - 41]} … {' '.join(end.split())[-38:]}"


def talks_of(parts: Sequence[CompletionColumns]) -> dict[str, object] | None:
    """How conversations went, in columns over all completions; None without any, outcome -1 of other completions."""
    ends = [end for part in parts for end in part.ends]
    words = dict.fromkeys(end for end in ends if end is not None)
    if not words:
        return None
    numbers = {word: at for at, word in enumerate(words)}
    return {
        "outcome": [-1 if end is None else numbers[end] for end in ends],
        "outcome_words": [ENDS.get(word, word) for word in words],
        "turns": [count for part in parts for count in part.turns],
        "failed_calls": [count for part in parts for count in part.failed_calls],
        "seconds": [round(value, 3) for part in parts for value in part.seconds],
    }


def distinctive(prompts: Sequence[str]) -> list[str]:
    """Prompts without the beginning and end that all of them share, cut at lines and template marks only.

    >>> distinctive(["Be brief.\\n<user>How much is 1 + 2?<end>", "Be brief.\\n<user>How much is 3 * 4?<end>"])
    ['How much is 1 + 2?', 'How much is 3 * 4?']
    """
    if len(set(prompts)) < 2:
        return list(prompts)
    shared = _shared_start(prompts)
    start = max(shared.rfind("\n"), shared.rfind(">")) + 1
    rests = [prompt[start:] for prompt in prompts]
    tail = _shared_start([rest[::-1] for rest in rests])
    end = max(tail.rfind("\n"), tail.rfind("<")) + 1
    return [rest[: len(rest) - end].strip() for rest in rests]


def _shared_start(texts: Sequence[str]) -> str:
    # What the smallest and the largest text share, all between them share too.
    first, last = min(texts), max(texts)
    length = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:length]
