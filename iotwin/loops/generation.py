"""A data set written wherever it is wanted: into a directory, by one node or several, or into an object store."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import UsageError

if TYPE_CHECKING:
    from datagen.layouts import Layout
    from datagen.manifest import DataSetManifest


def generate_anywhere(
    layout: "Layout", output: str, nodes: str | None, request: dict[str, Any], options: Mapping[str, object] | None = None
) -> "DataSetManifest":
    """Write the data set at `output`, alone or as the one of `nodes` (or of MPI's) that this process is.

    `output` is a directory, or a URL which fsspec opens with `options`.
    """
    from datagen.nodes import mpi_node, parse_node

    node = parse_node(nodes) if nodes is not None else mpi_node()
    if "://" in output:
        if node is not None:
            raise UsageError(f"several nodes share a directory, not {output}; let one node write it")
        from datagen import remote

        return remote.generate(layout, output, options=options, **request)
    if node is not None:
        from datagen import nodes as several

        return several.generate(layout, Path(output), node, **request)
    from datagen.generate import generate

    return generate(layout, Path(output), **request)
