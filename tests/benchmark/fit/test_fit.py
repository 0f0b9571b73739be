"""What fit returns of a trace, writes and warns of; and what it predicts of the twin."""

import sys
from pathlib import Path

import numpy as np
import pytest

from iotwin.benchmark.fit.fit_trace import fit, predict_twin
from iotwin.benchmark.fit.parameters.parameters import fit_parameters
from iotwin.benchmark.fit.traced_job import look
from iotwin.trace_store.reader import Trace
from iotwin.workload_yaml import load
from iotwin.workload_yaml.recording import read_recording
from tests.benchmark.fit.made_jobs import chunks_and_labels, sampled_with_replacement
from tests.benchmark.loader_job import LoaderJob
from tests.benchmark.made_trace import Made
from tests.conftest import run_iotwin
from tests.processes import call


def test_a_twin_is_written_as_a_yaml_and_a_recording(tmp_path):
    fitted = fit(LoaderJob().trace(tmp_path / "t"))
    fitted.write(tmp_path / "made.yaml")
    config = load(tmp_path / "made.yaml")
    assert Path(config.twin.recorded.file).name == "made.recording" and config.reader.batch_size == 4
    assert read_recording(tmp_path / "made.recording").header == fitted.recording.header


def test_parameters_are_written_as_a_yaml_alone(tmp_path):
    fit_parameters(LoaderJob().trace(tmp_path / "t")).write(tmp_path / "made.yaml")
    assert load(tmp_path / "made.yaml").twin.recorded is None
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["made.yaml"]


def test_the_twin_of_a_trace_is_predicted_with_what_can_be_edited(tmp_path):
    words = predict_twin(chunks_and_labels(tmp_path))
    assert words.startswith("the twin accounts for 100% of what is read (4.62 MiB of 4.62 MiB data")
    assert "; edits: batch size 4, 1 loader, 2 epochs, 48 samples, 1 rank," in words


def test_a_twin_without_batches_is_predicted_to_have_no_edits(tmp_path):
    made, now = Made(), 0.0
    pid = made.process(1000, 1, "helper")
    for number in range(6):
        now = made.read_file(now, pid, made.file(f"/d/{number}", "other", 1000))
    assert predict_twin(made.trace(tmp_path / "t")) == (
        "the twin accounts for 100% of what is read (5.86 KiB of 5.86 KiB other files); "
        "100% of what is opened (6 of 6 other files); edits: none, as the trace does not show when a rank took which batch"
    )


def test_a_trace_without_calls_on_storage_is_predicted_to_have_no_twin(tmp_path):
    made = Made()
    made.call(0, made.process(1000, 1, "helper"), "write", made.file("pipe:[1]", "pipe"), None, 8)
    assert predict_twin(made.trace(tmp_path / "t")).startswith("none: ")


def test_a_failed_command_is_the_first_warning_and_assumption(tmp_path, capsys):
    config = fit(sampled_with_replacement(tmp_path, exit_status=3)).config
    assert "the traced command ended with status 3" in capsys.readouterr().err.splitlines()[0]
    assert "ended with status 3" in config.twin.assumptions[0]


@pytest.mark.parametrize(("faults", "mapped"), [(99, False), (101, True)])
def test_data_are_mapped_if_page_faults_bring_most_of_them(tmp_path, faults, mapped):
    made, now = Made(), 10.0
    made.process(1000, 1, "rank")
    data = made.file("/d/tokens.bin", size=200 * 65_536)
    for page in range(200):
        now = 20 + made.call(now, 1000, "page_fault" if page < faults else "pread64", data, page * 65_536, 65_536)
    assert look(made.trace(tmp_path / "t")).is_mapped() == mapped


def test_a_mapped_file_is_read_to_its_end_and_no_farther(tmp_path):
    """The last page that is mapped is whole, but the file has only a part of it."""
    made, now, size = Made(), 10.0, 200 * 65_536 - 1_000
    made.process(1000, 1, "rank")
    data = made.file("/d/tokens.bin", size=size)
    now = made.call(made.call(now, 1000, "openat", data), 1000, "mmap", data, 0, size)
    for page in [*np.random.default_rng(1).integers(0, 200, 400).tolist(), 199]:
        now = 20 + made.call(now, 1000, "page_fault", data, page * 65_536, 65_536)
    trace = made.trace(tmp_path / "t")
    calls = look(trace).calls
    faults = calls[calls["op"] == "page_fault"]
    assert (faults["offset"] + faults["result"]).max() == size and fit(trace).files == [("tokens.bin", size)]


_BUILD = "import subprocess, sys; [subprocess.run(['cksum', name], check=True) for name in sys.argv[1:]]"


@pytest.mark.root
@pytest.mark.parametrize(
    "words",
    [
        ["cp", "-r", "{data}", "{data}.copy"],
        [sys.executable, "-c", _BUILD, *(f"{{data}}/{number}.dat" for number in range(5))],
        [sys.executable, "-c", "open('{data}.log', 'w').write('done')"],
    ],
)
def test_a_program_that_does_not_train_has_a_twin_that_runs(tmp_path, words):
    (tmp_path / "data").mkdir()
    for number in range(5):
        (tmp_path / "data" / f"{number}.dat").write_bytes(np.random.default_rng(number).bytes(300_000))
    command = [word.replace("{data}", str(tmp_path / "data")) for word in words]
    assert call("trace", "-o", tmp_path / "t.trace", "--quiet", "--", *command).returncode == 0
    assert fit(Trace(tmp_path / "t.trace")).coverage["read_share"] == 1.0
    assert call("fit", tmp_path / "t.trace", "-o", tmp_path / "twin.yaml").returncode == 0
    assert run_iotwin("emulate", tmp_path / "twin.yaml", "--quiet", cwd=tmp_path).returncode == 0
