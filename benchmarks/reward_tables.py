"""The page's parts about reward functions."""

from naming import title

ANSWERS = """
## Rewards: comparing answers

Pairs of a gold answer and an answer compared per second. Each repetition is a fresh process without a cache; imports
and the start of workers are not timed. `mixed` is half plain numbers and half rows of `tests/support/math_cases.py`,
drawn with repeats, since completions of one prompt repeat answers. `distinct` has each pair once. `hostile` is
`mixed` with one answer in a hundred built to be slow or huge. Both contenders may use all cores. Paceline sends
answers that need a proof to worker processes; math-verify is called in a loop, with its own time limits of five
seconds.

`verdicts right` compares each verdict with the one in `tests/support/math_cases.py`. Paceline is tested with that
table, so its figure only confirms the tests. The other figure says how often a plain call of math-verify decides
otherwise: on units, words, or several guesses at once. `wrongly right` are verdicts that would reward a wrong answer.
"""

PROGRAMS = """
## Rewards: running programs

Small programs that read a line and print, run per second, with one at a time for each thread. Paceline runs each in its
sandbox, isolated at the level that `--sandbox auto` selects. The other contender starts a fresh `python -I` process for
each, without isolation. The script checks that the outputs are equal.
"""

SLOW = """
## Rewards: programs that are slow on purpose

The cost of a batch of completions whose programs loop, sleep, nest directories or print floods. Correct programs in the
same batch must keep their verdicts. `cut short` counts slow programs that got only their first time slice, because the
batch had used up its time for such programs. `programs` and `own` are processor time in the sandbox and in the trainer.
On a quiet machine a batch takes about as long as `programs` divided by the number of cores. During this measurement
other processes used up to one of the two cores, so `batch` is longer.
"""


def answer_rows(workloads: dict) -> list[str]:
    """Answers per second and verdicts of every contender, for every workload."""
    lines = [
        "| workload | contender | answers/s | Paceline is faster by | verdicts right | wrongly right |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for name, workload in workloads.items():
        work = f"`{name}`: {workload['answers']:,} answers, {workload['distinct']:,} of them different"
        for contender, one in workload["contenders"].items():
            if "rate" not in one:
                lines.append(f"| {work} | {title(contender)} | did not end: {one['error']} | | | |")
                continue
            rates_seen = [again["answers"] / again["seconds"] for again in one["repetitions"] if "error" not in again]
            factor = workload["paceline_faster_by"] if contender != "paceline" else None
            lines.append(
                f"| {work} | {title(contender)} | {one['rate']:,.0f} ({min(rates_seen):,.0f}-{max(rates_seen):,.0f}) | "
                f"{'' if factor is None else f'{factor:.1f}x'} | {one['right']:.1%} | {one['wrongly_right']:.1%} |"
            )
            work = ""
    return [*lines, ""]


def program_rows(workloads: dict) -> list[str]:
    """Programs per second of every contender."""
    lines = ["| contender | isolation | programs/s | Paceline is faster by |", "|---|---|--:|--:|"]
    for workload in workloads.values():
        for contender, one in workload["contenders"].items():
            if "rate" not in one:
                lines.append(f"| {title(contender)} | | did not run: {one['error']} | |")
                continue
            rates_seen = [again["programs"] / again["seconds"] for again in one["repetitions"]]
            factor = workload["paceline_faster_by"] if contender != "paceline" else None
            lines.append(
                f"| {title(contender)} | {one['start']['isolation']} | {one['rate']:,.0f} "
                f"({min(rates_seen):,.0f}-{max(rates_seen):,.0f}) | {'' if factor is None else f'{factor:.1f}x'} |"
            )
    return [*lines, ""]


def slow_rows(workloads: dict) -> list[str]:
    """Seconds of a batch with slow programs, by what they do."""
    lines = [
        "| slow programs | correct ones that kept their verdict | `timeout` | batch | programs | own | cut short |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {one['slow_programs']} {name} | {one['right']} of {one['right_programs']} | {one['timeout']:g} s | "
        f"{one['seconds']:.1f} s | {one['sandbox_seconds']:.1f} s | {one['own_seconds']:.2f} s | {one['cut_short']} |"
        for name, one in workloads.items()
    ]
    return [*lines, ""]
