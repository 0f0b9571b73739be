"""The store's bulk readers: records come back in order of time, names are found by call, lanes lose nothing."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotwin.trace_store.columns import column, labels, rows_table
from iotwin.trace_store.raw.call_paths import CallPaths
from iotwin.trace_store.raw.records import EVENT
from iotwin.trace_store.raw.sorted_records import sorted_chunks
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.backends.per_cpu_buffers import LANE, LaneBuffers
from tests.processes import call

SLOTS = 8


@settings(max_examples=30)
@given(count=st.integers(0, 60_000), spread=st.sampled_from([0, 1, 1000, 10**9]), torn=st.integers(0, 79), seed=st.integers(0, 9))
def test_chunks_are_the_stable_sort(tmp_path_factory, count, spread, torn, seed):
    rng = np.random.default_rng(seed)
    records = np.zeros(count, EVENT)
    records["start_ns"] = 10**9 + np.arange(count) * 100 - rng.integers(0, spread + 1, count)
    records["offset"] = np.arange(count)
    path = tmp_path_factory.mktemp("raw") / "events.bin"
    path.write_bytes(records.tobytes() + bytes(torn))
    chunks = list(sorted_chunks([path], EVENT, "start_ns", chunk_rows=5000))
    found = np.concatenate(chunks) if chunks else records[:0]
    assert (found == records[np.argsort(records["start_ns"], kind="stable")]).all() and len(found) == count
    if spread:
        assert all(len(chunk) < 3 * 5000 for chunk in chunks)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 4), st.sampled_from([b"/a", b"/b", b"/c"])), max_size=40))
def test_names_are_found_by_thread_and_start(calls):
    names, expected = CallPaths(), {}
    for time_ns, tid, path in calls:
        names.add(time_ns, tid, path)
        expected.setdefault((time_ns, tid), []).append(path)
    asked = [(time_ns, tid) for time_ns in range(22) for tid in range(1, 6)]
    first, second = names.find(np.array([a for a, _ in asked]), np.array([b for _, b in asked], np.uint32))
    for asking, one, two in zip(asked, first.tolist(), second.tolist(), strict=True):
        given_paths = expected.get(asking, [])
        assert (None if one < 0 else names.paths[one]) == (given_paths[0] if given_paths else None)
        assert (None if two < 0 else names.paths[two]) == (given_paths[1] if len(given_paths) > 1 else None)


class FakeLanes:
    """Two memory files laid out as the kernel maps the lanes, and the writer's side of them."""

    def __init__(self, cpus: int) -> None:
        self.lanes_fd, self.slots_fd = os.memfd_create("lanes"), os.memfd_create("slots")
        os.ftruncate(self.lanes_fd, 4096)
        os.ftruncate(self.slots_fd, 4096 * 4)
        self.heads = [0] * cpus

    def put(self, cpu: int, start_ns: int) -> None:
        record = np.zeros(1, EVENT)
        record["start_ns"] = start_ns
        place = cpu * SLOTS + self.heads[cpu] % SLOTS
        os.pwrite(self.slots_fd, record.tobytes()[8:], place * EVENT.itemsize + 8)  # the program leaves the header alone
        self.heads[cpu] += 1
        os.pwrite(self.lanes_fd, self.heads[cpu].to_bytes(8, "little"), cpu * LANE.itemsize)

    def tail(self, cpu: int) -> int:
        return int.from_bytes(os.pread(self.lanes_fd, 8, cpu * LANE.itemsize + LANE.fields["tail"][1]), "little")


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, SLOTS), st.integers(0, SLOTS)), max_size=12))
def test_lanes_give_every_record_once_in_order(bursts):
    fake = FakeLanes(2)
    reader, number, sent, got = LaneBuffers(fake.lanes_fd, fake.slots_fd, 2, SLOTS), 0, ([], []), ([], [])
    for burst in bursts:
        for cpu, count in enumerate(burst):
            for _ in range(count):
                number += 1
                fake.put(cpu, number * 2 + cpu)
                sent[cpu].append(number * 2 + cpu)
        for records in reader.take():
            assert (records["header"] == EVENT.itemsize - 8).all()
            for start_ns in records["start_ns"].tolist():
                got[start_ns % 2].append(start_ns)
        assert reader.pending() == 0 and [fake.tail(0), fake.tail(1)] == fake.heads
    assert got == sent and reader.sent() == sum(fake.heads)
    os.close(fake.lanes_fd)
    os.close(fake.slots_fd)


@given(st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.booleans()), max_size=70))
def test_columns_over_arrays(values):
    import pyarrow as pa

    numbers, missing = np.array([v for v, _ in values], np.int32), np.array([m for _, m in values], np.bool_)
    assert column(numbers, pa.int32(), missing).to_pylist() == [None if m else v for v, m in values]
    codes = (numbers % 3).astype(np.int16)
    assert labels(codes, ["read", "", "écrire"]).to_pylist() == [("read", "", "écrire")[code] for code in codes]
    with pytest.raises(TypeError):
        column(numbers, pa.int64())


@pytest.mark.root
def test_paths_on_an_overlay(tmp_path):
    """Lower, copied up, new and deleted files of an overlay, in a mount namespace of its own: all as the job sees them."""
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    (tmp_path / "lower" / "below").write_text("from below")
    (tmp_path / "lower" / "changed file\n").write_text("before")
    options = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    script = (
        f"mount -t overlay overlay -o {options} {tmp_path}/merged || exit 9; cd {tmp_path}/merged; cat below; "
        "echo more >> 'changed file\n'; cat 'changed file\n'; echo x > new; cat new; rm new; mv below moved; cat moved"
    )
    result = call("trace", "-o", tmp_path / "t", "--", "unshare", "--mount", "sh", "-c", script)
    if result.returncode == 9:
        pytest.skip("this kernel or file system has no overlayfs")
    trace = Trace(tmp_path / "t")
    files, events = trace.files(), trace.events_frame()
    reads = events[(events["op"] == "read") & (events["result"] > 0)].merge(files, on="file_id")
    for name, size in (("below", 10), ("changed file\n", 11), ("new", 2)):
        rows = reads[reads["path"] == f"{tmp_path}/merged/{name}"]
        assert rows["result"].sum() >= size, name
    assert not reads["path"].str.contains("/lower/|/upper/").any()
    moved = files[files["renamed_to"] == f"{tmp_path}/merged/moved"]
    assert list(moved["path"]) == [f"{tmp_path}/merged/below"]
    unlinked = events[events["op"].isin(["unlink", "unlinkat"]) & (events["result"] == 0)].merge(files, on="file_id")
    assert f"{tmp_path}/merged/new" in set(unlinked["path"])


@pytest.mark.root
def test_a_checkpoint_that_is_removed_without_being_opened_is_one(tmp_path):
    for name in ("old.pt", "notes", "there.pt"):
        (tmp_path / name).write_bytes(bytes(10))
    script = "import os, sys; os.chdir(sys.argv[1]); os.unlink('old.pt'); os.unlink('notes'); os.stat('there.pt')"
    call("trace", "-o", tmp_path / "t", "--", sys.executable, "-c", script, tmp_path)
    files = Trace(tmp_path / "t").files()
    kinds = {path.rpartition("/")[2]: kind for path, kind in zip(files["path"], files["kind"], strict=True)}
    assert (kinds["old.pt"], kinds["notes"], kinds.get("there.pt", "other")) == ("checkpoint", "other", "other")


@pytest.mark.root
def test_a_program_that_only_the_kernel_opens_is_named(tmp_path):
    """Page faults on the program itself, which no call opens."""
    result = call("trace", "-o", tmp_path / "t", "--detail", "data,mmap", "--", "true")
    assert result.returncode == 0, result.stderr
    trace = Trace(tmp_path / "t")
    faults = trace.events_frame(columns=["op", "file_id"]).merge(trace.files(), on="file_id")
    faults = faults[faults["op"] == "page_fault"]
    program = subprocess.run(["readlink", "-f", "/proc/self/exe"], capture_output=True, text=True, check=True).stdout
    assert Path(program.strip()).parent in {Path(path).parent for path in faults["path"]}
    assert set(faults["kind"].astype(str)) <= {"library", "system"}  # /etc/ld.so.cache is mapped too


@pytest.mark.root
def test_a_missing_tracepoint_is_left_out_and_said(monkeypatch):
    from iotwin.tracing_tools.backend_base import Scope
    from iotwin.tracing_tools.backends import bpf_object, libbpf

    assert bpf_object.missing_tracepoints({"sys_enter", "no_such_tracepoint"}) == ["no_such_tracepoint"]
    monkeypatch.setattr(libbpf, "missing_tracepoints", lambda names: [name for name in names if name.startswith("mm_")])
    backend = libbpf.LibbpfBackend(Scope(1, 0, detail=("data", "mmap", "async")))
    try:
        assert not any("filemap" in probe for probe in backend.probes) and any("io_uring" in probe for probe in backend.probes)
        assert any("no tracepoint mm_filemap" in note for note in backend._notes)
    finally:
        backend.stop(None)


@pytest.mark.parametrize(
    ("what", "content", "says"),
    [
        ("_BTF", None, "no BTF"),
        ("_LOCKDOWN", "none integrity [confidentiality]\n", "locked down (confidentiality)"),
        ("_STATUS", "Name:\tpython\nCapEff:\t00000000a80425fb\n", "CAP_BPF and CAP_PERFMON"),  # of a container's root
    ],
)
def test_what_a_kernel_refuses_is_said_in_one_line_by_every_backend(tmp_path, monkeypatch, what, content, says):
    from iotwin.tracing_tools.backends import bcc, bpftrace, kernel_support, libbpf

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    able = {"_BTF": "", "_LOCKDOWN": "none [integrity] confidentiality\n", "_STATUS": "CapEff:\t000001ffffffffff\n"}
    for name, text in {**able, what: content}.items():
        monkeypatch.setattr(kernel_support, name, tmp_path / name)
        if text is not None:
            (tmp_path / name).write_text(text)
    for backend in (libbpf, bcc, bpftrace):
        reason = backend.unavailable_reason()
        assert reason is not None and says in reason and "\n" not in reason
    for name, text in able.items():
        (tmp_path / name).write_text(text)
    assert kernel_support.ebpf_unavailable_reason() is None
    monkeypatch.setattr(libbpf, "libbpf_unavailable_reason", lambda: "libbpf.so.1 is not installed")
    assert libbpf.unavailable_reason() == "libbpf.so.1 is not installed"


def test_finishing_imports_no_pandas(tmp_path):
    """It is 40 MB of the memory that a tracer takes, and most of a second."""
    code = "import sys; from tests.perf.made_up import finish_made_up; import iotwin.tracing_tools.recorder.record_target\n"
    code += f"finish_made_up({str(tmp_path / 't')!r}, 20000); sys.exit('pandas' in sys.modules)"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=root).returncode == 0


def test_few_rows_become_a_table():
    import pyarrow as pa

    kinds = [
        ("number", pa.int32()),
        ("share", pa.float32()),
        ("text", pa.string()),
        ("label", pa.dictionary(pa.int16(), pa.string())),
    ]
    rows = [
        {"number": 7, "share": 0.5, "text": "caf\u00e9\n", "label": "b"},
        {"number": None, "text": "", "label": "a", "beside": 1},
        {"share": 2, "text": None, "label": None},
        {"number": -1, "share": None, "label": "b"},
    ]
    names = [name for name, _ in kinds]
    for count in range(len(rows) + 1):
        table = rows_table(rows[:count], pa.schema(kinds))
        table.validate(full=True)
        assert table.to_pylist() == [{name: row.get(name) for name in names} for row in rows[:count]]
