"""One thread per test process: two processes with two threads each on two cores run many times slower.

No test asks the Hub: where it cannot be reached, its library tries again for a minute. PACELINE_TEST_DEVICE=cuda makes
models and tensors of the tests on a GPU: `benchmarks/gpu.sh` runs the laws so.
"""

import gc
import os
import signal
import tempfile
from collections import defaultdict
from collections.abc import Generator, Iterator
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
# Ray reads these once per process, whichever file imports it first; nodes that a test starts itself have the same
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", "0" * 64)

import pytest
import torch

from paceline import base_directory

# the record of code that was run is the user's own: tests have one each process, and leave that of the machine alone
STATE = tempfile.TemporaryDirectory(prefix="paceline-tests-")
os.environ["XDG_STATE_HOME"] = STATE.name
torch.set_num_threads(1)
if "PACELINE_TEST_DEVICE" in os.environ:
    torch.set_default_device(os.environ["PACELINE_TEST_DEVICE"])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as long all cases of a `sampled(n)` test but n of them, spread evenly."""
    cases = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("sampled"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for several in cases.values():
        (wanted,) = several[0].get_closest_marker("sampled").args
        kept = {index * len(several) // wanted for index in range(wanted)}
        for index, item in enumerate(several):
            if index not in kept:
                item.add_marker("long")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt what is loaded from garbage collection: it stays, and each full one would look through all of it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def no_base_is_held() -> Iterator[None]:
    """Leave no base directory to the next test: below an entry point, code holds it for the rest of the process."""
    yield
    base_directory._calls.clear()


@pytest.fixture
def heeded_signals() -> Iterator[None]:
    """Signals to stop as a terminal's programs have them: a shell may ignore some, a library handle some."""
    heeded = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    previous = {number: signal.signal(number, handler) for number, handler in heeded.items()}
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def ray_server() -> Iterator[None]:
    """A process that forks the workers of the clusters whose tests ask for `forked_workers`."""
    from tests.support.ray_server import ray_server

    with ray_server():
        yield


@pytest.fixture(scope="module")
def forked_workers(ray_server: None) -> Iterator[None]:
    """Clusters of this machine whose workers load nothing: what a cluster does is tested, not its processes' start."""
    from tests.support.ray_server import forked_workers

    with forked_workers():
        yield


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run of `tests.support.cluster_runs` in one process, a RunDir to compare others with; nobody changes it."""
    from tests.support.cluster_runs import train  # loads the whole library, which most tests do without

    return train(tmp_path_factory.mktemp("alone") / "alone")
