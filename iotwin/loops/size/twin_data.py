"""Open a twin of any form, with its data set: a folder of `iotwin twin`, a packed twin, or a YAML."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from iotwin.common.errors import UsageError
from iotwin.loops.twin_from_trace import RECIPE, TWIN, generate_data, read_summary


@contextmanager
def open_twin(twin: Path, scratch: Path) -> Iterator[tuple[Path, list[Path], int]]:
    """Yield the twin's YAML, the files of its data set and its ranks. A packed twin is unpacked below `scratch`.

    Raises UsageError if `twin` is none of the three, or if the data set of a YAML does not exist.
    """
    from iotwin.loops.twin_archive import unpack
    from iotwin.workload_yaml import load

    if twin.is_file() and zipfile.is_zipfile(twin):
        unpack(twin, scratch / "twin")
        twin = scratch / "twin"
    if twin.is_dir():
        if not (twin / RECIPE).is_file():
            read_summary(twin)  # raises the error that explains how to make a twin
        data, workload = generate_data(twin), twin / TWIN
    elif twin.is_file():
        workload, data = twin, _data_of_yaml(twin)
    else:
        raise UsageError(f"{twin} does not exist; give a folder of iotwin twin, a packed twin or a YAML")
    if not data:
        raise UsageError(f"{twin} reads no data set, so there is no storage to size")
    yield workload, data, load(workload).twin.ranks


def _data_of_yaml(workload: Path) -> list[Path]:
    from iotwin.workload_yaml import load

    folder = Path(load(workload).dataset.data_folder)
    data = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()) if folder.is_dir() else []
    if not data:
        raise UsageError(
            f"{workload}: dataset.data_folder '{folder}' holds no files; generate the data set first, or change the key"
        )
    return data
