"""Write comparisons to files: a result and a picture for each pair, and the matrix of all pairs of two folders of traces."""

import csv
import io
from pathlib import Path
from typing import Any

from iotwin.common.errors import UsageError
from iotwin.common.files import make_folder, write_json, write_whole
from iotwin.common.progress import progress
from iotwin.trace_store.hosts.set_file import is_set
from iotwin.trace_store.manifest import MANIFEST_NAME, traces_in
from iotwin.trace_store.reader import Trace
from iotwin.tracesim import Similarity, compare_all, score_all


def is_folder_of_traces(path: Path) -> bool:
    """Return whether `path` is a directory that holds traces and is neither a trace nor a set of hosts."""
    return path.is_dir() and not (path / MANIFEST_NAME).exists() and not is_set(path) and bool(_finished(path))


def _finished(path: Path) -> list[Path]:
    return [trace for trace in traces_in(path) if (trace / "events.parquet").exists()]


def compare_folders(a: Path, b: Path, output: Path | None) -> dict[str, Any]:
    """Compare every trace in the folder `a` (real) with every trace in `b` (emulated). Return the matrix of overall scores.

    With `output`, write each pair's result to REAL__EMULATED.json and .png in that folder, and the matrix to matrix.csv and .png.
    """
    rows, columns = (_finished(path) if is_folder_of_traces(path) else [path] for path in (a, b))
    for path in (a, b):
        if not path.is_dir():
            raise UsageError(f"{path}: no such trace or folder of traces; check the path")
    real, emulated = ([Trace(path) for path in paths] for paths in (rows, columns))
    names = {"rows": [path.name for path in rows], "columns": [path.name for path in columns]}
    if output is None:
        matrix = score_all(real, emulated)
    else:
        similarities = compare_all(real, emulated)
        matrix = [[similarity.overall for similarity in row] for row in similarities]
        with progress("drawing", len(rows) * len(columns), "pairs") as advance:
            for similarity in (each for row in similarities for each in row):
                _write_pair(similarity, output, f"{Path(similarity.path_a).stem}__{Path(similarity.path_b).stem}")
                advance(1)
        _write_matrix(matrix, names["rows"], names["columns"], output)
    return {**names, "matrix": matrix, "nearest": _nearest(matrix, names["rows"], names["columns"])}


def write_result(similarity: Similarity, output: Path) -> None:
    """Write similarity.json (the document that --json prints, with every dimension's curves) and similarity.png to `output`."""
    _write_pair(similarity, output, "similarity")


def _write_pair(similarity: Similarity, output: Path, name: str) -> None:
    from iotwin.trace_visuals.similarity_plot import plot_similarity

    make_folder(output)
    curves = {
        d.name: {
            "x_unit": d.x_unit,
            "unit": d.unit,
            **{
                side: {"x": curve.x.tolist(), "y": curve.y.tolist(), "labels": list(curve.labels)}
                for side, curve in (("a", d.curve_a), ("b", d.curve_b))
            },
        }
        for d in similarity.dimensions
    }
    document = {**similarity.to_document(), "curves": curves}
    write_json(output / f"{name}.json", document, indent=None)
    plot_similarity(similarity, output / f"{name}.png")


def _write_matrix(matrix: list[list[float | None]], rows: list[str], columns: list[str], output: Path) -> None:
    from iotwin.trace_visuals.similarity_plot import plot_matrix

    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["", *columns])
    writer.writerows([name, *scores] for name, scores in zip(rows, matrix, strict=True))
    write_whole(output / "matrix.csv", text.getvalue().encode())
    plot_matrix(matrix, rows, columns, output / "matrix.png")


def _nearest(matrix: list[list[float | None]], rows: list[str], columns: list[str]) -> dict[str, str]:
    """Return, for each column of the matrix, the name of the row with the highest score, unless all scores are withheld."""
    found = {}
    for index, column in enumerate(columns):
        scores = [(scores[index], row) for scores, row in zip(matrix, rows, strict=True)]
        known = [(score, row) for score, row in scores if score is not None]
        if known:
            found[column] = max(known)[1]
    return found
