"""Finishing writes the tables of block requests and of an accelerator's calls exactly where such records are."""

import numpy as np
import pytest

from iotwin.trace_store.raw.cuda_calls import CUDA_CALLS, NO_DIRECTION
from iotwin.trace_store.raw.finish import finish_trace
from iotwin.trace_store.raw.record_files import Recording
from iotwin.trace_store.raw.records import BLOCK, GPU_CALL
from iotwin.trace_store.reader import Trace
from tests.trace_store.test_store import manifest, raw_events

START_NS = 10**9


def requests() -> np.ndarray:
    """A read that completed and a write that did not, the later first."""
    found = np.zeros(2, BLOCK)
    found["queued_ns"], found["issue_ns"], found["duration_ns"] = [0, START_NS - 5], [START_NS + 9, START_NS], [-1, 700]
    found["size_bytes"], found["sector"], found["request_flags"] = [512, 4096], [7, 8], [1, 0]
    found["device"], found["pid"], found["comm"], found["from_kernel"] = 8 << 20 | 300, [0, 41], [b"", b"job"], [1, 0]
    return found


def gpu_calls() -> np.ndarray:
    """A copy and a wait, the later first; and a record that nobody has written."""
    names = [call.name for call in CUDA_CALLS]
    found = np.zeros(3, GPU_CALL)
    found["start_ns"], found["duration_ns"], found["size_bytes"] = [START_NS + 9, START_NS, 0], [3, 4, 0], [0, 4096, 0]
    found["function"] = [names.index("cudaDeviceSynchronize"), names.index("cudaMemcpy"), 0]
    found["direction"], found["stream"], found["pid"], found["tid"] = (
        [NO_DIRECTION, 1, 0],
        [2**64 - 1, 5, 0],
        [3, 3, 0],
        [4, 4, 0],
    )
    return found


@pytest.mark.parametrize("blocks", [None, 0, 2])
@pytest.mark.parametrize("gpu", [0, 3])
def test_a_table_is_there_when_its_records_are(tmp_path, blocks, gpu):
    """Block requests that were traced and did not happen leave an empty table, those that were not traced none."""
    with Recording(tmp_path / "t", made := manifest()) as recording:
        recording.append_clock()
        recording.append_events(raw_events(20))
        if blocks is not None:
            recording.append_blocks(requests()[:blocks])
        if gpu:
            recording.append_gpu_calls(gpu_calls())
    finish_trace(tmp_path / "t", made)
    trace = Trace(tmp_path / "t")
    assert (tmp_path / "t" / "block.parquet").exists() == (blocks is not None)
    assert (tmp_path / "t" / "gpu.parquet").exists() == bool(gpu)
    assert not (tmp_path / "t" / "raw").exists()
    seconds = (trace.manifest.end_ns - trace.manifest.start_ns) / 1e9
    assert trace.manifest.cost.events_per_s == pytest.approx(20 / seconds, rel=1e-3)
    table = trace.block()
    assert (None if table is None else len(table)) == blocks
    assert (trace.gpu() is not None) == bool(gpu)


def test_block_requests_and_gpu_calls_say_what_was_recorded(tmp_path):
    with Recording(tmp_path / "t", made := manifest()) as recording:
        recording.append_clock()
        recording.append_events(raw_events(20))
        recording.append_blocks(requests())
        recording.append_gpu_calls(gpu_calls())
    finish_trace(tmp_path / "t", made)
    block, gpu = Trace(tmp_path / "t").block(), Trace(tmp_path / "t").gpu()
    assert block["issue_ns"].tolist() == [START_NS, START_NS + 9] and block["op"].astype(str).tolist() == ["read", "write"]
    assert block["queued_ns"].fillna(-1).tolist() == [START_NS - 5, -1] and block["duration_ns"].fillna(-1).tolist() == [700, -1]
    assert block["size_bytes"].tolist() == [4096, 512] and block["sector"].tolist() == [8, 7]
    assert block["pid"].fillna(-1).tolist() == [41, -1] and block["comm"].fillna("").tolist() == ["job", ""]
    assert block["device"].tolist() == [0x8 << 8 | 300 & 0xFF | (300 & ~0xFF) << 12] * 2
    assert gpu["name"].astype(str).tolist() == ["cudaMemcpy", "cudaDeviceSynchronize"]
    assert gpu["start_ns"].tolist() == [START_NS, START_NS + 9] and gpu["duration_ns"].tolist() == [4, 3]
    assert gpu["size_bytes"].fillna(-1).tolist() == [4096, -1] and gpu["stream"].fillna(-1).tolist() == [5, -1]
    assert gpu["direction"].astype(object).fillna("").tolist() == ["host_to_device", ""]


@pytest.mark.parametrize("lost", [{"ring_full": 5}, {"perf_buffer": 5}, {"entry_missed": 2, "ring_full": 3}])
def test_what_a_ledger_counts_as_lost_is_counted_once(tmp_path, lost):
    with Recording(tmp_path / "t", made := manifest()) as recording:
        recording.append_clock()
        recording.append_events(raw_events(20))
        recording.append_journal("ledger", {"seen": 27, "lost": lost})
        recording.append_clock()
    finish_trace(tmp_path / "t", made)
    assert Trace(tmp_path / "t").manifest.lost == lost | {"recorder": 2}
