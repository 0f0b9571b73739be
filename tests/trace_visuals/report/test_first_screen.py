"""What a reader meets in a browser: answers on the first screen, on a phone and in the dark, contents, names and pictures."""

import itertools
import json
import os
from pathlib import Path

import pytest

from tests.trace_visuals.report.test_browser import _change, _ink, _no_complaints, _open, pages, pytestmark

__all__ = ["pages", "pytestmark"]

_NAMELESS = """
    const named = (node) => node.getAttribute('aria-label') || node.textContent.trim() || (node.labels && node.labels.length);
    const found = [...document.querySelectorAll('canvas, svg, button, input, a, [tabindex]')];
    return found.filter((node) => !named(node)).map((node) => node.outerHTML);"""


@pytest.fixture
def screen(browser):
    """Sets width, height and colour scheme of the screen, for one test."""

    def show(width, height, scheme="light"):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    yield show
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.parametrize("size", [(1440, 900), (400, 800)])
def test_the_first_screen_answers_what_limits_the_job_and_what_to_change(browser, pages, screen, size):
    screen(*size)
    _open(browser, pages / "pair.html")
    bottoms = browser.execute_script(
        "return [...document.querySelectorAll('#answers .summary')[0].querySelectorAll('dd')]"
        ".map((node) => [node.textContent, node.getBoundingClientRect().bottom])"
    )
    assert [text for text, _ in bottoms][:2] == [
        "Limited by storage in epoch 1.",
        "Let more loaders read at once, or serve the data from faster storage or from memory.",
    ]
    assert "storage must give" in bottoms[2][0] and bottoms[2][1] < size[1]
    assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]
    assert browser.execute_script("return document.documentElement.scrollHeight") < 30 * size[1]
    assert _ink(browser) > 50
    _no_complaints(browser)


def test_the_answers_come_before_how_alike_the_traces_are(browser, pages):
    _open(browser, pages / "pair.html")
    text = browser.find_element("id", "short").text
    assert text.index("What limits it?") < text.index("What to change?") < text.index("How alike are")


def test_without_a_verdict_the_share_of_waiting_answers(browser, pages):
    _open(browser, pages / "block.html")
    text = browser.find_element("id", "answers").text
    assert "What limits it?" in text and "no more than that could be saved" in text and "What to change?" not in text


def test_in_the_dark_the_page_and_the_timeline_are_dark(browser, pages, screen):
    screen(1440, 900, "dark")
    _open(browser, pages / "pair.html")
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 27)"
    # The heads of the timeline's rows are filled with the page's colour.
    assert _ink(browser, (22, 24, 27)) > 1000 and _ink(browser, (255, 255, 255)) < 3000 and _ink(browser) > 300
    screen(1440, 900, "light")
    _until_light = "return getComputedStyle(document.body).backgroundColor === 'rgb(255, 255, 255)'"
    assert browser.execute_script(_until_light)
    _no_complaints(browser)


def test_contents_lead_to_every_section_and_an_address_may_name_one(browser, pages):
    _open(browser, pages / "pair.html")
    targets = browser.execute_script("return [...document.querySelectorAll('#contents a')].map((link) => link.hash.slice(1))")
    shown = browser.execute_script(
        "return [...document.querySelectorAll('main > section')].filter((one) => !one.hidden).map((one) => one.id)"
    )
    assert targets == shown and "files" in shown and "block" not in shown
    browser.get("about:blank")
    browser.get((pages / "pair.html").as_uri() + "#files")
    browser.execute_async_script(
        "const done = arguments[0], poll = () => document.body.dataset.ready === 'yes' ? done() : setTimeout(poll, 20); poll();"
    )
    assert abs(browser.execute_script("return document.getElementById('files').getBoundingClientRect().top")) < 60


def test_every_picture_and_control_has_a_name(browser, pages):
    for page in ("pair.html", "block.html"):
        _open(browser, pages / page)
        assert browser.execute_script(_NAMELESS) == []
        levels = browser.execute_script(
            "return [...document.querySelectorAll('h1, h2, h3')].map((node) => Number(node.tagName[1]))"
        )
        assert levels[0] == 1 and all(after - before <= 1 for before, after in itertools.pairwise(levels))


# All rules on all elements; those that pass are counted, as describing their elements takes a third of the time.
_AXE_RUN = """
    const done = arguments[0];
    axe.run({ resultTypes: ['violations'] }).then(({ violations, passes }) => done([violations, passes.length]));"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(browser, pages, screen, scheme):
    """AXE may name the axe.min.js of a newer axe-core than that of the package."""
    axe = Path(os.environ.get("AXE") or Path(pytest.importorskip("axe_core_python").__file__).with_name("axe.min.js")).read_text()
    for size in ((1440, 900), (400, 800)):
        screen(*size, scheme)
        for page in ("pair.html", "block.html"):
            _open(browser, pages / page)
            browser.execute_script(axe)
            violations, passed = browser.execute_async_script(_AXE_RUN)
            assert violations == [] and passed > 20, json.dumps(violations)[:3000]


def test_zooming_to_a_phase_aligns_the_phase_of_all_traces(browser, pages):
    """The twin's steps take twice as long, so its first checkpoint begins after the job's has ended."""
    _open(browser, pages / "late.html")
    button = browser.find_element("xpath", "//button[text()='first checkpoint']")
    _change(browser, button.click)
    colour = (0xE6, 0x9F, 0x00)  # of checkpoints
    rows = """
        const canvas = document.getElementById('timeline-canvas'), copy = document.createElement('canvas'), found = [];
        [copy.width, copy.height] = [canvas.width, canvas.height];
        const g = copy.getContext('2d', { willReadFrequently: true });
        g.drawImage(canvas, 0, 0);
        const { data } = g.getImageData(0, 0, copy.width, copy.height), colour = arguments[0];
        for (let y = 0; y < copy.height; y += 1) {
          const inked = [];
          for (let x = 0, at = 4 * y * copy.width; x < copy.width; x += 1, at += 4)
            if (colour.every((value, part) => data[at + part] === value)) inked.push(x);
          if (inked.length > 200) found.push([y, inked[0]]);
        }
        return found;"""
    found = browser.execute_script(rows, colour)
    assert found[-1][0] - found[0][0] > 200  # both traces show their checkpoint
    assert abs(found[0][1] - found[-1][1]) <= 2  # which begins at the same x
    everything = browser.find_element("xpath", "//button[text()='everything']")
    _change(browser, everything.click)
    _no_complaints(browser)


def test_each_picture_can_be_saved(browser, pages):
    _open(browser, pages / "pair.html")
    count = browser.execute_script("return document.querySelectorAll('canvas, main svg').length")
    buttons = browser.find_elements("css selector", "button.picture")
    assert len(buttons) == count > 10
    browser.execute_script("window.saved = []; URL.createObjectURL = (blob) => { window.saved.push(blob); return '#saved'; };")
    browser.execute_script(
        "HTMLAnchorElement.prototype.click = function () { window.names = [...(window.names || []), this.download]; };"
    )
    browser.execute_script("document.querySelectorAll('button.picture').forEach((button) => button.click())")
    texts = browser.execute_async_script(
        """
        const done = arguments[0], poll = async () => {
          if (window.saved.length < arguments[1] || (window.names || []).length < arguments[1]) return void setTimeout(poll, 20);
          done([window.names, window.saved.map((blob) => blob.type), await Promise.all(window.saved.map((blob) => blob.text()))]);
        };
        poll();""".replace("arguments[1]", str(count))
    )
    names, types, contents = texts
    assert "timeline.png" in names and "bytes-per-second.svg" in names and set(types) == {"image/png", "image/svg+xml"}
    drawings = [text for text, kind in zip(contents, types, strict=True) if kind == "image/svg+xml"]
    assert all(text.startswith("<svg") and 'xmlns="http://www.w3.org/2000/svg"' in text for text in drawings)
    _no_complaints(browser)
