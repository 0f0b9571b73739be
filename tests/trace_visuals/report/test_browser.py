"""The report in a real browser, from disk: it draws, zooms, filters, and runs nothing that a trace brought."""

import json
import re
import shutil
import time

import pytest

from iotwin.trace_visuals.report import report_page as report_module
from iotwin.trace_visuals.report.report_page import write_report
from iotwin.workloads.pipedream.plan.timeline_file import write_timeline
from iotwin.workloads.policies.pipeline import PipelinePlan, Stage
from iotwin.workloads.policies.pipeline_simulator import simulate
from tests.conftest import PATIENCE_S
from tests.synthetic import Job, write_job
from tests.trace_visuals.common import jagged, stall
from tests.trace_visuals.hostile import COMMAND, MARK, NAMES, write_hostile

_PROGRAMS = ("chromium", "chromedriver")
_MISSING = [name for name in _PROGRAMS if shutil.which(name) is None]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        bool(_MISSING), reason=f"not installed: {', '.join(_MISSING)} (Debian packages chromium, chromium-driver)"
    ),
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    place = tmp_path_factory.mktemp("pages")
    real = write_job(place / "real.trace", Job())
    twin = write_job(place / "twin.trace", Job(seed=5, loaders=3, lost={"ring buffer": 1}))
    hostile = write_hostile(place / f"{MARK.replace('/', '')}.trace")
    rerun = write_job(place / "rerun.trace", Job(seed=7))
    row = {"change": "read=25MB", "of": "epoch", "job": {"seconds": 13.0}, "twin": {"seconds": 12.8}, "ratio": 0.985}
    (place / "response.json").write_text(json.dumps({"changes": [row]}))
    verdicts = [{"limited_by": name, "sentence": f"Limited by {name} in epoch 1."} for name in ("storage", "loaders")]
    write_report([real, twin], place / "pair.html", repeats=[rerun], response=place / "response.json", verdicts=verdicts)
    late = write_job(place / "late.trace", Job(seed=5, compute_ns=120_000_000))
    write_report([real, late], place / "late.html")
    write_report([hostile], place / "hostile.html")
    block = write_job(place / "block.trace", Job(block=True, gpu=True))
    stall(block, "cpu")
    write_report([block], place / "block.html")
    write_report([jagged(write_job(place / "jagged.trace", Job()))], place / "jagged.html")
    plan = PipelinePlan((Stage(0, (0,), 1.0, 2.0), Stage(1, (1,), 1.0, 2.0)))
    write_timeline(plan, simulate(plan, 4), 4, "1f1b", place / "pipeline.trace")
    write_report([place / "pipeline.trace"], place / "pipeline.html")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_module, "_CALLS", 100)
        write_report([real], place / "bins.html")
    return place


def _open(browser, page):
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(page.as_uri())
    _until(browser, "return document.body.dataset.ready === 'yes' && document.getElementById('range').dataset.from !== undefined")


def _until(browser, script, *arguments):
    end = time.monotonic() + PATIENCE_S
    while not browser.execute_script(script, *arguments):
        assert time.monotonic() < end, f"never true: {script}; {browser.get_log('browser')}"
        time.sleep(0.02)


def _range(browser):
    text = "const range = document.getElementById('range').dataset; return [Number(range.from), Number(range.to)]"
    return browser.execute_script(text)


def _change(browser, act):
    before = _range(browser)
    act()
    _until(
        browser,
        "return document.getElementById('range').dataset.from !== String(arguments[0])"
        " || document.getElementById('range').dataset.to !== String(arguments[1])",
        *before,
    )
    return before, _range(browser)


def _ink(browser, colour=(0, 0x72, 0xB2)):
    """Pixels of the timeline that are the colour of reads, or another."""
    return browser.execute_script(
        """
        const canvas = document.getElementById('timeline-canvas'), copy = document.createElement('canvas');
        [copy.width, copy.height] = [canvas.width, canvas.height];
        const context = copy.getContext('2d', { willReadFrequently: true });
        context.drawImage(canvas, 0, 0);
        const data = context.getImageData(0, 0, copy.width, copy.height).data;
        let found = 0;
        for (let i = 0; i < data.length; i += 4)
          if (arguments[0].every((value, place) => data[i + place] === value) && data[i + 3] === 255) found += 1;
        return found;""",
        colour,
    )


def _point(browser, x, y, *steps):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    canvas = browser.find_element(By.ID, "timeline-canvas")
    browser.execute_script("arguments[0].scrollIntoView()", canvas)
    chain = ActionChains(browser, duration=20)
    chain.move_to_element_with_offset(canvas, x - canvas.size["width"] // 2, y - canvas.size["height"] // 2)
    for step in steps:
        step(chain)
    chain.perform()


def _no_complaints(browser):
    assert browser.get_log("browser") == []
    fetched = [entry["message"] for entry in browser.get_log("performance") if '"Network.requestWillBeSent"' in entry["message"]]
    assert all('"url":"file://' in message for message in fetched), fetched


def test_page_draws_everything_and_complains_of_nothing(browser, pages):
    _open(browser, pages / "pair.html")
    assert _ink(browser) > 300
    begin, end = _range(browser)
    assert begin <= -1 and end >= 2.9
    body = browser.find_element("tag name", "body").text
    for expected in ("What dominates", "1 event LOST", "Similarity", "Slowest calls on storage", "backend synthetic", "p99"):
        assert expected in body, expected
    for expected in ("computation halved", "noticed from", "Other storage", "read=25MB", "12.8 s", "0.985"):
        assert expected in body, expected
    assert len(browser.find_elements("css selector", "#charts svg")) == 6
    assert len(browser.find_elements("css selector", "#comparisons .chart svg")) >= 5
    assert len(browser.find_elements("css selector", "#heatmaps canvas")) == 4
    first = browser.find_element("id", "short").text
    assert "How alike are real.trace and twin.trace?" in first and "Read 336 MiB from 28 data-set files" in first
    assert "A makes" not in first and "of B" not in first
    assert len(browser.find_elements("css selector", "#overview path")) == 4
    epochs = browser.find_elements("css selector", "#overview rect[fill='#BBDDF2']")
    assert len(epochs) == 6 and "epoch" in browser.find_element("css selector", "#overview .legend").text
    legend = browser.find_elements("css selector", "#phase-legend li")
    assert [entry.text for entry in legend] == ["init", "epoch", "evaluation", "checkpoint"]
    _no_complaints(browser)


def test_wheel_drag_selection_keys_and_buttons_change_the_range(browser, pages):
    from selenium.webdriver import ActionChains, Keys
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
    from selenium.webdriver.common.by import By

    _open(browser, pages / "pair.html")
    canvas = browser.find_element(By.ID, "timeline-canvas")
    browser.execute_script("arguments[0].scrollIntoView()", canvas)
    wheel = ActionChains(browser).scroll_from_origin(ScrollOrigin.from_element(canvas, 0, 0), 0, -240)
    before, after = _change(browser, wheel.perform)
    assert before[0] < after[0] < after[1] < before[1]
    before, after = _change(
        browser, lambda: _point(browser, 700, 60, lambda c: c.click_and_hold().move_by_offset(-150, 0).release())
    )
    assert after[0] > before[0] and after[1] - after[0] == pytest.approx(before[1] - before[0])
    select = (lambda c: c.key_down(Keys.SHIFT).click_and_hold().move_by_offset(200, 0).release().key_up(Keys.SHIFT),)
    before, after = _change(browser, lambda: _point(browser, 500, 60, *select))
    assert before[0] < after[0] < after[1] < before[1] and after[1] - after[0] < 0.4 * (before[1] - before[0])
    before, after = _change(browser, lambda: browser.find_element(By.ID, "canvas-box").send_keys(Keys.ARROW_RIGHT))
    assert after[0] > before[0]
    before, after = _change(browser, lambda: _point(browser, 600, 60, lambda c: c.double_click()))
    assert after[1] - after[0] > 3.9
    for text, low, high in (("first epoch", -0.1, 0.9), ("first checkpoint", 0.9, 1.0)):
        button = browser.find_element(By.XPATH, f"//button[text()='{text}']")
        _, after = _change(browser, button.click)
        assert low < after[0] < after[1] < high, text
    _no_complaints(browser)


def test_heat_map_shows_and_follows_the_timeline(browser, pages):
    _open(browser, pages / "pair.html")
    inked = """
        const canvas = document.querySelector('#heatmaps canvas'), copy = document.createElement('canvas');
        [copy.width, copy.height] = [canvas.width, canvas.height];
        const context = copy.getContext('2d', { willReadFrequently: true });
        context.drawImage(canvas, 0, 0);
        const data = context.getImageData(149, 1, Math.max(1, copy.width - 400), copy.height - 2).data;
        let columns = 0;
        for (let x = 0; x < copy.width - 400; x += 1)
          for (let y = 0; y < copy.height - 2; y += 1)
            if (data[(y * (copy.width - 400) + x) * 4 + 3]) { columns += 1; break; }
        return columns;"""
    browser.execute_script("document.getElementById('heat').scrollIntoView()")
    _until(browser, inked)
    before = browser.execute_script(inked)
    browser.execute_script("document.querySelectorAll('#zoom-buttons button')[2].click()")
    _until(browser, inked.replace("return columns", f"return columns > {before}"))
    # Reads of the first epoch end after a small part of it; wide cells must not paint the rest.
    assert browser.execute_script(inked) < 500
    _no_complaints(browser)


def test_zooming_far_in_shows_single_calls(browser, pages):
    _open(browser, pages / "pair.html")
    show = browser.find_element("css selector", "#slowest-tables tbody button")
    _, (begin, end) = _change(browser, show.click)
    assert end - begin < 0.05 and "5 ms" in browser.find_element("css selector", "#slowest-tables tbody tr").text
    # The slowest call is the first checkpoint's fsync or another one; its row is the fourth lane of the first trace.
    _point(browser, 148 + 350, 4 + 34 + 24 + 46 + 3 * 26 + 11)
    _until(browser, "return !document.getElementById('tooltip').hidden")
    tip = browser.find_element("id", "tooltip").text
    assert "fsync 5 ms" in tip and "/data/out/epoch_" in tip, tip
    _no_complaints(browser)


def test_a_pipeline_s_pass_has_its_weight_version_below_the_pointer(browser, pages):
    _open(browser, pages / "pipeline.html")
    texts = browser.execute_script("""
        const canvas = document.getElementById('timeline-canvas'), found = [];
        const { left, top, height } = canvas.getBoundingClientRect();
        for (let y = 0; y < height; y += 8) for (let x = 150; x < 1200; x += 20) {
          canvas.dispatchEvent(new PointerEvent('pointermove', { clientX: left + x, clientY: top + y }));
          const tip = document.getElementById('tooltip');
          if (!tip.hidden) found.push(tip.textContent);
        }
        return found;""")
    found = {" ".join([*re.findall(r"rank \d, stage \d: [FB]", text), *re.findall(r"minibatch .*", text)]) for text in texts}
    assert {
        "rank 0, stage 0: F minibatch 3, weight version 2: 1 s",
        "rank 1, stage 1: B minibatch 3, weight version 3: 2 s",
    } <= found
    _no_complaints(browser)


def test_rows_can_be_shown_and_filtered_by_file(browser, pages):
    _open(browser, pages / "pair.html")
    height = "return document.getElementById('timeline-canvas').clientHeight"
    before = browser.execute_script(height)
    browser.find_element("id", "show-processes").click()
    assert browser.execute_script(height) > before + 100
    ink = _ink(browser)
    browser.find_element("id", "timeline-filter").send_keys("case_00003_x")
    end = time.monotonic() + PATIENCE_S
    while not 0 < _ink(browser) < ink / 2:
        assert time.monotonic() < end
    _no_complaints(browser)


def test_tables_filter_and_sort(browser, pages):
    _open(browser, pages / "pair.html")
    table = browser.find_element("id", "file-tables")
    rows = "return [...document.querySelector('#file-tables tbody').rows].map((row) => row.cells[0].textContent)"
    assert len(browser.execute_script(rows)) == 25
    table.find_element("css selector", "input").send_keys("case_00007")
    assert browser.execute_script(rows) == ["/data/case_00007_x.npy"]
    assert table.find_element("css selector", ".table-status").text.startswith("1 of 1")
    for _ in range(len("case_00007")):
        table.find_element("css selector", "input").send_keys("\ue003")
    table.find_element("xpath", ".//th/button[text()='path']").click()
    shown = browser.execute_script(rows)
    assert shown == sorted(shown, reverse=True) and shown[0] == "/data/out/epoch_3.pt"
    table.find_element("xpath", ".//button[text()='show all']").click()
    assert len(browser.execute_script(rows)) == 31
    _no_complaints(browser)


def test_hostile_names_are_text_and_run_nothing(browser, pages):
    _open(browser, pages / "hostile.html")
    assert browser.execute_script("return window.owned === undefined")
    assert browser.title == f"iotwin report: {MARK.replace('/', '')}.trace"
    assert browser.execute_script("return document.querySelectorAll('main script, main img, main a').length") == 0
    body = browser.execute_script("return document.body.innerText")
    assert all(
        name.replace("\u2028", "").replace("\u2029", "") in body.replace("\u2028", "").replace("\u2029", "") for name in NAMES
    )
    assert COMMAND[1] in body and f"3 {MARK}" in body
    browser.find_element("id", "timeline-filter").send_keys("<script>")
    _no_complaints(browser)


def test_a_page_without_single_calls_says_so(browser, pages):
    _open(browser, pages / "bins.html")
    assert "not every call" in browser.find_element("id", "detail-note").text
    assert not browser.find_element("id", "timeline-filter").is_enabled() and _ink(browser) > 100
    _no_complaints(browser)


def test_many_samples_are_means_and_no_black_band(browser, pages):
    """A sample is 0 or 100 %: drawn one by one on two pixels or fewer, the job's line would fill the row."""
    _open(browser, pages / "jagged.html")
    row = browser.execute_script("return document.getElementById('timeline-canvas').clientWidth") * 42
    assert _ink(browser, (0, 0, 0)) < row / 10
    _no_complaints(browser)


def test_block_requests_and_accelerators_have_their_place(browser, pages):
    _open(browser, pages / "block.html")
    section = browser.find_element("id", "block")
    assert section.is_displayed() and len(section.find_elements("css selector", "svg")) == 2
    for expected in ("by calls: 336 MiB", "by the devices: 168 MiB", "50 %", "kernel", "task", "from the cache"):
        assert expected in section.text, expected
    assert "disk vda" not in section.text
    height = browser.execute_script("return document.getElementById('timeline-canvas').clientHeight")
    _point(browser, 650, 85)  # in the middle of the CPU's graph, where its sampler stalled
    assert "no samples" in browser.find_element("id", "tooltip").text
    assert "no samples of CPU" in browser.find_element("id", "findings").text
    _open(browser, pages / "pair.html")
    assert not browser.find_element("id", "block").is_displayed() and height > 400
    _no_complaints(browser)
