"""Make docs/images/report-*.png from a run's page in Chromium: `python scripts/screenshot_report.py runs/mine`."""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from paceline.reports.page.html import write_report

IMAGES = Path(__file__).parent.parent / "docs" / "images"
SHOTS = {
    "wide": {"viewport": {"width": 1180, "height": 1180}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1180, "height": 1180}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 400, "height": 1180}, "color_scheme": "light"},
}


def shoot(browser: Browser, page: Path, name: str) -> Path:
    """One picture of the top of the page, the pointer on the middle of its first chart."""
    context = browser.new_context(**SHOTS[name])
    tab = context.new_page()
    tab.goto(page.resolve().as_uri())
    tab.locator(".plot > svg:visible").first.hover()
    image = IMAGES / f"report-{name}.png"
    tab.screenshot(path=image)
    context.close()
    return image


def main() -> None:
    page = write_report(Path(sys.argv[1]))
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name in SHOTS:
            print(shoot(browser, page, name))
        browser.close()


if __name__ == "__main__":
    main()
