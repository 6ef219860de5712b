"""Law 1 for conversations: neither a cut, nor rows, nor what an environment wrote decides how a token is trained."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace

import pytest
import torch
from torch import Tensor

from paceline.config.objective import LossConfig
from paceline.objective.cutting import cut, share_out, units
from paceline.objective.micro_batches import pack, padded_rows, token_weights
from paceline.reports.trackers import flat_numbers
from paceline.training.learner.samples import samples_of
from paceline.training.learner.stats import UpdateStats
from paceline.types import Rollout, RolloutGroup, Task
from tests.laws.splitting import (
    DTYPES,
    EVERYTHING,
    FORWARDS,
    MAX_LENGTH,
    TOLERANCE,
    Splitter,
    losses,
    random_cut,
    random_episodes,
    relative,
    trained,
)
from tests.support.episodes import branched, conversation, ids

CUTS = 4
PROMPT = "ask"
AVERAGES = ["token", "sequence", "constant", "prompt", "sequence_sum"]


def test_random_episodes_have_what_is_tested():
    rows = random_episodes(0)
    assert any(len(set(row.advantages)) > 1 for row in rows)
    assert any(row.spans[0].by == "prompt" for row in rows), "a context that begins with the prompt"
    assert len([row for row in rows if row.completion is not None]) > 4
    assert any(row.completion is None for row in rows)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", losses())
def test_every_objective_has_one_gradient_however_episodes_are_cut(name, dtype):
    loss = losses()[name]
    splitter, chance = Splitter(random_episodes(0), loss, dtype), random.Random(0)
    whole, rows = splitter.whole(), range(len(splitter.samples))
    assert whole.norm() > 1e-6
    # a loss that reads whole completions has their rows in one micro-batch, any other has them anywhere
    parts = units(splitter.samples, rows, whole=loss.reads_whole_completions)
    for _ in range(CUTS):
        cuts = [[row for at in members for row in parts[at]] for members in random_cut(chance, range(len(parts)))]
        got = splitter.gradient(cuts, choose=lambda: chance.choice(FORWARDS))
        assert relative(got, whole) <= TOLERANCE[dtype]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("forward", FORWARDS, ids=lambda one: one.kind)
@pytest.mark.parametrize("loss", [LossConfig(average="sequence"), EVERYTHING], ids=["token by token", "whole"])
def test_ranks_and_budgets_part_episodes_without_a_change_of_the_gradient(loss, forward):
    splitter = Splitter(random_episodes(4), loss, torch.float64)
    samples, whole, together = splitter.samples, splitter.whole(), loss.reads_whole_completions
    for ranks, budget in ((1, 9), (2, 30), (3, 1), (2, 10_000)):
        shares = share_out(samples, trained=range(len(samples)), ranks=ranks, layout=forward.kind, whole=together)
        cuts = [
            members
            for share in shares
            if share
            for members in cut(samples, trained=share, micro_batch_tokens=budget, layout=forward.kind, whole=together)
        ]
        assert sorted(row for members in cuts for row in members) == list(range(len(samples)))
        assert relative(splitter.gradient(cuts, choose=lambda: forward), whole) <= TOLERANCE[torch.float64]


def test_parted_rows_of_an_episode_would_break_the_law_for_a_ratio_of_sequences():
    splitter = Splitter(random_episodes(0), LossConfig(ratio_level="sequence"), torch.float64)
    parted = splitter.gradient([[row] for row in range(len(splitter.samples))])
    assert relative(parted, splitter.whole()) > 1e-3


@contextmanager
def loud_where_nothing_is_predicted(splitter: Splitter, sources: Tensor) -> Iterator[list[int]]:
    """Last hidden states, and so logits, far from their own wherever no sampled token is predicted."""
    seen = list[int]()

    def change(module: torch.nn.Module, arguments: object, output: object) -> object:
        states = output.last_hidden_state
        flat = states.flatten(0, 1)
        quiet = torch.ones(len(flat), 1, dtype=states.dtype)
        quiet[sources] = 0.0
        seen.append(int(quiet.sum()))
        output.last_hidden_state = (flat + 50.0 * quiet).unflatten(0, states.shape[:2])
        return output

    hook = splitter.learner.policy.model.base_model.register_forward_hook(change)
    try:
        yield seen
    finally:
        hook.remove()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("forward", FORWARDS, ids=lambda one: one.kind)
@pytest.mark.parametrize("loss", [LossConfig(), EVERYTHING], ids=["grpo", "everything"])
def test_logits_for_observed_tokens_change_no_gradient_and_no_number(loss, forward):
    splitter = Splitter(random_episodes(1), loss, torch.float64)
    half, rows = splitter.learner, range(len(splitter.samples))
    half.runner.forward = forward
    batch = pack(splitter.samples, splitter.weights, rows, dtype=torch.float64)
    reference = None if half.reference is None else half.runner.values(half.reference, [batch])[0][0]
    prepared = replace(batch, old_logprobs=torch.cat(splitter.old), ref_logprobs=reference)

    def found() -> tuple[list[Tensor], dict[str, Tensor]]:
        half.policy.model.zero_grad()
        sums = half.backward([prepared], first=True)[1][0]
        return [parameter.grad.clone() for parameter in half.policy.model.parameters()], sums

    gradients, sums = found()
    sources = batch.sources if forward.kind == "packed" else padded_rows(batch).sources
    with loud_where_nothing_is_predicted(splitter, sources) as seen:
        others, other_sums = found()
    assert seen[0] > sum(row.length != row.num_targets for row in splitter.samples) > 0
    assert all(torch.equal(one, other) for one, other in zip(gradients, others, strict=True))
    assert sums.keys() == other_sums.keys()
    assert all(torch.equal(sums[name], other_sums[name]) for name in sums)
    # the same at one place that predicts a sampled token is seen
    with loud_where_nothing_is_predicted(splitter, sources[sources != sources[0]]):
        others, other_sums = found()
    assert not torch.equal(gradients[0], others[0])
    assert not torch.equal(sums["loss"], other_sums["loss"])


# --- one row, or branches with the same contexts ---------------------------------------------------------------------

TALK = conversation(
    ("ab", "xyz"), ("c", "w"), ("def", ""), ("g", "v"), logprobs=[-5.0, -5.4, -4.8, -5.1, -5.9, -5.3, -5.0]
)
SHORT = conversation(("hi", "u"), ("j", ""), logprobs=[-5.2, -5.5, -5.0])


def group(*branches: Sequence[int]) -> RolloutGroup:
    """Two conversations, with branches at these turns."""
    rollouts = [
        Rollout(
            trajectory=branched(one, turns),
            rewards={},
            reward=1.0,
            advantage=advantage,
            turn_advantages=credit,
        )
        for one, turns, advantage, credit in (
            (TALK, branches[0], 0.7, (0.7, 0.2, -0.4, 1.1)),
            (SHORT, branches[1], -1.0, None),
        )
    ]
    task = Task(task_id="0", prompt=PROMPT, prompt_ids=ids(PROMPT), answer=None)
    return RolloutGroup(task=task, rollouts=tuple(rollouts))


def numbers_of(stats: UpdateStats) -> dict[str, float]:
    """All that there is, but for what rows and budgets decide."""
    names = ("tokens_forwarded", "micro_batch_tokens")
    return {name: value for name, value in flat_numbers(asdict(stats)).items() if name not in names}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "loss",
    [
        *(LossConfig(average=average, beta=0.1, entropy_coef=0.02) for average in AVERAGES),
        LossConfig(rollout_correction="token_truncate", top_entropy_quantile=0.5),
        EVERYTHING,
        LossConfig(bound="vespo"),
    ],
)
def test_an_episode_in_one_row_trains_as_in_branches_with_the_same_contexts(loss):
    end, stats = trained([group((), ())], loss)
    numbers = numbers_of(stats)
    for branches, budget in ((((2,), ()), 10_000), (((1, 2, 3), (1,)), 10_000), (((1, 3), (1,)), 6)):
        other, others = trained([group(*branches)], loss, micro_batch_tokens=budget)
        assert relative(other, end) <= 1e-10
        assert numbers_of(others) == pytest.approx(numbers, rel=1e-9)
    assert stats.tokens_trained == 10  # 7 and 3 sampled ones


def test_updates_of_a_step_part_no_episode():
    loss = LossConfig(average="sequence")
    end, _ = trained([group((), ())], loss, num_minibatches=2)
    other, _ = trained([group((1, 2, 3), (1,))], loss, num_minibatches=2)
    assert relative(other, end) <= 1e-10


def test_weights_of_branches_add_up_to_those_of_their_episodes():
    rows = samples_of([group((1, 2, 3), (1,)), group((2,), ())])
    for average in ("token", "sequence", "prompt"):
        weights = token_weights(rows, average=average, max_completion_length=MAX_LENGTH)
        assert sum(weight * row.num_targets for weight, row in zip(weights, rows, strict=True)) == pytest.approx(1.0)
