"""The pure parts of benchmarks/: figures, the equal-work check, the page; and contenders that fail."""

import math
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from bench_rewards import compared, judged
from figures import disagreements, pooled, rates, ratio, standard_errors_apart, summary
from measuring import take_turns
from reward_workloads import fingerprint
from table import page

ANSWERING = """
import itertools, json, sys
for line in itertools.chain(["{}"], sys.stdin):
    if json.loads(line).get("repetition") == LAST:
        sys.exit("the cache is full")
    print(json.dumps({"seconds": 1.0, "asked": json.loads(line)}), flush=True)
"""


def repetition(lengths, **others):
    return {"prompts": "same", "seconds": 2.0, "tokens": sum(lengths), "lengths": summary(lengths), **others}


def test_a_repetitions_rate_is_its_tokens_over_its_seconds():
    assert rates([{"tokens": 300, "seconds": 2.0}, {"tokens": 10, "seconds": 0.5}]) == [150.0, 20.0]


def test_the_ratio_takes_medians_so_that_one_slow_repetition_does_not_count():
    assert ratio([4.0, 2.0, 100.0], [2.0, 1.0, 2.0]) == 2.0


def test_pooled_summaries_are_the_summary_of_all_values():
    parts = [[1.0, 2.0, 6.0], [4.0], [8.0, 9.0]]
    together, whole = pooled([summary(part) for part in parts]), summary([value for part in parts for value in part])
    assert together == {key: pytest.approx(value) for key, value in whole.items()}


def test_means_are_compared_in_standard_errors_of_their_difference():
    # means 2 and 5, variances 2 and 2, two values each: 3 / sqrt(2/2 + 2/2)
    assert standard_errors_apart(summary([1, 3]), summary([4, 6])) == pytest.approx(3 / math.sqrt(2))
    assert standard_errors_apart(summary([5, 5]), summary([5, 5])) == 0.0
    assert standard_errors_apart(summary([5, 5]), summary([6, 6])) == math.inf


def test_the_same_work_gives_no_sentence():
    mine, peer = [repetition([10, 30, 20])], [repetition([12, 26, 20])]
    assert disagreements("peer", mine, peer, exact=["prompts"]) == []


def test_other_prompts_and_shorter_completions_are_named():
    mine = [repetition([30, 31, 29, 30])]
    peer = [repetition([10, 11, 9, 10], prompts="others")]
    first, second = disagreements("peer", mine, peer, exact=["prompts"])
    assert first == "peer, repetition 1: prompts is others, Paceline's same"
    assert second == "peer: mean of lengths is 34.6 standard errors from Paceline's"  # 20 / sqrt(2 * (2/3) / 4)


def answering_until(tmp_path, name, last):
    script = tmp_path / f"{name}.py"
    script.write_text(ANSWERING.replace("LAST", str(last)))
    return str(script), []


def test_contenders_are_measured_after_a_warm_up_and_one_that_ends_leaves_its_last_line(tmp_path):
    contenders = {name: answering_until(tmp_path, name, last) for name, last in [("well", 9), ("ill", 2)]}
    results = take_turns(contenders, repetitions=3, threads=1, timeout=60)
    assert [one["asked"]["repetition"] for one in results["well"]["repetitions"]] == [1, 2, 3]
    assert "error" not in results["well"]
    assert results["ill"]["error"] == "the cache is full"


def test_the_page_shows_figures_ratios_and_what_did_not_run():
    workload = {
        "prompts": 4,
        "num_generations": 2,
        "max_new_tokens": 16,
        "lengths": "fixed",
        "repetitions": 2,
        "contenders": {
            "paceline": {
                "repetitions": [{"tokens": 100, "seconds": 1.0}, {"tokens": 100, "seconds": 0.5}],
                "tokens_per_second": 150.0,
                "mean_length": 16.0,
            },
            "one-batch": {"error": "no room"},
        },
        "paceline_faster_by": {},
        "unequal_work": ["one-batch: something differs"],
    }
    names = ("cpu", "cores", "memory_gib", "system", "threads", "python", "torch", "transformers", "trl", "date")
    result = {"benchmark": "generate", "machine": dict.fromkeys(names, "?"), "workloads": {"tiny": workload}}
    text = page([result])
    assert "| **Paceline** | 150 (100-200) |" in text
    assert "did not run: no room" in text
    assert "**Not the same work:** one-batch: something differs." in text
    assert "## The step" not in text


def test_verdicts_are_held_against_those_that_the_pairs_deserve():
    batch = [("1", "1", True), ("2", "2.0", True), ("3", "4", False), ("5", "6", False)]
    found = judged({"seconds": 2.0, "verdicts": [1, 0, 1, 0], "batch": fingerprint(batch)}, batch)
    assert (found["answers"], found["right"], found["wrongly_right"]) == (4, 2, 1)
    assert "another batch" in judged({"seconds": 2.0, "verdicts": [1], "batch": "?"}, batch)["error"]


def test_a_library_that_does_not_end_on_hostile_answers_is_a_result_and_on_others_a_complaint():
    mine = [{"seconds": 1.0, "answers": 4, "right": 4, "wrongly_right": 0, "verdicts": [1, 0, 0, 0]}]
    contenders = {"paceline": mine, "math-verify": [{"error": "no answer within 300 s"}]}
    assert compared("hostile", contenders, distinct=4, count=4)["complaints"] == []
    assert compared("mixed", contenders, distinct=4, count=4)["complaints"] == [
        "math-verify ended: no answer within 300 s"
    ]


def rewards_result(size, workloads):
    names = ("cpu", "cores", "memory_gib", "system", "threads", "python", "math-verify", "sympy", "date")
    return {"benchmark": "rewards", "size": size, "machine": dict.fromkeys(names, "?"), "workloads": workloads}


def test_the_page_shows_answers_and_programs_per_second():
    mine = {"seconds": 1.0, "answers": 4, "right": 4, "wrongly_right": 0, "verdicts": [1, 0, 0, 0]}
    peer = {"seconds": 8.0, "answers": 4, "right": 3, "wrongly_right": 1, "verdicts": [1, 1, 0, 0]}
    answers = compared("mixed", {"paceline": [mine], "math-verify": [peer]}, distinct=3, count=4)
    assert answers["agreement"] == 0.75
    programs = {
        "contenders": {
            "paceline": {
                "start": {"isolation": "walls"},
                "rate": 20.0,
                "repetitions": [{"programs": 40, "seconds": 2}],
            },
            "process": {"error": "no python"},
        },
        "paceline_faster_by": None,
    }
    text = page([rewards_result("answers", {"mixed": answers}), rewards_result("programs", {"programs": programs})])
    assert "| `mixed`: 4 answers, 3 of them different | **Paceline** | 4 (4-4) |  | 100.0% | 0.0% |" in text
    assert "|  | math-verify, one by one | 0 (0-0) | 8.0x | 75.0% | 25.0% |" in text
    assert "| **Paceline** | walls | 20 (20-20) |  |" in text
    assert "did not run: no python" in text
