"""Write a set of hosts as one trace, for programs that read one directory of tables."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from iotwin.common.errors import UsageError
from iotwin.common.files import make_folder, open_new
from iotwin.common.untrusted_files import open_foreign
from iotwin.trace_store import schema
from iotwin.trace_store.hosts.make_set import set_of
from iotwin.trace_store.hosts.set_file import MAX_HOSTS, is_set
from iotwin.trace_store.hosts.set_tables import SetTables, open_set
from iotwin.trace_store.manifest import Manifest, write_manifest
from iotwin.trace_store.parquet_tables import SAMPLES
from iotwin.trace_store.raw.record_files import refuse_unusable
from iotwin.trace_store.trace_directory import made_trace
from iotwin.trace_store.writer import write_events, write_table

_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,99}")


def merge_traces(traces: Sequence[Path], directory: Path, force: bool = False) -> Manifest:
    """Write the traces of several hosts, or those of one set, as one trace at `directory`. Return its manifest.

    Holds a batch of each trace in memory. Raises UsageError for too few or too many traces, or if `directory` is in use or is one
    of the traces.
    """
    refuse_unusable(directory, force)
    if len(traces) == 1 and is_set(traces[0]):
        tables = open_set(traces[0])
    elif 1 < len(traces) <= MAX_HOSTS:
        tables = SetTables(Path(), set_of(Path(), traces))
    else:
        raise UsageError(f"give a set, or 2 to {MAX_HOSTS} traces to merge, not {len(traces)}")
    if len(tables.hosts) < 2 and tables.left_out:
        raise UsageError(f"only one trace can be read, so there is nothing to merge: {next(iter(tables.left_out.values()))}")
    if directory.resolve() in (host.tables.path.resolve() for host in tables.hosts):
        raise UsageError(f"{directory} is one of the traces to merge; choose another name")
    with made_trace(directory) as made:
        write_events(made / "events.parquet", (pa.Table.from_batches([batch]) for batch in tables.events()))
        samples = {f"{SAMPLES}{kind}": columns for kind, columns in schema.SAMPLES.items()}
        for name, expected in (schema.TABLES | samples).items():
            table = tables.rows(name, expected)
            if table is not None:
                write_table(made, f"{name}.parquet", expected, table)
        make_folder(made / "logs")
        for index, host in enumerate(tables.hosts):
            _copy_logs(host.tables.path / "logs", made, _file_name(host.entry.host, index))
        write_manifest(made, tables.manifest)
    return tables.manifest


def _file_name(host: str, number: int) -> str:
    """Return `host` if it is a safe file name, else host_NUMBER, which cannot be the name of a host."""
    return host if _HOST_NAME.fullmatch(host) else f"host_{number}"


def _copy_logs(source: Path, directory: Path, name: str) -> None:
    for log in sorted(source.iterdir()) if source.is_dir() else []:
        if log.is_file() and not log.is_symlink():
            with open_foreign(log, follow=False) as content, open_new(directory / "logs" / f"{name}.{log.name}") as copy:
                shutil.copyfileobj(content, copy)
