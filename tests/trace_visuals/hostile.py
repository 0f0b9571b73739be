"""A trace whose names try to become markup or script."""

import pyarrow as pa
import pyarrow.parquet as pq

from iotwin.trace_store import schema
from iotwin.trace_store.manifest import read_manifest, write_manifest
from tests.synthetic import Job, write_job

MARK = "<script>document.title='owned';window.owned=1</script>"
NAMES = (
    f"/data/{MARK}",
    "/data/</script><script>window.owned=2</script>",
    '/data/"><img src=x onerror=window.owned=3>',
    "/data/@@script@@",
    "/data/<!--<script>",
    "/data/\u2028\u2029\\u003c",
    "/data/javascript:window.owned=4",
    "/data/&lt;b&gt;",
)
COMMAND = ["python", "</script><script>window.owned=5</script>", "<img src=http://example.invalid/x onerror=window.owned=6>"]


def write_hostile(path):
    write_job(path, Job(files=len(NAMES) + 4, epochs=1))
    files = pq.read_table(path / "files.parquet", partitioning=None)
    paths = list(NAMES) + files["path"].to_pylist()[len(NAMES) :]
    files = files.set_column(files.schema.get_field_index("path"), "path", pa.array(paths))
    pq.write_table(files.cast(schema.FILES), path / "files.parquet")
    processes = pq.read_table(path / "processes.parquet", partitioning=None)
    lines = [MARK] * len(processes)
    processes = processes.set_column(processes.schema.get_field_index("command_line"), "command_line", pa.array(lines))
    pq.write_table(processes, path / "processes.parquet")
    manifest = read_manifest(path)
    manifest.target.command = COMMAND
    manifest.host.hostname = MARK
    manifest.notes = [MARK]
    manifest.lost = {MARK: 3}
    write_manifest(path, manifest)
    return path
