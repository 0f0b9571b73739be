"""When a rank took each batch, and when its computation ended."""

import pandas as pd

from iotwin.benchmark.fit.recorded.taken_times import with_computation
from iotwin.workload_yaml.recording import Op

MS = 1_000_000


def test_a_computation_ends_where_the_rank_begins_to_wait_for_the_next_batch():
    part = pd.DataFrame({"requested_ns": [0, 50, 140], "delivered_ns": [49, 139, 229], "read_ns": [50, 140, 230]}) * MS
    waits = pd.DataFrame({"at": [1, 70, 160], "end": [50, 140, 230]}) * MS
    rows = waits.assign(op=Op.POLL, thread=0, subject=0)
    found = with_computation(part, rows, 0, 250 * MS)
    assert (found["taken_ns"] // MS).tolist() == [50, 140, 230]
    assert (found["computed_ns"] // MS).tolist() == [70, 160, 250]
