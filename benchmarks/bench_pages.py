"""How long a reader waits for the page of `paceline rollouts` on a large run: 100,000 completions by default.

    python benchmarks/bench_pages.py [--steps 500] [--groups 25] [--repetitions 5] [--quick]

A made-up run is written with `--groups` groups of 8 completions per step, of 120 tokens on average, then read as the
command reads it, served, and opened in a new window of Chromium each time:

| number         | what it is                                                                                      |
|----------------|-------------------------------------------------------------------------------------------------|
| read           | from the start of the command to its address: every file read, all columns made                 |
| first paint    | from the navigation to the frame after the one in which the first rows stand, with their numbers |
| filter         | from a change of a filter to the frame after the one in which the list is another                |
| frame          | the longest of 120 frames in which the list scrolls by 2,000 rows each                           |
| search         | a text in all completions and prompts, to its end                                                |
| open           | from a click to the frame after the one in which a group's tokens stand in their colours         |

`first paint` of the exported directory, opened from disk, stands beside the server's. Needs Playwright and a Chromium.
"""

import argparse
import base64
import json
import random
import shutil
import statistics
import tempfile
import threading
import time
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path

from measuring import machine
from playwright.sync_api import Browser, Page, sync_playwright
from running import RESULTS, write_result

from paceline.checkpoints.run_directory import RunDir
from paceline.reports.viewer.documents import Documents
from paceline.reports.viewer.serving import PageServer, export

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync")
GROUP = 8
FRAMES = """() => new Promise((done) => {
  const box = document.getElementById("list"), times = [];
  let last = performance.now();
  const next = (now) => {
    times.push(now - last);
    last = now;
    box.scrollTop += 2000 * 56;
    if (times.length === 121) done(Math.max(...times.slice(1)));
    else requestAnimationFrame(next);
  };
  requestAnimationFrame(next);
})"""
PAINTED = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(performance.now()), 0)))"
FILTER = """() => new Promise((done) => {
  const began = performance.now(), box = document.getElementById("finish");
  box.value = "length";
  box.dispatchEvent(new Event("input", { bubbles: true }));
  const before = document.getElementById("count").textContent;
  const look = () => document.getElementById("count").textContent === before ? setTimeout(look, 0)
    : requestAnimationFrame(() => setTimeout(() => done(performance.now() - began), 0));
  look();
})"""


def write_run(place: Path, *, steps: int, groups: int) -> int:
    """A run of `steps` steps; its bytes of rollouts."""
    draw = random.Random(0)
    run = RunDir.create(place, "model: embedded\n")
    for step in range(1, steps + 1):
        run.write_rollouts(step, _records(draw, step, groups))
    run.close()
    return sum(file.stat().st_size for file in place.glob("rollouts/*.jsonl"))


def _records(draw: random.Random, step: int, groups: int) -> Iterator[Mapping[str, object]]:
    for group in range(groups):
        question = f"{draw.randint(10, 99)} plums and {draw.randint(10, 99)} figs: how many pieces of fruit are there?"
        for sample in range(GROUP):
            words = draw.randint(20, 100)
            tokens = [draw.randint(262, 420) for _ in range(2 * words)]
            logprobs = base64.b64encode(array("f", [-draw.random() for _ in tokens]).tobytes()).decode()
            right = draw.random() < step / 500
            yield {
                "task_id": f"rows.jsonl:{(step * groups + group) % 9000}",
                "sample": sample,
                "prompt": f"<|user|>{question}<|end|><|assistant|>",
                "answer": str(group),
                "completion": " ".join(draw.choice(("we", "add", "plums", "figs", "then", "so")) for _ in range(words)),
                "prompt_tokens": 24,
                "completion_tokens": len(tokens),
                "rewards": {"accuracy": float(right), "format": draw.random()},
                "reward": float(right),
                "notes": {},
                "advantage": draw.gauss(0, 1),
                "finish_reason": "length" if words > 95 else "stop",
                "policy_version": step - 1,
                "weight_changes": [],
                "dropped": None,
                "token_ids": tokens,
                "logprobs": {"float32": logprobs},
            }


def first_paint(browser: Browser, url: str) -> tuple[Page, float]:
    """A new window with the page, and the milliseconds from its navigation to its first rows."""
    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    page.add_init_script(
        "new MutationObserver((_, watch) => { if (document.querySelector('.row')) { watch.disconnect(); "
        "requestAnimationFrame(() => setTimeout(() => { window.painted = performance.now(); }, 0)); } })"
        ".observe(document, { childList: true, subtree: true });"
    )
    page.goto(url)
    page.locator("html[data-ready]").wait_for()
    page.evaluate(PAINTED)
    return page, page.evaluate("() => window.painted")


def looked_at(browser: Browser, url: str) -> dict[str, float]:
    """Every number of one window, in milliseconds."""
    page, painted = first_paint(browser, url)
    filtered = page.evaluate(FILTER)
    page.click("#clear")
    frame = page.evaluate(FRAMES)
    began = time.perf_counter()
    page.fill("#search", "figs we add plums then")
    page.locator("#count").get_by_text("with this text, ").filter(has_not_text=" of ").wait_for(timeout=120_000)
    searched = 1000 * (time.perf_counter() - began)
    page.click("#clear")
    page.evaluate("() => { document.getElementById('list').scrollTop = 0; }")
    began = time.perf_counter()
    page.locator(".row").first.click()
    page.locator(".card .token").first.wait_for()
    page.evaluate(PAINTED)
    opened = 1000 * (time.perf_counter() - began)
    page.context.close()
    return {"first_paint": painted, "filter": filtered, "frame": frame, "search": searched, "open": opened}


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def measure(folder: Path, *, steps: int, groups: int, repetitions: int) -> dict[str, object]:
    run, out = folder / "run", folder / "pages"
    written = write_run(run, steps=steps, groups=groups)
    began = time.perf_counter()
    documents = Documents(run)
    read = time.perf_counter() - began
    began = time.perf_counter()
    index = len(json.dumps(documents.get("index"), separators=(",", ":")))
    indexed = time.perf_counter() - began
    began = time.perf_counter()
    page = export(documents, out)
    exported = time.perf_counter() - began
    with PageServer(documents, 0) as server, sync_playwright() as playwright:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        looks = [looked_at(browser, server.url) for _ in range(repetitions)]
        from_disk = [looked_at(browser, f"file://{page}") for _ in range(repetitions)]
        version = browser.version
        browser.close()
        server.shutdown()
    return {
        "completions": steps * groups * GROUP,
        "rollouts_mib": written / 2**20,
        "index_mib": index / 2**20,
        "read_seconds": read,
        "index_seconds": indexed,
        "export_seconds": exported,
        "export_mib": sum(file.stat().st_size for file in out.rglob("*") if file.is_file()) / 2**20,
        "chromium": version,
        "milliseconds": {
            kind: {name: spread([look[name] for look in all_looks]) for name in all_looks[0]}
            for kind, all_looks in (("server", looks), ("files", from_disk))
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--groups", type=int, default=25)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="2,000 completions, twice; no result file")
    given = parser.parse_args()
    steps, repetitions = (10, 2) if given.quick else (given.steps, given.repetitions)
    described = machine(0)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), steps=steps, groups=given.groups, repetitions=repetitions)
    result = {"benchmark": "pages", "size": "rollouts", "machine": described, "repetitions": repetitions, **found}
    print(json.dumps(result, indent=2))
    if not given.quick:
        write_result(RESULTS, result)


if __name__ == "__main__":
    main()
