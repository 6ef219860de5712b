"""What a person reads after a step that went otherwise than planned."""

import json
from dataclasses import replace

import pytest

from paceline.config.objective import AdvantageConfig
from paceline.errors import RewardError
from paceline.rewards.function import BuiltIn
from paceline.training.learner.stats import UpdateStats
from paceline.training.records import step_clock, step_warnings
from paceline.training.rollouts.records import rollout_metrics
from paceline.training.rollouts.restoring import batch_about, restored_batch
from tests.support.episodes import conversation
from tests.support.scripted import completion, scripted_sampler, taking, task

NOTHING = UpdateStats(
    updates=0,
    updates_skipped=0,
    skipped_in_a_row=0,
    micro_batch_tokens=4096,
    micro_batches_halved=0,
    tokens_trained=0,
    tokens_forwarded=0,
    loss=0.0,
    policy_loss=0.0,
    grad_norm=0.0,
    entropy=None,
    kl=None,
    clip_low_fraction=0.0,
    clip_high_fraction=0.0,
    correction_masked_fraction=None,
    off_policy_fraction=None,
    skipped_fraction=None,
    logprob_mismatch_mean=None,
    logprob_mismatch_max=None,
    logprob_mismatch_by_turn=None,
    router_disagreement=None,
    expert_load_max=None,
    experts_unused=None,
)


def batch_of(*groups: str, max_refills: int):
    """`r` is a right completion, `w` a wrong one; groups are of two."""
    sampler = scripted_sampler(
        [[completion(letter) for letter in group] for group in groups],
        {"right": lambda completions, **columns: [float(text == "r") for text in completions]},
        {"right": 1.0},
        AdvantageConfig(filter_range=(0.0, 1.0), max_refills=max_refills),
    )
    return sampler.sample(taking([task("a"), task("b")]), 2)


@pytest.mark.parametrize(
    ("groups", "max_refills", "sentence"),
    [
        (("rw", "rr", "ww"), 1, "step 7 runs on 1 of 2 prompts: the rest stayed outside --filter-range after 1 of 1"),
        (("rr", "ww"), 0, "step 7 runs on 0 of 2 prompts: the rest stayed outside --filter-range after 0 of 0"),
        (("rw", "rr"), 0, None),  # a filter without refills does what it is for
        (("rw", "rr", "rw"), 1, None),
    ],
)
def test_a_step_short_of_prompts_says_so_where_refills_should_have_filled_it(groups, max_refills, sentence):
    said = step_warnings(7, batch_of(*groups, max_refills=max_refills), NOTHING, max_refills=max_refills)
    assert [line[: len(sentence or "")] for line in said] == ([sentence] if sentence else [])


def test_failed_calls_of_a_reward_function_are_said_with_the_first():
    calls = []

    def transient(completions, **columns):
        calls.append(len(completions))
        if len(calls) == 1:
            raise ConnectionError("gone\nfor now")
        return [float(text == "r") for text in completions]

    sampler = scripted_sampler([[completion("r"), completion("w")]], {"f": transient}, {"f": 1.0}, AdvantageConfig())
    batch = sampler.sample(taking([task("a")]), 1)
    (line,) = step_warnings(2, batch, NOTHING, max_refills=0)
    start, _, first = line.partition("; the first: ")
    assert start == "step 2: 1 call of the reward function 'f' failed"
    assert first == "'f' raised ConnectionError on the whole batch: gone"
    assert rollout_metrics(batch)["rewards"]["f"].items() >= {"failed_calls": 1, "doubtful": 0, "failures": 0}.items()


def test_verdicts_that_a_judge_did_not_give_are_said_by_kind_and_read_again_after_a_kill():
    counts = {"verdicts": 4, "cached": 1, "calls": 3, "answered": 2, "latency_sum": 4.0, "failed_timeout": 1}
    judge = BuiltIn(
        name="judge",
        call=lambda completions, **columns: [RewardError("late"), 1.0],
        gold=None,
        counts=lambda: counts,
    )
    group = [completion("r"), completion("w")]
    sampler = scripted_sampler([group], {"judge": judge}, {"judge": 1.0}, AdvantageConfig(), max_failure_rate=0.5)
    batch = sampler.sample(taking([task("a")]), 1)
    (line,) = step_warnings(2, batch, NOTHING, max_refills=0)
    assert line == "step 2: judge lacks 1 verdicts (timeout 1); the first: 'judge' failed on row a: late"
    metrics = rollout_metrics(batch)["rewards"]["judge"]
    assert metrics["failures"] == 1
    said = {"calls": 3, "cache_hit_rate": 0.25, "failed": {"timeout": 1}, "latency_mean": 2.0, "agreement": None}
    assert {name: metrics["judge"][name] for name in said} == said
    again = restored_batch(json.loads(json.dumps(batch_about(batch))), batch.groups)
    assert rollout_metrics(again)["rewards"]["judge"] == metrics


def test_a_step_says_how_many_turns_it_had_and_how_often_history_was_rewritten():
    plain = conversation(("ab", "xyz"), ("cd", ""), prompt=task("a").prompt, reward=1.0)
    rewritten = conversation(
        ("ab", ""), ("cd", "x"), ("e", ""), prompt=task("a").prompt, contexts={1: "context"}, reward=0.0
    )
    functions = {"f": lambda completions, **columns: [1.0, 0.0]}
    sampler = scripted_sampler([[plain, rewritten]], functions, {"f": 1.0}, AdvantageConfig())
    metrics = rollout_metrics(sampler.sample(taking([task("a")]), 1))
    expected = {"turns_mean": 2.5, "turns_max": 3, "observed_tokens": 4, "branches": 1, "tokens_generated": 9}
    assert {name: metrics[name] for name in expected} == expected


def test_a_correction_of_more_than_a_fifth_of_the_tokens_is_said_with_its_share():
    full = batch_of("rw", "wr", max_refills=0)
    changed = {name: getattr(NOTHING, name) for name in NOTHING.__slots__}
    above, below = (UpdateStats(**{**changed, "correction_masked_fraction": share}) for share in (0.21, 0.2))
    (line,) = step_warnings(3, full, above, max_refills=0)
    assert line.startswith("step 3: --rollout-correction bounds or masks 21% of the trained tokens")
    assert step_warnings(3, full, below, max_refills=0) == []


def test_the_clock_has_phases_that_add_up_where_they_follow_each_other_and_what_training_waited_for():
    batch = replace(batch_of("rw", "wr", max_refills=0), generate_seconds=2.0, reward_seconds=0.5)
    in_turn = step_clock(batch, weights=0.25, produce=2.75, wait=2.75, update=1.0, total=4.0)
    assert in_turn == {
        "generate": 2.0,
        "reward": 0.5,
        "update": 1.0,
        "other": 0.5,
        "total": 4.0,
        "weights": 0.25,
        "produce": 2.75,
        "wait": 2.75,
        "tokens_per_second": 2.0,  # four completions of one token
    }
    ahead = step_clock(batch, weights=0.25, produce=2.75, wait=1.75, update=1.0, total=2.75)
    assert (ahead["other"], ahead["total"]) == (0.0, 2.75)
