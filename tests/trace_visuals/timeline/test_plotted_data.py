"""What accompanies a timeline for a paper: its metadata, and its data as CSV."""

import hashlib

import pandas as pd
import pyarrow.compute as pc
import pytest
from PIL import Image

from iotwin.trace_store.reader import Trace
from tests.conftest import run_iotwin
from tests.synthetic import Job, write_job


@pytest.fixture
def trace(tmp_path):
    return write_job(tmp_path / "job.trace", Job())


def plot(trace, path, *options):
    done = run_iotwin("plot", "timeline", trace, "-o", path, *options, "--quiet")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_picture_for_a_paper_holds_its_command_and_its_trace(trace, tmp_path, suffix):
    path = tmp_path / f"t{suffix}"
    plot(trace, path, "--paper")
    if suffix == ".png":
        with Image.open(path) as picture:
            found = " ".join(picture.text.values())
    else:
        found = path.read_bytes().decode("latin-1")
    digest = hashlib.sha256((trace / "manifest.json").read_bytes()).hexdigest()
    for each in ("iotwin plot timeline", "--paper", "iotwin 0.", "job.trace (manifest.json sha256 ", digest):
        assert each in found.replace("\\", "")


def test_other_pictures_name_no_command(trace, tmp_path):
    plot(trace, tmp_path / "t.svg")
    assert "plot timeline" not in (tmp_path / "t.svg").read_text() and not (tmp_path / "t.csv").exists()


def test_the_plotted_data_sum_up_to_the_trace(trace, tmp_path):
    plot(trace, tmp_path / "t.svg", "--paper")
    data = pd.read_csv(tmp_path / "t.csv")
    assert list(data) == ["trace", "row", "series", "begin_s", "end_s", "value"] and set(data["trace"]) == {"job.trace"}
    events = Trace(trace).events_frame(("op", "result", "file_id"), pc.field("op").isin(["read", "pread64"]))
    kinds = Trace(trace).files()["kind"].astype(str).to_numpy()
    own = events[pd.Series(kinds[events["file_id"]], index=events.index).isin(["dataset", "checkpoint", "log"])]
    rates = data[(data["row"] == "bytes per second") & (data["series"] == "read")]
    assert (rates["value"] * (rates["end_s"] - rates["begin_s"])).sum() == pytest.approx(
        own["result"].clip(lower=0).sum(), rel=1e-6
    )
    starts = data[(data["row"] == "calls: calls that start") & (data["series"] == "read")]
    assert starts["value"].sum() == len(own)
