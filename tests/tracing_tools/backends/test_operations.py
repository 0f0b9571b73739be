"""Every kind of operation besides plain reads and writes: each call of a C program is one row, on the right file."""

import os
from pathlib import Path

import pandas as pd
import pytest

from iotwin.common.errors import UsageError
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.schema import FLAG_DIRECT, GROUP_OF_OP
from iotwin.trace_store.syscalls import CALLS, DETAIL_GROUPS, NUMBER_OF_OP, calls_of, parse_detail
from tests.conftest import compile_c
from tests.processes import call

MIB = 1 << 20


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("operations") / "operations", Path(__file__).with_name("operations.c"))


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory, program: Path) -> tuple[pd.DataFrame, set[str]]:
    """The events of a run with everything recorded, with `name` (of the file, within the folder), and what the machine lacks."""
    folder = tmp_path_factory.mktemp("traced")
    data = folder / "files"
    data.mkdir()
    for name in ("data", "mapped"):
        (data / name).write_bytes(os.urandom(MIB))
    result = call("trace", "-o", folder / "t", "--backend", "libbpf", "--detail", "all", "--", program, data)
    assert result.returncode == 0, result.stderr
    trace = Trace(folder / "t")
    assert trace.manifest.lost_events == 0
    events, paths = trace.events_frame(), trace.files()["path"]
    events["name"] = events["file_id"].map(paths).fillna("").str.removeprefix(f"{data}/")
    events["op"] = events["op"].astype(str)
    return events, set((folder / "t" / "logs" / "stdout").read_text().splitlines())


def rows(events: pd.DataFrame, op: str, name: str) -> list[tuple[int | None, int | None, int]]:
    found = events[(events["op"] == op) & (events["name"] == name)]
    values = found[["offset", "requested", "result"]].astype(object).where(found[["offset", "requested", "result"]].notna(), None)
    return [tuple(row) for row in values.itertuples(index=False)]


@pytest.mark.root
def test_metadata(traced):
    events, _ = traced
    calls = events[events["name"] == "meta"]["op"].value_counts().to_dict()
    expected = {
        "openat": 1, "stat": 1, "lstat": 1, "fstat": 1, "newfstatat": 2, "statx": 1, "access": 1, "faccessat": 1, "ftruncate": 1,
        "truncate": 1, "fallocate": 1, "fadvise64": 1, "lseek": 1, "sync_file_range": 1, "close": 1,
    }  # fmt: skip
    assert calls == expected
    assert rows(events, "stat", "absent") == [(None, None, -2)]
    assert [rows(events, op, "made") for op in ("mkdir", "rmdir", "mkdirat", "unlinkat")] == [[(None, None, 0)]] * 4
    assert rows(events, "ftruncate", "meta") == [(None, 12345, 0)]
    assert rows(events, "fallocate", "meta") == [(4096, 8192, 0)]
    assert rows(events, "fadvise64", "meta") == [(4096, 1000, 0)]
    assert rows(events, "sync_file_range", "meta") == [(4096, 2000, 0)]
    assert rows(events, "lseek", "meta") == [(None, None, 77)]
    assert (events[events["op"] == "getdents64"]["result"] > 0).any()


@pytest.mark.root
def test_copies_have_a_row_for_either_file(traced):
    events, lacking = traced
    if "no copy_file_range" not in lacking:
        assert rows(events, "copy_file_range", "data") == [(1000, 3000, 3000)]
        assert rows(events, "copy_file_range_to", "copy") == [(5000, 3000, 3000)]
    assert rows(events, "sendfile", "data") == [(4096, 2048, 2048)]
    assert rows(events, "sendfile_to", "copy") == [(100, 2048, 2048)]
    assert rows(events, "splice", "data") == [(8192, 1500, 1500)]
    assert rows(events, "splice_to", "copy") == [(9000, 1500, 1500)]


@pytest.mark.root
def test_reads_through_a_memory_map(traced):
    events, _ = traced
    faults = events[(events["op"] == "page_fault") & (events["name"] == "mapped")]
    pages: set[int] = set()
    for offset, size in faults[["offset", "result"]].astype(int).itertuples(index=False):
        pages.update(range(offset // 4096, (offset + size) // 4096))
    assert pages == set(range(MIB // 4096))  # every page touched, none beyond the file
    assert rows(events, "mmap", "mapped")[0][:2] == (0, MIB)
    assert rows(events, "msync", "mapped") == [(None, MIB, 0)]
    assert rows(events, "munmap", "mapped") == [(None, MIB, 0)]
    assert len(events[(events["op"] == "munmap") & (events["name"] == "")]) == 0  # memory without a file is no matter of ours


@pytest.mark.root
def test_libaio(traced):
    events, lacking = traced
    if "no libaio" in lacking:
        pytest.skip("the kernel has no libaio")
    assert sorted(rows(events, "aio_read", "data")) == [(65536 + i * 8192, 8192, 8192) for i in range(3)]
    assert rows(events, "aio_write", "aio") == [(20, 500, 500)]
    assert len(rows(events, "aio_fsync", "aio")) == 1
    calls = events["op"].value_counts()
    assert (calls["io_submit"], calls["io_getevents"]) == (2, 2)
    requests = events[events["op"].str.startswith("aio_")]
    submitted = events[events["op"] == "io_submit"]["start_ns"]
    assert set(requests["start_ns"]) == set(submitted)
    assert (requests["duration_ns"] > 0).all()


@pytest.mark.root
def test_io_uring(traced):
    events, lacking = traced
    if "no io_uring" in lacking:
        pytest.skip("the kernel has no io_uring, or it is switched off")
    assert rows(events, "io_uring_read", "data") == [(131072 + i * 4096, 4096, 4096) for i in range(5)]
    assert rows(events, "io_uring_read", "") == [(0, 4096, -9)]  # on a descriptor that is not open
    assert rows(events, "io_uring_write", "uring") == [(30, 700, 700), (0, 70, 70)]  # the second at the file's position
    for op in ("io_uring_openat", "io_uring_fsync", "io_uring_fdatasync", "io_uring_close"):
        assert len(rows(events, op, "uring")) == 1, op
    assert events["op"].value_counts()["io_uring_enter"] == 12
    assert (events[events["op"].str.startswith("io_uring_")]["duration_ns"] > 0).all()


@pytest.mark.root
def test_direct_io_is_flagged(traced):
    events, lacking = traced
    if "no O_DIRECT" in lacking:
        pytest.skip("the file system has no O_DIRECT")
    on_data = events[events["name"] == "data"]
    direct = on_data[(on_data["flags"] & FLAG_DIRECT) != 0]["op"].value_counts()
    assert direct["pread64"] == 1 and direct["aio_read"] == 3 and direct["io_uring_read"] == 5
    assert "sendfile" not in direct


@pytest.mark.root
def test_groups_that_are_not_chosen_are_not_recorded(tmp_path, program):
    (tmp_path / "data").write_bytes(bytes(MIB))
    (tmp_path / "mapped").write_bytes(bytes(MIB))
    seen = {}
    for detail in ("data", "metadata,mmap"):
        result = call("trace", "-o", tmp_path / f"{detail}.trace", "--detail", detail, "--", program, tmp_path)
        assert result.returncode == 0, result.stderr
        seen[detail] = Trace(tmp_path / f"{detail}.trace").manifest
    assert {GROUP_OF_OP[op] for op in seen["data"].counts} <= {"read", "write", "open", "close", "sync", "map", "name", "wait"}
    assert not any(op.startswith(("aio", "io_uring", "page")) for op in seen["data"].counts)
    assert "openat" not in seen["metadata,mmap"].counts and "page_fault" in seen["metadata,mmap"].counts
    assert not any("block" in probe or "filemap" in probe or "io_uring" in probe for probe in seen["data"].probes)
    assert not (tmp_path / "data.trace" / "block.parquet").exists()


def test_every_operation_has_one_number_and_one_meaning():
    assert len(set(NUMBER_OF_OP.values())) == len(NUMBER_OF_OP)
    assert set(NUMBER_OF_OP) == set(GROUP_OF_OP)
    assert set(calls_of(DETAIL_GROUPS)) == set(CALLS)


def test_unknown_groups_are_named():
    assert parse_detail("block, data") == ("data", "block") and parse_detail("all") == DETAIL_GROUPS
    with pytest.raises(UsageError, match=r"metdata.*did you mean 'metadata'"):
        parse_detail("data,metdata")
