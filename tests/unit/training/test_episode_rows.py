"""Rows of an episode train each sampled token once, in the context that it was sampled in."""

from dataclasses import replace

import pytest
import torch

from paceline.config.objective import LossConfig, OptimConfig
from paceline.models.forward import choose_forward
from paceline.models.loaded import Loaded
from paceline.objective.micro_batches import Sample, token_weights
from paceline.training.learner.learner import Learner
from paceline.training.learner.samples import minibatches, samples_of, trained_rows
from paceline.training.replaying import token_values
from paceline.types import Rollout, RolloutGroup, Task, Trajectory
from tests.support.episodes import branched, conversation, ids
from tests.support.tiny import tiny_model, with_exact_norms

PROMPT = "ask"


def rollout(trajectory: Trajectory, advantage: float = 1.0, **about: object) -> Rollout:
    return Rollout(trajectory=trajectory, rewards={}, reward=1.0, advantage=advantage, **about)


def group(*rollouts: Rollout) -> RolloutGroup:
    return RolloutGroup(
        task=Task(task_id="0", prompt=PROMPT, prompt_ids=ids(PROMPT), answer=None), rollouts=tuple(rollouts)
    )


def shown(sample: Sample) -> tuple[str, str, str]:
    """Prompt, tokens behind it, and targets."""
    targets = [token for span in sample.trained for token in span.tokens]
    return tuple("".join(map(chr, part)) for part in (sample.prompt_ids, sample.completion_ids, targets))


def logprobs_of(sample: Sample) -> tuple[float, ...]:
    return tuple(value for span in sample.trained for value in span.logprobs)


def test_turns_that_continue_each_other_are_one_row_without_observed_targets():
    one = conversation(("ab", "xyz"), ("c", "w"), ("de", ""), logprobs=[-1, -2, -3, -4, -5])
    (row,) = samples_of([group(rollout(one))])
    assert shown(row) == ("ask", "abxyzcwde", "abcde")
    assert row.runs == ((0, 2), (5, 6), (7, 9))
    assert logprobs_of(row) == (-1, -2, -3, -4, -5)
    assert row.completion is None


def test_an_observed_tail_is_no_input_and_has_no_target_behind_it():
    (row,) = samples_of([group(rollout(conversation(("ab", "x"), ("c", "yz"))))])
    assert shown(row) == ("ask", "abxc", "abc")
    (row,) = samples_of([group(rollout(conversation(("ab", "xyz"))))])
    assert (shown(row), row.runs) == (("ask", "ab", "ab"), ((0, 2),))


def test_a_rewritten_history_begins_a_row_with_a_prompt_of_its_own():
    one = conversation(("ab", "x"), ("c", ""), ("de", "y"), ("f", ""), contexts={2: "new"}, logprobs=range(-6, 0))
    first, second = samples_of([group(rollout(one))])
    assert (shown(first), shown(second)) == (("ask", "abxc", "abc"), ("new", "deyf", "def"))
    assert (logprobs_of(first), logprobs_of(second)) == ((-6, -5, -4), (-3, -2, -1))
    assert first.completion == second.completion is not None
    assert (first.prompt, second.prompt) == (0, 1)


def test_a_token_in_the_context_of_two_branches_is_trained_once():
    whole = conversation(("ab", "x"), ("c", "y"), ("de", ""))
    rows = samples_of([group(rollout(branched(whole, [1, 2])))])
    assert [shown(row) for row in rows] == [("ask", "ab", "ab"), ("ask", "abxc", "c"), ("ask", "abxcyde", "de")]
    assert sum(row.num_targets for row in rows) == whole.num_sampled == 5


def test_behind_the_prompt_only_the_rest_of_a_context_is_computed_unless_shared():
    prompt = "a long prompt"
    contexts = [f"{prompt}{rest}" for rest in ("ab", "cd", "many words", "many words", "many words")]
    talks = [rollout(conversation(("x", ""), ("y", ""), prompt=prompt, contexts={1: context})) for context in contexts]
    task = Task(task_id="0", prompt=prompt, prompt_ids=ids(prompt), answer=None)
    rows = samples_of([RolloutGroup(task=task, rollouts=tuple(talks))])[1::2]
    assert [shown(row) for row in rows] == [
        (prompt, "aby", "y"),
        (prompt, "cdy", "y"),
        *[(f"{prompt}many words", "y", "y")] * 3,  # two more of 10 tokens would be more than the prompt's 13
    ]
    assert [row.prompt for row in rows] == [0, 0, 1, 1, 1]
    assert [row.runs for row in rows] == [((2, 3),), ((2, 3),), *[((0, 1),)] * 3]


def test_siblings_with_the_same_context_share_its_prompt():
    again = [rollout(conversation(("a", ""), ("b", ""), contexts={1: context})) for context in ("new", "new", "ask")]
    first = [rollout(conversation(("a", ""), contexts={0: "reset"})) for _ in range(2)]
    rows = samples_of([group(*again, *first), group(*again)])
    assert [(row.group, row.prompt) for row in rows] == [
        *((0, 0), (0, 1), (0, 0), (0, 1), (0, 0), (0, 0), (0, 2), (0, 2)),
        *((1, 0), (1, 1), (1, 0), (1, 1), (1, 0), (1, 0)),
    ]


def test_each_turn_has_its_own_advantage_where_turns_are_credited():
    one = conversation(("ab", "x"), ("c", ""), ("de", ""), contexts={2: "new"})
    first, second = samples_of([group(rollout(one, turn_advantages=(0.5, 0.0, -1.0)))])
    assert (first.advantages, second.advantages) == ((0.5, 0.0), (-1.0,))


def test_an_episode_without_a_sampled_token_counts_as_a_completion_without_tokens():
    nothing = replace(rollout(conversation()), dropped="no_reward", reward=None, advantage=0.0)
    groups = [group(nothing, rollout(conversation(("ab", ""))))]
    rows = samples_of(groups, over="all")
    assert [row.masked for row in rows] == [True, False]
    # one of two completions has tokens, and no average is taken over it alone
    assert token_weights(rows, average="sequence", max_completion_length=9) == [0.0, 1 / 4]
    assert len(samples_of(groups)) == 1


def test_an_episode_whose_environment_failed_counts_in_no_average():
    failed = replace(rollout(conversation(("ab", ""))), dropped="environment_failed", reward=None, advantage=0.0)
    groups = [group(failed, rollout(conversation(("cd", ""))))]
    assert [shown(row)[1] for row in samples_of(groups, over="all")] == ["cd"]


@pytest.mark.parametrize("average", ["token", "sequence", "constant", "prompt", "sequence_sum"])
def test_doubling_observed_tokens_changes_no_weight(average):
    def weights(observed: str) -> list[float]:
        rollouts = [rollout(conversation(("ab", observed), ("c", ""))), rollout(conversation(("d", "")))]
        return token_weights(samples_of([group(*rollouts)]), average=average, max_completion_length=9)

    assert weights("xy") == weights("xyxy") == weights("")


@pytest.mark.parametrize(
    ("average", "weight"),
    # 4 tokens in 2 completions of one prompt; the longest may have 9
    [("token", 1 / 4), ("sequence", 1 / 6), ("constant", 1 / 18), ("prompt", 1 / 4), ("sequence_sum", 1 / 2)],
)
def test_rows_of_an_episode_share_the_weight_of_one_completion(average, weight):
    whole = conversation(("ab", "x"), ("c", ""))
    for one in (whole, branched(whole, [1])):
        rows = samples_of([group(rollout(one), rollout(conversation(("d", ""))))])
        weights = token_weights(rows, average=average, max_completion_length=9)
        assert weights[:-1] == pytest.approx([weight] * (len(rows) - 1))


def test_an_update_has_all_rows_of_an_episode():
    several = rollout(conversation(("a", ""), ("b", ""), ("c", ""), contexts={1: "new", 2: "newer"}))
    plain = rollout(conversation(("d", "")))
    rows = samples_of([group(several, plain, plain, several)])
    assert len(rows) == 8
    assert minibatches(rows, 2) == [range(4), range(4, 8)]
    assert minibatches(rows, 3) == [range(3), range(3, 4), range(4, 8)]
    assert minibatches(rows, 5) == [range(3), range(3, 4), range(4, 5), range(5, 8)]


def test_a_loss_over_whole_completions_computes_rows_without_an_advantage_too():
    one = rollout(conversation(("a", ""), ("b", ""), contexts={1: "new"}), turn_advantages=(0.0, 1.0))
    rows = samples_of([group(one, rollout(conversation(("c", "")), advantage=0.0))])
    assert trained_rows(rows, every=False, whole=False) == [1]
    assert trained_rows(rows, every=False, whole=True) == [0, 1]
    assert trained_rows(rows, every=True, whole=False) == [0, 1, 2]


def learner(loss: LossConfig | None = None) -> Learner:
    model, other = (with_exact_norms(tiny_model("qwen2", dtype=torch.float64, seed=seed)).train() for seed in (0, 3))
    choose_forward(other)
    loss = loss or LossConfig()
    return Learner(
        Loaded(model=model, compute_dtype=torch.float64),
        choose_forward(model),
        reference=Loaded(model=other, compute_dtype=torch.float64) if loss.beta else None,
        loss=loss,
        optim=OptimConfig(),
        temperature=1.0,
        max_completion_length=8,
    )


def weights_of(half: Learner) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in half.policy.model.parameters()])


def test_an_episode_of_one_turn_trains_bit_for_bit_as_a_completion_without_one():
    episodes = group(rollout(conversation(("abc", ""))), rollout(conversation(("de", "")), -0.5))
    plain = [
        replace(one, trajectory=replace(one.trajectory, environment=None, turns=(), end=None))
        for one in episodes.rollouts
    ]
    assert samples_of([episodes]) == samples_of([replace(episodes, rollouts=tuple(plain))])
    credited = [replace(one, turn_advantages=(one.advantage,), advantage=9.0) for one in episodes.rollouts]
    ends = []
    for rollouts in (episodes.rollouts, plain, credited):
        half = learner()
        stats = half.step([replace(episodes, rollouts=tuple(rollouts))], learning_rate=1e-2)
        ends.append((weights_of(half), stats))
    for end, stats in ends[1:]:
        assert torch.equal(end, ends[0][0])
        assert stats == ends[0][1]


def test_replayed_values_are_of_sampled_tokens_whatever_their_rows():
    whole = conversation(("ab", "xy"), ("c", "z"), ("de", ""))
    half = learner()
    with torch.no_grad():
        row = [*ids(PROMPT), *whole.completion_ids]
        logprobs = torch.log_softmax(half.policy.model(torch.tensor([row])).logits[0], -1)
    # a b, c and d e stand at 3 4, 7 and 9 10 of the row, each predicted by the token before
    places = [3, 4, 7, 9, 10]
    wanted = [float(logprobs[place - 1, row[place]]) for place in places]
    values = token_values(half, [group(*map(rollout, (whole, branched(whole, [1, 2]), conversation())))])
    for logprobs, entropy in values[:2]:
        assert logprobs.tolist() == pytest.approx(wanted, abs=1e-9)
        assert len(entropy) == len(wanted)
    assert [len(column) for column in values[2]] == [0, 0]
