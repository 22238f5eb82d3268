# SPDX-License-Identifier: Apache-2.0
"""The page in headless Chromium: it opens, asks for nothing, and everything on it works."""

from __future__ import annotations

import io
import json
import shutil
import time
from dataclasses import replace

import pytest
from specprefill.explain.explanation import ShownAnswer
from specprefill.explain.html_page import render_page
from specprefill.prompt import ROLES

from tests.explain.conftest import WORDS
from tests.explain.test_files import HOSTILE

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="chromium or chromedriver is not installed"
)
# Generous: other tests may compute beside it on two cores.
OPEN_SECONDS, TOGGLE_SECONDS = 20, 5


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--no-first-run",
        "--window-size=1360,1000",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def open_page(browser, tmp_path):
    """Open an explanation's page; at the end, nothing may have gone wrong or left the page."""

    def open_it(explanation):
        path = tmp_path / "page.html"
        path.write_bytes(render_page(explanation).encode())
        browser.get(path.as_uri())
        return browser

    browser.get("about:blank")
    browser.get_log("performance")
    browser.get_log("browser")
    yield open_it
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
    # The browser's own start page may still be loading; it is another document.
    page = (tmp_path / "page.html").as_uri()
    urls = {r["request"]["url"] for r in requests if r["documentURL"] == page}
    assert page in urls
    assert urls <= {page, "data:,"}


@pytest.fixture(scope="module")
def chat(make_explanation):
    spans = [(0, 40, ROLES.index("system")), (60, 700, ROLES.index("user"))]
    explanation = make_explanation(WORDS, role_spans=spans, keep_rate=0.25, chunk_size=16)
    answers = (ShownAnswer("dense", "Four.", 900, 12.0), ShownAnswer("sparse", "Five.", 200, 3.0))
    return replace(explanation, answers=answers)


def find(browser, selector):
    return browser.find_element("css selector", selector)


def choose_view(browser, name):
    browser.execute_script(f"document.querySelector('input[value={name}]').click()")


def visible_text(browser):
    return browser.execute_script("return document.getElementById('text').innerText")


def kept_text(explanation):
    pieces = explanation.segments()
    return "".join(explanation.text.part(*span) for _, span in pieces if explanation.kept[span[0]])


def squeezed(text):
    return "".join(text.split())


def test_the_page_shows_the_prompt_and_says_what_was_kept(open_page, chat):
    browser = open_page(chat)
    content = browser.execute_script("return document.getElementById('text').textContent")
    assert content == chat.text.text
    headline = find(browser, "h1").text
    assert f"{chat.record.kept_tokens:,} of {chat.record.prompt_tokens:,} tokens" in headline
    assert chat.record.reason in find(browser, ".reason").text
    assert [e.text for e in browser.find_elements("css selector", ".answers p")] == [
        "Four.",
        "Five.",
    ]
    assert "The answers differ." in find(browser, "header").text
    struck = browser.execute_script(
        "return [...document.querySelectorAll('.drop')].every("
        "e => getComputedStyle(e).textDecorationLine === 'line-through')"
    )
    assert struck


def test_views_hide_and_show_what_was_dropped(open_page, chat):
    browser = open_page(chat)
    everything = squeezed(visible_text(browser))
    assert everything == squeezed(chat.text.text)
    choose_view(browser, "kept")
    assert squeezed(visible_text(browser)) == squeezed(kept_text(chat))
    choose_view(browser, "fold")
    assert squeezed(visible_text(browser)) == squeezed(kept_text(chat))
    pill = browser.execute_script(
        "return getComputedStyle(document.querySelector('.drop'), '::before').content"
    )
    assert "tokens dropped" in pill
    first = browser.execute_script("return document.querySelector('.drop').textContent")
    browser.execute_script("document.querySelector('.drop').click()")
    assert squeezed(first) in squeezed(visible_text(browser))
    choose_view(browser, "all")
    assert squeezed(visible_text(browser)) == everything


def test_chunk_borders_appear_on_request(open_page, chat):
    browser = open_page(chat)
    style = "return getComputedStyle(document.querySelectorAll('#text .f')[3]).boxShadow"
    assert browser.execute_script(style) == "none"
    find(browser, "#borders").click()
    assert browser.execute_script(style) != "none"
    firsts = browser.execute_script("return document.querySelectorAll('#text .f').length")
    assert firsts == len(chat.chunks)


def test_the_tables_lead_to_their_chunks(open_page, chat):
    browser = open_page(chat)
    choose_view(browser, "fold")
    for rank in (1, len(chat.chunks)):
        chunk = next(c for c in chat.chunks if c.rank == rank)
        index = chat.chunks.index(chunk)
        browser.execute_script(f"document.querySelector('[data-go=\"{index}\"]').click()")
        detail = find(browser, "#detail").text
        assert f"{chunk.start} to {chunk.end - 1}" in detail
        assert f"rank {rank}" in detail
        assert squeezed(chat.text.part(chunk.start, chunk.end)) in squeezed(detail)
        inside = browser.execute_script(
            "const b = document.querySelector('#text .now').getBoundingClientRect();"
            "return b.height > 0 && b.bottom > 0 && b.top < innerHeight"
        )
        assert inside


def test_arrow_keys_go_from_chunk_to_chunk(open_page, chat):
    from selenium.webdriver.common.keys import Keys

    browser = open_page(chat)
    browser.execute_script("document.querySelector('#text [data-c=\"5\"]').click()")
    assert find(browser, "#text .now").get_attribute("data-c") == "5"
    find(browser, "body").send_keys(Keys.ARROW_RIGHT)
    assert find(browser, "#text .now").get_attribute("data-c") == "6"
    find(browser, "body").send_keys(Keys.ARROW_LEFT)
    assert find(browser, "#text .now").get_attribute("data-c") == "5"


def test_hovering_tells_which_chunk_it_is(open_page, chat):
    from selenium.webdriver import ActionChains

    browser = open_page(chat)
    target = browser.find_elements("css selector", "#text [data-c='2']")[0]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", target)
    ActionChains(browser).move_to_element(target).perform()
    readout = find(browser, "#readout").text
    assert readout.startswith("chunk 2 · tokens 32")
    assert f"rank {chat.chunks[2].rank} of" in readout


def matches(browser, query):
    from selenium.webdriver.support.ui import WebDriverWait

    box = find(browser, "#query")
    box.clear()
    browser.execute_script("document.getElementById('matches').textContent = ''")
    box.send_keys(query)
    WebDriverWait(browser, 5).until(lambda b: find(b, "#matches").text)
    return find(browser, "#matches").text


def test_search_finds_text_across_chunks_and_unfolds_it(open_page, chat):
    browser = open_page(chat)
    choose_view(browser, "fold")
    assert matches(browser, "word12 has NUMBER") == "1 of 1"
    assert matches(browser, "line 5") == f"1 of {WORDS.lower().count('line 5')}"
    marked = browser.execute_script("return [...CSS.highlights.get('found')].map(String)")
    assert marked == ["Line 5"] * WORDS.count("Line 5")
    find(browser, "#next").click()
    assert find(browser, "#matches").text.startswith("2 of")
    in_view = browser.execute_script(
        "const r = [...CSS.highlights.get('found-now')][0].getBoundingClientRect();"
        "return r.height > 0 && r.top > 0 && r.bottom < innerHeight"
    )
    assert in_view
    assert matches(browser, "no such text (.*") == "none"


def test_text_that_looks_like_markup_stays_text(open_page, make_explanation):
    browser = open_page(make_explanation(HOSTILE, title=HOSTILE, chunk_size=8, keep_rate=0.3))
    content = browser.execute_script("return document.getElementById('text').textContent")
    assert content == HOSTILE.replace("\0", "\u2400")
    browser.execute_script("document.querySelector('[data-go]').click()")
    assert browser.execute_script("return document.images.length") == 0


def test_token_detail_is_right_behind_characters_of_two_code_units(open_page, make_explanation):
    text = "😀🎉 party 日本語 " * 40
    explanation = make_explanation(text, chunk_size=8)
    browser = open_page(explanation)
    chunk = len(explanation.chunks) - 2
    browser.execute_script(f"document.querySelector('#text [data-c=\"{chunk}\"]').click()")
    shown = browser.execute_script(
        "return [...document.querySelectorAll('#detail .t')].map(e => e.textContent)"
    )
    c = explanation.chunks[chunk]
    parts = [explanation.text.part(i, i + 1) for i in range(c.start, c.end)]
    assert shown == [part for part in parts if part]


def colours(png):
    from matplotlib.image import imread

    pixels = imread(io.BytesIO(png), format="png")[::3, ::3, :3]
    return {tuple(pixel) for pixel in (pixels.reshape(-1, 3) * 15).astype(int)}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_screenshot_is_not_blank_in_light_and_dark(open_page, chat, scheme):
    browser = open_page(chat)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    try:
        background = browser.execute_script(
            "return getComputedStyle(document.documentElement).backgroundColor"
        )
        light = sum(map(int, background[4:-1].split(","))) > 384
        assert light == (scheme == "light")
        assert len(colours(browser.get_screenshot_as_png())) > 30
        filled = browser.execute_script(
            "const c = document.getElementById('overview');"
            "return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v)"
        )
        assert filled
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_nothing_is_wider_than_a_narrow_screen(open_page, chat):
    browser = open_page(chat)
    try:
        browser.set_window_size(520, 900)
        assert browser.execute_script(
            "return document.documentElement.scrollWidth <= innerWidth"
        ), browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    finally:
        browser.set_window_size(1360, 1000)


def test_100_000_tokens_open_and_toggle_quickly(open_page, make_explanation, tokenizer):
    count = len(tokenizer(WORDS).input_ids)
    explanation = make_explanation(WORDS, repeat_ids=-(-100_000 // count), keep_rate=0.2)
    started = time.perf_counter()
    browser = open_page(explanation)
    assert time.perf_counter() - started < OPEN_SECONDS
    frame = "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
    for view in ("fold", "kept", "all"):
        started = time.perf_counter()
        choose_view(browser, view)
        browser.execute_async_script(frame)
        assert time.perf_counter() - started < TOGGLE_SECONDS
    started = time.perf_counter()
    assert matches(browser, "has number 37.").startswith("1 of")
    assert time.perf_counter() - started < TOGGLE_SECONDS
