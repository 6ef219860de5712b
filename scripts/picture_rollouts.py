"""Pictures of the page of `paceline rollouts` for docs/images: needs Playwright and a Chromium.

paceline train --eval-steps 10 --output-dir runs/pictured
paceline replay runs/pictured --step 30 --tokens
python scripts/picture_rollouts.py runs/pictured 30
"""

import sys
import threading
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from paceline.reports.viewer.documents import Documents
from paceline.reports.viewer.serving import PageServer

CHROMIUM = "/usr/bin/chromium"
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync")
IMAGES = Path(__file__).parent.parent / "docs" / "images"


def main(run: Path, step: int) -> None:
    with PageServer(Documents(run), 0) as server, sync_playwright() as playwright:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        light = browser.new_page(viewport={"width": 1280, "height": 760}, color_scheme="light")
        _open(light, server.url)
        light.screenshot(path=IMAGES / "rollouts-list.png")
        _open_group(light, step)
        light.select_option("#colour", "change")
        _point(light)
        light.screenshot(path=IMAGES / "rollouts-group.png")
        dark = browser.new_page(viewport={"width": 1280, "height": 760}, color_scheme="dark")
        _open(dark, server.url)
        dark.select_option("#set", index=1)
        dark.select_option("#order", "newest")
        dark.keyboard.press("Escape")
        dark.keyboard.press("Enter")
        dark.select_option("#other-step", index=1)
        dark.locator(".difference").wait_for()
        dark.screenshot(path=IMAGES / "rollouts-difference.png")
        narrow = browser.new_page(viewport={"width": 400, "height": 760}, color_scheme="light")
        _open(narrow, server.url)
        narrow.click("#more > summary")
        _open_group(narrow, step)
        _point(narrow)
        narrow.screenshot(path=IMAGES / "rollouts-narrow.png")
        browser.close()
        server.shutdown()


def _open(page: Page, url: str) -> None:
    page.goto(url)
    page.locator("html[data-ready]").wait_for()
    page.locator(".row .line", has_not_text="…").first.wait_for()


def _open_group(page: Page, step: int) -> None:
    page.fill("#step-from", str(step))
    page.fill("#step-to", str(step))
    page.select_option("#order", "advantage")
    page.locator(".row").first.get_by_text(f"step {step}", exact=True).wait_for()
    page.locator(".row").first.click()
    page.locator(".card").first.wait_for()


def _point(page: Page) -> None:
    page.locator(".card.own .token").nth(3).hover()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
