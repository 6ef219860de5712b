"""Held-out accuracy is counted over graded completions and compared by paired tasks."""

import pytest

from paceline.cli.eval import compared
from paceline.config.building import build_config
from paceline.engines import Sampling
from paceline.errors import DataError
from paceline.reports.trained_run import gain
from paceline.rewards.resolving import resolve
from paceline.training.evaluation import AccuracyResult, Evaluator, TaskResult
from paceline.training.records import first_look
from tests.support.episodes import conversation
from tests.support.scripted import ScriptedEngine, completion, task


def grade(completions: list[str], **columns: object) -> list[float | None]:
    return [{"right": 1.0, "half": 0.5, "wrong": 0.0, "skip": None}[text] for text in completions]


def measure(*script: tuple[str, ...]):
    """Grade scripted completions, one tuple of texts per task."""
    tasks = tuple(task(str(number)) for number in range(len(script)))
    evaluator = Evaluator(
        name="a:test",
        tasks=tasks,
        functions={"grade": grade},
        sampling=Sampling(max_completion_length=8, temperature=0.0),
        generations=len(script[0]),
        max_failure_rate=0.0,
        reward_timeout=60.0,
        seed=0,
    )
    engine = ScriptedEngine([[completion(text) for text in texts] for texts in script])
    return evaluator.evaluate(engine, step=3)


def test_accuracy_counts_rewards_of_at_least_a_half_as_right():
    record = measure(("right",), ("half",), ("wrong",), ("wrong",)).record()
    assert (record["set"], record["step"], record["n"], record["correct"]) == ("a:test", 3, 4, 2)
    assert record["accuracy"] == 0.5
    assert record["ci_low"] < 0.5 < record["ci_high"]


@pytest.mark.parametrize(
    ("name", "answer", "right"),
    [
        ("gsm8k", "41", False),  # 0.8 for its tags
        ("gsm8k", "42", True),
        ("gsm8k", "42.0", True),
        ("cosine(max_length=9, min_correct=0.1)", "42", True),  # 0.1 at its length
        ("cosine(max_length=9, min_correct=0.1)", "41", False),
    ],
)
def test_a_built_in_function_says_itself_which_score_is_right(name, answer, right):
    text = f"<reasoning>6 * 7</reasoning><answer>{answer}</answer>"
    evaluator = Evaluator(
        name="a:test",
        tasks=(task("0", answer="42"),),
        functions={name: resolve(name)},
        sampling=Sampling(max_completion_length=8, temperature=0.0),
        generations=1,
        max_failure_rate=0.0,
        reward_timeout=60.0,
        seed=0,
    )
    evaluation = evaluator.evaluate(ScriptedEngine([[completion(text)]]), step=0)
    assert evaluation.record()["correct"] == int(right)
    assert evaluation.completion_records()[0]["correct"] is right


def test_an_ungraded_completion_is_neither_right_nor_wrong_and_is_counted():
    record = measure(("right",), ("skip",)).record()
    assert (record["n"], record["accuracy"], record["ungraded"]) == (1, 1.0, 1)


def test_several_generations_give_the_mean_over_tasks_and_the_chance_of_any():
    record = measure(("right", "wrong"), ("wrong", "wrong"), ("right", "right")).record()
    assert record["accuracy"] == pytest.approx((0.5 + 0 + 1) / 3)
    assert record["pass_at_2"] == pytest.approx(2 / 3)


def test_a_set_that_nothing_can_grade_is_an_error_and_not_zero():
    with pytest.raises(DataError, match=r"a:test: grade could grade no task"):
        measure(("skip",))


def test_every_completion_is_recorded_with_its_verdict():
    records = measure(("right",), ("wrong",), ("skip",)).completion_records()
    assert [(record["task_id"], record["completion"], record["correct"]) for record in records] == [
        ("0", "right", True),
        ("1", "wrong", False),
        ("2", "skip", None),
    ]


def test_one_sentence_says_why_an_accuracy_is_low():
    texts = (r"\boxed{2}", r"\boxed{3}", "<answer>2</answer>", "The answer is 2")
    evaluator = Evaluator(
        name="a:test",
        tasks=(task("0", answer="2"),),
        functions={"boxed": resolve("boxed")},
        sampling=Sampling(max_completion_length=8, temperature=0.0),
        generations=5,
        max_failure_rate=0.0,
        reward_timeout=60.0,
        seed=0,
    )
    # a text that was cut has no last line that states an answer
    script = [*map(completion, texts), completion("so the answer is 2", finish_reason="length")]
    evaluation = evaluator.evaluate(ScriptedEngine([script]), step=0)
    assert evaluation.verdicts() == {
        "completions": 5,
        "right": 1,
        "wrong_answer": 1,
        "no_answer": 3,
        "right_leniently": 2,
        "cut": 1,
        "ungraded": 0,
    }
    assert evaluation.reasons() == (
        "of 5 completions: 1 right, 1 with a wrong answer, 3 without a marked answer; "
        "2 more would be right if read leniently; 1 cut at --max-completion-length"
    )


@pytest.mark.parametrize(
    ("grader", "advice"),
    [
        ("boxed", r"the model does not write \boxed{}: say so in the system message, show it an example, or grade by "),
        ("accuracy", r"the model does not write <answer>...</answer>, \boxed{} or ####: say so in the system message"),
        ("accuracy(plain=true)", None),  # nothing has to be marked
    ],
)
def test_a_model_that_marks_no_answer_is_said_with_what_to_do(grader, advice):
    evaluator = Evaluator(
        name="a:test",
        tasks=(task("0", answer="2"),),
        functions={grader: resolve(grader)},
        sampling=Sampling(max_completion_length=8, temperature=0.0),
        generations=1,
        max_failure_rate=0.0,
        reward_timeout=60.0,
        seed=0,
    )
    cut = completion("so the answer is 2", finish_reason="length")
    evaluation = evaluator.evaluate(ScriptedEngine([[cut]]), step=0)
    assert evaluation.completion_records()[0]["parsed"] is None
    assert evaluation.verdicts()["no_answer"] == 1
    _, _, said = evaluation.reasons().partition("cut at --max-completion-length")
    assert said.startswith(f"; {advice}") if advice else said == ""


def test_where_environments_say_what_is_right_no_answer_is_looked_for():
    talks = tuple(conversation((text, ""), reward=reward) for text, reward in (("2", 1.0), ("so", 0.0), ("no", 0.0)))
    outcome = TaskResult(
        task=task("0", answer="2"),
        trajectories=talks,
        rewards=(1.0, 0.0, 0.0),
        notes=(None,) * 3,
        right=1.0,
        parsed=("2", None, None),
        formed=(None,) * 3,
    )
    evaluation = AccuracyResult(
        name="a:test", step=0, outcomes=(outcome,), failed_calls=0, reads_answers=False, seconds=1.0
    )
    assert evaluation.reasons() == "of 3 completions: 1 right, 2 not right; 0 cut at --max-completion-length"
    found = evaluation.verdicts()
    assert (found["wrong_answer"], found["no_answer"], found["right_leniently"]) == (2, 0, 0)


def test_a_gain_is_paired_by_task_over_those_graded_both_times():
    before = measure(("right",), ("wrong",), ("wrong",), ("skip",)).completion_records()
    after = measure(("right",), ("right",), ("wrong",), ("right",)).completion_records()
    assert gain(before, after).difference.value == pytest.approx(1 / 3)


def test_the_reach_of_a_set_is_said_before_it_is_measured():
    def reach(count: int) -> str:
        return Evaluator(
            name="a:test",
            tasks=tuple(task(str(number)) for number in range(count)),
            functions={"grade": grade},
            sampling=Sampling(max_completion_length=8, temperature=0.0),
            generations=1,
            max_failure_rate=0.0,
            reward_timeout=60.0,
            seed=0,
        ).detectable

    assert reach(100) == "a:test: with 100 held-out tasks, differences below about 12 points are noise"
    assert "below about 35 points" in reach(20)
    assert reach(3) == "a:test: 3 tasks are too few to tell any difference between two models; take more"


@pytest.mark.parametrize("asking", [(), ("format",)])
def test_every_row_has_the_answer_as_the_grader_reads_it_and_the_verdict_on_format(asking):
    evaluator = Evaluator(
        name="a:test",
        tasks=(task("0"),),
        functions={"boxed": resolve("boxed")},
        sampling=Sampling(max_completion_length=8, temperature=0.0),
        generations=3,
        max_failure_rate=0.0,
        reward_timeout=60.0,
        seed=0,
        format_functions={name: resolve(name) for name in asking},
    )
    texts = (r"\boxed{2}", "<think>so</think><answer>2</answer>", "<answer>3</answer>")
    evaluation = evaluator.evaluate(ScriptedEngine([[completion(text) for text in texts]]), step=0)
    rows = evaluation.completion_records()
    assert [row["parsed"] for row in rows] == ["2", None, None]
    assert [row["format"] for row in rows] == ([False, True, False] if asking else [True, False, False])
    assert evaluation.record()["format_accuracy"] == pytest.approx(1 / 3)
    assert evaluation.record()["failed_calls"] == 0


def boxed_or_not(completions: list[str], **columns: object) -> list[float]:
    return [float("4" in text) for text in completions]


def test_of_several_completions_the_majority_of_their_answers_is_taken():
    script = [(r"\boxed{4}", r"\boxed{4}", r"\boxed{5}"), ("#### 5", "<answer>5</answer>", "4"), ("4", "?", "?")]
    evaluator = Evaluator(
        name="a:test",
        tasks=tuple(task(str(number)) for number in range(3)),
        functions={"grade": boxed_or_not},
        sampling=Sampling(max_completion_length=8, temperature=1.0),
        generations=3,
        max_failure_rate=0.0,
        reward_timeout=60.0,
        seed=0,
    )
    engine = ScriptedEngine([[completion(text) for text in texts] for texts in script])
    evaluation = evaluator.evaluate(engine, step=0)
    record = evaluation.record()
    assert (record["accuracy"], record["pass_at_3"]) == (pytest.approx(4 / 9), 1.0)
    assert record["maj_at_3"] == pytest.approx(1 / 3)
    assert evaluation.shown().endswith(" (avg@3), pass@3 100.0 %, maj@3 33.3 %")


def test_where_no_completion_states_an_answer_there_is_no_majority():
    record = measure(("right", "wrong")).record()
    assert "pass_at_2" in record
    assert "maj_at_2" not in record


def test_two_models_are_compared_in_one_line():
    before = measure(("wrong",), ("wrong",), ("right",), ("skip",))
    after = measure(("right",), ("right",), ("right",), ("right",))
    line = compared(before, after)
    # of the three tasks graded both times two were gained: 2 / 2^2
    assert line.startswith("difference +66.7 points [")
    assert "paired by task; 2 tasks gained, 0 lost: exact McNemar p = 0.5; bootstrap [" in line


def test_two_models_that_were_graded_on_no_common_task_are_not_compared():
    with pytest.raises(DataError, match="no held-out task was graded before and after"):
        compared(measure(("right",), ("skip",)), measure(("skip",), ("right",)))


@pytest.mark.parametrize(
    ("right", "tasks", "options", "said"),
    [
        # Wilson's interval of 5 in 100 ends at 11.2 %: 0.888^4 = 0.622
        (5, 100, {}, "with 5.0 % [2.2, 11.2] right, at least 62 % of the groups of 4 completions"),
        (95, 100, {}, "with 95.0 % [88.8, 97.8] right, at least 62 % of the groups of 4 completions"),
        # 0 of 100 ends at 3.7 %: never all groups
        (0, 100, {}, "with 0.0 % [0.0, 3.7] right, at least 86 % of the groups of 4 completions"),
        (0, 42, {"num_generations": 8}, None),  # 0.916^8 = 0.496
        (0, 3, {}, None),
        (5, 100, {"num_generations": 8}, None),  # 0.888^8 = 0.387
        (5, 100, {"reward_funcs": "accuracy format"}, None),  # another function may tell completions apart
    ],
)
def test_the_first_evaluation_says_how_many_groups_will_teach_nothing_and_what_would_help(right, tasks, options, said):
    given = {"model": "m", "dataset": "d", "num_generations": 4, **options}
    if "reward_funcs" in given:
        given["reward_funcs"] = given["reward_funcs"].split()
    found = measure(*[("right",)] * right, *[("wrong",)] * (tasks - right))
    first, *others = first_look(build_config(given), [found])
    assert first.startswith(f"a:test: of {tasks} completions: {right} right, ")
    assert first.endswith("0 cut at --max-completion-length")
    rest = "will have equal rewards and teach nothing, if sampled answers are right as often as greedy ones"
    assert [one.partition(";")[0] for one in others] == ([] if said is None else [f"{said} {rest}"])
    if said is not None:
        assert ("harder tasks" in others[0], "easier tasks" in others[0]) == (right > tasks / 2, right < tasks / 2)
