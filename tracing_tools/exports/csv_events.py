"""Export the events as CSV, with the path of each event's file as an additional column."""

from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from iotwin.trace_store import schema
from iotwin.trace_store.reader import Trace


def write_csv(trace: Trace, out: BinaryIO) -> int:
    """Write the events of `trace` to `out`, one per line in order of start, and return their number."""
    columns = [(field.name, pa.string() if field.name == "op" else field.type) for field in schema.EVENTS]
    expected = pa.schema([*columns, ("path", pa.string())])
    paths = pa.array(trace.files()["path"], pa.string())
    written = 0
    with csv.CSVWriter(out, expected) as writer:
        for batch in trace.events():
            arrays = [batch[name].cast(expected.field(name).type) for name in schema.EVENTS.names]
            writer.write_batch(pa.record_batch([*arrays, pc.take(paths, batch["file_id"])], schema=expected))
            written += batch.num_rows
    return written
