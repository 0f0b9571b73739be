"""A twin whose recording an earlier version wrote is replayed and edited as by that version."""

import pytest

from iotwin.loops.emulation import EmulationOptions, run_workload
from iotwin.workload_yaml import load
from iotwin.workload_yaml.recording import read_recording
from tests.conftest import ROOT

MADE = ROOT / "tests" / "fixtures" / "recorded_twin"


@pytest.mark.parametrize("epochs", [2, 3])
def test_a_twin_of_an_earlier_version_is_replayed_and_edited(tmp_path, epochs):
    """Each of its epochs reads 24 files, and 8 more for its evaluation, of 100 kB each, and writes a checkpoint of 300 kB."""
    config = load(MADE / "twin.yaml", [f"++workload.train.epochs={epochs}"])
    for file in read_recording(MADE / "twin.recording").header.files:
        if not file.written:
            (tmp_path / "data" / file.name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "data" / file.name).write_bytes(bytes(file.size_bytes))
    config.dataset.data_folder = str(tmp_path / "data")
    config.checkpoint.checkpoint_folder = config.output.folder = str(tmp_path / "out")
    summary = run_workload(config, EmulationOptions())
    assert summary is not None
    own = summary["iotwin"]
    assert (own["bytes_read"], own["bytes_written"]) == (epochs * (24 + 8) * 100_000, epochs * 300_000)
