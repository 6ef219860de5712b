"""A run's completions as columns, for lists and filters, and marks on those to look at first, by stated rules.

The same columns give the same marks. A completion is `well paid` if its reward lies in the upper tenth of the range
that rewards have in the run.
"""

import itertools
import math
import statistics
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.metrics.definitions import Record
from paceline.metrics.statistics import mean_of
from paceline.reports.images import images_of
from paceline.reports.page.reading import RunRecord, value_at
from paceline.types import EpisodeEnd

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
    images: tuple[str, ...]
    """Hashes of the images of all prompts, each once."""
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
        images=tuple(dict.fromkeys(name for group in groups for name, _ in images_of(group[0]))),
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


LONG = 64
"""Tokens from which equal texts are no coincidence: a policy that is sure of a task says the same in a few words."""
LOOP = 0.2
"""Share of its bytes that zlib leaves of a text."""
TIMES = 3
OUTLIER = 5.0
"""Median absolute deviations from the step's median."""
RISE = 0.1
"""Share of the range of rewards by which the mean has risen before held-out accuracy is asked whether it did too."""

BROKEN_ENDS: tuple[EpisodeEnd, ...] = ("failed", "timed_out")
"""Ends of a conversation that its environment is to blame for."""

RULES: Mapping[str, str] = {
    "unearned": "well paid in a step where training earns more than at first and held-out accuracy has not kept up: "
    f"from the first tenth of the steps to those around it the mean reward has risen by at least {100 * RISE:.0f} % of "
    "the range of rewards, and held-out accuracy since the first evaluation by less than a quarter of that",
    "overruled": "well paid although the function that grades evaluations gave its lowest score",
    "cut off": "well paid although it was cut at the greatest length before it ended",
    "reused": "well paid for a text that is well paid, word for word, under a prompt with another gold answer too",
    "failed": "a conversation whose environment failed or took too long, however it was paid",
    "repeated": f"at least half of its group of 4 or more has the same text of at least {LONG} tokens",
    "loop": f"a text of {LOOP_CHARACTERS} characters or more that zlib packs to less than {100 * LOOP:.0f} %: "
    "it repeats itself",
    "length": f"at least {TIMES} times as long as the median of its step or as short, and more than {OUTLIER:g} median "
    "absolute deviations away from it",
}
"""By name, what is suspicious, in the words of the page; the first ones weigh most where marks are as many."""

NAMES = tuple(RULES)


def marks(parts: Sequence[CompletionColumns], evals: Sequence[Record], grader: str) -> list[int]:
    """Return the rules that hold for every completion of all parts, in order, as a bit mask over `NAMES`.

    `evals` are the lines of `evals.jsonl`. Held-out completions are not asked: they earned nothing.
    """
    # what each completion is compared with, made of all of them; None where all are alike
    training = [part for part in parts if part.is_training]
    of_steps = {part.part.step: [reward for reward in part.rewards if reward is not None] for part in training}
    rewards = [reward for of_step in of_steps.values() for reward in of_step]
    paid = well_paid(rewards)
    span = max(rewards) - min(rewards) if rewards else 0.0
    grades = {value for part in training for value in part.of_functions.get(grader, ()) if value is not None}
    lowest_grade = min(grades) if len(grades) > 1 else None
    means = {step: mean_of(of_step) for step, of_step in of_steps.items() if of_step}
    unearned, reused = steps_unearned(means, evals, span=span), _reused_texts(training, paid)
    bits: list[int] = []
    for part in parts:
        if not part.is_training:
            bits += [0] * len(part.rewards)
            continue
        repeated, outliers = frozenset(_repeated(part)), frozenset(length_outliers(part.tokens))
        by_grader = part.of_functions.get(grader, (None,) * len(part.rewards))
        for row, reward in enumerate(part.rewards):
            is_paid = _is_paid(reward, paid)
            holds = (
                is_paid and part.part.step in unearned,
                is_paid and by_grader[row] is not None and by_grader[row] == lowest_grade,
                is_paid and part.finish[row] == "length",
                is_paid and part.texts[row] in reused,
                part.ends[row] in BROKEN_ENDS,
                row in repeated,
                part.packed[row] < LOOP,
                row in outliers,
            )
            bits.append(sum(1 << bit for bit, holds_here in enumerate(holds) if holds_here))
    return bits


def _is_paid(reward: float | None, paid: float | None) -> bool:
    return reward is not None and paid is not None and reward >= paid


def well_paid(rewards: Sequence[float | None]) -> float | None:
    """The reward from which a completion is well paid; None: all rewards are equal, or there is none.

    >>> well_paid([0.0, None, 2.0])
    1.8
    """
    there = [reward for reward in rewards if reward is not None]
    low, high = min(there, default=0.0), max(there, default=0.0)
    return low + 0.9 * (high - low) if high > low else None


def steps_unearned(means: Mapping[int, float], evals: Sequence[Record], *, span: float) -> frozenset[int]:
    """The steps between two evaluations, or behind the last, whose rise in reward held-out accuracy does not share.

    `span` is the range of rewards. The first set that was evaluated counts. The steps up to an evaluation are held to
    it, those behind the last one to that; what their mean has risen from is the mean of the first tenth of all steps.
    """
    points = sorted(
        (int(record["step"]), accuracy)
        for record in evals
        if record["set"] == evals[0]["set"] and (accuracy := value_at(record, "accuracy")) is not None
    )
    if len(points) < 2 or span <= 0 or not means:
        return frozenset()
    steps = sorted(means)
    start = mean_of([means[step] for step in steps[: max(1, len(steps) // 10)]])
    bounds = [-math.inf, *(step for step, _ in points[1:-1]), math.inf]
    unearned: set[int] = set()
    for (first, last), (_, accuracy) in zip(itertools.pairwise(bounds), points[1:], strict=True):
        inside = [step for step in steps if first < step <= last]
        if inside:
            rise = (mean_of([means[step] for step in inside]) - start) / span
            if rise >= RISE and accuracy - points[0][1] < rise / 4:
                unearned.update(inside)
    return frozenset(unearned)


def _reused_texts(parts: Sequence[CompletionColumns], paid: float | None) -> frozenset[int]:
    """Checksums of texts that earn at least `paid` under prompts of different gold answers."""
    answers: defaultdict[int, set[str]] = defaultdict(set)
    for part in parts:
        of_rows = (answer for answer, size in zip(part.answers, part.sizes, strict=True) for _ in range(size))
        for answer, text, reward in zip(of_rows, part.texts, part.rewards, strict=True):
            if answer is not None and _is_paid(reward, paid):
                answers[text].add(answer)
    return frozenset(text for text, of_text in answers.items() if len(of_text) > 1)


def length_outliers(lengths: Sequence[int]) -> list[int]:
    """Positions of lengths far from the median; none among fewer than 8.

    >>> length_outliers([20, 21, 19, 20, 22, 18, 20, 64])
    [7]
    """
    if len(lengths) < 8:
        return []
    median = statistics.median(lengths)
    deviation = max(1.0, statistics.median(abs(length - median) for length in lengths))
    return [
        at
        for at, length in enumerate(lengths)
        if abs(length - median) > OUTLIER * deviation and not median / TIMES < length < TIMES * median
    ]


def _repeated(part: CompletionColumns) -> Iterator[int]:
    start = 0
    for size in part.sizes:
        rows = range(start, start + size)
        start += size
        counts = Counter(part.texts[row] for row in rows if part.tokens[row] >= LONG)
        if size >= 4:
            yield from (row for row in rows if 2 * counts[part.texts[row]] >= size)
