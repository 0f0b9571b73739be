"""The artifact's commands for pictures, with its options, on its raw recordings and on traces."""

import os
import subprocess
import sys

import matplotlib.image
import pytest

from iotwin.trace_store.reader import Trace
from iotwin.trace_visuals.timeline.timeline_figure import Form, plot_timeline
from tests.conftest import PATIENCE_S, ROOT
from tests.synthetic import Job, write_job
from tests.trace_store.test_import import write_artifact

HERE = ROOT / "trace_visuals"


def _run(*command, cwd):
    environment = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def test_preprocess_with_the_artifact_s_options(tmp_path):
    write_artifact(tmp_path / "raw")
    done = _run(sys.executable, HERE / "preprocess_traces.py", "raw", "unet3d", "-s", "2", "-ml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Trace(tmp_path / "raw.trace").manifest.backend == "import artifact"
    done = _run(
        sys.executable, HERE / "preprocess_traces.py", "raw", "unet3d", "-o", "x", "--timezone", "Asia/Tokyo", cwd=tmp_path
    )
    assert done.returncode == 1 and "hours outside" in done.stderr and not (tmp_path / "x").exists()
    assert _run(sys.executable, HERE / "preprocess_traces.py", "raw", "gpt", cwd=tmp_path).returncode == 2


def test_timelines_with_the_artifact_s_options(tmp_path):
    write_job(tmp_path / "t.trace", Job(files=8, epochs=1))
    done = _run(sys.executable, HERE / "plot_timelines.py", "t.trace", "unet3d", "run", "-po", "-s", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "plots" / "run").iterdir()}
    assert names == {"whole.png", "epoch.png", "legend.png"} and "block is left out" in done.stderr
    assert matplotlib.image.imread(tmp_path / "plots" / "run" / "whole.png").shape[1] == 875
    write_job(tmp_path / "long.trace", Job(files=64, epochs=8, loaders=0))
    form = Form(short=True, paper=True, legend=False)
    plot_timeline([tmp_path / "long.trace"], tmp_path / "whole.png", form=form, legend=tmp_path / "legend.png")
    done = _run(sys.executable, HERE / "plot_timelines.py", "long.trace", "unet3d", "all", "-a", "-po", "-s", cwd=tmp_path)
    all_phases = (tmp_path / "legend.png").read_bytes()  # those of the last zoom are fewer
    assert done.returncode == 0 and (tmp_path / "plots" / "all" / "legend.png").read_bytes() == all_phases
    done = _run(sys.executable, HERE / "plot_timelines.py", "t.trace", "unet3d", "../x", cwd=tmp_path)
    assert done.returncode == 2 and "is no name" in done.stderr
    done = _run(sys.executable, HERE / "plot_timelines.py", "none.trace", "unet3d", "run", cwd=tmp_path)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and "no such trace" in done.stderr


def test_all_timelines_of_a_directory(tmp_path):
    (tmp_path / "timeline_data" / "real").mkdir(parents=True)
    write_artifact(tmp_path / "timeline_data" / "real" / "unet3d a")
    done = _run(HERE / "generate_timeline_plots.sh", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "plots" / "real_unet3d a").iterdir()}
    assert names >= {"whole.png", "init.png", "first_30s.png", "epoch.png", "last_5s.png", "legend.png"}
    (tmp_path / "empty").mkdir()
    done = _run(HERE / "generate_timeline_plots.sh", "empty", cwd=tmp_path)
    assert done.returncode == 1 and "holds no trace" in done.stderr
    assert _run(HERE / "generate_timeline_plots.sh", "none", cwd=tmp_path).returncode == 2


@pytest.mark.parametrize("arguments", [[], ["none", "plots"]])
def test_instrumentation_plots_refuse_what_is_not_there_in_one_line(tmp_path, arguments):
    done = _run(HERE / "generate_instrumentation_plots.sh", *arguments, cwd=tmp_path)
    assert done.returncode in (1, 2) and len(done.stderr.splitlines()) == 1 and "Traceback" not in done.stderr
