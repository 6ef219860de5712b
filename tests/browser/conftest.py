"""Pages in Debian's Chromium, as a reader opens them: what went wrong and what was asked for is collected.

Skipped where there is no Chromium or no playwright.
"""

import shutil
from dataclasses import dataclass, field

import pytest

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What the `page` of a test did beside being looked at."""

    errors: list[str] = field(default_factory=list)
    """Messages of the console at warning or above, and uncaught exceptions."""
    requests: list[str] = field(default_factory=list)
    """Addresses that were asked for, in order: the page itself is the first."""


# Of a module and no longer: while it lives, playwright's event loop counts as running in this thread, and tests of
# other files that start one of their own would fail.
@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium on this machine")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def seen():
    return Seen()


@pytest.fixture
def page(browser, seen):
    """A window of 1280 by 800 that remembers nothing of other tests."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light")
    page = context.new_page()
    page.set_default_timeout(5000)
    page.on("console", lambda said: seen.errors.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("request", lambda request: seen.requests.append(request.url))
    yield page
    context.close()
