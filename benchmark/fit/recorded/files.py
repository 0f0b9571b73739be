"""The files of a recording: their names in a twin, their folders, and their sizes when the job began."""

from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.common.paths_below import normal, stays_within
from iotwin.datagen.layouts.recorded import is_reserved
from iotwin.trace_store.schema import FLAG_CREATE, FLAG_TRUNCATE, FLAG_WRITABLE
from iotwin.workload_yaml.recording import Op, RecordedFile

_CHANGES = (Op.WRITE, Op.COPY_TO, Op.TRUNCATE, Op.RENAME)


@dataclass(frozen=True)
class Named:
    """The files, the index of each file_id among them (-1: none), the data set's folder, and (name, bytes) of the data set's
    files.
    """

    files: list[RecordedFile]
    index: NDArray[np.int64]
    folder: str
    data: list[tuple[str, int]]


def common_folder(paths: list[str]) -> str:
    """Return the deepest directory that holds all the files at `paths`."""
    folders, counts = np.unique([str(PurePosixPath(path).parent) for path in paths], return_counts=True)
    if len(folders) == 1:
        return str(folders[0])
    common = PurePosixPath(str(folders[counts.argmax()]))
    while not all(PurePosixPath(path).is_relative_to(common) for path in paths):
        common = common.parent
    return str(common)


def name_files(calls: pd.DataFrame, table: pd.DataFrame) -> Named:
    """Return the files that `calls` (on files alone) name."""
    ids = np.unique(calls["file"].to_numpy(np.int64))
    changed = calls["op"].isin(_CHANGES) | (calls["op"] == Op.OPEN) & (calls["flags"] & (FLAG_CREATE | FLAG_TRUNCATE) > 0)
    # Opened for writing and still empty, for example a file without a name (O_TMPFILE).
    empty = table["size_bytes"].reindex(calls["file"]).eq(0).to_numpy()
    changed |= (calls["op"] == Op.OPEN) & (calls["flags"] & FLAG_WRITABLE > 0) & empty
    order = np.argsort(calls["at"].to_numpy(), kind="stable")
    first = calls.iloc[order[np.unique(calls["file"].to_numpy()[order], return_index=True)[1]]]
    made = set(first.loc[(first["op"] == Op.OPEN) & (first["flags"] & FLAG_CREATE > 0), "file"].tolist())
    written = np.isin(ids, calls.loc[changed, "file"].to_numpy())
    # A page fault also maps the rest of the file's last page, which lies beyond the file's end.
    unsized = table["size_bytes"].reindex(calls["file"]).isna().to_numpy()
    moved = calls.loc[calls["op"].isin([Op.READ, Op.COPY]) | (calls["op"] == Op.TOUCH) & unsized, ["file", "offset", "moved"]]
    reached = (moved["offset"].clip(lower=0) + moved["moved"]).groupby(moved["file"]).max()
    known = table["path"].astype(str)
    rooted = bool(known.iloc[ids].str.startswith("/").any())  # imported traces may have relative paths alone
    paths = {int(i): _path(known.iloc[i], int(i), rooted) for i in ids}
    targets = {int(i): table["renamed_to"].iloc[i] for i in ids}
    sizes = {int(i): _size(table["size_bytes"].iloc[i]) for i in ids}
    saved = {int(i) for i in ids if table["kind"].iloc[i] == "checkpoint"}
    read_folder = common_folder([paths[i] for i in ids[~written].tolist()] or ["/none"])
    written_paths = [paths[i] for i in ids[written].tolist()]
    written_paths += [
        str(targets[i])
        for i in ids[written].tolist()
        if isinstance(targets[i], str) and str(targets[i]).startswith("/") == rooted
    ]
    written_folder = common_folder(written_paths or ["/none"])
    files, index = [], np.full(len(table) + 1, -1, np.int64)
    for position, (i, is_written) in enumerate(zip(ids.tolist(), written.tolist(), strict=True)):
        index[i] = position
        if is_written:
            target = targets[i]
            renamed = _below(str(target), written_folder, i) if isinstance(target, str) else None
            files.append(RecordedFile(_below(paths[i], written_folder, i), renamed, sizes[i], True, i in made, i in saved))
        else:
            size_bytes = max(sizes[i], int(reached.get(i, 0)))
            files.append(RecordedFile(_below(paths[i], read_folder, i), None, size_bytes, checkpoint=i in saved))
    data: dict[str, int] = {}
    for file in files:
        if not file.written:
            data[file.name] = max(data.get(file.name, 0), file.size_bytes)
    return Named(files, index, read_folder, sorted(data.items()))


def _path(path: str, index: int, rooted: bool) -> str:
    path = f"unnamed/{index}" if path.startswith("unnamed:") else path
    return path if path.startswith("/") or not rooted else f"/{path}"


def _size(value: float) -> int:
    return 0 if pd.isna(value) else int(value)


def _below(path: str, folder: str, index: int) -> str:
    name = normal(path.removeprefix(folder.rstrip("/") + "/"))
    if not path.startswith(folder) or is_reserved(name):  # a job's own manifest.json is none of the data set that is generated
        name = f"renamed/{path.rpartition('/')[2]}"
    return name if stays_within(name) and not is_reserved(name) else f"unnamed/{index}"
