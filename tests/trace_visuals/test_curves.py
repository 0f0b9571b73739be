"""Sheets of curves: what is drawn, and what is refused."""

import json
import re
import xml.etree.ElementTree as ElementTree

import matplotlib.image
import msgspec
import pytest

from iotwin.common.errors import IotwinError, UsageError
from iotwin.trace_visuals.curves import Sheet, _draw_panel, plot_curves, read_sheet
from tests.processes import call

DOCUMENT = {
    "title": "vgg16",
    "x": {"label": "workers"},
    "y": {"label": "speed-up", "unit": "times"},
    "series": [
        {"name": "pipeline", "x": [4, 1, 2], "y": [3.5, 1, 2]},
        {"name": "data parallel", "x": [1, 2, 4], "y": [1, None, 3]},
    ],
}


@pytest.fixture
def write(tmp_path):
    def write(name="a.json", **changes):
        path = tmp_path / name
        path.write_text(json.dumps({**DOCUMENT, **changes}))
        return path

    return write


def test_a_panel_a_document_with_its_words(write, tmp_path):
    found = plot_curves([write("a.json"), write("b.json", title="gnmt")], tmp_path / "c.svg")
    assert [panel["points"] for panel in found["panels"]] == [6, 6]
    text = " ".join(words(tmp_path / "c.svg"))
    for expected in ("vgg16", "gnmt", "workers", "speed-up (times)", "pipeline", "data parallel"):
        assert expected in text
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.json", "b.json", "c.svg"]


def words(picture):
    root = ElementTree.parse(picture).getroot()
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


def test_where_all_curves_have_a_gap_is_shown_and_powers_of_ten_are_numbers(write, tmp_path):
    series = [{"name": "one", "x": [0, 1, 2, 3, 4], "y": [None, None, None, 20, 3000]}]
    plot_curves([write(series=series, y={"label": "accesses", "scale": "log"})], tmp_path / "c.svg")
    found = words(tmp_path / "c.svg")
    assert {"0.0", "4.0", "100", "1,000"} <= set(found) and not any("math" in word for word in found)


def test_the_legend_of_many_curves_is_whole_and_beside_them(write, tmp_path):
    series = [{"name": f"heuristic without cost, number {number}", "x": [1, 2], "y": [1, 2]} for number in range(16)]
    plot_curves([write(series=series)], tmp_path / "c.svg")
    root = ElementTree.parse(tmp_path / "c.svg").getroot()
    height = float(root.attrib["height"].removesuffix("pt"))
    legend = next(node for node in root.iter() if node.attrib.get("id") == "legend_1")
    lines = list(legend.iter("{http://www.w3.org/2000/svg}text"))
    assert ["".join(line.itertext()) for line in lines] == [each["name"] for each in series]
    places = [[float(line.attrib[name]) for name in "xy"] for line in lines]
    axes = next(node for node in root.iter() if node.attrib.get("id") == "patch_2")
    right = max(float(x) for x in re.findall(r"[ML] (\S+) ", axes[0].attrib["d"]))
    assert all(x > right and 0 < y < height for x, y in places)


POINTS = [
    {"x": 0.3, "state": "oom"},
    {"x": 0.4, "y": 26, "state": "thrash"},
    {"x": 0.5, "y": 16, "low": 15, "high": 18},
    {"x": 0.9, "y": 10},
]
SHEET = {
    "title": "under a budget",
    "x": {"label": "memory"},
    "y": {"label": "time"},
    "panels": [
        {
            "title": "resnet32",
            "bands": [{"from": 0.2, "to": 0.35, "label": "below the floor"}],
            "curves": [{"name": "h_DTR", "points": POINTS}, {"name": "LRU", "points": [{"x": 0.5, "state": "failed"}]}],
        },
        {"title": "lstm", "curves": [{"name": "h_DTR", "points": POINTS[2:]}]},
    ],
}


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_states_of_points_and_bands_of_a_sheet_are_drawn_and_named(tmp_path, scale):
    (tmp_path / "sheet.json").write_text(json.dumps({**SHEET, "y": {"label": "time", "scale": scale}}))
    found = plot_curves([tmp_path / "sheet.json"], tmp_path / "c.svg")
    assert found["panels"] == [{"title": "resnet32", "series": 2, "points": 5}, {"title": "lstm", "series": 1, "points": 2}]
    told = words(tmp_path / "c.svg")
    for expected in ("under a budget", "below the floor", "out of memory", "thrashes", "failed"):
        assert told.count(expected) == 1


def test_the_line_goes_through_what_passed_and_marks_without_y_are_above_all_values():
    from matplotlib.figure import Figure

    sheet = msgspec.convert(SHEET, Sheet)
    axes = Figure().subplots()
    _draw_panel(axes, sheet, sheet.panels[0], True)
    line, oom, thrash, *_ = axes.lines
    assert [(x, y) for x, y in line.get_xydata() if y == y] == [(0.5, 16), (0.9, 10)]
    assert thrash.get_xydata().tolist() == [[0.4, 26]] and axes.get_ylim()[0] == 0
    assert axes.transData.inverted().transform(oom.get_transform().transform(oom.get_xydata()))[0, 1] > 26
    left, right = axes.get_xlim()
    assert left < 0.2 and right > 0.9  # the band, too, is whole


def test_the_same_document_gives_the_same_bytes(write, tmp_path):
    document = write()
    for kind in ("svg", "pdf", "png"):
        pictures = [tmp_path / f"{number}.{kind}" for number in range(2)]
        for picture in pictures:
            plot_curves([document], picture)
        assert pictures[0].read_bytes() == pictures[1].read_bytes()
    assert matplotlib.image.imread(tmp_path / "0.png").std() > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"series": [{"name": "s", "x": [1], "y": [1, 2]}]}, "1 values of x and 2 of y"),
        ({"series": []}, "no points"),
        ({"y": {"label": "t", "scale": "log"}, "series": [{"name": "s", "x": [1], "y": [0]}]}, "log axis"),
        ({"z": 1}, "unknown field `z`"),
        ({"panels": []}, "unknown field `series`"),
        ({"x": {"label": "t", "scale": "cubic"}}, "cubic"),
    ],
)
def test_what_cannot_be_drawn_is_refused(write, tmp_path, changes, message):
    path = write(**changes)
    with pytest.raises(UsageError, match=message):
        read_sheet(path)
    with pytest.raises(UsageError, match=str(path)):
        plot_curves([path], tmp_path / "c.svg")
    assert not (tmp_path / "c.svg").exists()


def test_what_an_axis_cannot_show_of_a_sheet_is_refused(tmp_path):
    document = tmp_path / "sheet.json"
    bands = [{"from": 0, "to": 1, "label": "all"}]
    document.write_text(
        json.dumps({**SHEET, "x": {"label": "m", "scale": "log"}, "panels": [{**SHEET["panels"][0], "bands": bands}]})
    )
    with pytest.raises(UsageError, match="bands has values not above 0"):
        read_sheet(document)
    document.write_text(
        json.dumps({**SHEET, "panels": [{"title": "t", "curves": [{"name": "n", "points": [{"x": 1, "state": "?"}]}]}]})
    )
    with pytest.raises(UsageError, match="state"):
        read_sheet(document)
    document.write_text(json.dumps({**SHEET, "panels": []}))
    with pytest.raises(UsageError, match="no points"):
        read_sheet(document)


def test_a_missing_document_and_a_missing_directory_are_named(write, tmp_path):
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        plot_curves([tmp_path / "none.json"], tmp_path / "c.svg")
    with pytest.raises(IotwinError, match="not a directory"):
        plot_curves([write()], tmp_path / "none" / "c.svg")


def test_the_command_draws_and_refuses_options_of_timelines(write, tmp_path):
    document = write()
    done = call("plot", "curves", str(document), "-o", str(tmp_path / "c.svg"))
    assert done.returncode == 0 and "2 curves in 1 panel" in done.stdout
    done = call("plot", "curves", str(document), "-o", str(tmp_path / "c.svg"), "--short")
    assert done.returncode == 2 and "leave them out for curves" in done.stderr
