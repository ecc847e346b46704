"""The page in a real browser: it looks, sounds and works as it should, and loads nothing."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright
from tests.unit.reporting import documents as made

from brim.reporting.page import Document, render_page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
ARTEFACTS = Path(os.environ.get("BRIM_TEST_ARTEFACTS", Path(__file__).parents[3] / "artefacts"))
VISIBLE = ".chart:visible"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [made.findings(made.TROUBLE), made.plan(), made.prediction(), made.sweep()]
    page = tmp_path_factory.mktemp("page") / "report.html"
    page.write_text(render_page([Document(source="x", schema=each["schema"], data=each) for each in texts]))
    return page


@contextmanager
def opened(report: Path, *, width: int = 1100, scheme: str = "light") -> Iterator[Page]:
    """Open the page; whatever the browser complains of, or the page loads, fails the test."""
    complaints: list[str] = []
    found = next((path for path in map(shutil.which, BROWSERS) if path), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url) if request.url != report.as_uri() else None)
        page.goto(report.as_uri())
        yield page
        browser.close()
    assert complaints == []


def paper(page: Page) -> str:
    return page.evaluate("getComputedStyle(document.documentElement).backgroundColor")


@pytest.mark.parametrize(
    ("name", "width", "scheme"), [("light", 1100, "light"), ("dark", 1100, "dark"), ("phone", 375, "light")]
)
def test_the_page_fits_its_screen_and_follows_the_system(report, name, width, scheme):
    ARTEFACTS.mkdir(exist_ok=True)
    with opened(report, width=width, scheme=scheme) as page:
        page.screenshot(path=ARTEFACTS / f"report-{name}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert paper(page) == ("rgb(18, 21, 26)" if scheme == "dark" else "rgb(255, 255, 255)")
        assert page.title() == "brim report"
        shown = page.locator(VISIBLE)
        assert shown.count() > 0
        for number in range(shown.count()):
            assert shown.nth(number).bounding_box()["width"] <= width
            assert ("narrow" if name == "phone" else "wide") in shown.nth(number).get_attribute("class")


WORDS_IN_PIECES = """
[...document.querySelectorAll("th, td")].filter((cell) => cell.checkVisibility()).flatMap((cell) => {
  const range = document.createRange();
  return [...cell.childNodes].flatMap((node) => [...node.textContent.matchAll(/\\S+/g)].filter((word) => {
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].length);
    return word[0].length <= 20 && new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1;
  }).map((word) => word[0]));
})
"""


def test_on_a_phone_words_of_tables_stay_whole_and_wide_tables_say_that_they_scroll(tmp_path):
    page_file = tmp_path / "report.html"
    path = "a/path/that/is/much/longer/than/a/phone/is/wide"
    texts = [made.findings(), made.plan(), made.prediction(), made.sweep(path)]
    page_file.write_text(render_page([Document(source="x", schema=each["schema"], data=each) for each in texts]))
    with opened(page_file, width=375) as page:
        assert page.evaluate(WORDS_IN_PIECES) == []
        answers = page.locator(".table:visible").first
        hint = "table => getComputedStyle(table, '::before').content"
        assert "sideways" in answers.evaluate(hint)
        page.set_viewport_size({"width": 1100, "height": 800})
        page.wait_for_function("table => !table.classList.contains('is-wide')", arg=answers.element_handle())


def test_the_theme_is_toggled_and_the_charts_follow(report):
    with opened(report) as page:
        dot = page.locator(f'{VISIBLE} [aria-label^="microbatch 8:"]').first
        color = "dot => getComputedStyle(dot).fill"
        light = dot.evaluate(color)
        button = page.get_by_role("button", name="Theme")
        button.click()
        assert (button.inner_text(), dot.evaluate(color)) == ("Theme: light", light)
        button.click()
        assert button.inner_text() == "Theme: dark"
        assert paper(page) == "rgb(18, 21, 26)"
        assert dot.evaluate(color) != light


def test_a_mark_tells_its_numbers_to_the_mouse_and_to_the_keyboard(report):
    with opened(report) as page:
        tip = page.locator("#tip")
        assert tip.is_hidden()
        page.locator(f'{VISIBLE} [aria-label^="microbatch 32:"]').first.hover()
        assert tip.inner_text() == "microbatch 32: fits, peak 500 MiB, 160.0 samples/s"
        page.mouse.move(0, 0)
        assert tip.is_hidden()
        page.locator(VISIBLE).filter(has=page.locator('[aria-label^="microbatch 8:"]')).first.focus()
        page.keyboard.press("ArrowRight")
        assert tip.inner_text().startswith("microbatch 8: fits")
        page.keyboard.press("ArrowLeft")
        assert tip.inner_text().startswith("microbatch 64: fits")
        page.keyboard.press("Escape")
        assert tip.is_hidden()


def test_tables_and_snippets_are_copied_whole(report):
    with opened(report) as page:
        read = "navigator.clipboard.readText()"
        answers = page.locator(".table:visible").first
        answers.get_by_role("button").click()
        answers.get_by_role("button", name="Copied").wait_for()
        rows = page.evaluate(read).splitlines()
        assert rows[0].split("\t")[:3] == ["case", "microbatch", "peak"]
        assert rows[2].split("\t")[:2] == ["seq_len=9000", "nothing fits"]
        snippet = page.locator(".snippet").first
        snippet.get_by_role("button").click()
        snippet.get_by_role("button", name="Copied").wait_for()
        assert page.evaluate(read) == snippet.locator("pre").inner_text()


def test_every_chart_has_its_table_and_everything_has_a_name(report):
    with opened(report) as page:
        figures = page.locator("figure")
        assert figures.count() == page.locator("figure table").count() > 5
        heard = page.locator("body").aria_snapshot()
        assert 'img "Every probe. 5 probes, 1 of them out of memory; the answer is 64.' in heard
        assert len(re.findall("- '?img ", heard)) == page.locator(VISIBLE).count()
        assert heard.count('- button "Copy table"') == page.locator(".table:visible").count()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.locator("figure summary").first.focus()
        page.keyboard.press("Enter")
        assert page.locator("figure table").first.is_visible()
