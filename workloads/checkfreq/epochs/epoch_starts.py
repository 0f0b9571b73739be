"""Saves the states of random generators at the start of epochs, for scripts that draw random numbers between two epochs.

A script may evaluate after the checkpoint at an epoch's end, so this checkpoint lacks the states at the next epoch's start. The
store's file `epoch-starts.json` holds these states: a list of epochs, oldest first, each with an entry per rank.
"""

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from iotwin.common.errors import IotwinError
from iotwin.common.files import open_whole
from iotwin.common.untrusted_files import read_foreign_struct
from iotwin.workloads.state.gathering import decode, encode, gathered

FILE = "epoch-starts.json"


class _Start(msgspec.Struct):
    """One rank's digest of its generators at the end of an epoch, and the states of these at the start of the next epoch."""

    end_sha256: str
    start: bytes


def digest(generators: Any) -> str:
    """Return the SHA-256 of the generators' states."""
    return hashlib.sha256(encode(generators)).hexdigest()


def remember(directory: Path, end: Any, start: Any, world_size: int, rank: int, most: int) -> None:
    """Save durably the states with which an epoch started (`start`), and those with which the epoch before ended (`end`).

    The file holds the newest `most` epochs. A single rank saves nothing if `end` and `start` are equal. Every rank must call this
    function. Raises IotwinError if the file cannot be written.
    """
    own = {"end_sha256": digest(end), "start": encode(start).decode()}
    if world_size == 1 and own["end_sha256"] == digest(start):
        return
    ranks = [own] if world_size == 1 else gathered(own)
    if rank:
        return
    entries = [*_read(directory), [_Start(each["end_sha256"], each["start"].encode()) for each in ranks]]
    with open_whole(directory / FILE, durable=True) as file:
        file.write(msgspec.json.encode(entries[-most:]))


def recall(directory: Path, end: Any, world_size: int, rank: int) -> Any:
    """Return the states at the start of the epoch after the one that ended with the states `end`; None if they were not saved."""
    wanted = digest(end)
    for entry in reversed(_read(directory)):
        if len(entry) == world_size and entry[rank].end_sha256 == wanted:
            return decode(entry[rank].start)
    return None


def _read(directory: Path) -> list[list[_Start]]:
    try:
        return read_foreign_struct(directory / FILE, list[list[_Start]], follow=False)
    except (FileNotFoundError, IotwinError):  # without the file, some resumed jobs do not repeat the interrupted one exactly
        return []
