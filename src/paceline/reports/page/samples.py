"""The sections of the page that are completions: early beside late on similar prompts, right ones and wrong ones."""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from html import escape

from paceline.config.reading import base_name
from paceline.errors import RewardError
from paceline.metrics.definitions import Record
from paceline.reports.format import count, short
from paceline.reports.page.conversations import conversation, conversation_facts
from paceline.reports.page.outcome import FATES, TextPair, correct, fates, pairs
from paceline.reports.page.reading import RunRecord, read_lines, value_at
from paceline.rewards.resolving import right_from

MOST_PAIRS = 4
"""Prompts of the early and of the late steps that are shown side by side."""
GROUPS = 2
"""Groups shown of each moment: enough to see that one is no exception."""
LONGEST_HALF = 2000
"""Characters of a completion's beginning and of its end that are shown."""
_VERDICTS = {True: ("right", "&#10003; right"), False: ("wrong", "&#10007; wrong"), None: ("none", "not graded")}


def held_out_samples(run: RunRecord) -> str:
    """The same held-out tasks before and after training, and how many changed sides."""
    found = fates(pairs(run))
    if not any(found.values()):
        return ""
    tiles = "".join(
        f'<div class="tile {name}"><b>{len(found[name]):,}</b><span>{words}</span></div>'
        for name, (_, _, words) in FATES.items()
    )
    # some that were fixed, and one of each other kind
    shown = [*found["fixed"][:3], *found["broken"][:1], *found["missed"][:1], *found["kept"][:1]]
    return f'<div class="tiles">{tiles}</div>{pair_cards(shown, before="before", after="after", grader=run.grader)}'


def training_samples(run: RunRecord) -> str:
    """Completions of the first steps beside those of the last, on similar prompts."""
    steps = list(run.rollout_files)
    if len(steps) < 2:
        return ""
    reach = min(2, len(steps) // 2)
    first, last = (
        f"step {part[0]:,}" if len(part) == 1 else f"steps {part[0]:,} and {part[-1]:,}"
        for part in (steps[:reach], steps[-reach:])
    )
    chosen = training_pairs(_rollouts(run, *steps[:reach]), _rollouts(run, *steps[-reach:]), run.grader)
    lead = f"<p>Prompts of {first} beside the most similar ones of {last}; right and wrong ones on purpose.</p>"
    return lead + pair_cards(chosen, before=first, after=last, grader=run.grader) if chosen else ""


def training_pairs(early: Sequence[Record], late: Sequence[Record], grader: str) -> list[TextPair]:
    """Rollouts of an early and a late step, at most `MOST_PAIRS` prompts of each and as many kinds as there are."""

    def likeness(one: Record, other: Record) -> float:
        # above 1 for the same task, else the share of words that two prompts have in common
        if one["task_id"] == other["task_id"]:
            return 2.0
        words, others = (set(str(record["prompt"]).split()) for record in (one, other))
        return len(words & others) / max(1, len(words | others))

    def first(group: Sequence[Record], right: bool) -> Record | None:
        return next((record for record in group if is_right(record, grader) is right), None)

    # each early prompt with the late prompt most like it; each late prompt once
    free, matched = by_task(late), []
    for group in by_task(early):
        if free:
            best = max(free, key=lambda other: likeness(group[0], other[0]))
            free.remove(best)
            matched.append((group, best))
    # in turn a pair of each kind that is wanted, of a prompt that has one and is not shown yet
    chosen: list[TextPair] = []
    for right_before, right_after, _ in [*FATES.values()] * MOST_PAIRS:
        for groups in matched:
            before, after = first(groups[0], right_before), first(groups[1], right_after)
            if before is not None and after is not None and len(chosen) < MOST_PAIRS:
                matched.remove(groups)
                chosen.append((before, after))
                break
    return chosen


def training_groups(run: RunRecord) -> str:
    """Groups of an early, a middle and a late step, whose rewards differ most, folded."""
    shown = ""
    for when, step in moments(list(run.rollout_files)):
        groups = telling(_rollouts(run, step))
        if groups:
            shown += f'<h3 class="when">{when}: step {step:,}</h3>{group_folds(groups, grader=run.grader)}'
    lead = "<p>All completions of a prompt, whose rewards its advantages compare: the groups that differ most.</p>"
    return lead + shown if shown else ""


def moments(steps: Sequence[int]) -> list[tuple[str, int]]:
    """The first, the middle and the last of the steps, under these names; of fewer than three, those there are.

    >>> moments([1, 2, 3, 4, 5]), moments([7, 9])
    ([('Early', 1), ('Middle', 3), ('Late', 5)], [('Early', 7), ('Late', 9)])
    """
    if len(steps) < 2:
        return [("Early", step) for step in steps]
    middle = [("Middle", steps[len(steps) // 2])] if len(steps) > 2 else []
    return [("Early", steps[0]), *middle, ("Late", steps[-1])]


def telling(rollouts: Sequence[Record]) -> list[list[Record]]:
    """The `GROUPS` groups whose rewards differ most, as the loss weighs them; of equals the first."""

    def spread(group: Sequence[Record]) -> float:
        rewards = [reward for one in group if (reward := value_at(one, "reward")) is not None]
        if not rewards:
            return 0.0
        mean = sum(rewards) / len(rewards)
        return sum((reward - mean) ** 2 for reward in rewards) / len(rewards)

    return sorted(by_task(rollouts), key=spread, reverse=True)[:GROUPS]


def group_folds(groups: Sequence[Sequence[Record]], *, grader: str) -> str:
    """One fold per group: the prompt and its rewards outside, the completions from the best to the worst inside."""

    def reward(record: Record) -> float:
        found = value_at(record, "reward")
        return float("-inf") if found is None else found

    folds, questions = "", distinctive([str(group[0]["prompt"]) for group in groups])
    for group, question in zip(groups, questions, strict=True):
        ordered = sorted(group, key=reward, reverse=True)
        rewards = ", ".join(_score(value_at(one, "reward")) for one in ordered)
        about = f'<span class="note">{count(len(group), "completion")}, rewards {escape(rewards)}</span>'
        cards = "".join(
            card(one, f"sample {one['sample']}" if "sample" in one else f"completion {number}", grader)
            for number, one in enumerate(ordered, 1)
        )
        head = f"<summary>{escape(question or str(group[0]['prompt']))}{about}</summary>"
        folds += f'<details class="group">{head}{prompt_of(group[0], question)}{cards}</details>'
    return folds


def is_right(record: Record, grader: str) -> bool | None:
    """By the function that grades evaluations where it scored this rollout, else by the first that did.

    A function's score is right from where evaluation by it would count it so; None: no function scored it.
    """
    rewards = record["rewards"] if "rewards" in record and isinstance(record["rewards"], dict) else {}
    for name in (grader, *rewards):
        score = value_at(rewards, name)
        if score is not None:
            return score >= _right_from(name)
    return None


@lru_cache
def _right_from(name: str) -> float:
    try:
        return right_from(name)
    except RewardError:  # of a run of another version, whose function took other parameters
        return right_from(base_name(name))


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


def _rollouts(run: RunRecord, *steps: int) -> list[Record]:
    needed = ("task_id", "prompt", "completion")
    updated = {record["step"] for record in run.metrics if value_at(record, "updates")}
    return [
        {**record, "is_updated": step in updated}
        for step in steps
        for record in read_lines(run.rollout_files[step], needed)[0]
    ]


def by_task(records: Iterable[Record]) -> list[list[Record]]:
    """Rollouts of the same task together, in the order of the tasks' first ones."""
    groups: dict[object, list[Record]] = {}
    for record in records:
        groups.setdefault(record["task_id"], []).append(record)
    return list(groups.values())


def pair_cards(shown: Sequence[TextPair], *, before: str, after: str, grader: str) -> str:
    """Pairs of completions under the headings `before` and `after`; a shared prompt is shown once."""
    questions = iter(distinctive([str(record["prompt"]) for pair in shown for record in pair]))
    articles = ""
    for pair in shown:
        prompts = [prompt_of(record, next(questions)) for record in pair]
        shared, own = "", prompts
        if pair[0]["task_id"] == pair[1]["task_id"]:
            shared, own = prompts[0], ["", ""]
        cards = "".join(
            card(record, heading, grader, prompt)
            for record, heading, prompt in zip(pair, (before, after), own, strict=True)
        )
        articles += f'<article class="pair">{shared}<div class="two">{cards}</div></article>'
    return articles


def prompt_of(record: Record, question: str) -> str:
    """The question, its gold answer, and the whole prompt folded where it is more than the question."""
    whole = str(record["prompt"])
    answer = record.get("answer")
    gold = f'<span class="gold">answer <b>{escape(str(answer))}</b></span>' if answer is not None else ""
    fold = (
        f"<details><summary>whole prompt</summary><pre>\n{escape(whole)}</pre></details>" if question != whole else ""
    )
    return f'<div class="prompt"><p class="question">{escape(question or whole)}</p>{gold}{fold}</div>'


def card(record: Record, heading: str, grader: str, prompt: str = "") -> str:
    """One completion with its verdict, its rewards and its size."""
    style, words = _VERDICTS[correct(record) if "correct" in record else is_right(record, grader)]
    text = str(record["completion"])
    # a text that is too long to be one of many on a page: its beginning, and its end, where the answer stands
    left_out = len(text) - 2 * LONGEST_HALF
    if left_out > 0:
        text = f"{text[:LONGEST_HALF]}\n[... {left_out:,} characters ...]\n{text[-LONGEST_HALF:]}"
    body = escape(text) if text.strip() else '<em class="blank">(empty)</em>'
    shown = (
        conversation(record["episode"], is_trained=is_trained(record))
        if "episode" in record
        else f'<pre tabindex="0">\n{body}</pre>'
    )
    facts = "".join(f"<span>{escape(fact)}</span>" for fact in _facts(record))
    return (
        f'<section class="card {style}"><header><h4>{escape(heading)}</h4><span class="pill">{words}</span></header>'
        f"{prompt}{shown}<footer>{facts}</footer></section>"
    )


def is_trained(record: Record) -> bool:
    """Return True if the tokens that were sampled have a gradient: not held-out ones, nor those of a group without
    signal, of a completion that was dropped, or of a step whose update has not been made."""
    is_dropped, is_updated = record.get("dropped") is not None, record.get("is_updated") is True
    return is_updated and not is_dropped and bool(value_at(record, "advantage"))


def _facts(record: Record) -> Iterator[str]:
    for name in ("reward", "advantage"):
        if (value := value_at(record, name)) is not None:
            yield f"{name} {short(value)}"
    rewards = record["rewards"] if "rewards" in record and isinstance(record["rewards"], dict) else {}
    if len(rewards) > 1:
        yield from (f"{name} {_score(value_at(rewards, name))}" for name in rewards)
    if (length := value_at(record, "completion_tokens")) is not None:
        yield count(length, "token")
    if "episode" in record:
        yield from conversation_facts(record["episode"])
    elif "finish_reason" in record:
        yield "cut at the limit" if record["finish_reason"] == "length" else "ended by itself"
    if record.get("dropped") is not None:
        yield f"not trained on: {record['dropped']}".replace("_", " ")
    # what graders said of their scores: several of a training completion, one of a held-out one
    if isinstance(record.get("notes"), dict):
        yield from (f"{name}: {note}" for name, note in record["notes"].items())
    if record.get("note") is not None:
        yield str(record["note"])


def _score(value: float | None) -> str:
    return "none" if value is None else short(value)
