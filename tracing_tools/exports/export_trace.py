"""Export a trace for Perfetto, Chrome's viewers, spreadsheets, fio and Chakra, batch by batch."""

import gzip
from pathlib import Path

from iotwin.common.errors import UsageError, nearest
from iotwin.common.files import check_output, open_whole
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.exports.chakra import write_chakra
from iotwin.tracing_tools.exports.chrome import write_chrome
from iotwin.tracing_tools.exports.csv_events import write_csv
from iotwin.tracing_tools.exports.fio_log import write_iolog
from iotwin.tracing_tools.exports.perfetto import write_perfetto

_ENDINGS = {
    ".pftrace": "perfetto",
    ".perfetto-trace": "perfetto",
    ".json": "chrome",
    ".csv": "csv",
    ".iolog": "fio",
    ".fio": "fio",
    ".et": "chakra",
}
_WRITERS = {"perfetto": write_perfetto, "chrome": write_chrome, "csv": write_csv, "chakra": write_chakra}
FORMATS = (*_WRITERS, "fio")


def format_of(output: Path, given: str | None) -> str:
    """Return `given`; if None, the format that the suffix of `output` (before .gz) implies. Raises UsageError if unknown."""
    if given is not None:
        if given not in FORMATS:
            raise UsageError(f"unknown format '{given}'{nearest(given, list(FORMATS))}; known: {', '.join(FORMATS)}")
        return given
    found = _ENDINGS.get(Path(output.name.removesuffix(".gz")).suffix.lower())
    if found is None:
        raise UsageError(f"{output}: the name has no known ending; end it in {', '.join(_ENDINGS)} or add --format")
    return found


def export_trace(trace: Trace, output: Path, format_: str, files: Path | None = None) -> int:
    """Write `trace` to the file `output`, compressed if its name ends in .gz. Return the number of events written.

    `files`: directory for the files that fio reads and writes in a replay; None means `output` with .files appended.
    """
    check_output(output)
    if files is not None and format_ != "fio":
        raise UsageError(f"--files is for the format fio, not {format_}; leave it out")
    if format_ == "fio" and output.suffix == ".gz":
        raise UsageError(f"{output}: fio cannot read compressed logs; leave out .gz")
    with open_whole(output) as out:
        if format_ == "fio":
            directory = files or output.with_name(output.name + ".files")
            return write_iolog(trace, out, directory.absolute())
        if output.suffix == ".gz":
            with gzip.GzipFile(filename="", mode="wb", fileobj=out, compresslevel=5, mtime=0) as packed:
                return _WRITERS[format_](trace, packed)  # type: ignore[arg-type]
        return _WRITERS[format_](trace, out)
