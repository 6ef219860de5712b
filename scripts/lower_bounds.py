"""Print the lower bounds that pyproject.toml declares, as exact versions for pip: `lower_bounds.py NAME ...`.

Of the package and of its extras; an upper bound and a dependency without a lower one are left out.
"""

import re
import sys
import tomllib
from pathlib import Path

BOUND = re.compile(r"(?P<name>[\w.-]+)(?:\[[^\]]*\])?>=(?P<version>[\w.]+)")


def lower_bounds(text: str) -> dict[str, str]:
    """Each dependency's least version, by name.

    >>> lower_bounds('[project]\\ndependencies = ["torch>=2.11", "x[a]>=1.0,<2"]')
    {'torch': '2.11', 'x': '1.0'}
    """
    project = tomllib.loads(text)["project"]
    extras = [one for several in project.get("optional-dependencies", {}).values() for one in several]
    found = [BOUND.match(one) for one in (*project["dependencies"], *extras)]
    return {one["name"]: one["version"] for one in found if one is not None}


if __name__ == "__main__":
    bounds = lower_bounds((Path(__file__).parent.parent / "pyproject.toml").read_text())
    print(*(f"{name}=={bounds[name]}" for name in sys.argv[1:]))
