"""A program earns what its tests say, judged in parallel, and a failed sandbox is no score."""

import json
import threading

import pytest

from paceline.errors import RewardError, SandboxError
from paceline.rewards.builtin.code import code
from paceline.rewards.function import Grade, RewardContext
from paceline.rewards.programs.cases import parse_cases
from paceline.sandbox.programs import Limits
from paceline.types import Task
from tests.support.scripted_sandbox import ScriptedSandbox, ended

TESTS = {"inputs": ["1", "2", "3", "4"], "outputs": ["2", "4", "6", "8"]}
ROW = {"test_cases": TESTS}


def scripted(job):
    """Programs are words here, and the sandbox knows what each of them does."""
    word = job.source.strip()
    if word == "double":
        return str(2 * int(job.stdin))
    if word == "double but 3":
        return "0" if job.stdin == "3" else str(2 * int(job.stdin))
    return SandboxError("gone") if word == "breaks the sandbox" else ended("runtime_error", f"NameError: {word}")


def made(script=scripted, *, slots=2, **parameters):
    sandbox = ScriptedSandbox(script, slots=slots)
    return code(RewardContext(open_sandbox=lambda: sandbox), **parameters), sandbox


def fenced(program):
    return f"Here it is:\n```python\n{program}\n```\n"


def grades(function, completions, rows=None, *, prompt="?"):
    columns = {name: [row.get(name) for row in rows or [ROW] * len(completions)] for name in ("test_cases", "answer")}
    return function(prompts=[prompt] * len(completions), completions=completions, **columns)


def values(items):
    return [item.value if isinstance(item, Grade) else item for item in items]


def test_a_program_that_passes_every_test_earns_one_and_any_other_nothing():
    function, _ = made()
    completions = [fenced("double"), fenced("double but 3"), fenced("nonsense"), "double", "```python\ndouble"]
    got = grades(function, completions)
    assert values(got) == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert [one.note for one in got] == [
        "passed 4 of 4 tests",
        "passed 2 of 4 tests; test 3: wrong",
        "passed 0 of 4 tests; test 1: runtime_error (NameError: nonsense)",
        "no closed fence with Python in it",
        "no closed fence with Python in it",
    ]


def test_a_fraction_is_the_share_of_tests_passed():
    function, _ = made(score="fraction")
    assert values(grades(function, [fenced("double"), fenced("double but 3"), fenced("x"), ""])) == [
        1.0,
        0.75,
        0.0,
        0.0,
    ]


def test_the_program_is_the_last_block_outside_the_thinking():
    function, _ = made()
    right, wrong = fenced("double"), fenced("nonsense")
    completions = [f"{wrong}{right}", f"{right}{wrong}", f"<think>{right}</think>", f"<think>{wrong}</think>{right}"]
    assert values(grades(function, completions)) == [1.0, 0.0, 0.0, 1.0]
    assert values(grades(function, [right, f"{wrong}</think>{right}"], prompt="?<think>")) == [0.0, 1.0]


def test_a_row_without_test_cases_is_for_other_functions():
    function, sandbox = made()
    assert grades(function, [fenced("double")] * 2, [{"answer": "2"}, {}]) == [None, None]
    assert not sandbox.jobs


def test_a_failed_sandbox_is_no_score_and_costs_only_the_completion_it_failed_on():
    function, _ = made()
    first, second = grades(function, [fenced("breaks the sandbox"), fenced("double")])
    assert isinstance(first, SandboxError)
    assert second.value == 1.0


def test_what_the_sandbox_failed_on_is_judged_anew():
    failures = [SandboxError("gone")]
    function, _ = made(lambda job: failures.pop() if failures else scripted(job), slots=1)
    (first,) = grades(function, [fenced("double")])
    (second,) = grades(function, [fenced("double")])
    assert isinstance(first, SandboxError)
    assert second.value == 1.0


def test_a_sandbox_that_does_not_open_fails_every_program_and_is_opened_once():
    opened = []

    def refuse():
        opened.append(1)
        raise SandboxError("no isolation here")

    got = grades(code(RewardContext(open_sandbox=refuse)), [fenced("double"), fenced("x"), ""])
    assert [str(one) for one in got[:2]] == ["no isolation here"] * 2
    assert got[2].value == 0.0
    assert len(opened) == 1


def test_without_a_sandbox_there_is_no_score():
    (got,) = grades(code(RewardContext()), [fenced("double")])
    assert isinstance(got, SandboxError)
    assert "open_sandbox" in str(got)


def test_the_same_program_for_the_same_tests_is_run_once_whichever_objects_they_are():
    function, sandbox = made()
    rows = [{"test_cases": json.dumps(TESTS)} for _ in range(3)]
    assert values(grades(function, [fenced("double")] * 3, rows)) == [1.0] * 3
    assert len(sandbox.jobs) == 4
    other = {"test_cases": {"inputs": ["5"], "outputs": ["10"]}}
    assert values(grades(function, [fenced("double")] * 2, [ROW, other])) == [1.0, 1.0]
    assert len(sandbox.jobs) == 5


def test_completions_are_judged_side_by_side_in_every_slot():
    meeting = threading.Barrier(3)

    def script(job):
        meeting.wait(timeout=20)  # broken, and an error, unless three run at a time
        return "2"

    function, _ = made(script, slots=3)
    one_test = {"test_cases": {"inputs": ["1"], "outputs": ["2"]}}
    assert values(grades(function, [fenced(f"p{n}") for n in range(6)], [one_test] * 6)) == [1.0] * 6


def test_judging_begins_in_the_background_and_is_not_done_twice():
    may_end, has_begun = threading.Event(), threading.Event()

    def script(job):
        has_begun.set()
        assert may_end.wait(timeout=20)
        return scripted(job)

    function, sandbox = made(script)
    function.begin(prompts=["?"], completions=[fenced("double")], test_cases=[TESTS])
    assert has_begun.wait(timeout=20)
    assert len(sandbox.jobs) == 1
    may_end.set()
    assert values(grades(function, [fenced("double")])) == [1.0]
    assert len(sandbox.jobs) == 4


def test_beginning_raises_nothing_whatever_the_row():
    function, sandbox = made()
    rows = ["{", {"inputs": []}, 5, None]
    function.begin(prompts=["?"] * 4, completions=[fenced("double")] * 4, test_cases=rows)
    got = grades(function, [fenced("double")] * 4, [{"test_cases": cell} for cell in rows])
    assert [one and one.value for one in got] == [0.0, 0.0, 0.0, None]
    assert all("nothing passes tests that cannot be read" in one.note for one in got[:3])
    assert not sandbox.jobs


def test_a_verdict_that_does_not_come_in_time_is_no_score(monkeypatch):
    monkeypatch.setattr("paceline.rewards.programs.judging.START_SECONDS", -1e6)
    may_end = threading.Event()
    function, _ = made(lambda job: "2" if may_end.wait(timeout=20) else "")
    (got,) = grades(function, [fenced("double")])
    may_end.set()
    assert isinstance(got, SandboxError)
    assert "no verdict" in str(got)


def slow_ones(job):
    """`slow` is right and needs more than a first slice; `loop` never ends."""
    word = job.source.split()[0]
    if word == "loop" or (word == "slow" and job.limits.seconds < 1):
        return ended("timeout")
    return str(2 * int(job.stdin))


@pytest.mark.parametrize("slots", [1, 3])
def test_slow_programs_behind_the_allowance_are_cut_short_and_no_other(slots):
    function, sandbox = made(slow_ones, slots=slots, timeout=10.0)
    programs = ["loop 1", "slow 1", "quick 1", *(f"loop {n}" for n in range(2, 8)), "slow 2", "quick 2"]
    got = grades(function, [fenced(one) for one in programs])
    # four limits of one test: loops 1 to 4 use them up
    assert [one.cut_short for one in got] == [False] * 6 + [True] * 4 + [False]
    assert values(got) == [0.0, 1.0, 1.0, *[0.0] * 7, 1.0]
    assert got[9].note.startswith(
        "passed 0 of 4 tests; test 1: cut_short (it needs more than 0.25 s, and the batch had"
    )
    whole = {job.source for job in sandbox.jobs if job.limits.seconds == 10.0}
    assert 4 + 1 <= len(whole) <= 4 + 1 + slots  # what ran beside the last of them was begun in vain


def test_the_allowance_grows_with_the_batch():
    function, _ = made(slow_ones, slots=1)
    one_test = {"test_cases": {"inputs": ["1"], "outputs": ["2"]}}
    got = grades(function, [fenced(f"loop {n}") for n in range(320)], [one_test] * 320)
    assert [one.cut_short for one in got] == [False] * 5 + [True] * 315


def test_what_was_cut_short_is_judged_anew_in_another_batch():
    function, _ = made(slow_ones, slots=1)
    assert grades(function, [fenced(f"loop {n}") for n in range(4)] + [fenced("slow")])[-1].cut_short
    (got,) = grades(function, [fenced("slow")])
    assert (got.value, got.cut_short) == (1.0, False)


def test_a_program_that_is_remembered_counts_as_if_it_ran():
    function, _ = made(slow_ones, slots=1)
    loops = [fenced(f"loop {n}") for n in range(4)]
    assert not any(one.cut_short for one in grades(function, loops))
    assert grades(function, [*loops, fenced("slow")])[-1].cut_short


def test_a_program_that_sleeps_leaves_its_place_to_another():
    both = threading.Barrier(2)

    class Sleepers(ScriptedSandbox):
        def execute(self, job, on_sleep=lambda: None):
            on_sleep()
            both.wait(timeout=20)  # broken, and an error, unless two are there
            return super().execute(job, on_sleep)

    sandbox = Sleepers(scripted, slots=1)
    sandbox.callers = 2
    function = code(RewardContext(open_sandbox=lambda: sandbox))
    one_test = {"test_cases": {"inputs": ["1"], "outputs": ["2"]}}
    assert values(grades(function, [fenced("double"), fenced("nonsense")], [one_test] * 2)) == [1.0, 0.0]


def test_an_error_of_ours_in_a_thread_reaches_who_waits():
    function, _ = made(lambda job: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        grades(function, [fenced("double")])


def test_the_threads_end_with_the_process():
    function, _ = made()
    grades(function, [fenced("double")])
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("judge-"))


def test_the_limits_of_a_program_are_parameters():
    function, sandbox = made(lambda job: ended("timeout"), timeout=2.5, memory_mb=64)
    grades(function, [fenced("double")])
    assert [job.limits for job in sandbox.jobs] == [
        Limits(seconds=0.25, memory_mb=64),
        Limits(seconds=2.5, memory_mb=64),
    ]


@pytest.mark.parametrize(("parameters", "message"), [({"timeout": 0.0}, "timeout must"), ({"memory_mb": 0}, "memory_")])
def test_a_limit_that_cannot_be_is_refused(parameters, message):
    with pytest.raises(RewardError, match=message):
        made(**parameters)


def task(columns):
    return Task(task_id="a.jsonl:1", prompt="?", prompt_ids=(1,), answer=None, columns=columns)


def test_the_gold_completion_is_the_rows_own_solution_in_a_fence():
    function, _ = made()
    assert function.gold(task({**ROW, "solution": "double"})) == "<think>Worked out.</think>\n```python\ndouble\n```"
    assert function.gold(task({**ROW, "solution": fenced("double")})).endswith("</think>\n" + fenced("double"))
    assert values(grades(function, [function.gold(task({**ROW, "solution": "double"}))])) == [function.maximum]
    for columns in (ROW, {**ROW, "solution": None}, {"solution": "by induction"}, {**ROW, "solution": " "}):
        assert function.gold(task(columns)) is None


def test_junk_is_what_surely_fails_the_tests():
    function, _ = made()
    assert function.junk(task({"answer": "2"})) == ()
    nothing, leaves, echo, first = function.junk(task(ROW))
    assert nothing == ""
    assert "sys.exit(0)" in leaves
    assert "stdin.read()" in echo
    assert "write('1')" in first
    same = {"test_cases": {"inputs": ["1"], "outputs": ["1\n"]}}
    assert len(function.junk(task(same))) == 2  # here an echo is right
    called = {"test_cases": {"fn_name": "f", "inputs": ["1"], "outputs": ["1"]}}
    assert (
        function.junk(task(called))[-1]
        == "<think>Worked out.</think>\n```python\ndef f(*arguments):\n    return None\n```"
    )


def test_half_a_surrogate_pair_in_a_program_is_a_wrong_program():
    function, sandbox = made()
    assert values(grades(function, [fenced("print('\ud800')")])) == [0.0]
    assert not sandbox.jobs


def test_the_sandbox_never_sees_what_is_expected():
    tests = {"inputs": ["in"], "outputs": ["the expected output"]}
    function, sandbox = made(lambda job: "x")
    grades(function, [fenced("double")], [{"test_cases": tests}])
    assert parse_cases({"test_cases": tests}, "a").outputs[0] not in repr(sandbox.jobs)
