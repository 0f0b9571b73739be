"""Statistics of calls: the same as counting one by one, however the trace is cut; SQL that reaches the trace and nothing else."""

import itertools
import json
import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iotwin.common.errors import UsageError
from iotwin.trace_store.figures import statistics
from iotwin.trace_store.figures.log_buckets import BUCKETS_PER_OCTAVE, bucket_from_zero
from iotwin.trace_store.figures.sql import plain_rows, query
from iotwin.trace_store.figures.summary import summarise
from iotwin.trace_store.fold import EventDecoder, Events
from iotwin.trace_store.reader import Trace
from tests.synthetic import Job, event_table, write_job

_CALLS = st.lists(
    st.tuples(
        st.sampled_from(("read", "pread64", "write", "openat", "strange")),
        st.integers(1, 3),
        st.none() | st.sampled_from((0, 1, 4094, 4095, 9000)),
        st.integers(0, 10**12),
        st.integers(-40, 2**40),
    ),
    min_size=1,
    max_size=80,
)


def _events(calls):
    rows = [
        (i, duration, op, pid, pid, file, 3, None, None, result, 0, 0)
        for i, (op, pid, file, duration, result) in enumerate(calls)
    ]
    return event_table([tuple(-1 if value is None and place == 5 else value for place, value in enumerate(row)) for row in rows])


def _plain_sums(events, key):
    frame = events.to_pandas().assign(op=lambda f: f["op"].astype(str))
    moved = frame["result"].clip(lower=0)
    frame = frame.assign(
        calls=1,
        errors=frame["result"] < 0,
        read_bytes=moved * frame["op"].isin(("read", "pread64")),
        written_bytes=moved * (frame["op"] == "write"),
        total_ns=frame["duration_ns"],
    )
    names = ["calls", "errors", "read_bytes", "written_bytes", "total_ns"]
    return {group: mine[names].sum().astype(int).tolist() for group, mine in frame.groupby(key)}, frame


def tallied(events, by, kinds=("dataset",) * 10_000):
    tally, decoder = statistics.Tally(by), EventDecoder(pa.array(kinds).dictionary_encode())
    for batch in events.to_batches():
        tally.add(Events(batch, decoder))
    return tally


def _rows_of(tally):
    """The sums, and the buckets, by key."""
    used = np.flatnonzero(tally.sums[0]).tolist()
    keys = [row - 1 for row in used] if tally.by == "file" else [tally.keys[row] for row in used]
    cells = statistics._Cells()
    tally.cells(np.arange(len(used)), cells)
    found = [
        (keys[first + cell // statistics._BUCKETS], cell % statistics._BUCKETS, calls, total_ns)
        for first, array in cells
        for cell, calls, total_ns in array.T.tolist()
    ]
    return dict(zip(keys, tally.sums[:, used].T.tolist(), strict=True)), sorted(found, key=str)


@pytest.mark.parametrize("dense", [1 << 20, 0])
@given(_CALLS, st.lists(st.integers(0, 80), max_size=4))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tallies_of_any_parts_add_up_to_what_plain_counting_gives(dense, calls, cuts):
    events, edges = _events(calls), [0, *sorted(min(cut, len(calls)) for cut in cuts), len(calls)]
    parts = [events.slice(begin, end - begin) for begin, end in itertools.pairwise(edges)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "_DENSE", dense)
        patch.setattr(statistics, "_MOST_WAITING", 10)
        for by, key in (("op", "op"), ("file", "file_id"), ("process", "pid")):
            cut = tallied(parts[0], by)
            for part in parts[1:]:
                cut.later(pickle.loads(pickle.dumps(tallied(part, by))))  # as a worker returns it
            assert _rows_of(cut) == _rows_of(tallied(events, by))
            expected, frame = _plain_sums(events, key)
            sums, cells = _rows_of(cut)
            assert sums == expected
            buckets = pd.Series(bucket_from_zero(frame["duration_ns"].to_numpy(), BUCKETS_PER_OCTAVE))
            plain = (
                frame["duration_ns"]
                .groupby([frame[key].fillna(-1) if by == "file" else frame[key], buckets])
                .agg(["size", "sum"])
            )
            assert cells == sorted(((*at, *row) for at, row in zip(plain.index, plain.to_numpy().tolist(), strict=True)), key=str)


@given(st.lists(st.integers(-3, 30) | st.integers(0, 1 << 40), min_size=1))
def test_numbers_are_numbered_in_ascending_order_whatever_their_range(values):
    distinct, index = statistics._numbered(np.array(values))
    assert distinct.tolist() == sorted(set(values)) and distinct[index].tolist() == values


@pytest.mark.parametrize("coarse", [0, 1, 5])
def test_a_worker_returns_few_bytes_for_each_file_and_cell(coarse):
    """By the durations and files of tests.perf.perf_tracesim, of which four million calls may take 164 bytes for each file."""
    rng = np.random.default_rng(1)
    rows = [(i, int(rng.integers(20_000, 90_000)), "read", 1, 1, i % 100, 3, 0, 1, 1, 0, 0) for i in range(20_000)]
    rows += [(i, 1 << i - 20_000, "read", 1, 1, 100, 3, 0, 1, 1, 0, 0) for i in range(20_000, 20_060)]
    tally = tallied(event_table(rows), "file")
    for _ in range(coarse):
        tally._cells.coarsen()
    content = pickle.dumps(tally)
    assert len(pa.compress(content, "zstd")) < 100 * 164 + 1000  # for what does not depend on the number of files
    assert _rows_of(pickle.loads(content)) == _rows_of(tally) and pickle.loads(content).percentile_error == tally.percentile_error


def test_the_longest_calls_count_in_full(tmp_path):
    trace = Trace(write_job(tmp_path / "t.trace", Job(files=1, epochs=1)))
    rows = [(i, 1 << 60, "read", 1, 1, 0, 3, 0, 1, 1, 0, 0) for i in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "_DENSE", 0)
        row = statistics.rows([tallied(event_table(rows), "op")], [trace], ["t"]).iloc[0]
    assert (row["total_ns"], row["max_ns"], row["p50_ns"]) == (3 << 60, 1 << 60, statistics._MOST_NS)


def test_percentiles_are_within_a_bucket_of_the_exact_ones(tmp_path):
    rng = np.random.default_rng(1)
    durations = np.exp(rng.normal(11, 2, 20_000)).astype(int)
    rows = [(i, int(d), "read", 1, 1, 0, 3, 0, 1, 1, 0, 0) for i, d in enumerate(durations)]
    trace = Trace(write_job(tmp_path / "t.trace", Job(files=1, epochs=1)))
    row = statistics.rows([tallied(event_table(rows), "op")], [trace], ["t"]).iloc[0]
    for name, share in statistics.PERCENTILES.items():
        exact = np.quantile(durations, share, method="inverted_cdf")
        assert abs(row[name] / exact - 1) < 2 ** (1 / BUCKETS_PER_OCTAVE) - 1
    assert row["max_ns"] == durations.max() and row["total_ns"] == durations.sum() and row["time_share"] == 1


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    place = tmp_path_factory.mktemp("statistics")
    return [Trace(write_job(place / f"{seed}.trace", Job(seed=seed, epochs=2))) for seed in (1, 2)]


def _table(traces, by):
    return statistics.statistics(traces, [trace.path.name for trace in traces], by)


def test_two_traces_add_up_by_operation_and_path_and_stay_apart_by_process(traces):
    by_op, by_file, by_process = (_table(traces, by) for by in statistics.BY[:3])
    frame = pd.concat([trace.events_frame() for trace in traces])
    assert by_op.set_index("op")["calls"].to_dict() == frame["op"].astype(str).value_counts().to_dict()
    assert not by_file["path"].duplicated().any() and by_file["calls"].sum() == len(frame)
    assert set(by_process["trace"]) == {"1.trace", "2.trace"}
    assert by_process[(by_process["pid"] == 1000)]["role"].tolist() == ["rank", "rank"]
    assert (by_op["total_ns"].diff().dropna() <= 0).all() and by_op["time_share"].sum() == pytest.approx(1)


def test_the_busiest_files_have_the_percentiles_of_all_files(traces):
    busiest = summarise(traces[0])["busiest_files"]
    by_file = [row for row in statistics.document(_table(traces[:1], "file")) if row["path"]]
    assert busiest == by_file[:10] and all(row["p50_ns"] for row in busiest)


def test_a_summary_counts_every_call(traces):
    summary = summarise(traces[0])
    assert sum(row["calls"] for row in summary["operations"]) == traces[0].manifest.events
    assert {row["op"]: row["calls"] for row in summary["operations"]} == traces[0].manifest.counts
    assert len(summary["busiest_files"]) == 10 and summary["busiest_processes"][0]["role"] == "loader"


def test_a_trace_without_calls_has_no_rows(tmp_path):
    idle = Trace(write_job(tmp_path / "idle.trace", Job(files=0, evaluation_files=0, checkpoint_every=0, epochs=1)))
    assert all(_table([idle], by).empty for by in statistics.BY[:3])
    assert summarise(idle)["operations"] == []


def test_sql_answers_over_every_table(traces):
    answer = query(traces[0], "select op, count(*) as calls from events join files using (file_id) group by op order by op")
    assert answer.column_names == ["op", "calls"] and dict(plain_rows(answer)) == traces[0].manifest.counts
    assert plain_rows(query(traces[0], "select max(user) from samples_cpu"))[0][0] < 1


def test_answers_in_sql_become_values_of_json(traces):
    text = """select sum(x)::hugeint, 1.5::decimal(9, 1), 'nan'::double, date '2020-01-02', [1, null], {'k': 2}, null, true,
        9223372036854775807, 1 as twice, 2 as twice from range(4) t(x)"""
    expected = [6, 1.5, None, "2020-01-02", [1, None], {"k": 2}, None, True, (1 << 63) - 1, 1, 2]
    assert plain_rows(query(traces[0], text)) == [expected] and json.dumps(expected)
    assert plain_rows(query(traces[0], "select * from files where false")) == []
    sums = query(traces[0], "select sum(file_id) as small, sum(file_id) * 100000000000000000000 as large from files")
    number = len(traces[0].files())
    assert (sums.schema.field("small").type, sums["small"].to_pylist()) == (pa.int64(), [number * (number - 1) // 2])
    assert int(sums["large"][0].as_py()) == number * (number - 1) // 2 * 10**20


@pytest.mark.parametrize(
    "text",
    [
        "select * from read_text('/etc/hostname')", "select * from read_csv('{trace}/manifest.json')",
        "select * from '{trace}/files.parquet'", "copy (select 1) to '{tmp}/out.csv'", "attach '{tmp}/out.db'",
        "select 1; select 2", "set enable_external_access = true", "install httpfs", "select getenv('HOME')", "drop view files",
        "select * from traces", "", "selct 1",
    ],
)  # fmt: skip
def test_sql_reaches_nothing_but_the_trace(traces, tmp_path, text):
    with pytest.raises(UsageError) as error:
        query(traces[0], text.format(trace=traces[0].path, tmp=tmp_path))
    assert "\n" not in str(error.value) and "SQL" in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("limit", "coarse"), [(800_000, 0), (100_000, 4), (4_000, 5)])
def test_percentiles_of_little_memory_keep_their_stated_error_and_all_else_is_equal(monkeypatch, tmp_path, limit, coarse):
    trace, rng = Trace(write_job(tmp_path / "t.trace", Job(files=8, epochs=1))), np.random.default_rng(1)
    calls = [
        (i, int(2 ** rng.uniform(0, 30)), "read", 1, 1, int(rng.integers(8)), 3, 0, 1, int(rng.integers(-1, 9)), 0, 0)
        for i in range(3000)
    ]
    events, kinds = event_table(calls), trace.files()["kind"].tolist()
    plain = statistics.rows([tallied(events, "file", kinds)], [trace], ["t"])
    monkeypatch.setattr(statistics, "memory_limit", lambda: limit)
    halves = [tallied(events.slice(*part), "file", kinds) for part in ((0, 400), (400, 2600))]
    halves[0].later(halves[1])
    found = statistics.rows(halves[:1], [trace], ["t"])
    error = found.attrs["percentile_error"]
    assert error == 2 ** (2**coarse / 32) - 1 and plain.attrs["percentile_error"] == 2 ** (1 / 32) - 1
    shares = list(statistics.PERCENTILES)
    pd.testing.assert_frame_equal(found.drop(columns=shares), plain.drop(columns=shares))
    durations = events.to_pandas().groupby("file_id")["duration_ns"]
    for name, share in statistics.PERCENTILES.items():
        exact = durations.agg(lambda own, share=share: np.quantile(own, share, method="inverted_cdf"))
        by_path = exact.set_axis(trace.files()["path"].reindex(exact.index))
        ratio = (found.set_index("path")[name] / by_path).to_numpy()
        assert (np.abs(np.log2(ratio)) <= np.log2(1 + error)).all() and (coarse == 0 or np.abs(ratio - 1).max() > 0.05)
