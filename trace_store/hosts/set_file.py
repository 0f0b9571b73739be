"""The file set.json of a set of hosts: which traces belong to it, and how their clocks relate to the first host's clock."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from iotwin.common.errors import IotwinError
from iotwin.common.files import make_folder, struct_json, write_whole
from iotwin.common.untrusted_files import MOST_JSON_BYTES, read_foreign_struct
from iotwin.trace_store.manifest import MANIFEST_NAME, SET_NAME, Evidence, Nanoseconds, Pid

PIDS_PER_HOST = 1 << 22  # the kernel's greatest pid_max (include/linux/threads.h)
MAX_HOSTS = (1 << 31) // PIDS_PER_HOST - 1
_STEEPEST = 0.01  # most that a host's clock can gain or lose against another's, as a share of time


# Shifts are bounded, so that no time of a set exceeds 64 bits.
Shift = Annotated[int, msgspec.Meta(ge=-(1 << 61), le=1 << 61)]


class SetHost(msgspec.Struct):
    """A host of a set."""

    host: str  # name, with a number added if several traces have the same
    trace: str  # path of its trace, relative to the set
    shift_ns: Shift  # what to add to the host's times at the start of its trace
    error_ns: Nanoseconds | None  # largest error of the moved times; None if nothing bounds it
    how: Evidence
    status: Literal["complete", "recovered", "missing"]
    ranks: list[Pid]  # in the order of the ranks that the host logged, or of the starts of its rank processes
    shifts: list[tuple[Nanoseconds, Shift]] = []  # (time on the host's clock, shift then), linear in between
    note: str = ""  # why the trace is missing, or which evidence on its clock was dropped


class HostSet(msgspec.Struct):
    """The content of set.json."""

    version: Literal[1]
    hosts: list[SetHost]


def is_set(directory: Path) -> bool:
    """Return True if `directory` is a set of hosts."""
    return (directory / SET_NAME).is_file() and not (directory / MANIFEST_NAME).exists()


def write_set(directory: Path, hosts: list[SetHost]) -> None:
    """Write set.json in `directory`, which is made if it is missing."""
    make_folder(directory)
    write_whole(directory / SET_NAME, struct_json(HostSet(1, hosts)))


def read_set(directory: Path) -> list[SetHost]:
    """Return the hosts of the set `directory`.

    Raises IotwinError if `directory` is no set, if its file is damaged, or if it has two hosts of one name or impossible shifts.
    """
    path = directory / SET_NAME
    try:
        hosts = read_foreign_struct(path, HostSet, MOST_JSON_BYTES).hosts
    except (FileNotFoundError, NotADirectoryError):
        raise IotwinError(f"{directory} is no set of hosts: it has no {SET_NAME}; make one: iotwin set make") from None
    if len(hosts) > MAX_HOSTS:
        raise IotwinError(f"{path} has {len(hosts)} hosts; at most {MAX_HOSTS} are read")
    names = [each.host for each in hosts]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise IotwinError(f"{path}: two hosts are called {repeated:.100}; give each another name")
    for each in hosts:
        for (begin, shift), (end, later) in zip(each.shifts, each.shifts[1:], strict=False):
            if end <= begin or abs(later - shift) > _STEEPEST * (end - begin) + 1:
                raise IotwinError(f"{path}: the shifts of {each.host:.100} are not those of a clock; run iotwin set make again")
    return hosts
