"""report.html as its reader meets it: in a browser, from a file, by pointer and by keys."""

import json
import re

import pytest

from paceline.reports.page.html import write_report
from tests.unit.reports.synthetic_run import write_synthetic_run

STEPS = 30


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "plums"
    write_synthetic_run(path, steps=STEPS, eval_every=5, tasks=60, prompts=4)
    write_report(path)
    return path


@pytest.fixture
def report(page, run):
    page.goto((run / "report.html").as_uri())
    return page


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def chart(page, title):
    heading = re.compile(f"^{re.escape(title)}( |$)")  # its unit follows
    return page.locator("figure", has=page.locator("h3", has_text=heading))


def plot(page, title):
    return chart(page, title).locator(".plot > svg:visible")


def column(page, title, step, first=1, last=STEPS):
    """Pixels from the drawing's left edge at which a step stands."""
    svg = plot(page, title)
    left, right = json.loads(svg.get_attribute("data-frame"))[:2]
    scale = svg.bounding_box()["width"] / svg.evaluate("svg => svg.viewBox.baseVal.width")
    return scale * (left + (step - first) / (last - first) * (right - left))


def drag(page, title, first, last):
    svg = plot(page, title)
    svg.scroll_into_view_if_needed()
    box = svg.bounding_box()
    page.mouse.move(box["x"] + column(page, title, first), box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + column(page, title, last), box["y"] + 60, steps=3)
    page.mouse.up()


def test_the_page_opens_without_an_error_and_asks_for_nothing_but_itself(report, run, seen):
    assert report.get_by_role("heading", level=1).inner_text() == "plums"
    for fold in report.locator("details > summary").all():
        fold.click()
    assert report.locator("details:not([open])").count() == 0
    assert report.get_by_text("paceline rollouts").is_visible()
    assert seen.errors == []
    assert seen.requests == [(run / "report.html").as_uri()]


def test_the_pointer_shows_the_numbers_of_metrics_jsonl(report, run):
    record = metrics(run)[16]
    for title, value in (("Entropy", record["entropy"]), ("Training reward", record["reward_mean"])):
        plot(report, title).hover(position={"x": column(report, title, 17), "y": 50})
        shown = chart(report, title).get_by_role("status").inner_text().splitlines()
        assert shown[0] == "step 17"
        assert float(shown[1].removeprefix("each step ").replace("\N{MINUS SIGN}", "-")) == float(f"{value:.6g}")
    crosses = report.locator(".plot > svg:visible > .cross").evaluate_all("all => all.map(x => x.style.visibility)")
    assert set(crosses) == {"visible"}  # one cursor in all charts


def test_dragging_over_a_chart_narrows_all_of_them_and_the_button_widens_them_again(report):
    before = plot(report, "Gradient norm").locator(".axes").inner_html()
    drag(report, "Entropy", 10.5, 20.5)
    assert report.locator("#range").inner_text() == f"steps 11 to 20 of {STEPS}"
    labels = plot(report, "Gradient norm").locator("text.mid").all_text_contents()
    assert len(labels) >= 2
    assert all(11 <= int(label) <= 20 for label in labels)
    moved = plot(report, "Gradient norm").locator(".data").get_attribute("transform")
    # 29 steps lay where 10 lie now
    assert report.evaluate("moved => new DOMMatrix(moved.replace(/ /g, ',')).a", moved) == pytest.approx(2.9, rel=0.02)
    report.get_by_role("button", name="Show all steps").click()
    assert plot(report, "Gradient norm").locator(".axes").inner_html() == before
    assert report.get_by_role("button", name="Show all steps").is_disabled()


def test_a_double_click_shows_all_steps_again(report):
    drag(report, "Entropy", 10, 20)
    assert report.get_by_role("button", name="Show all steps").is_enabled()
    plot(report, "Entropy").dblclick(position={"x": 120, "y": 60})
    assert report.locator("#range").inner_text() == f"all steps, to {STEPS}"


def test_everything_a_pointer_does_keys_do_too(report, run):
    svg = plot(report, "Entropy")
    svg.focus()
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowLeft"):
        report.keyboard.press(key)
    shown = chart(report, "Entropy").get_by_role("status")
    value = float(f"{metrics(run)[1]['entropy']:.6g}")
    assert shown.inner_text().splitlines()[:2] == ["step 2", f"each step {value:g}"]
    report.keyboard.press("End")
    assert shown.inner_text().startswith(f"step {STEPS}\n")
    report.keyboard.press("+")
    assert report.locator("#range").inner_text() == f"steps 15 to {STEPS} of {STEPS}"  # half of 0 to 30
    report.keyboard.press("-")
    assert report.locator("#range").inner_text() == f"all steps, to {STEPS}"
    report.keyboard.press("+")
    report.keyboard.press("Escape")
    assert report.locator("#range").inner_text() == f"all steps, to {STEPS}"
    report.keyboard.press("Tab")
    assert shown.is_hidden()


def test_the_tab_key_reaches_the_controls_in_the_order_of_the_page_and_shows_where_it_is(report):
    report.keyboard.press("Tab")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert report.evaluate("document.activeElement.id") == "theme"  # the other one does nothing yet
    assert report.evaluate(outline) != "none"
    report.keyboard.press("Tab")
    assert report.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Accuracy on held-out tasks")
    assert report.evaluate(outline) != "none"


def test_the_theme_is_that_of_the_system_until_the_button_says_otherwise(report):
    def paper():
        return report.evaluate("getComputedStyle(document.body).backgroundColor")

    light, theme = paper(), report.locator("#theme")
    theme.click()
    assert (theme.inner_text(), paper()) == ("Theme: light", light)
    theme.click()
    assert theme.inner_text() == "Theme: dark"
    assert paper() != light
    theme.click()
    report.emulate_media(color_scheme="dark")
    assert theme.inner_text() == "Theme: system"
    assert paper() != light


def test_a_narrow_window_scrolls_down_only(report):
    report.set_viewport_size({"width": 400, "height": 800})
    for fold in report.locator("details > summary").all():
        fold.click()
    assert report.evaluate("document.documentElement.scrollWidth") == 400
    plot(report, "Entropy").hover(position={"x": 300, "y": 50})
    assert report.evaluate("document.documentElement.scrollWidth") == 400


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_ground(report, scheme):
    """WCAG 2.1, 1.4.3: a contrast of 4.5 to 1; 3 to 1 where it is large."""
    report.emulate_media(color_scheme=scheme)
    faint = report.evaluate("""() => {
      const light = (c) => c.slice(0, 3).map((v) => v / 255)
        .map((v) => (v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4))
        .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
      const parts = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
      const ground = (e) => { for (; e; e = e.parentElement) { const c = parts(getComputedStyle(e).backgroundColor);
        if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
      const found = [];
      for (const e of document.querySelectorAll("body *")) {
        const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
        if (!own || e.closest("svg, script, [disabled]") || !e.getClientRects().length) continue;
        const style = getComputedStyle(e), [a, b] = [light(parts(style.color)), light(ground(e))];
        const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
        const least = parseFloat(style.fontSize) >= 24 ? 3 : 4.5;
        if (contrast < least) found.push(`${e.className} ${contrast.toFixed(2)}`);
      }
      return [...new Set(found)];
    }""")
    assert faint == []


def test_ten_thousand_steps_are_painted_in_two_seconds(browser, page, tmp_path, run, seen):
    long = tmp_path / "long"
    long.mkdir()
    (long / "config.yaml").write_text((run / "config.yaml").read_text())
    rows = metrics(run)
    with (long / "metrics.jsonl").open("w") as stream:
        stream.writelines(json.dumps(rows[step % STEPS] | {"step": step}) + "\n" for step in range(1, 10_001))
    report = write_report(long)
    assert report.stat().st_size < 1_500_000
    painted = "new Promise((done) => new PerformanceObserver((seen) => done(seen.getEntries()[0].startTime))"
    painted += ".observe({ type: 'paint', buffered: true }))"
    page.goto(report.as_uri())
    times = [page.evaluate(painted)]
    for _ in range(2):  # the best of three: what else runs can only delay it
        with browser.new_context(viewport=page.viewport_size, color_scheme="light") as context:
            fresh = context.new_page()
            fresh.goto(report.as_uri())
            times.append(fresh.evaluate(painted))
    assert min(times) < 2000
    plot(page, "Entropy").hover(position={"x": 150, "y": 50})
    shown = chart(page, "Entropy").get_by_role("status").inner_text().splitlines()
    assert shown[0].startswith("steps ")
    assert " to " in shown[0]
    assert shown[1].startswith("each step ")
    assert " (" in shown[1]  # the least and the greatest of the steps that share the point
    assert seen.errors == []
