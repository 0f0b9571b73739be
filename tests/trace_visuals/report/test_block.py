"""Block requests against calls, as the report tells them: exact sums, whatever the phases."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.trace_store.reader import Trace
from iotwin.trace_visuals.report.block_requests import PhaseBytes
from iotwin.trace_visuals.report.report_page import write_report
from tests.synthetic import Job, write_job


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=6),
    st.lists(st.tuples(st.integers(0, 60), st.integers(-1, 2), st.integers(0, 1000)), max_size=40),
)
def test_phases_get_the_transfers_that_start_in_them(spans, transfers):
    spans = [(min(span), max(span)) for span in spans]
    phases = pd.DataFrame({"phase": ["epoch"] * len(spans), "start_ns": [a for a, _ in spans], "end_ns": [b for _, b in spans]})
    found = PhaseBytes(phases)
    for part in (transfers[:7], transfers[7:]):
        found.add(*(np.array([row[i] for row in part], dtype=np.int64) for i in range(3)))
    for way, result in enumerate(found.result()):
        expected = [sum(size for time, mine, size in transfers if mine == way and begin <= time < end) for begin, end in spans]
        assert result.tolist() == expected


def test_the_report_s_page_cache_is_that_of_the_tables(tmp_path):
    path = write_job(tmp_path / "t.trace", Job(block=True))
    block = write_report([path], tmp_path / "r.html")[0].block
    trace = Trace(path)
    requests, phases = trace.block(), trace.phases()
    by_op = requests.groupby("op", observed=True)["size_bytes"].sum()
    assert block.curves["read block"][-1] == by_op["read"] and block.curves["write block"][-1] == by_op["write"]
    assert block.requests.set_index("op")["requests"].to_dict() == requests["op"].astype(str).value_counts().to_dict()
    epochs = block.phases[block.phases["phase"] == "epoch"]
    events = trace.events_frame()
    first = phases[phases["phase"] == "epoch"].iloc[0]
    mine = events[(events["op"] == "read") & events["start_ns"].between(first["start_ns"], first["end_ns"], inclusive="left")]
    assert epochs["read_calls_bytes"].iloc[0] == mine["result"].sum() and len(epochs) == 3
    assert epochs["cached_share"].to_numpy() == pytest.approx(0.5, abs=0.05)
    assert block.phases.loc[block.phases["phase"] == "init", "read_calls_bytes"].tolist() == [0]
