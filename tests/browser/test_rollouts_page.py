"""The page of `paceline rollouts` in a browser: what it shows, what every control does, and what it never does."""

import math
import re
import threading
from contextlib import contextmanager

import pytest
from PIL import Image

from paceline.data.pictures import PictureStore
from paceline.reports.viewer.documents import Documents
from paceline.reports.viewer.serving import PageServer, export
from tests.unit.reports.viewed_runs import HOSTILE, hostile_run, paid, rollout, write_run, write_tokens


@contextmanager
def served(path):
    with PageServer(Documents(path), 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.url
        server.shutdown()
        thread.join(10)


@pytest.fixture(scope="module")
def varied(tmp_path_factory):
    """Four steps of three groups of four, of which a test can count everything."""
    steps = {
        step: [
            (paid if sample < task else rollout)(
                task,
                sample,
                f"step {step}, sample {sample}: the answer is {'ä' * sample} {task + step}",
                finish_reason="length" if sample == 2 else "stop",
                dropped="filtered" if task == 3 else None,
                **({"rewards": {"accuracy": float(sample < task), "mine": float(sample)}} if step == 4 else {}),
            )
            for task in (1, 2, 3)
            for sample in range(4)
        ]
        for step in (1, 2, 3, 4)
    }
    run = write_run(tmp_path_factory.mktemp("varied") / "run", steps, {0: 0.0, 4: 1.0})
    write_tokens(run, 4)
    return run


@pytest.fixture(scope="module")
def address(varied):
    with served(varied.path) as url:
        yield url


@pytest.fixture
def opened(page, address):
    """The page of the varied run, watched for errors and for requests to anywhere else."""
    with watched(page, address.rsplit("/", 2)[0]):
        go(page, address)
        yield page


@contextmanager
def watched(page, origin):
    faults = []
    page.on("console", lambda message: faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: faults.append(request.url) if not own(request.url, origin) else None)
    yield
    assert faults == []


def own(url, origin):
    return url.startswith((origin, "data:,", "data:image/png;base64,"))


def go(page, url):
    page.goto(url)
    page.locator("html[data-ready]").wait_for()


def counted(page, sentence):
    """Wait for the page to say so; a number is not the end of a larger one."""
    page.locator("#count").get_by_text(re.compile("^" + re.escape(sentence))).wait_for()


@pytest.mark.parametrize("kind", ["server", "files"])
def test_hostile_texts_are_shown_as_they_are_and_nothing_is_fetched_from_elsewhere(page, tmp_path, kind):
    run = hostile_run(tmp_path / "run")
    with served(run.path) as url:
        if kind == "files":
            url = f"file://{export(Documents(run.path), tmp_path / 'out')}"
        with watched(page, url.rsplit("/", 1)[0]):
            go(page, f"{url}#rollouts-000001/0/1")
            page.locator(".card").nth(len(HOSTILE) - 1).wait_for()
            texts = page.locator(".card pre").evaluate_all("(nodes) => nodes.map((node) => node.textContent)")
            tokens = run.rollouts(1)[0]["token_ids"]
            assert page.locator(".card").first.locator(".token").count() == len(tokens)
            assert page.title() == "run · rollouts"
            assert page.locator("img").count() == 0
            page.keyboard.press("Escape")
            page.fill("#search", "</SCRIPT><img")
            counted(page, "1 with this text")
            assert page.locator(".row .line").text_content() == " ".join(HOSTILE[1].split())
            assert len(texts) == len(HOSTILE)


@pytest.mark.parametrize("kind", ["server", "files"])
def test_images_of_a_prompt_stand_before_it_as_small_copies_from_the_run_alone(page, tmp_path, kind):
    store = PictureStore()
    picture = store.add(Image.new("RGB", (512, 384), (200, 30, 30)))
    named = [{"sha256": name, "start": 0, "length": 9} for name in (picture.sha256, "0" * 64)]
    run = write_run(tmp_path / "run", {1: [rollout(1, 0, "red", images=named)]})
    run.write_images(store, [picture.sha256])
    with served(run.path) as url:
        if kind == "files":
            url = f"file://{export(Documents(run.path), tmp_path / 'out')}"
        with watched(page, url.rsplit("/", 1)[0]):
            go(page, f"{url}#rollouts-000001/0/0")
            page.locator(".images img").wait_for()
            sizes = page.locator(".images img").evaluate_all(
                "(nodes) => nodes.map((node) => [node.naturalWidth, node.naturalHeight])"
            )
            assert sizes == [[256, 192]]
            captions = page.locator(".images figcaption").all_text_contents()
            assert captions == ["image 1, 9 tokens, 512 \u00d7 384", "image 2, 9 tokens"]
            page.locator(".images .note").get_by_text("is missing in the run's directory").wait_for()


def test_texts_without_tokens_are_the_recorded_ones(page, tmp_path):
    old = [{**rollout(1, at, text), "token_ids": None} for at, text in enumerate(HOSTILE)]
    run = write_run(tmp_path / "run", {1: old})
    with served(run.path) as url, watched(page, url.rsplit("/", 2)[0]):
        go(page, f"{url}#rollouts-000001/0/0")
        page.locator(".card").last.wait_for()
        texts = page.locator(".card pre").evaluate_all("(nodes) => nodes.map((node) => node.textContent)")
        # what UTF-8 has no bytes for reaches a text node as the escape that the run has written
        assert texts == list(HOSTILE)


FILTERS = (
    *(("#step-from", "2", 36), ("#step-to", "1", 12), ("#finish", "length", 12), ("#dropped", "no", 16)),
    *(("#dropped", "yes", 32), ("#dropped", "because filtered", 16), ("#reward-from", "1", 24)),
    *(("#reward-to", "0.5", 24), ("#judge", "mine", 12), ("#set", "held:out", 2), ("#set", "", 50)),
    *(("#rule", "cut off", 4), ("#rule", "marked", 4), ("#search", "STEP 3, SAMPLE 2", 3), ("#search", "is 3 + 1", 16)),
)


def test_each_filter_leaves_what_it_says_and_clearing_it_brings_all_back(opened):
    for control, value, left in FILTERS:
        is_choice = control in ("#finish", "#dropped", "#judge", "#set", "#rule")
        opened.select_option(control, value) if is_choice else opened.fill(control, value)
        counted(opened, f"{left} with this text, 48" if control == "#search" else f"{left} of 50 completions")
        opened.click("#clear")
        counted(opened, "48 of 50 completions")


def test_filters_hold_together_and_a_range_is_of_the_function_that_is_chosen(opened):
    opened.select_option("#judge", "mine")
    opened.fill("#reward-from", "2")
    counted(opened, "6 of 50 completions")
    opened.select_option("#finish", "stop")
    counted(opened, "3 of 50 completions")
    opened.fill("#search", "nowhere to be found")
    counted(opened, "0 with this text, 3 searched")
    assert opened.locator("#nothing").is_visible()


def test_the_list_can_be_ordered(opened):
    orders = {"file": "step 1#0", "newest": "step 4#0", "high": "step 1#0", "low": "step 1#1", "advantage": "step 1#0"}
    orders |= {"long": "step 1#3", "short": "step 1#0", "suspicious": "step 1#2"}
    assert (
        opened.locator("#order option").evaluate_all("(all) => all.map((one) => one.value)").sort() == [*orders].sort()
    )
    for order, first in orders.items():
        opened.select_option("#order", order)
        opened.locator(".row").first.locator(".place", has_text=re.compile(f"^{first}$")).wait_for()


def test_suspicious_ones_come_first_with_the_rule_that_holds(opened):
    assert opened.locator(".row").first.locator(".rule").all_text_contents() == ["cut off"]
    opened.keyboard.press("Enter")
    assert "cut off: well paid although it was cut" in opened.locator(".card.own .why.rule").text_content()


def test_everything_can_be_reached_by_keys(opened):
    opened.keyboard.press("j")
    opened.keyboard.press("ArrowDown")
    opened.keyboard.press("k")
    assert opened.locator(".row[aria-selected=true]").get_attribute("data-at") == "1"
    opened.keyboard.press("Enter")
    opened.locator(".card.own").wait_for()
    before = opened.url
    opened.keyboard.press("j")
    opened.wait_for_url(lambda url: url != before)
    opened.keyboard.press("Escape")
    assert opened.locator("#detail").is_hidden()
    opened.keyboard.press("End")
    assert opened.locator(".row[aria-selected=true]").get_attribute("data-at") == "47"
    opened.keyboard.press("Home")
    opened.keyboard.press("/")
    opened.keyboard.type("sample 1")
    counted(opened, "12 with this text")
    opened.keyboard.press("Escape")
    opened.keyboard.press("?")
    assert opened.locator("#help").is_visible()
    assert "proves nothing" in opened.locator("#help").text_content()
    opened.keyboard.press("Escape")
    assert opened.locator("#help").is_hidden()


def test_the_buttons_do_what_the_keys_do(opened):
    opened.locator(".row").nth(1).click()
    opened.locator(".card.own").wait_for()
    opened.get_by_title("the next one (j)").click()
    opened.get_by_title("the one before (k)").click()
    assert opened.locator(".row[aria-selected=true]").get_attribute("data-at") == "1"
    opened.get_by_title("back to the list (Esc)").click()
    assert opened.locator("#detail").is_hidden()
    opened.click("#keys")
    opened.locator("#help button").click()
    assert opened.locator("#help").is_hidden()


def test_why_a_completion_was_dropped_is_a_sentence(opened):
    opened.select_option("#dropped", "because filtered")
    opened.locator(".row").first.click()
    assert "lies outside --filter-range" in opened.locator(".card.own .why").last.text_content()


def test_a_token_tells_its_exact_numbers_and_the_legend_their_range(page, address):
    go(page, f"{address}#rollouts-000004/1/0")
    page.locator(".card.own .token").nth(3).hover()
    said = page.locator("#readout").text_content()
    ratio = math.exp(0.25)
    for words in (
        "position 4 of",
        "engine logprob \u22120.5",
        "trainer logprob \u22120.5",
        "difference 0",
        "entropy 1.5",
    ):
        assert words in said
    assert f"ratio {ratio:.7g}"[:12] in said
    legend = page.locator(".legend").text_content()
    assert "\u22121.3" in legend
    assert legend.count("1.3") == 2  # to two digits
    page.select_option("#colour", "entropy")
    assert page.locator(".card.own .token").nth(3).get_attribute("class").endswith(" up-5")
    page.select_option("#colour", "mismatch")
    assert page.locator(".token.up-0").count() == page.locator(".token").count()
    page.locator(".card.own pre").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.locator(".card.own .token.pointed").get_attribute("data-at") == "2"


def test_each_colour_can_be_had_by_a_key_and_what_is_not_recorded_is_said_and_not_offered(page, address):
    go(page, f"{address}#rollouts-000004/1/0")
    seen = []
    for _ in range(7):
        seen.append(page.locator("#colour").input_value())
        page.keyboard.press("c")
    assert seen == ["push", "mismatch", "change", "entropy", "surprise", "mask", "none"]
    go(page, f"{address}#rollouts-000001/1/0")
    page.reload()
    page.locator("#colour").wait_for()
    assert page.locator("#colour option:disabled").all_text_contents() == [
        "engine \u2212 trainer logprob",
        "change of logprob by the step",
        "entropy",
    ]
    assert "--step 1 --tokens" in page.locator("#detail > .note").first.text_content()
    page.select_option("#colour", "push")
    assert "The ratio is not recorded" in page.locator(".legend").text_content()


def test_the_same_prompt_in_another_step_is_compared_word_for_word(opened):
    opened.select_option("#order", "file")
    opened.locator(".row").first.click()
    opened.select_option("#other-step", label="step 3")
    opened.locator(".difference ins").first.wait_for()
    opened.select_option("#other-sample", label="#0, reward 1")
    assert opened.locator(".difference del").all_text_contents() == ["1", "2"]
    assert opened.locator(".difference ins").all_text_contents() == ["3", "4"]


def test_a_difference_is_made_of_both_texts_and_says_where_they_are_too_long(opened):
    for before, after, pieces in (
        ("a b c", "a x c", [["same", "a "], ["gone", "b"], ["new", "x"], ["same", " c"]]),
        ("same", "same", [["same", "same"]]),
        ("", "new 日本", [["new", "new 日本"]]),
        ("one two", "two", [["gone", "one "], ["same", "two"]]),
    ):
        script = "([a, b]) => differenceOf(a, b).pieces.map(({kind, text}) => [kind, text])"
        assert opened.evaluate(script, [before, after]) == pieces
    assert opened.evaluate("() => differenceOf('a '.repeat(3000), 'b '.repeat(3000)).exact") is False


def test_an_address_with_a_completion_opens_it(page, address):
    go(page, f"{address}#rollouts-000002/2/1")
    page.locator(".card.own").wait_for()
    assert page.locator(".card.own h3").text_content() == "#1"
    assert page.locator("#detail h2").first.text_content().startswith("Step 2 rows.jsonl:3, group of 4")


def test_a_narrow_window_shows_the_list_or_the_group_and_never_scrolls_sideways(opened):
    opened.set_viewport_size({"width": 360, "height": 640})
    assert opened.evaluate("() => document.documentElement.scrollWidth") <= 360
    opened.locator(".row").first.click()
    opened.locator(".card.own").wait_for()
    assert opened.locator("#list").is_hidden()
    assert opened.evaluate("() => document.getElementById('detail').scrollWidth") <= 360
    opened.get_by_title("back to the list (Esc)").click()
    assert opened.locator("#list").is_visible()


def test_text_can_be_read_in_light_and_in_dark(opened):
    script = "() => [getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    for scheme in ("light", "dark"):
        opened.emulate_media(color_scheme=scheme)
        ink, paper = map(brightness, opened.evaluate(script))
        assert (ink < paper) == (scheme == "light")
        assert abs(ink - paper) > 150


def brightness(colour):
    red, green, blue = (float(part) for part in colour.strip("rgba()").split(",")[:3])
    return (red + green + blue) / 3


def test_a_long_list_has_elements_for_what_is_in_sight_only(page, tmp_path):
    records = [rollout(task, sample, f"{task} {sample}") for task in range(300) for sample in range(10)]
    run = write_run(tmp_path / "run", {1: records})
    with served(run.path) as url, watched(page, url.rsplit("/", 2)[0]):
        go(page, url)
        counted(page, "3,000 of 3,000 completions")
        assert page.locator(".row").count() < 60
        page.keyboard.press("End")
        page.get_by_text("299 9", exact=True).wait_for()
        assert page.locator(".row").count() < 60


def test_a_run_that_goes_on_offers_its_new_steps_and_moves_nothing_by_itself(page, tmp_path):
    run = write_run(tmp_path / "run", {1: [rollout(1, 0, "first")]})
    with served(run.path) as url, watched(page, url.rsplit("/", 2)[0]):
        go(page, url)
        counted(page, "1 of 1 completion")
        run.write_rollouts(2, [rollout(2, 0, "second")])
        page.evaluate("() => lookForNewer()")
        page.locator("#newer").wait_for()
        assert page.locator(".row").count() == 1
        page.click("#newer")
        counted(page, "2 of 2 completions")


def test_a_server_that_has_ended_is_said_to_have(page, tmp_path):
    run = write_run(tmp_path / "run", {1: [rollout(1, 0, "first")]})
    with served(run.path) as url:
        go(page, url)
    page.route("**/*", lambda route: route.abort())
    page.evaluate("() => lookForNewer()")
    counted(page, "The server has ended")
