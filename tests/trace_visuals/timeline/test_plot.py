"""The timeline's files: valid, complete, honest about losses, and refused early when they cannot be."""

import itertools
import json
import os
import re
import shutil
import xml.etree.ElementTree as ElementTree
from argparse import ArgumentParser
from pathlib import Path

import matplotlib
import matplotlib.image
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from iotwin.commands.plot import PlotCommand
from iotwin.common.errors import IotwinError, UsageError
from iotwin.trace_store import schema
from iotwin.trace_store.manifest import read_manifest, write_manifest
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.writer import write_table
from iotwin.trace_visuals.gaps import sample_gaps
from iotwin.trace_visuals.style import FIGURE_RC, PHASE_COLOURS, Origin
from iotwin.trace_visuals.timeline.read_timeline import coarser, load_timeline
from iotwin.trace_visuals.timeline.rows import disk_rates, sample_edges
from iotwin.trace_visuals.timeline.timeline_figure import Form, draw, plot_timeline
from iotwin.trace_visuals.windows import choose_view
from tests.synthetic import SECOND, Job, write_job
from tests.trace_visuals.common import jagged, stall


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
    columns = {
        "time_ns": times,
        "device": np.zeros(len(times)),
        "sm_percent": percent,
        "memory_percent": percent / 2,
        "memory_used_bytes": np.full(len(times), 1 << 30),
    }
    write_table(path, "samples/gpu.parquet", schema.GPU_SAMPLES, columns)
    plot_timeline([path, write_job(tmp_path / "cpu.trace", Job())], tmp_path / "t.svg")
    text = _svg_text(tmp_path / "t.svg")
    assert "1 GPU" in text and "% SM" in text and "GPU not sampled" in text and "GPU memory" in text


@pytest.mark.parametrize(
    ("missing", "expected"),
    [((), []), ((4, 5, 6, 7), [[3, 8]]), ((5, 6), []), ((1, 2, 3, 4), [[0, 4]]), ((17, 18, 19, 20), [[16, 20]])],
)
def test_stretches_without_samples_are_found(missing, expected):
    """Twenty samples, one a second; two may be late, a whole stall, a late start and an early end are gaps."""
    times = np.array([second for second in range(1, 21) if second not in missing]) * SECOND
    found = sample_gaps(np.repeat(times[::-1], 2), 0, 20 * SECOND)
    assert (found / SECOND).tolist() == expected


def test_a_stalled_sampler_shows(tmp_path):
    path = write_job(tmp_path / "stalled.trace", Job(gpu=True))
    stall(path, "cpu")
    block = plot_timeline([path], tmp_path / "t.svg")[0]
    assert _svg_text(tmp_path / "t.svg").count("no samples") == 1
    assert len(block.gaps["cpu"]) == 1 and not len(block.gaps["gpu"])


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    """A trace with block requests, accelerator activity and samples of everything."""
    return write_job(tmp_path_factory.mktemp("rich") / "rich.trace", Job(block=True, gpu=True, parts=True))


def test_rows_for_the_accelerator_the_disk_and_block_requests(rich, traces, tmp_path):
    block, other = plot_timeline([rich, traces[1]], tmp_path / "t.svg")
    text = _svg_text(tmp_path / "t.svg")
    for expected in ("GPU memory", "in use", "4 GiB", "kernels", "copies", "block read", "block write", "disks, whole",
                     "in flight,", "parts", "load_batch_mem", "24 times",
                     "GPU not sampled", "not traced", "disk not sampled", "block requests"):  # fmt: skip
        assert expected in text, expected
    requests, gpu = pq.read_table(rich / "block.parquet").to_pandas(), pq.read_table(rich / "gpu.parquet").to_pandas()
    for lane, op in enumerate(("read", "write")):
        mine = requests[requests["op"] == op]
        assert block.block.calls[lane].sum() == len(mine) and block.block.size_bytes[lane].sum() == mine["size_bytes"].sum()
        assert block.block.in_flight[lane].sum() * block.block.grid.width == pytest.approx(mine["duration_ns"].sum())
    kernels = gpu[gpu["kind"] == "kernel"]
    assert block.device.calls.sum() == len(gpu)
    assert block.device.busy[0].sum() * block.device.grid.width == pytest.approx(kernels["duration_ns"].sum())
    parts = pq.read_table(rich / "parts.parquet").to_pandas()
    assert block.part_names == ("load_batch_mem", "all_compute") and other.part_names == ()
    for lane, name in enumerate(block.part_names):
        chosen = parts[parts["name"] == name]
        assert block.parts.calls[lane].sum() == len(chosen) == 24
        assert block.parts.busy[lane].sum() * block.parts.grid.width == pytest.approx(chosen["duration_ns"].sum())
    assert other.block is None and other.device is None


def test_a_job_under_a_memory_budget_has_rows_of_its_computing_and_its_memory(traces, tmp_path):
    job = Job()
    path = write_job(tmp_path / "budget.trace", job)
    (path / "logs").mkdir(exist_ok=True)
    begin, second = job.start_ns, SECOND
    spans = {"base_compute": (0, second // 2), "remat_compute": (second // 2, second // 4), "search": (2 * second, second)}
    events = [
        *({"event_type": "INTERVAL_END", "key": key, "value": {"start": begin + at, "duration": length}, "metadata": {"rank": 0}}
          for key, (at, length) in spans.items()),
        {"event_type": "POINT_IN_TIME", "key": "memory_budget", "value": 400, "metadata": {}},
        *({"event_type": "POINT_IN_TIME", "key": "tensor_bytes", "value": value, "metadata": {"at_ns": begin + at}}
          for value, at in ((300, 0), (100, second))),
    ]  # fmt: skip
    with (path / "logs" / "stdout").open("a") as log:
        log.writelines(f":::MLLOG {json.dumps({'time_ms': 1, **event})}\n" for event in events)
    drawn, other = plot_timeline([path, traces[1]], tmp_path / "t.svg", form=Form(origin=Origin("iotwin", "plot")))
    text = _svg_text(tmp_path / "t.svg")
    for expected in ("recompute", "tensors", "budget 400 B", "compute: recomputed", "nothing", "not logged"):
        assert expected in text, expected
    width = drawn.lanes.grid.width
    spent = {name: drawn.recompute[name].sum() * width for name in ("base", "recomputed", "search")}
    assert spent == pytest.approx({"base": second / 2, "recomputed": second / 4, "search": second}, rel=1e-6)
    assert set(drawn.tensors[1]["tensors"]) == {0, 0.75, 0.25} and (other.recompute, other.tensors) == (None, None)
    rows = pd.read_csv(tmp_path / "t.csv")
    chosen = rows[(rows["row"] == "recompute") & (rows["series"] == "search")]
    assert ((chosen["end_s"] - chosen["begin_s"]) * chosen["value"]).sum() == pytest.approx(1, rel=1e-6)


def test_kernels_of_several_accelerators_have_a_row_each(rich, tmp_path):
    path = tmp_path / "two.trace"
    shutil.copytree(rich, path)
    gpu = pq.read_table(rich / "gpu.parquet")
    kernels = gpu.to_pandas()["kind"] == "kernel"
    device = np.where(np.cumsum(kernels) % 3 == 0, 5, 2)
    place = gpu.schema.get_field_index("device")
    write_table(path, "gpu.parquet", schema.GPU, gpu.set_column(place, "device", pa.array(device, pa.int32())))
    (block,) = plot_timeline([path], tmp_path / "t.svg")
    assert block.device_names == ("kernel 2", "kernel 5", "copy")
    assert block.device.calls.sum(axis=1).tolist() == [
        (kernels & (device == 2)).sum(),
        (kernels & (device == 5)).sum(),
        (gpu.to_pandas()["kind"] == "copy").sum(),
    ]
    text = _svg_text(tmp_path / "t.svg")
    assert "kernels 2" in text and "kernels 5" in text and "copies" in text


def test_a_request_without_an_end_counts_once(rich, tmp_path):
    path = tmp_path / "cut.trace"
    shutil.copytree(rich, path)
    table = pq.read_table(path / "block.parquet")
    durations = pa.array([None, *table["duration_ns"].to_pylist()[1:]], pa.int64())
    write_table(path, "block.parquet", schema.BLOCK, table.set_column(2, "duration_ns", durations))
    block = plot_timeline([path], tmp_path / "t.svg")[0]
    assert block.block.calls.sum() == table.num_rows
    assert block.block.size_bytes.sum() == pc.sum(table["size_bytes"]).as_py()


def test_paper_short_and_legend_forms(rich, tmp_path):
    plot_timeline([rich], tmp_path / "t.svg", form=Form(short=True, paper=True, legend=False), legend=tmp_path / "legend.svg")
    text, legend = _svg_text(tmp_path / "t.svg"), _svg_text(tmp_path / "legend.svg")
    assert "CPU" not in text and "rich.trace" not in text and "testhost" not in text and "share of time" not in text
    assert "336 calls," in text and "GPU memory" in text
    assert "share of time with a call in flight" in legend and "CPU" not in legend and "GPU SM" in legend
    plot_timeline([rich], tmp_path / "own.svg", form=Form(paper=True, legend=True))
    assert "CPU" not in _svg_text(tmp_path / "own.svg") and "GPU SM" in _svg_text(tmp_path / "own.svg")
    roots = [ElementTree.parse(tmp_path / name).getroot() for name in ("t.svg", "legend.svg")]
    widths = [float(root.get("width").removesuffix("pt")) for root in roots]
    assert widths == [pytest.approx(3.5 * 72)] * 2
    with pytest.raises(UsageError, match="cannot hold both"):
        plot_timeline([rich], tmp_path / "t.svg", legend=tmp_path / "t.svg")


@pytest.mark.parametrize("short", [False, True])
def test_no_words_of_a_picture_leave_it(rich, tmp_path, short):
    """Names and amounts beside the rows lie within the picture, and rows do not run into each other."""
    traces = [Trace(rich)]
    view = choose_view(traces, None)
    form = Form(short=short)
    block = load_timeline(traces[0], "rich.trace", view.windows[0], form.columns, "role", lambda amount: None)
    with matplotlib.rc_context(FIGURE_RC):
        figure = draw([block], view, form)
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw(renderer)
        words = [text for ax in figure.axes for text in ax.texts if text.get_text()] + figure.texts
        boxes = [text.get_window_extent(renderer) for text in words]
        rows = sorted((ax.get_window_extent(renderer) for ax in figure.axes), key=lambda box: box.y0)
    assert len(boxes) > 20
    for text, box in zip(words, boxes, strict=True):
        assert box.x0 >= 0 and box.x1 <= figure.bbox.width and box.y0 >= 0 and box.y1 <= figure.bbox.height, text.get_text()
    assert all(below.y1 <= above.y0 for below, above in itertools.pairwise(rows))


def test_roles_and_the_end(rich, tmp_path):
    plot_timeline([rich], tmp_path / "t.svg", zoom="last:500ms", how="role")
    text = _svg_text(tmp_path / "t.svg")
    assert "ranks (1)" in text and "loaders (6)" in text and "whole job" in text and "epoch 1" not in text
    with pytest.raises(UsageError, match="last:0s shows nothing"):
        plot_timeline([rich], tmp_path / "u.svg", zoom="last:0s")


def test_hostile_names_are_drawn_as_text(tmp_path):
    path = write_job(tmp_path / "<b>&$x_{1}$\n\x1b.trace", Job(files=4, epochs=1))
    plot_timeline([path], tmp_path / "t.svg")
    assert "<b>&$x_{1}$??.trace" in _svg_text(tmp_path / "t.svg")


def test_many_samples_are_means_of_neighbours(tmp_path):
    """No sample's time or share is lost: of 0 and 100 % in turn each mean is a half, and they can be told apart."""
    path = jagged(write_job(tmp_path / "jagged.trace", Job()))
    one_by_one = Trace(path).samples("cpu")
    block = plot_timeline([path], tmp_path / "t.svg")[0]
    assert len(block.cpu) <= block.lanes.grid.count / 4 and block.cpu["user"].tolist()[:-1] == pytest.approx(
        [0.5] * (len(block.cpu) - 1)
    )
    assert block.cpu["interval_ns"].sum() == one_by_one["interval_ns"].sum()
    assert block.cpu["time_ns"].iloc[-1] == one_by_one["time_ns"].iloc[-1]


def test_samples_of_disks_are_added_up_disk_by_disk():
    times = np.repeat(np.arange(1, 6), 2) * SECOND
    columns = {"time_ns": times, "interval_ns": SECOND, "device": ["vda", "vdb"] * 5, "read_bytes": np.arange(10)}
    table = pd.DataFrame(columns | {"written_bytes": 1, "busy": [0.0, 1.0] * 5})
    assert coarser(None, 3) is None and len(coarser(table, 5)) == 10
    found = coarser(table, 3)
    assert found["time_ns"].tolist() == [2 * SECOND] * 2 + [4 * SECOND] * 2 + [5 * SECOND] * 2
    assert found["device"].tolist() == ["vda", "vdb"] * 3 and found["read_bytes"].tolist() == [2, 4, 10, 12, 8, 9]
    assert found["busy"].tolist() == [0.0, 1.0] * 3 and found["interval_ns"].tolist() == [2 * SECOND] * 4 + [SECOND] * 2


def test_the_first_sample_is_drawn_within_the_trace(tmp_path):
    """A trace of less than an interval has one sample, which began before it."""
    path = write_job(tmp_path / "brief.trace", Job(epochs=1, block=True))
    for kind in ("cpu", "disk"):
        table = pq.read_table(path / "samples" / f"{kind}.parquet")
        first = table.filter(pc.equal(table["time_ns"], pc.min(table["time_ns"])))
        long = pa.array([60 * SECOND] * first.num_rows, type=first.schema.field("interval_ns").type)
        pq.write_table(
            first.set_column(first.schema.get_field_index("interval_ns"), "interval_ns", long),
            path / "samples" / f"{kind}.parquet",
        )
    block = plot_timeline([path], tmp_path / "t.svg")[0]
    edges, rates = disk_rates(block)
    assert len(edges) == 2 and edges[1] - edges[0] == 60 * SECOND and len(rates["read"]) == 1
    assert sample_edges(block, edges).tolist() == [block.window.seconds()[0], (edges[1] - block.window.zero_ns) / SECOND]


def test_a_failed_command_is_told_beside_its_name_and_runs_into_no_words(tmp_path):
    path = write_job(tmp_path / "failed.trace", Job(lost={"ring buffer": 77}))
    manifest = read_manifest(path)
    manifest.exit_status, manifest.target.command = 3, ["python", "train.py", *("--option=value",) * 20]
    write_manifest(path, manifest)
    view = choose_view([Trace(path)], None)
    block = load_timeline(Trace(path), "failed.trace", view.windows[0], 100, "all", lambda amount: None)
    with matplotlib.rc_context(FIGURE_RC):
        figure = draw([block], view, Form())
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw(renderer)
        head = [(text.get_text(), text.get_window_extent(renderer)) for text in figure.texts[:3]]
    assert head[1][0].startswith("the command failed with exit status 3; 77 events LOST")
    label, flaw, command = (box for _, box in head)
    assert label.x1 < command.x0 and command.x1 < flaw.x0


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

    def full(self, *arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(IotwinError, match="No space left"):
        plot_timeline(traces[:1], output)
    assert output.read_text() == "old" and [file.name for file in tmp_path.iterdir()] == ["t.svg"]


def test_the_command(traces, tmp_path, capsys):
    command, parser = PlotCommand(), ArgumentParser()
    command.prepare_parser(parser)
    args = parser.parse_args(["timeline", str(traces[1]), "-o", str(tmp_path / "t.png"), "--zoom", "eval:1"])
    outcome = command.run(args)
    command.show(outcome.document)
    assert outcome.exit_status == 0 and outcome.document["traces"][0]["lost"] == 77
    assert "events lost: 77" in capsys.readouterr().out


def test_epochs_are_numbered_where_some_are_too_short_for_more(tmp_path):
    """Most epochs have room for their names and two for their numbers alone: all are numbered, and none goes without."""
    path = write_job(tmp_path / "t.trace", Job(epochs=6, evaluation_files=0, checkpoint_every=0))
    phases = pq.read_table(path / "phases.parquet")
    begin, end = pc.min(phases["start_ns"]).as_py(), pc.max(phases["end_ns"]).as_py()
    edges = begin + ((end - begin) * np.array([0, 2, 5, 8, 11, 14, 14.6, 15.2]) / 15.2).astype(np.int64)  # init, epochs
    columns = {name: phases[name] for name in phases.column_names} | {"start_ns": edges[:-1], "end_ns": edges[1:]}
    write_table(path, "phases.parquet", schema.PHASES, columns)
    plot_timeline([path], tmp_path / "t.svg", zoom=f"0..{(end - edges[1]) / SECOND}")
    text = (tmp_path / "t.svg").read_text()
    assert "epoch 1" not in text and all(re.search(f">{epoch}</text>", text) for epoch in range(1, 7))


def test_phases_have_one_name_and_one_colour_in_all_traces_and_in_the_legend(tmp_path):
    """A job with epochs too short for their names beside one with long ones: neither is labelled otherwise than the other."""
    short = write_job(tmp_path / "short.trace", Job(epochs=12, files=4, evaluation_files=0, checkpoint_every=0))
    long = write_job(tmp_path / "long.trace", Job(epochs=2, files=24, evaluation_files=0, checkpoint_every=2))
    plot_timeline([short, long], tmp_path / "t.svg")
    picture = (tmp_path / "t.svg").read_text()
    labels = re.findall(r">(epoch \d+|\d+)</text>", picture)
    assert ">epoch</text>" in picture and ">checkpoint</text>" in picture and ">init</text>" in picture
    assert "1" in labels and "12" in labels and not any(label.startswith("epoch") for label in labels)
    alone = tmp_path / "alone.svg"
    plot_timeline([long], alone)
    assert "epoch 2</text>" in alone.read_text()
    plot_timeline([short, long], tmp_path / "u.svg", legend=tmp_path / "legend.svg")
    assert ">epoch</text>" in (tmp_path / "legend.svg").read_text() and PHASE_COLOURS["epoch"].lower() in picture
