"""Recordings whose batches contradict their calls, as a stranger's may: edited all the same, or refused in one line."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotwin.benchmark.emulator.recorded.edits.edited_recording import edit
from iotwin.benchmark.emulator.recorded.edits.requested_edits import Edits
from iotwin.common.errors import IotwinError, UsageError
from iotwin.workload_yaml.recording import TwinRecording, read_recording, write_recording
from tests.benchmark.loader_job import LoaderJob, fit_once

TIMES = ["requested_ns", "received_ns", "delivered_ns", "taken_ns", "computed_ns"]


@pytest.fixture(scope="module")
def sound() -> TwinRecording:
    made = fit_once(LoaderJob(evaluated=4, files=12)).recording
    assert made is not None
    return made


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_times_and_processes_of_any_kind_end_in_one_line_or_in_a_sound_recording(sound, tmp_path_factory, data):
    batches = msgspec.convert(msgspec.to_builtins(sound.batches), type(sound.batches))
    for _ in range(data.draw(st.integers(1, 4))):
        index = data.draw(st.integers(0, len(batches.loader) - 1))
        name = data.draw(st.sampled_from([*TIMES, "loader", "samples"]))
        most = {"loader": len(sound.header.parents) - 1, "samples": 50}.get(name, 1 << 40)
        getattr(batches, name)[index] = data.draw(st.integers(0, most))
    made = TwinRecording(msgspec.structs.replace(sound.header, batches=batches), sound.columns)
    edits = Edits(batch=data.draw(st.sampled_from([0.5, 2.0])), loaders=data.draw(st.sampled_from([None, 0, 1, 5])), epochs=3)
    try:
        found = edit(made, edits)
    except IotwinError as error:
        assert len(str(error).splitlines()) == 1
        return
    path = tmp_path_factory.mktemp("edited") / "x.recording"
    write_recording(found, path)
    assert read_recording(path).rows == found.rows


@pytest.mark.parametrize("edits", [Edits(epochs=1 << 40), Edits(samples=1e9)])
def test_an_edit_beyond_all_bounds_is_refused(sound, edits):
    with pytest.raises(UsageError, match="more than 200000000 calls"):
        edit(sound, edits)
