"""Write one data set by several nodes into a shared directory, with or without MPI.

Node i of n writes the units whose index is i modulo n, and lists them in a journal in the directory. The nodes communicate only
through the directory. Node 0 prepares it, reads all journals, publishes the files that several nodes wrote, and writes the
manifest. If a node is killed, the others wait until the user starts that node again by the same command.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.progress import note
from iotwin.common.ranks import launched_by_mpi
from iotwin.datagen.data_set_files import Piece, Publisher
from iotwin.datagen.generate import Existing, Plan, check_space, finished_units, plan, prepare, publish_done, whole, write_units
from iotwin.datagen.layouts import Layout
from iotwin.datagen.manifest import (
    MANIFEST_NAME,
    DataSetManifest,
    Request,
    read_journal,
    read_manifest,
    remove_journals,
    start_journal,
    write_manifest,
)

_POLL_S = 0.2


class Node(NamedTuple):
    """The node with the index `rank` of `size` nodes. `barrier` waits for all nodes; it is None without MPI."""

    rank: int  # from 0
    size: int
    barrier: Callable[[], None] | None = None

    @property
    def journal_name(self) -> str:
        """Return the name of this node's journal."""
        return f".iotwin-generate-of-{self.size}-{self.rank}.jsonl"


def parse_node(text: str) -> Node:
    """Return the node that `text` names: '0/4' is the first of four nodes."""
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise UsageError(f"--nodes '{text}' names no node; write 0/4, 1/4, 2/4 and 3/4 on four nodes")
    return Node(int(index), int(count))


def mpi_node() -> Node | None:
    """Return the node of this process if mpirun or srun started several, else None. Raises IotwinError if mpi4py is missing."""
    if launched_by_mpi().size < 2:
        return None
    try:
        from mpi4py import MPI
    except ImportError:
        raise IotwinError("running under mpirun needs mpi4py; install it with: pip install 'iotwin[mpi]'") from None
    world = MPI.COMM_WORLD
    return Node(world.Get_rank(), world.Get_size(), world.Barrier)


def generate(
    layout: Layout,
    directory: Path,
    node: Node,
    *,
    samples: int | None = None,
    size_bytes: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    existing: Existing = "refuse",
) -> DataSetManifest:
    """Write the share of `node`, wait for the other nodes, and return the manifest. Takes the arguments of generate.generate."""
    if existing == "replace" and node.barrier is None:
        raise UsageError(
            "--force cannot go with --nodes, as no node knows what another has replaced; remove the directory instead"
        )
    planned = plan(layout, samples=samples, size_bytes=size_bytes, seed=seed)
    if finished := _begin(planned, directory, node, existing):
        return finished
    publisher = Publisher(directory)
    done = finished_units(planned, directory, publisher)
    if not (directory / node.journal_name).exists():
        start_journal(directory, planned.request, node.journal_name)
    write_units(planned, directory, publisher, done, workers, slice(node.rank, None, node.size), node.journal_name)
    return _finish(planned, directory) if node.rank == 0 else _wait_for_manifest(planned.request, directory)


def _begin(planned: Plan, directory: Path, node: Node, existing: Existing) -> DataSetManifest | None:
    """On node 0, prepare the directory; on other nodes, wait for node 0. Return the manifest if the data set is finished."""
    finished = None
    if node.rank == 0:
        finished = prepare(directory, planned.request, existing)
        if not finished:
            done_bytes = sum(piece.size_bytes for pieces in _all_done(planned, directory).values() for piece in pieces)
            check_space(directory, planned.size_bytes - done_bytes)
    if node.barrier is not None:
        node.barrier()
    if node.rank:
        note(f"node {node.rank} of {node.size}: waiting for node 0 to prepare {directory}")
        while read_journal(directory)[0] != planned.request:
            if finished := _finished(planned.request, directory):
                return finished
            time.sleep(_POLL_S)
    return finished


def _finished(request: Request, directory: Path) -> DataSetManifest | None:
    if not (directory / MANIFEST_NAME).exists():
        return None
    manifest = read_manifest(directory)
    if manifest.request != request:
        raise IotwinError(f"{directory} already holds another data set; choose another directory or remove it")
    return manifest


def _all_done(planned: Plan, directory: Path) -> dict[int, list[Piece]]:
    return finished_units(planned, directory, Publisher(directory))


def _finish(planned: Plan, directory: Path) -> DataSetManifest:
    """Wait until the journals list every unit, publish the files that several nodes wrote, write and return the manifest."""
    note("waiting for the other nodes")
    while len(done := _all_done(planned, directory)) < len(planned.unit_bytes):
        time.sleep(_POLL_S)
    publish_done(planned, Publisher(directory), done)
    manifest = whole(planned, done)
    write_manifest(directory, manifest)
    remove_journals(directory)
    return manifest


def _wait_for_manifest(request: Request, directory: Path) -> DataSetManifest:
    note("waiting for node 0 to write the manifest")
    while not (manifest := _finished(request, directory)):
        time.sleep(_POLL_S)
    return manifest
