"""The page's part about the cluster."""

from statistics import median

CLUSTER = """
## Sampling ahead of training

The embedded model on its task, one sampler and one trainer on Ray, one thread each. Sampling and scoring are slowed by
waiting to {ratio:g} times the length of an update in one process, as with an engine on a device of its own. `in turn`
is `--max-staleness 0`, `one step ahead` is 1, which at best turns s + u seconds into max(s, u).

`predicted` is simulated from the phases of {steps_timed} steps of another run in turn, made for each seed just before.
`first steps` are the same number of steps of the runs themselves, whose completions grow later. `off by` compares these
two. Figures are medians over seeds, with their range. Seconds are between the times of the files that a run writes.
Accuracy is of greedy answers to held-out problems, over all seeds.
"""


def cluster_rows(result: dict) -> list[str]:
    """Seconds, prediction and accuracy of both orders, and what they make of each other."""
    lines = [
        "| order | seconds per step | first steps | predicted | off by | completions/s | accuracy (95 % interval) |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for order, one in result["orders"].items():
        seconds = [run["seconds_per_step"] for run in one["runs"]]
        rate = median(run["completions_per_second"] for run in one["runs"])
        foreseen = [run["predicted_seconds_per_step"] for run in one["runs"]]
        first = [run["first_seconds_per_step"] for run in one["runs"]]
        errors = [ahead / measured - 1 for ahead, measured in zip(foreseen, first, strict=True)]
        lines.append(
            f"| {order} | {_middle(seconds, '.4f')} | {_middle(first, '.4f')} | {_middle(foreseen, '.4f')} | "
            f"{_middle(errors, '+.1%')} | {rate:,.0f} | {_percent(one['accuracy'])} |"
        )
    gains, difference = result["faster_by"], result["accuracy_difference"]
    return [
        *lines,
        "",
        f"One step ahead is {median(gains):.2f}x as fast ({min(gains):.2f}-{max(gains):.2f} over {len(gains)} seeds), "
        f"and its accuracy differs by {100 * difference['value']:+.1f} points ({100 * difference['low']:+.1f} to "
        f"{100 * difference['high']:+.1f}, paired by problem).",
        "",
    ]


def _middle(values: list[float], form: str) -> str:
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def _percent(interval: dict) -> str:
    return f"{100 * interval['value']:.1f} % ({100 * interval['low']:.1f}-{100 * interval['high']:.1f})"
