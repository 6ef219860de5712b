"""Selection of the rows that a step trains on, and of the update that each belongs to.

A completion of one turn is one row. An episode is one too, with the tokens that its environment wrote as inputs alone,
up to the first turn whose history was rewritten: there another row begins, in that turn's context. A context that
begins with the task's prompt shares that prompt, and its rest leads the completion. Any other, or one that enough
siblings have, is a prompt of its own. So each sampled token is trained in one row, in the context that it was sampled
in.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

from paceline.objective.micro_batches import Sample
from paceline.objective.streams import stream_of
from paceline.training.rollouts.grouping import OUT_OF_THE_STEP
from paceline.types import Rollout, RolloutGroup, Span


def samples_of(groups: Sequence[RolloutGroup], *, over: Literal["kept", "all"] = "kept") -> list[Sample]:
    """Every row of a completion that counts in the step's averages, in order; of groups that are left out none does.

    kept  those with a reward that are not masked
    all   also those without a reward, at advantage 0 with all their tokens, and masked ones, without any: TRL's; but
          no episode whose environment failed, which may have no token
    """
    chosen = [
        [
            rollout
            for rollout in group.rollouts
            if rollout.dropped is None or (over == "all" and rollout.dropped != "environment_failed")
        ]
        if group.dropped not in OUT_OF_THE_STEP
        else []
        for group in groups
    ]
    return [row for rows in rows_of(groups, chosen) for row in rows]


def rows_of(groups: Sequence[RolloutGroup], chosen: Sequence[Sequence[Rollout]]) -> list[list[Sample]]:
    """The rows of each rollout `chosen` of each group, in order: at least one, without tokens where it has none."""
    rows = list[list[Sample]]()
    for number, (group, rollouts) in enumerate(zip(groups, chosen, strict=True)):
        prompts, routes = _prompts(group, rollouts), dict[int, bytes]()
        for rollout in rollouts:
            rows.append(_rows(number, group, rollout, len(rows), prompts, routes))
    return rows


def _prompts(group: RolloutGroup, rollouts: Sequence[Rollout]) -> dict[tuple[int, ...], int]:
    """Number the prompts of a group's rows: the task's, and those contexts of turns that it pays to compute whole."""
    task_prompt = group.task.prompt_ids
    contexts = Counter(
        prompt.tokens
        for rollout in rollouts
        for prompt, *behind in rollout.trajectory.rows
        if prompt.tokens != task_prompt and any(span.tokens for span in behind)
    )
    # whole, a context repeats the task's prompt once; behind that prompt, its rest is repeated for each further row
    whole = [
        context
        for context, count in contexts.items()
        if context[: len(task_prompt)] != task_prompt
        or (count - 1) * (len(context) - len(task_prompt)) > len(task_prompt)
    ]
    return {prompt: number for number, prompt in enumerate(dict.fromkeys([task_prompt, *whole]))}


def _rows(
    number: int,
    group: RolloutGroup,
    rollout: Rollout,
    completion: int,
    prompts: dict[tuple[int, ...], int],
    routes: dict[int, bytes],
) -> list[Sample]:
    """The rows of completion number `completion` of the step; `prompts` numbers those of the group's rows.

    `routes` are those of each prompt as the first row has them, so that they do not depend on how rows are cut.
    """
    masked, task_prompt, turn, rows = rollout.dropped == "truncated", group.task.prompt_ids, 0, list[Sample]()
    credit, of_rows = rollout.turn_advantages, rollout.trajectory.rows
    for context, *behind in of_rows:
        prompt_ids = context.tokens if context.tokens in prompts else task_prompt
        rest, spans, turns = context.tokens[len(prompt_ids) :], list[Span](), list[int]()
        cut = len(context.routes) // len(context.tokens) * len(prompt_ids)
        for span in behind:
            if stream_of(span) is not None:
                turns += [turn] if span.tokens else []
                turn += 1
            spans += [span] if span.tokens else []
        while spans and stream_of(spans[-1]) is None:  # nothing is predicted behind the last token that is trained on
            spans.pop()
        if not spans:
            continue
        rows.append(
            Sample(
                group=number,
                prompt=prompts[prompt_ids],
                prompt_ids=prompt_ids,
                prompt_routes=routes.setdefault(prompts[prompt_ids], context.routes[:cut]),
                prompt_media=tuple(image for image in context.media if image.start < len(prompt_ids)),
                spans=(*([Span(by="prompt", tokens=rest, routes=context.routes[cut:])] if rest else []), *spans),
                advantages=tuple(rollout.advantage if credit is None else credit[turn] for turn in turns),
                masked=masked,
                completion=completion if len(of_rows) > 1 else None,
                turns=None if turns == [0] else tuple(turns),
            )
        )
    if not rows:  # it ended before the model said anything
        media = group.task.media
        return [Sample(group=number, prompt_ids=task_prompt, prompt_media=media, spans=(), advantages=(), masked=True)]
    return rows if len(rows) > 1 or len(of_rows) == 1 else [replace(rows[0], completion=None)]


def trained_rows(samples: Sequence[Sample], *, every: bool, whole: bool) -> list[int]:
    """Positions of the rows with a gradient: those with an advantage, or `every` one that is not masked.

    `whole`: all rows of an episode if one has an advantage, for a loss that reads a completion's other tokens.
    """
    with_signal = {sample.completion for sample in samples if sample.has_signal} - {None} if whole else set()
    return [
        row
        for row, sample in enumerate(samples)
        if not sample.masked and (every or sample.has_signal or sample.completion in with_signal)
    ]


def minibatches(samples: Sequence[Sample], parts: int) -> list[range]:
    """Positions of all samples in `parts` runs whose completions differ by one at most in number; empty ones are left
    out. Rows of an episode stay in one run."""
    starts = [
        row
        for row, sample in enumerate(samples)
        if row == 0 or sample.completion is None or sample.completion != samples[row - 1].completion
    ]
    bounds = [*starts, len(samples)]
    ends = [bounds[len(starts) * part // parts] for part in range(parts + 1)]
    return [range(start, end) for start, end in pairwise(ends) if end > start]
