"""The pure parts of benchmarks/: figures, the equal-work check, the page; and contenders that fail."""

import json
import math
import sys
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

import bench_busy
import bench_cluster
import bench_conversations
import bench_families
import bench_generate
import bench_refusals
import bench_step
import bench_survival
from bench_rewards import compared, judged
from conversation_work import SETTINGS, EpisodeWork, TurnWork, covered, optimum
from ends import ForcedEnds, made_lengths
from figures import disagreements, fastest_of_each_peer, pooled, rates, ratio, standard_errors_apart, summary
from floors import DATA_SHEETS
from given import Given, Prompt
from headline import headline
from materials import SHAPES, config_of
from measuring import Entry, take_turns
from naming import title
from predictions import sampling_seconds
from profiling import Profile, busy
from reward_workloads import fingerprint
from running import Conditions
from step_work import Group, Shape, decode, tokens_that_exist
from survive_in_turns import Turns
from table import RESULTS, page
from transformers import AutoModelForCausalLM
from update_work import Row
from wider_heads import write_twin
from workloads import FAMILIES, GENERATE, STEP, completion_limits, quick

from paceline.models.pretrained import model_directory
from paceline.training.plan.shape import GPUS

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
    return Entry(script=str(script), arguments=[])


def test_contenders_are_measured_after_a_warm_up_and_one_that_ends_leaves_its_last_line(tmp_path):
    contenders = {name: answering_until(tmp_path, name, last) for name, last in [("well", 9), ("ill", 2)]}
    results = take_turns(contenders, repetitions=3, threads=1, timeout=60)
    assert [one["asked"]["repetition"] for one in results["well"]["repetitions"]] == [1, 2, 3]
    assert "error" not in results["well"]
    assert results["ill"]["error"] == "the cache is full"


def test_contenders_that_do_not_fit_together_run_one_after_the_other_and_some_less_often(tmp_path):
    entries = {
        "often": answering_until(tmp_path, "often", 9),
        "once": replace(answering_until(tmp_path, "once", 9), repetitions=1),
        "never": answering_until(tmp_path, "never", 0),
    }
    results = take_turns(entries, repetitions=2, threads=1, timeout=60, together=False)
    counts = {name: [one["asked"]["repetition"] for one in result["repetitions"]] for name, result in results.items()}
    assert counts == {"often": [1, 2], "once": [1], "never": []}
    assert results["never"]["error"] == "the cache is full"


def test_a_peer_with_fewer_repetitions_is_compared_with_the_same_ones_of_paceline():
    def contender(*seconds):
        return {
            "repetitions": [{**repetition([8, 8]), "seconds": each, "peak_mib": 1.0} for each in seconds],
        }

    answers = {"paceline": contender(1.0, 9.0, 9.0), "generate-float32": contender(3.0)}
    found = bench_generate.compared(answers, exact=["tokens"])
    assert found["paceline_faster_by"] == {"generate-float32": 3.0}
    assert found["unequal_work"] == []


def test_a_peer_is_as_fast_as_its_fastest_variant():
    costs = {"vllm-float32": [2.0], "generate-float32": [3.0], "vllm-bfloat16": [0.5], "generate-bfloat16": [7.0]}
    assert fastest_of_each_peer(costs) == {"vllm": "vllm-bfloat16", "generate": "generate-float32"}


def test_variants_are_compared_on_the_repetitions_that_both_have():
    # repetitions are of different work: the first of these is the heaviest, and the second variant had only that one
    assert fastest_of_each_peer({"trl-a": [190.0, 90.0, 80.0], "trl-b": [207.0]}) == {"trl": "trl-a"}
    assert fastest_of_each_peer({"trl-a": [190.0, 90.0, 80.0], "trl-b": [180.0]}) == {"trl": "trl-b"}


def test_drawn_lengths_are_the_same_for_everyone_differ_by_repetition_and_have_the_mean_that_the_page_says():
    workload = GENERATE["30m"]
    assert completion_limits(workload, 3) == completion_limits(workload, 3) != completion_limits(workload, 4)
    lengths = [limit for number in range(1, 400) for limits in completion_limits(workload, number) for limit in limits]
    assert sum(lengths) / len(lengths) == pytest.approx(110, abs=1.0)
    assert max(lengths) == workload.max_new_tokens


def test_equal_lengths_are_equal_natural_ones_are_left_alone_and_a_warm_up_is_cut():
    assert set(completion_limits(GENERATE["30m-fixed"], 1)) == {(128,) * 8}
    assert set(completion_limits(GENERATE["shipped"], 1)) == {None}
    assert max(limit for limits in completion_limits(STEP["qwen-0.5b"], 0) for limit in limits) == 4


def test_what_contenders_are_given_survives_its_file(tmp_path):
    prompt = Prompt(task_id="a", text="w5 w6", ids=(5, 6), answer="", limits=(1, 7))
    given = Given(workload=quick(GENERATE["30m"]), model="a", twin="b", repetitions=((prompt,), (prompt, prompt)))
    given.write(tmp_path / "given.json")
    assert Given.read(tmp_path / "given.json") == given
    assert given.longest == 2 + given.workload.max_new_tokens
    assert given.limits(1) == [1, 7, 1, 7]


def test_generate_ends_every_row_exactly_where_its_length_says():
    model = AutoModelForCausalLM.from_pretrained(model_directory("embedded"))
    end = model.generation_config.eos_token_id
    limits = [1, 9, 4]
    prompts = torch.full((3, 5), 7)
    forced = ForcedEnds(limits, prompt_length=5, end=end, device=model.device)
    output = model.generate(prompts, do_sample=True, max_new_tokens=9, logits_processor=[forced])
    assert made_lengths(output[:, 5:], [end]) == limits


def test_the_model_with_wider_heads_is_the_same_function(tmp_path):
    source = model_directory("embedded")
    write_twin(str(source), tmp_path)
    model, twin = (AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32) for place in (source, tmp_path))
    assert twin.config.head_dim == 2 * model.config.head_dim
    tokens = torch.arange(1, 121).view(2, 60)
    torch.testing.assert_close(twin(tokens).logits, model(tokens).logits, rtol=1e-4, atol=1e-4)


def test_the_short_page_has_the_factors_of_the_results():
    files = [file for kind in ("generate", "step") for file in RESULTS.glob(f"*{kind}-*.json")]
    lines = headline([json.loads(file.read_text()) for file in files])[1:-1]
    text = (RESULTS.parents[1] / "docs" / "benchmarks.md").read_text().split("## How it is measured")[0]
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    assert sorted(lines) == sorted(" | ".join([name, *factors]) for name, _machine, *factors in rows)


def test_every_variant_of_every_workload_has_a_name_on_the_page(tmp_path):
    for device in ("cpu", "cuda"):
        conditions = Conditions(threads=2, device=device, vllm_python=Path("python"))
        for benchmark, table in ((bench_generate, GENERATE), (bench_step, STEP)):
            for workload in table.values():
                for name in benchmark.entries(workload, tmp_path, conditions):
                    assert title(name)
    assert title("trl-continuous-bfloat16-4") == (
        "TRL `GRPOTrainer`, continuous batching, bfloat16, 4 rows a micro-batch"
    )


def test_the_page_shows_figures_ratios_and_what_did_not_run():
    workload = {
        "prompts": 4,
        "num_generations": 2,
        "max_new_tokens": 16,
        "lengths": "equal",
        "repetitions": 2,
        "contenders": {
            "paceline": {
                "repetitions": [{"tokens": 100, "seconds": 1.0}, {"tokens": 100, "seconds": 0.5}],
                "start": {"dtype": "float32"},
                "tokens_per_second": 150.0,
                "mean_length": 16.0,
                "peak_mib": 1234.0,
            },
            "generate-float32": {
                "repetitions": [{"tokens": 100, "seconds": 4.0}],
                "tokens_per_second": 25.0,
                "mean_length": 16.0,
                "peak_mib": 50.0,
            },
            "continuous-float32-64": {"error": "no room"},
            "vllm": {"not_measured": "not installed"},
        },
        "paceline_faster_by": {"generate-float32": 4.0},
        "fastest": {"generate": "generate-float32"},
        "unequal_work": ["continuous-float32-64: something differs"],
    }
    names = ("cpu", "cores", "memory_gib", "system", "threads", "python", "torch", "transformers", "trl", "date")
    result = {"benchmark": "generate", "machine": dict.fromkeys(names, "?"), "workloads": {"tiny": workload}}
    text = page([result])
    assert "| `tiny` | 4.0x |  |  |  |  |" in text
    assert "| **Paceline**, float32 | 150 (100-200) |  | 16.0 | 1,234 |" in text
    assert "| transformers `generate`, float32 (1 repetition) | 25 (25-25) | **4.00x** | 16.0 | 50 |" in text
    assert "| transformers continuous batching, float32, 64 tokens a batch | did not run: no room |" in text
    assert "| vLLM | not measured: not installed |" in text
    assert "**Not the same work:** continuous-float32-64: something differs." in text
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


def test_accuracies_over_seeds_are_of_tasks_and_their_difference_is_paired():
    in_turn, ahead = ([{"correct": answers} for answers in runs] for runs in ([[1, 0], [1, 0]], [[1, 1], [1, 0]]))
    assert bench_cluster.accuracy(in_turn)["value"] == 0.5
    assert bench_cluster.accuracy_difference(in_turn, ahead)["value"] == 0.25
    assert bench_cluster.accuracy_difference(ahead, ahead) == {"value": 0.0, "low": 0.0, "high": 0.0}


def test_the_page_shows_both_orders_with_what_was_predicted():
    def order(*pairs):
        return {
            "accuracy": {"value": 0.97, "low": 0.96, "high": 0.98},
            "runs": [
                {
                    "predicted_seconds_per_step": predicted,
                    "seconds_per_step": 2 * seconds,
                    "first_seconds_per_step": seconds,
                    "completions_per_second": 128 / seconds,
                }
                for predicted, seconds in pairs
            ],
        }

    names = ("cpu", "cores", "memory_gib", "system", "threads", "python", "date")
    result = {
        "benchmark": "cluster",
        "machine": dict.fromkeys(names, "?"),
        "ratio": 2.0,
        "steps_timed": 30,
        "orders": {
            "in turn": order((0.33, 0.3), (0.31, 0.31), (0.31, 0.25)),
            "one step ahead": order(*[(0.2, 0.2)] * 3),
        },
        "faster_by": [1.5, 1.55, 1.4],
        "accuracy_difference": {"value": -0.002, "low": -0.01, "high": 0.006},
    }
    text = page([result])
    seconds = "0.6000 (0.5000 to 0.6200) | 0.3000 (0.2500 to 0.3100)"
    predicted = "0.3100 (0.3100 to 0.3300) | +10.0% (+0.0% to +24.0%)"
    assert f"| in turn | {seconds} | {predicted} | 427 | 97.0 % (96.0-98.0) |" in text
    assert "One step ahead is 1.50x as fast (1.40-1.55 over 3 seeds)" in text
    assert "differs by -0.2 points (-1.0 to +0.6, paired by problem)" in text


def test_steps_survive_in_turn_and_every_window_of_them_has_a_checkpoint():
    turns = Turns(first=1, turn=3, window=3)
    assert [turns.survives(step) for step in range(1, 10)] == [False] * 3 + [True] * 3 + [False] * 3
    assert [step for step in range(1, 30) if turns.saves(step)] == [4, 10, 16, 22, 28]
    by_steps = Turns(first=0, turn=1, window=3)
    assert [step for step in range(1, 12) if by_steps.survives(step)] == [1, 3, 5, 7, 9, 11]
    assert [step for step in range(1, 14) if by_steps.saves(step)] == [1, 7, 13]
    both = Turns(first=1, turn=2, window=4)
    assert [step for step in range(1, 16) if both.saves(step)] == [3, 11]


def test_what_a_process_is_slower_by_is_not_what_surviving_costs():
    # surviving costs a tenth; the second process takes twice as long, and every step is longer than the one before
    turns = [Turns(first=first, turn=1, window=1) for first in (0, 1)]
    costs = [[step * (1.1 if one.survives(step) else 1) for step in range(1, 6)] for one in turns]
    first = {"pairs": bench_survival.pairs_of_windows([*accumulate(costs[0])], turns[0])}
    second = {"pairs": bench_survival.pairs_of_windows([*accumulate(2 * one for one in costs[1])], turns[1])}
    assert first["pairs"] == [pytest.approx({"survived": 3.3, "bare": 2}), pytest.approx({"survived": 5.5, "bare": 4})]
    assert [round(math.exp(one), 6) for one in bench_survival.logs_of_ratios([first, second])] == [1.1, 1.1]
    compared = bench_survival.compare({"journal": [[first, second]]}, window=1)["journal"]
    assert compared["throughput"] == pytest.approx({"value": 1 / 1.1, "low": 1 / 1.1, "high": 1 / 1.1})
    assert compared["step"] == pytest.approx((3.3 + 2 + 5.5 + 4 + 2 * (2.2 + 3 + 4.4 + 5)) / 8)


def test_a_refusal_fails_where_it_is_wrong_or_late():
    right, late = {"seconds": 4.9, "wrong": ""}, {"seconds": 5.1, "wrong": ""}
    wrong = {"seconds": 1.0, "wrong": "status 1: "}
    assert bench_refusals.failures({"a": right, "b": late, "c": wrong}) == ["c: status 1: ", "b: 5.1 s"]


def test_a_share_is_the_middle_of_seconds_alone_over_seconds_beside():
    def run(alone, one, two):
        return {"0": {"sampling": alone}, "1": {"sampling": one}, "2": {"sampling": two}}

    runs = [run(1.0, 2.0, 4.0), run(3.0, 3.0, 4.0), run(1.0, 4.0, 10.0)]  # 0.5 1 0.25; 0.25 0.75 0.1
    assert bench_busy.shares(runs) == {"sampling": {"1": 0.5, "2": 0.25}}


def test_the_optimum_lets_no_conversation_wait_while_a_row_is_free():
    def episode(starts, *turns):
        works = [TurnWork(read=read, sampled=sampled, latency=latency) for read, sampled, latency in turns]
        return EpisodeWork(starts=starts, turns=tuple(works))

    # rounds 0-2 of the first, answered at 3; the second takes 1-2 and, read and sampled, 4-5; a row for each
    works = [episode(0.0, (0, 3, 1.0)), episode(1.0, (0, 2, 2.0), (1, 1, 0.0))]
    both = optimum(works, rows=2, round_seconds=lambda _: 1.0, prompt_seconds=0.0)
    assert (both.seconds, both.busy) == (6.0, 4.0)
    # one row: the second starts at 2, and is answered at 5
    alone = optimum(works, rows=1, round_seconds=lambda _: 1.0, prompt_seconds=0.0)
    assert (alone.seconds, alone.busy) == (7.0, 5.0)


def test_an_engine_is_busy_by_what_was_ready_and_by_the_optimum():
    # eight alike: begun at 1, one turn of two tokens, a prompt and a round of a second each, answered after 2
    moments = [(number, start, end) for number in range(8) for start, end in ((0.0, 1.0), (4.0, 6.0))]
    answer = {
        "seconds": 6.0,
        "turns": [[(2, 0)]] * 8,
        "moments": moments,
        "rounds": [{"rows": 8, "sleeping": 0, "kept_out": 0, "seconds": 1.0}],
        "prompts": [(1, 1.0)],
    }
    shares = bench_conversations.busy_shares(answer, SETTINGS["embedded"])
    assert shares["has_work"] == 3.0
    assert shares["of_ready"] == pytest.approx(2 / 3)
    assert shares["optimum_seconds"] == pytest.approx(5.0)
    assert shares["of_optimum"] == pytest.approx(5 / 6)


def test_contenders_are_chosen_by_the_beginning_of_their_names():
    entries = {name: Entry(script="", arguments=[]) for name in ("paceline", "vllm-bfloat16", "generate-bfloat16")}
    some = Conditions(threads=2, device="cpu", vllm_python=None, only=("paceline", "vllm"))
    assert [*some.chosen(entries)] == ["paceline", "vllm-bfloat16"]
    assert [*replace(some, only=()).chosen(entries)] == [*entries]
    with pytest.raises(SystemExit, match="--contender TRL names none of paceline"):
        replace(some, only=("TRL",)).chosen(entries)


def test_a_device_is_busy_while_any_kernel_runs_as_a_share_of_the_unprofiled_seconds():
    second = 10**9
    spans = [("a", 0, 2 * second), ("b", second, 3 * second), ("a", 5 * second, 6 * second)]
    assert busy(spans) == 4.0
    told = Profile(wall=9.0, busy=4.0, seconds={"b": 2.0, "a": 3.0}, calls={"a": 2, "b": 1}).told(wall=8.0)
    assert (told["busy_share"], told["launches"]) == (0.5, 3)
    assert [one["name"] for one in told["kernels"]] == ["a", "b"]


def test_an_updates_groups_fill_its_micro_batches_and_its_plan_knows_what_saves_memory():
    row = Row(size="qwen-1.5b")
    assert tokens_that_exist(row.work) == 4 * 16_368
    h200 = GPUS["h200"]
    cheaper = [replace(row, checkpointing=True), replace(row, lora=True), replace(row, offload=("optimizer",))]
    assert all(one.planned(h200) < row.planned(h200) for one in cheaper)


def test_predictions_follow_the_bandwidth_and_stay_above_the_floor():
    shape, groups = Shape.of(config_of(SHAPES["qwen-0.5b"])), [Group(prompt=300, completions=(40, 20))]
    slow, fast = (sampling_seconds(shape, groups, GPUS[name]) for name in ("h100", "h200"))
    least = sum(one.bytes for one in decode(shape, groups, size=2)) / DATA_SHEETS["h200"].bandwidth_at(1.0)
    assert least < fast < slow


def test_shapes_of_families_have_about_as_many_weights_as_their_names_say():
    for name in FAMILIES:
        with torch.device("meta"):
            count = AutoModelForCausalLM.from_config(config_of(SHAPES[name])).num_parameters()
        assert 0.8 <= count / (1e6 * int(name.rpartition("-")[2].removesuffix("m"))) <= 1.1, (name, count)


def test_the_table_of_families_has_both_peers_and_what_failed_is_named():
    mine, peer = [repetition([30])], [repetition([30]) | {"seconds": 8.0}]
    start = {"imported_mib": 1.0}
    answers = {
        "paceline": {"start": start, "repetitions": [one | {"peak_mib": 9.0} for one in mine]},
        "before": {"start": start, "repetitions": [one | {"peak_mib": 9.0} for one in peer]},
        "generate-float32": {"error": "the cache is full"},
    }
    made = bench_families.compared_generations(answers, exact=["tokens"])
    where = {"cpu": "Abacus", "threads": 2, "torch": "2.13.0", "date": "2026-01-01"}
    result = {"machine": where, "other": "abc", "generate": {"gemma3-10m": made}, "step": {}}
    assert "| gemma3-10m | generate | 15 tokens/s | 4.0x |  | none |" in bench_families.table(result)
    assert bench_families.complaints(result) == ["generate, gemma3-10m: generate-float32 ended: the cache is full"]
    assert bench_families.filled(bench_families.PAGE.read_text(), {"families": "new"}).count("new") >= 1


def test_times_that_overlap_count_once():
    assert covered([(0, 2), (1, 3), (5, 6)]) == 4.0
