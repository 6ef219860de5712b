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
from itertools import accumulate, pairwise
from typing import Literal

from paceline.objective.micro_batches import Sample
from paceline.training.rollouts.grouping import OUT_OF_THE_STEP
from paceline.types import Rollout, RolloutGroup


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
    found = list[list[Sample]]()
    for number, (group, rollouts) in enumerate(zip(groups, chosen, strict=True)):
        prompts = _prompts(group, rollouts)
        for rollout in rollouts:
            found.append(_rows(number, group, rollout, len(found), prompts))
    return found


def _prompts(group: RolloutGroup, rollouts: Sequence[Rollout]) -> dict[tuple[int, ...], int]:
    """Number the prompts of a group's rows: the task's, and those contexts of turns that it pays to compute whole."""
    task_prompt = group.task.prompt_ids
    contexts = Counter(
        turn.prompt_ids
        for rollout in rollouts
        if rollout.completion.episode is not None
        for turn in rollout.completion.episode.turns
        if turn.prompt_ids is not None and turn.sampled
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
    number: int, group: RolloutGroup, rollout: Rollout, completion: int, prompts: dict[tuple[int, ...], int]
) -> list[Sample]:
    """The rows of completion number `completion` of the step; `prompts` numbers those of the group's rows."""
    one, masked, task_prompt = rollout.completion, rollout.dropped == "truncated", group.task.prompt_ids
    whole = Sample(
        group=number,
        prompt_ids=task_prompt,
        completion_ids=one.token_ids,
        rollout_logprobs=one.logprobs,
        advantage=rollout.advantage,
        masked=masked,
    )
    if one.episode is None:
        return [whole]
    turns, credit = one.episode.turns, rollout.turn_advantages
    if len(turns) == 1 and turns[0].prompt_ids is None and len(one.token_ids) == turns[0].sampled > 0:
        return [whole if credit is None else replace(whole, advantage=credit[0])]
    # parts: the turns that continue each other's tokens, of which those count in which something was sampled
    spans = one.sampled_spans
    starts = [at for at, turn in enumerate(turns) if at == 0 or turn.prompt_ids is not None]
    parts = [(turns[start].prompt_ids, range(start, end)) for start, end in pairwise([*starts, len(turns)])]
    sampled = [(own_prompt, [at for at in part if turns[at].sampled]) for own_prompt, part in parts]
    sampled = [(own_prompt, members) for own_prompt, members in sampled if members]
    if not sampled:  # it ended before the model said anything
        return [replace(whole, completion_ids=(), rollout_logprobs=(), advantage=0.0, masked=True)]
    before, rows = [0, *accumulate(turn.sampled for turn in turns)], list[Sample]()
    for own_prompt, members in sampled:
        context = task_prompt if own_prompt is None else own_prompt
        prompt_ids = context if context in prompts else task_prompt
        rest = context[len(prompt_ids) :]
        start, end = spans[members[0]][0], spans[members[-1]][1]
        is_all_sampled = len(members) == 1 and not rest
        runs = tuple((spans[at][0] - start + len(rest), spans[at][1] - start + len(rest)) for at in members)
        advantages = (rollout.advantage,) if credit is None else tuple(credit[at] for at in members)
        rows.append(
            Sample(
                group=number,
                prompt=prompts[prompt_ids],
                prompt_ids=prompt_ids,
                completion_ids=rest + one.token_ids[start:end],
                rollout_logprobs=one.logprobs[before[members[0]] : before[members[-1] + 1]],
                advantage=advantages[0],
                masked=masked,
                completion=completion if len(sampled) > 1 else None,
                spans=None if is_all_sampled else runs,
                span_advantages=advantages if len(advantages) > 1 else None,
                turns=None if members == [0] else tuple(members),
            )
        )
    return rows


def trained_rows(samples: Sequence[Sample], *, every: bool, whole: bool) -> list[int]:
    """Positions of the rows with a gradient: those with an advantage, or `every` one that is not masked.

    `whole`: all rows of an episode if one has an advantage, for a loss that reads a completion's other tokens.
    """
    episodes = {one.completion for one in samples if one.has_signal and one.completion is not None} if whole else set()
    return [
        at
        for at, one in enumerate(samples)
        if not one.masked and (every or one.has_signal or one.completion in episodes)
    ]


def minibatches(samples: Sequence[Sample], parts: int) -> list[range]:
    """Positions of all samples in `parts` runs whose completions differ by one at most in number; empty ones are left
    out. Rows of an episode stay in one run."""
    starts = [
        at
        for at, one in enumerate(samples)
        if at == 0 or one.completion is None or one.completion != samples[at - 1].completion
    ]
    bounds = [*starts, len(samples)]
    ends = [bounds[len(starts) * part // parts] for part in range(parts + 1)]
    return [range(start, end) for start, end in pairwise(ends) if end > start]
