"""A program's function, loaded where its endpoint is in the environment: a client that it makes at import asks there.

| while it is loaded, the file | it is loaded                                                                     |
|------------------------------|----------------------------------------------------------------------------------|
| reads none of the variables  | once, for all episodes                                                           |
| reads one, to make a client  | in each episode's process too, with the modules of the user's own that it needs  |

Where there is no episode yet, the variables lead to an endpoint that refuses every question, never to the user's own.
"""

import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from typing_extensions import override

from paceline.errors import ConfigError
from paceline.openai_api.endpoint import Endpoint, Pending
from paceline.openai_api.requests import Refusal
from paceline.runtime.own_code import own_function

ADDRESSES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
KEY = "OPENAI_API_KEY"
VARIABLES = (*ADDRESSES, KEY)
"""Variables that clients of OpenAI's interface read: address and key of the endpoint."""
NO_EPISODE = "no conversation has begun while the file is loaded; ask the model within the function"
INSTALLED = {"site-packages", "dist-packages"}
"""Names of directories that packages are installed in."""


def endpoint_variables(base_url: str, key: str) -> dict[str, str]:
    """Return the variables by which a program finds an endpoint of this machine, past any proxy."""
    here = f"{os.environ.get('NO_PROXY', '')},127.0.0.1,localhost".lstrip(",")
    return {**dict.fromkeys(ADDRESSES, base_url), KEY: key, "NO_PROXY": here, "no_proxy": here}


class _Watched(type(os.environ)):  # type: ignore[misc]
    """The process's variables while a program's file is loaded: they note who asks for `VARIABLES`, and keep them."""

    was_read = False

    @override
    def __getitem__(self, key: str) -> str:
        if key in VARIABLES:
            _Watched.was_read = True
        return str(super().__getitem__(key))

    @override
    def __setitem__(self, key: str, value: str) -> None:
        if key not in VARIABLES:
            super().__setitem__(key, value)

    @override
    def __delitem__(self, key: str) -> None:
        if key not in VARIABLES:
            super().__delitem__(key)


def keep_variables() -> None:
    """Let no code of this process write `VARIABLES` any more, such as a `.env` file that is read over them."""
    os.environ.__class__ = _Watched


@contextmanager
def _leading_to(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables, and note whether `VARIABLES` are read; all are as before afterwards."""
    before, plain = {name: os.environ.get(name) for name in variables}, os.environ.__class__
    os.environ.update(variables)
    _Watched.was_read, os.environ.__class__ = False, _Watched
    try:
        yield
    finally:
        os.environ.__class__ = plain
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class AgentProgram:
    """A function that plays an episode against an endpoint."""

    def __init__(self, target: str, *, flag: str) -> None:
        """Load `file.py:function` or `module:function`.

        Raises:
            ConfigError: there is none, or it cannot be loaded.
        """
        self._target, self._flag = target, flag
        known = set(sys.modules)
        endpoint = Endpoint(refuse_all)
        endpoint.start()
        try:
            with _leading_to(endpoint_variables(endpoint.base_url, endpoint.key)):
                self.function = own_function(target, flag=flag, error=ConfigError)
        finally:
            endpoint.close()
        where = target.rpartition(":")[0]
        package = "" if where.endswith(".py") else where.partition(".")[0]
        loaded = [(name, module) for name, module in sys.modules.items() if name not in known]
        users = [name for name, module in loaded if _is_users(module, name.partition(".")[0], package)]
        self._loaded_again = users if _Watched.was_read else []
        # whoever else loads the file in this process, for a reward function of it, has the user's own key
        if any(name in os.environ for name in VARIABLES):
            self._forget()

    def load(self) -> Callable[..., Any]:
        """Return the function in an episode's process, whose variables lead to its endpoint.

        Raises:
            ConfigError: it cannot be loaded there.
        """
        if not self._loaded_again:
            return self.function
        self._forget()
        return own_function(self._target, flag=self._flag, error=ConfigError)

    def _forget(self) -> None:
        for name in self._loaded_again:
            sys.modules.pop(name, None)


def refuse_all(pending: Pending) -> None:
    """Refuse a request while there is no episode."""
    raise Refusal(NO_EPISODE, code="no_episode")


def _is_users(module: ModuleType, top: str, package: str) -> bool:
    """Return True for a module of source that is the user's own: of the program's package, or not installed."""
    spec = getattr(module, "__spec__", None)
    if spec is None or top == "paceline":
        return False
    origins = [spec.origin] if isinstance(spec.loader, SourceFileLoader) else []
    if spec.origin is None:  # a directory without __init__.py, which holds on to the modules in it
        origins = list(spec.submodule_search_locations or ())
    if not origins:
        return False
    path = Path(str(origins[0])).resolve()
    is_installed = path.is_relative_to(sysconfig.get_path("stdlib")) or not INSTALLED.isdisjoint(path.parts)
    return top == package or not is_installed
