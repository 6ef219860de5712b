"""A program gets a verdict for every test, within its limits, and never sees what is expected."""

import pytest

from paceline.errors import SandboxError
from paceline.rewards.programs.cases import Cases
from paceline.rewards.programs.judging import Trial
from paceline.sandbox.programs import Execution, Job, Limits
from tests.support.scripted_sandbox import ScriptedSandbox, ended

FIVE = Cases(inputs=tuple("12345"), outputs=tuple("12345"))
LIMITS, FIRST = Limits(seconds=3.0, memory_mb=64), Limits(seconds=0.25, memory_mb=64)


def judged(script, cases=FIVE, *, stop_at_first=False):
    sandbox = ScriptedSandbox(script)
    trial = Trial("the program", cases, limits=LIMITS, stop_at_first=stop_at_first)
    trial.run_first(sandbox, lambda: None)
    trial.run_rest(sandbox, lambda: None, may_go_on=lambda: True)
    return trial.judgement(cut_short=False), sandbox.jobs


def but(special):
    """Every output is right, except those that the table names."""
    return lambda job: special.get(job.stdin, job.stdin)


def test_a_program_gets_one_input_at_a_time_and_nothing_of_what_is_expected():
    cases = Cases(inputs=("in 1", "in 2"), outputs=("out 1", "out 2"))
    judgement, jobs = judged(lambda job: job.stdin.replace("in", "out"), cases)
    assert jobs == [Job(source="the program", stdin=given, limits=FIRST) for given in cases.inputs]
    assert "out 1" not in repr(jobs)
    assert (judgement.verdicts, judgement.passed == len(judgement.verdicts), judgement.note) == (
        ("pass", "pass"),
        True,
        "passed 2 of 2 tests",
    )


@pytest.mark.parametrize(("length", "allowed"), [(10, 1 << 20), (1 << 19, 1 << 20), ((1 << 19) + 1, 1 << 21)])
def test_a_right_output_has_room_in_a_limit_that_does_not_tell_its_length(length, allowed):
    cases = Cases(inputs=("a", "b"), outputs=("1", "x" * length))
    judgement, jobs = judged(lambda job: "1" if job.stdin == "a" else "x" * length, cases)
    assert judgement.passed == len(judgement.verdicts)
    assert {job.limits.output_bytes for job in jobs} == {allowed}


def test_every_test_has_a_verdict_and_the_note_tells_the_first_that_failed():
    failures = {"2": "7", "4": ended("runtime_error", "Traceback\n  line 1\nZeroDivisionError: division by zero\n")}
    judgement, _ = judged(but(failures))
    assert judgement.verdicts == ("pass", "wrong", "pass", "runtime_error", "pass")
    assert (judgement.passed, judgement.passed == len(judgement.verdicts), judgement.note) == (
        3,
        False,
        "passed 3 of 5 tests; test 2: wrong",
    )


def test_the_last_words_of_a_program_are_in_the_note():
    judgement, _ = judged(
        but({"1": ended("runtime_error", "Traceback\nZeroDivisionError: division by zero\nexit status 1")})
    )
    assert judgement.note == "passed 4 of 5 tests; test 1: runtime_error (ZeroDivisionError: division by zero)"


def test_the_rest_is_not_run_after_the_first_failure_where_all_have_to_pass():
    judgement, jobs = judged(but({"2": "7"}), stop_at_first=True)
    assert (judgement.verdicts, len(jobs)) == (("pass", "wrong", "not_run", "not_run", "not_run"), 2)


@pytest.mark.parametrize("status", ["syntax_error", "no_function"])
def test_what_every_input_would_meet_is_met_once(status):
    judgement, jobs = judged(lambda job: ended(status))
    assert (judgement.verdicts, len(jobs)) == ((status, *["not_run"] * 4), 1)


def test_a_program_may_waste_its_whole_time_twice():
    judgement, jobs = judged(but(dict.fromkeys("1345", ended("timeout"))))
    assert judgement.verdicts == ("timeout", "pass", "timeout", "not_run", "not_run")
    assert [job.limits for job in jobs] == [FIRST, LIMITS, LIMITS, LIMITS]  # the first slice was not enough


@pytest.mark.parametrize("status", ["runtime_error", "memory", "output_limit"])
def test_other_failures_are_of_one_input(status):
    judgement, _ = judged(but({"1": ended(status)}))
    assert judgement.verdicts == (status, "pass", "pass", "pass", "pass")


@pytest.mark.parametrize(
    ("expected", "returned", "in_list", "verdict"),
    [
        ("[1, 2]", "[1, 2]", False, "pass"),
        ("3", "3.0", False, "wrong"),
        ("[3]", "3", False, "wrong"),
        ("[3]", "3", True, "pass"),
        ("[3]", "[3]", True, "pass"),
        ("[3]", "[[3]]", True, "wrong"),
        ("3", "", False, "wrong"),
        ("3", "[" * 10_000, False, "wrong"),
        ("3", "9" * 5_000, False, "wrong"),
    ],
)
def test_a_returned_value_is_compared_as_plain_data(expected, returned, in_list, verdict):
    cases = Cases(inputs=("[1, 2]",), outputs=(expected,), function="add", in_list=in_list)
    judgement, (job,) = judged(lambda job: returned, cases)
    assert judgement.verdicts == (verdict,)
    assert (job.function, job.arguments, job.stdin) == ("add", "[1, 2]", "")


def test_a_slow_program_is_known_by_its_first_slice_until_it_may_go_on():
    seconds = {"2": FIRST}  # the second test needs more than a first slice
    sandbox = ScriptedSandbox(lambda job: ended("timeout") if seconds.get(job.stdin) == job.limits else job.stdin)
    trial = Trial("the program", FIVE, limits=LIMITS, stop_at_first=True)
    trial.run_first(sandbox, lambda: None)
    assert trial.is_slow
    trial.run_rest(sandbox, lambda: None, may_go_on=lambda: False)
    judgement = trial.judgement(cut_short=True)
    assert judgement.verdicts == ("pass", *["cut_short"] * 4)
    trial.run_rest(sandbox, lambda: None, may_go_on=lambda: True)
    assert set(trial.judgement(cut_short=False).verdicts) == {"pass"}
    assert trial.lost_seconds == 0.0  # tests that are passed cost nothing


def test_a_timeout_costs_a_whole_limit_and_a_failed_test_what_it_took():
    outcomes = {"1": ended("timeout"), "3": Execution(status="runtime_error", output="", seconds=2.5)}
    sandbox = ScriptedSandbox(lambda job: outcomes.get(job.stdin, job.stdin))
    trial = Trial("the program", FIVE, limits=LIMITS, stop_at_first=False)
    trial.run_first(sandbox, lambda: None)
    trial.run_rest(sandbox, lambda: None, may_go_on=lambda: True)
    assert trial.lost_seconds == 3.0 + 2.5


def test_many_failures_that_each_fit_a_first_slice_make_a_program_slow():
    wrong = Execution(status="finished", output="7", seconds=0.16)
    trial = Trial("the program", FIVE, limits=LIMITS, stop_at_first=False)
    sandbox = ScriptedSandbox(lambda job: wrong)
    trial.run_first(sandbox, lambda: None)
    assert (trial.is_slow, len(sandbox.jobs)) == (True, 2)  # 0.32 s


def test_a_failed_sandbox_is_no_verdict():
    with pytest.raises(SandboxError, match="gone"):
        judged(lambda job: SandboxError("gone"))
