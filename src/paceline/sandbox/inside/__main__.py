"""Entry point, started as `python DIRECTORY`: names this directory without running the package around it."""

import os
import sys
import types


def name_packages() -> None:
    """Make the files of `paceline.sandbox.inside` and `paceline.processes` importable; the packages stay empty."""
    sandbox = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.remove(sys.path[0])
    paths = {
        "paceline": None,
        "paceline.sandbox": sandbox,
        "paceline.processes": os.path.join(os.path.dirname(sandbox), "processes"),
    }
    for name, path in paths.items():
        package = types.ModuleType(name)
        package.__path__ = [path] if path else []
        sys.modules[name] = package


if __name__ == "__main__":
    name_packages()
    from paceline.sandbox.inside.monitor import main

    main()
