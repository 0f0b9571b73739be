"""The timeline's files: valid, complete, honest about losses, and refused early when they cannot be."""

import re
import xml.etree.ElementTree as ElementTree
from argparse import ArgumentParser
from pathlib import Path

import matplotlib.image
import numpy as np
import pyarrow.parquet as pq
import pytest

from iotwin.commands.plot import Plot
from tests.synthetic import SECOND, Job, write_job
from trace_visuals.timeline import plot_timeline
from tracing_tools.trace import schema
from tracing_tools.trace.errors import IotwinError, UsageError
from tracing_tools.trace.writer import write_table


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    place = tmp_path_factory.mktemp("plot")
    return [
        write_job(place / "real.trace", Job()),
        write_job(place / "twin.trace", Job(seed=2, loaders=3, lost={"ring buffer": 77})),
    ]


def _svg_text(path):
    root = ElementTree.parse(path).getroot()
    assert root.tag.endswith("svg")
    return " ".join("".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text"))


def test_svg_holds_both_traces_the_machine_and_the_loss(traces, tmp_path):
    plot_timeline(traces, tmp_path / "t.svg")
    text = _svg_text(tmp_path / "t.svg")
    for expected in (
        "real.trace", "twin.trace", "epoch 1", "eval", "read", "write", "open", "sync", "Linux 6.1.0, 2 CPUs",
        "backend synthetic", "77 events LOST", "336 calls, 336 MiB", "seconds from the start of training",
    ):  # fmt: skip
        assert expected in text, expected
    assert [file.name for file in tmp_path.iterdir()] == ["t.svg"]


def test_png_has_ink_where_reads_are(traces, tmp_path):
    plot_timeline(traces[:1], tmp_path / "t.png")
    image = matplotlib.image.imread(tmp_path / "t.png")[..., :3]
    assert image.shape[1] == 1800 and image.shape[0] > 400
    read_blue = np.abs(image - np.array([0, 0x72, 0xB2]) / 255).max(axis=2) < 0.02
    assert read_blue.sum() > 500


def test_pdf_is_one_whole_page(traces, tmp_path):
    plot_timeline(traces, tmp_path / "t.pdf")
    content = (tmp_path / "t.pdf").read_bytes()
    assert content.startswith(b"%PDF-") and content.rstrip().endswith(b"%%EOF")
    assert len(re.findall(rb"/Type /Page\b", content)) == 1


@pytest.mark.parametrize("name", ["t.svg", "t.pdf", "t.png"])
def test_the_same_traces_give_the_same_file(traces, tmp_path, name):
    (tmp_path / "again").mkdir()
    for place in (tmp_path, tmp_path / "again"):
        plot_timeline(traces, place / name)
    assert (tmp_path / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_numbers_drawn_are_the_trace_s(traces, tmp_path):
    block = plot_timeline(traces[:1], tmp_path / "t.svg")[0]
    events = pq.read_table(traces[0] / "events.parquet").to_pandas()
    for row, op in enumerate(("read", "write", "openat", "fsync")):
        mine = events[events["op"].astype(str) == op]
        assert block.lanes.calls[row].sum() == len(mine)
        assert block.lanes.in_flight[row].sum() * block.lanes.grid.width == pytest.approx(mine["duration_ns"].sum())
    assert (block.lanes.busy <= 1).all()


def test_groups_and_zoom(traces, tmp_path):
    plot_timeline(traces[:1], tmp_path / "p.svg", zoom="epoch:2", how="process")
    text = _svg_text(tmp_path / "p.svg")
    assert "loader 1003" in text and "loader 1001" not in text and "seconds from the start of epoch 2" in text
    plot_timeline(traces, tmp_path / "r.svg", how="rank")
    assert "rank 1000 with its processes" in _svg_text(tmp_path / "r.svg")


def test_gpu_samples_get_a_row_of_their_own(tmp_path):
    path = write_job(tmp_path / "gpu.trace", Job())
    times = np.arange(5 * SECOND, 9 * SECOND, SECOND // 10)
    percent = np.where(times > 6 * SECOND, 90.0, 5.0)
    columns = {"time_ns": times, "device": np.zeros(len(times)), "sm_percent": percent, "memory_percent": percent / 2,
               "memory_used_bytes": np.full(len(times), 1 << 30)}  # fmt: skip
    write_table(path / "samples" / "gpu.parquet", schema.GPU_SAMPLES, columns)
    plot_timeline([path, write_job(tmp_path / "cpu.trace", Job())], tmp_path / "t.svg")
    text = _svg_text(tmp_path / "t.svg")
    assert "1 GPU" in text and "% SM" in text and "GPU not sampled" in text and "GPU memory" in text


def test_hostile_names_are_drawn_as_text(tmp_path):
    path = write_job(tmp_path / "<b>&$x_{1}$\n\x1b.trace", Job(files=4, epochs=1))
    plot_timeline([path], tmp_path / "t.svg")
    assert "<b>&$x_{1}$??.trace" in _svg_text(tmp_path / "t.svg")


def test_a_trace_without_calls_is_drawn(tmp_path):
    path = write_job(tmp_path / "idle.trace", Job(files=0, evaluation_files=0, checkpoint_every=0, epochs=1))
    plot_timeline([path], tmp_path / "t.svg")
    assert "0 calls" in _svg_text(tmp_path / "t.svg")


@pytest.mark.parametrize(("name", "error"), [("t.gif", UsageError), ("t", UsageError), ("none/t.png", IotwinError)])
def test_bad_outputs_are_refused_before_work(traces, tmp_path, name, error):
    with pytest.raises(error) as caught:
        plot_timeline([Path("/there/is/no/such.trace")], tmp_path / name)
    assert "\n" not in str(caught.value) and "such.trace" not in str(caught.value)
    if error is UsageError:
        assert ".png or .svg or .pdf" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_failing_write_leaves_the_old_picture(traces, tmp_path, monkeypatch):
    output = tmp_path / "t.svg"
    output.write_text("old")

    def full(self, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(IotwinError, match="No space left"):
        plot_timeline(traces[:1], output)
    assert output.read_text() == "old" and [file.name for file in tmp_path.iterdir()] == ["t.svg"]


def test_the_command(traces, tmp_path, capsys):
    command, parser = Plot(), ArgumentParser()
    command.prepare_parser(parser)
    args = parser.parse_args(["timeline", str(traces[1]), "-o", str(tmp_path / "t.png"), "--zoom", "eval:1"])
    outcome = command.run(args)
    command.show(outcome.document)
    assert outcome.exit_status == 0 and outcome.document["traces"][0]["lost"] == 77
    assert "events lost: 77" in capsys.readouterr().out
