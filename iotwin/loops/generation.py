"""Write or remove a data set in a directory (written by one node or several) or in an object store."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iotwin.common.errors import UsageError

if TYPE_CHECKING:
    from iotwin.datagen.layouts import Layout
    from iotwin.datagen.manifest import DataSetManifest


def generate_anywhere(
    layout: "Layout", output: str, nodes: str | None, request: dict[str, Any], options: Mapping[str, object] | None = None
) -> "DataSetManifest":
    """Write the data set at `output`, a directory or a URL that fsspec opens with `options`, and return its manifest.

    `request` holds the keyword arguments of `datagen.generate.generate`. With `nodes` ("I/N") or under MPI, write only the
    files of this node.
    """
    from iotwin.datagen.nodes import mpi_node, parse_node

    node = parse_node(nodes) if nodes is not None else mpi_node()
    if "://" in output:
        if node is not None:
            raise UsageError(f"several nodes share a directory, not {output}; let one node write it")
        from iotwin.datagen import object_stores

        return object_stores.generate(layout, output, options=options, **request)
    if node is not None:
        from iotwin.datagen import nodes as several

        return several.generate(layout, Path(output), node, **request)
    from iotwin.datagen.generate import generate

    return generate(layout, Path(output), **request)


def remove_anywhere(output: str, options: Mapping[str, object] | None = None) -> None:
    """Remove the finished data set at `output`, a directory or a URL that fsspec opens with `options`, but no other files."""
    if "://" in output:
        from iotwin.datagen import object_stores

        object_stores.remove_data_set(output, options)
    else:
        from iotwin.datagen.generate import remove_data_set

        remove_data_set(Path(output))
