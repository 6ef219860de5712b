"""Entry point, started as `python DIRECTORY`: names this directory without running the package around it."""

import os
import sys
import types


def name_packages() -> None:
    """Make `paceline.sandbox.inside` importable; `paceline` and `paceline.sandbox` stay empty modules."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.remove(sys.path[0])
    for name, path in (("paceline", None), ("paceline.sandbox", os.path.dirname(here))):
        package = types.ModuleType(name)
        package.__path__ = [path] if path else []
        sys.modules[name] = package


if __name__ == "__main__":
    name_packages()
    from paceline.sandbox.inside.monitor import main

    main()
