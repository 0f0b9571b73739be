"""GPU samples through the real Python binding of NVML, on a stand-in for the driver's library with two GPUs."""

import os
from pathlib import Path

import pytest

from iotwin.trace_store.reader import Trace
from tests.conftest import ROOT, compile_c, run_iotwin, until_sampled


@pytest.fixture(scope="module")
def stub(tmp_path_factory):
    pytest.importorskip("pynvml", reason="the Python package nvidia-ml-py is not installed")
    folder: Path = tmp_path_factory.mktemp("nvml")
    compile_c(folder / "libnvidia-ml.so.1", Path(__file__).with_name("stub_nvml.c"), options=["-shared", "-fPIC"])
    return folder


def record(directory, stub, **more):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": str(stub), **more}
    command = ["sh", "-c", until_sampled(directory / "t", "cpu", 5)]
    result = run_iotwin("trace", "-o", directory / "t", "--interval", "50ms", "--quiet", "--", *command, env=environment)
    assert result.returncode == 0, result.stderr
    return Trace(directory / "t")


def test_devices_and_processes(tmp_path, stub):
    """The columns of nvidia-smi pmon: of several samples of a process the newest, null what the driver does not tell."""
    trace = record(tmp_path, stub, STUB_NVML_PIDS=f"{os.getpid()},4194305")
    devices, processes = trace.samples("gpu"), trace.samples("gpu_process")
    assert devices is not None and processes is not None
    first, second = (devices[devices["device"] == number] for number in (0, 1))
    assert len(first) == len(second) >= 4
    assert (
        set(first["sm_percent"]) == {87}
        and set(first["memory_percent"]) == {40}
        and set(first["memory_used_bytes"]) == {10 << 30}
    )
    assert second["sm_percent"].isna().all() and second["memory_used_bytes"].eq(10 << 30).all()
    assert first["time_ns"].is_monotonic_increasing
    assert processes["device"].eq(0).all()
    columns = ["sm_percent", "mem_percent", "enc_percent", "dec_percent"]
    ours, ended = processes[processes["pid"] == os.getpid()], processes[processes["pid"] == 4194305]
    assert ours[columns].iloc[0].tolist() == [81, 31, 1, 2] and ours["memory_used_bytes"].eq(6 << 30).all()
    assert len(ours) == len(first) and ours[columns].iloc[1:].isna().all(axis=None)  # the driver has nothing newer
    assert len(ended) == 1 and ended[columns].iloc[0].tolist() == [6, 5, 0, 0] and ended["memory_used_bytes"].isna().all()
    own_name = Path("/proc/self/comm").read_text().strip()
    assert set(ours["command"]) == {own_name} and ended["command"].isna().all()
    assert not any("no GPU samples" in note for note in trace.manifest.notes)


def test_without_a_gpu_there_are_no_tables_and_a_reason(tmp_path, stub):
    trace = record(tmp_path, stub, STUB_NVML_NONE="1")
    assert trace.samples("gpu") is None and trace.samples("gpu_process") is None
    assert "no GPU samples: NVML lists no GPU" in trace.manifest.notes


def test_without_the_driver_there_are_no_tables_and_a_reason(tmp_path):
    pytest.importorskip("pynvml", reason="the Python package nvidia-ml-py is not installed")
    trace = record(tmp_path, tmp_path)
    if trace.samples("gpu") is not None:
        pytest.skip("this machine has a GPU")
    assert any(note == "no GPU samples: no NVIDIA driver is installed here" for note in trace.manifest.notes)
