"""Pairs, ranks and repeated verdicts become rewards as worked out by hand, whatever the order of presentation."""

import itertools
import math

import pytest

from paceline.errors import RewardError
from paceline.rewards.function import Grade, RewardContext, compares_group
from paceline.rewards.judges.settings import spending_metrics
from paceline.rewards.resolving import resolve
from tests.support.scripted_judge import ScriptedJudge, said, score, texts


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def judge(service, *, seed=0, **parameters):
    given = ", ".join(f"{name}={value}" for name, value in {"model": "tiny", "retries": 0, **parameters}.items())
    return resolve(f"judge:{service.url}({given})", RewardContext(seed=seed, call_seconds=20.0))


def graded(function, groups):
    """Groups of completions by question."""
    rows = [(question, one) for question, completions in groups.items() for one in completions]
    grades = function(
        prompts=[question for question, _ in rows],
        completions=[one for _, one in rows],
        answer=[None] * len(rows),
        prompt_messages=[None] * len(rows),
    )
    return [one.value if isinstance(one, Grade) else one for one in grades], spending_metrics(function.counts())


def shown(body):
    return [text for name, text in texts(body).items() if name.startswith("completion")]


def better(by):
    """A judge of pairs: `by` gets both texts and says 1, 2 or tie."""
    return lambda number, body: said({"reason": "", "better": by(*shown(body))})


def taste(first, second):
    """A beats B in either order; of B and C, the first one read; A beats C only when it is read first, else a tie."""
    if {first, second} == {"A", "B"}:
        return "1" if first == "A" else "2"
    if {first, second} == {"B", "C"}:
        return "1"
    return "1" if first == "A" else "tie"


def test_pairs_are_asked_in_both_orders_and_shared_out():
    # A over B: 1. B over C: (1 + 0) / 2 = 0.5. A over C: (1 + 0.5) / 2 = 0.75.
    # A: (1 + 0.75) / 2 = 0.875. B: (0 + 0.5) / 2 = 0.25. C: (0.5 + 0.25) / 2 = 0.375. Together 1.5, half of three.
    with ScriptedJudge(better(taste)) as service:
        function = judge(service, mode="pairwise")
        values, metrics = graded(function, {"Q": ["A", "B", "C"]})
        pairs = [tuple(shown(body)) for body in service.bodies]
    assert values == [0.875, 0.25, 0.375]
    assert sorted(pairs) == sorted(itertools.permutations("ABC", 2))
    assert function.calls(3) == len(pairs) == metrics["calls"] == 6
    # both orders agree on A and B (1), contradict each other on B and C (0), and half agree on A and C (0.5)
    assert metrics["agreement"] == 0.5


@pytest.mark.parametrize("completions", list(itertools.permutations("ABC")))
def test_the_order_of_the_group_changes_no_number_of_pairs(completions):
    with ScriptedJudge(better(taste)) as service:
        values, _ = graded(judge(service, mode="pairwise"), {"Q": completions})
    assert dict(zip(completions, values, strict=True)) == {"A": 0.875, "B": 0.25, "C": 0.375}


def test_a_judge_that_prefers_what_it_reads_first_gives_every_completion_a_half():
    with ScriptedJudge(better(lambda first, second: "1")) as service:
        values, metrics = graded(judge(service, mode="pairwise"), {"Q": ["A", "B", "C", "D"]})
    assert values == [0.5] * 4
    assert metrics["agreement"] == 0.0
    with ScriptedJudge(lambda n, body: said({"reason": "", "order": list(range(1, len(shown(body)) + 1))})) as service:
        values, metrics = graded(judge(service, mode="rank", repeats=2), {"Q": ["A", "B", "C", "D"]})
    assert values == [0.5] * 4
    assert metrics["agreement"] == 0.0


def test_the_same_text_is_half_a_point_and_is_not_asked_about():
    # against the other A 0.5, against B 1: 0.75 each; B: 0 of 2. Together 1.5.
    with ScriptedJudge(better(lambda first, second: "1" if first == "A" else "2")) as service:
        values, metrics = graded(judge(service, mode="pairwise"), {"Q": ["A", "B", "A"]})
        assert (values, metrics["calls"]) == ([0.75, 0.0, 0.75], 2)
        values, metrics = graded(judge(service, mode="pairwise"), {"R": ["A", "A"], "S": ["A"]})
        assert (values, metrics["calls"]) == ([0.5, 0.5, None], 0)


def test_a_pair_that_lost_one_order_does_not_count():
    """One order alone would count what is read first twice."""

    def losing(number, body):
        return (404, b"") if shown(body) == ["C", "A"] else said({"reason": "", "better": taste(*shown(body))})

    with ScriptedJudge(losing) as service:
        values, metrics = graded(judge(service, mode="pairwise"), {"Q": ["A", "B", "C"]})
    assert values == [1.0, 0.25, 0.5]  # A over B alone; B as before; C against B alone
    assert metrics["failed"] == {"rejected": 1}
    with ScriptedJudge(lambda n, body: (404, b"") if "A" in shown(body) else losing(n, body)) as service:
        values, metrics = graded(judge(service, mode="pairwise", verdict_tokens=99), {"Q": ["A", "B", "C"]})
    assert isinstance(values[0], RewardError)
    assert (values[1:], metrics["failed"]) == ([0.5, 0.5], {"rejected": 4})


def by_letter(number, body):
    """A judge that ranks texts by the alphabet."""
    order = sorted(range(len(shown(body))), key=lambda place: shown(body)[place])
    return said({"reason": "", "order": [place + 1 for place in order]})


def test_a_rank_is_the_share_of_the_others_that_stand_behind():
    with ScriptedJudge(by_letter) as service:
        function = judge(service, mode="rank")
        values, metrics = graded(function, {"Q": ["C", "A", "D", "B"], "R": ["B", "A", "B"]})
    # A beats 3 of 3, B 2, C 1, D none; in R, A beats 2 of 2, and each B gets 0.5 of the other B and 0 of A
    assert values == pytest.approx([1 / 3, 1.0, 0.0, 2 / 3, 0.25, 1.0, 0.25])
    assert math.fsum(values[:4]) == pytest.approx(2.0)
    assert (function.calls(4), metrics["calls"]) == (1, 2)


def test_the_order_of_a_rank_is_drawn_from_the_seed_and_every_second_one_is_the_reverse():
    def orders(seed):
        with ScriptedJudge(by_letter) as service:
            values, metrics = graded(judge(service, seed=seed, mode="rank", repeats=4), {"Q": list("ABCDE")})
            assert values == [1.0, 0.75, 0.5, 0.25, 0.0]
            assert metrics["agreement"] == 1.0
            return sorted(tuple(shown(body)) for body in service.bodies)

    first = orders(1)
    assert len(first) == 4
    assert sorted(order[::-1] for order in first) == first
    assert orders(2) != first == orders(1)


def test_repeated_verdicts_count_by_their_mean_and_their_agreement():
    # 10, 8 and 6 of 10: mean 0.8; differences 0.2, 0.4 and 0.2, so agreement 1 - 0.8 / 3. The other: 5 three times.
    def varied(number, body):
        key = texts(body)["completion"]
        seen[key] = seen.get(key, -1) + 1
        return score((10, 8, 6)[seen[key]] if key == "A" else 5)

    seen = {}
    with ScriptedJudge(varied) as service:
        function = judge(service, repeats=3, temperature=1, concurrency=1)
        values, metrics = graded(function, {"Q": ["A", "B"]})
    assert values == [pytest.approx(0.8), 0.5]
    assert metrics["agreement"] == pytest.approx((3 - 0.8 + 3) / 6)
    assert function.calls(2) == metrics["calls"] == 6
    assert len({body["seed"] for body in service.bodies}) == 6


def test_a_failed_repeat_leaves_the_mean_of_the_others():
    with ScriptedJudge(lambda number, body: (404, b"") if number == 1 else score(6 + number)) as service:
        values, metrics = graded(judge(service, repeats=3, temperature=1, concurrency=1), {"Q": ["A"]})
    assert values == [pytest.approx(0.7)]  # 6 and 8
    assert metrics["failed"] == {"rejected": 1}


def test_only_comparisons_need_whole_groups():
    with ScriptedJudge(by_letter) as service:
        assert [compares_group(judge(service, mode=mode)) for mode in ("score", "pairwise", "rank")] == [
            False,
            True,
            True,
        ]


def test_thinking_is_no_part_of_what_is_judged():
    with ScriptedJudge(lambda number, body: score(len(texts(body)["completion"]))) as service:
        values, _ = graded(
            judge(service), {"Q <think>": ["long thought</think> four"], "Q": ["<think>x</think>seven.."]}
        )
    assert values == [0.4, 0.7]
