"""The page's part about what `paceline plan` says of memory."""

from collections.abc import Mapping

HEAD = ["| run | measured | planned | off by |", "|---|--:|--:|--:|"]


def plan_rows(cases: Mapping[str, Mapping]) -> list[str]:
    """A line for each run."""
    return [
        f"| {name} | {one['measured'] / 2**20:,.0f} MiB | {one['planned']['peak'] / 2**20:,.0f} MiB "
        f"| {one['off']:+.1%} |"
        for name, one in cases.items()
    ]
