"""From the addresses of `--environment` to environments: built-in names, and code of the user's own.

Tools are put together into one environment, called `tools` if there are several; `NAME=ADDRESS` gives another name.
"""

import copy
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

from paceline.config.sampling import NAMED_ENVIRONMENT
from paceline.environments import Environment, EnvironmentSpec
from paceline.environments.parts import FLAG, AddressPart, Schemas, part_of
from paceline.environments.tools import ToolEnvironment
from paceline.errors import ConfigError

TOOLS = "tools"
"""Name of an environment of several tools."""
SEVERAL = "give several environments, or tools that belong apart, names: NAME=ADDRESS"


def specs(addresses: Sequence[str], *, sandbox: str = "auto") -> Mapping[str, EnvironmentSpec]:
    """Return the environments of a run by name.

    `sandbox` is the level of the sandbox in which `python` runs, where its address names none.

    Raises:
        ConfigError: an address leads nowhere, two environments or tools have one name, or a tool says too little.
    """
    grouped: dict[str, list[AddressPart]] = {}
    for name, parts in _groups(addresses, sandbox):
        if name in grouped:
            raise ConfigError(f"{FLAG}: two environments are called {name!r}", remedies=[SEVERAL])
        grouped[name] = parts
    return {name: _spec(name, parts, sandbox) for name, parts in grouped.items()}


class EnvironmentMaker:
    """Makes an environment in another process: by the addresses of its tools, or by its own."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, ...], list[AddressPart]] = {}

    def prepare(self, addresses: Sequence[str], sandbox: str) -> None:
        """Load what all episodes share: code of the user's own, as it is now, and indexes of documents."""
        for part in self._resolved(addresses, sandbox):
            part.prepare()

    def __call__(self, addresses: Sequence[str], sandbox: str) -> Environment:
        """Make the environment of one episode."""
        return _made(self._resolved(addresses, sandbox))

    def _resolved(self, addresses: Sequence[str], sandbox: str) -> list[AddressPart]:
        key = (sandbox, *addresses)
        if key not in self._parts:
            self._parts[key] = [part_of(address, sandbox) for address in addresses]
        return self._parts[key]


environment = EnvironmentMaker()
"""What `EnvironmentSpec.address` of code by name leads to."""


def _groups(addresses: Sequence[str], sandbox: str) -> Iterable[tuple[str, list[AddressPart]]]:
    """Yield name and parts of each environment: several parts are tools."""
    named: dict[str, list[AddressPart]] = {}
    unnamed = list[AddressPart]()
    for entry in addresses:
        match = NAMED_ENVIRONMENT.fullmatch(entry)
        part = part_of(match["address"] if match else entry, sandbox)
        if match:
            named.setdefault(match["name"], []).append(part)
        elif part.toolset is None:
            yield part.name, [part]
        else:
            unnamed.append(part)
    if unnamed:
        yield (unnamed[0].name if len(unnamed) == 1 else TOOLS), unnamed
    for name, parts in named.items():
        if len(parts) > 1 and any(part.toolset is None for part in parts):
            raise ConfigError(f"{FLAG}: {name!r} names an environment and something else", remedies=[SEVERAL])
        yield name, parts


def _made(parts: Sequence[AddressPart]) -> Environment:
    if parts[0].environment is not None:
        return parts[0].environment()
    return ToolEnvironment([part.toolset() for part in parts if part.toolset is not None])


def _spec(name: str, parts: Sequence[AddressPart], sandbox: str) -> EnvironmentSpec:
    schemas = tuple(copy.deepcopy(schema) for part in parts for schema in part.schemas())
    _check_names(name, schemas)
    own_process = any(part.own_process for part in parts)
    decides = [decisive for part in parts for decisive in (part.address, *part.decides)]
    settings = {key: value for part in parts for key, value in part.settings.items()}
    if schemas:
        settings = {"tools": ", ".join(schema["function"]["name"] for schema in schemas), **settings}
    return EnvironmentSpec(
        name=name,
        make=functools.partial(_made, parts),
        address=f"{__name__}:environment" if own_process else "",
        arguments={"addresses": [part.address for part in parts], "sandbox": sandbox} if own_process else {},
        tools=schemas,
        check=lambda: [part.prepare() for part in parts],  # here too, else the first calls would wait, and may be late
        is_instant=all(part.is_instant for part in parts),
        own_process=own_process,
        has_reward=any(part.has_reward for part in parts),
        digest=_digest([*decides, json.dumps(schemas)]),
        package=", ".join(dict.fromkeys(part.package for part in parts if part.package)),
        settings=settings,
    )


def _check_names(name: str, schemas: Schemas) -> None:
    names = [schema["function"]["name"] for schema in schemas]
    twice = next((tool for tool in names if names.count(tool) > 1), None)
    if twice is not None:
        raise ConfigError(f"{FLAG}: environment {name!r} has two tools called {twice!r}", remedies=[SEVERAL])


def _digest(decides: Iterable[str | bytes]) -> str:
    digest = blake2b(digest_size=16)
    for decisive in decides:
        data = decisive if isinstance(decisive, bytes) else decisive.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()
