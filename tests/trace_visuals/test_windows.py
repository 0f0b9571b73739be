import pytest

from iotwin.common.errors import UsageError
from iotwin.common.units import format_duration, format_size
from iotwin.trace_store.reader import Trace
from iotwin.trace_visuals.labels import loss_line, plain, trace_labels
from iotwin.trace_visuals.report.survey import surveys
from iotwin.trace_visuals.timeline.grouping import group_processes
from iotwin.trace_visuals.windows import choose_view, leading_phases, training_start_ns
from tests.synthetic import SECOND, Job, write_job


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    place = tmp_path_factory.mktemp("windows")
    return [
        Trace(write_job(place / "a.trace", Job())),
        Trace(write_job(place / "b.trace", Job(seed=9, start_ns=77 * SECOND, compute_ns=30_000_000, lost={"ring buffer": 5}))),
    ]


def test_traces_are_aligned_at_the_end_of_init(traces):
    view = choose_view(traces, None)
    assert [window.zero_ns for window in view.windows] == [6 * SECOND, 78 * SECOND]
    assert view.axis_label == "seconds from the start of training"
    assert view.limits_s()[0] == -1 and view.limits_s()[1] == max(w.seconds()[1] for w in view.windows)


def test_zero_is_the_start_of_all_when_one_has_no_phases(traces, tmp_path):
    import pyarrow.parquet as pq

    bare = write_job(tmp_path / "bare.trace", Job())
    empty = pq.read_table(bare / "phases.parquet").slice(0, 0)
    pq.write_table(empty, bare / "phases.parquet")
    view = choose_view([traces[0], Trace(bare)], None)
    assert [window.zero_ns for window in view.windows] == [5 * SECOND, 5 * SECOND]
    assert view.axis_label == "seconds from the start of the trace" and training_start_ns(Trace(bare)) is None
    with pytest.raises(UsageError, match="0 epoch phases"):
        choose_view([Trace(bare)], "epoch:1")


@pytest.mark.parametrize(
    ("zoom", "phase", "ordinal"),
    [("init", "init", 1), ("epoch:2", "epoch", 2), ("eval:3", "evaluation", 3), ("checkpoint", "checkpoint", 1)],
)
def test_zoom_to_a_phase_shows_it_whole(traces, zoom, phase, ordinal):
    view = choose_view(traces, zoom)
    for trace, window in zip(traces, view.windows, strict=True):
        phases = leading_phases(trace)
        mine = phases[phases["phase"] == phase].iloc[ordinal - 1]
        assert window.zero_ns == mine["start_ns"] and window.begin_ns <= mine["start_ns"] < mine["end_ns"] <= window.end_ns


def test_zoom_in_seconds_and_durations(traces):
    assert [window.seconds() for window in choose_view(traces, "-0.5..1.25").windows] == [(-0.5, 1.25)] * 2
    assert choose_view(traces, "200ms").windows[0].seconds() == (0, 0.2)


@pytest.mark.parametrize(
    "zoom", ["", "epoch:99", "epoch:0", "epoch:x", "1..", "2..1", "nan..1", "1..inf", "banana", "5000..6000", "1e300..2e300"]
)
def test_bad_zooms_are_usage_errors_in_one_line(traces, zoom):
    with pytest.raises(UsageError) as error:
        choose_view(traces, zoom)
    assert "\n" not in str(error.value)


def test_groupings(traces):
    busiest = surveys(traces[:1])[0].busiest
    assert group_processes(traces[0], "all", busiest, 4).titles == [""]
    by_rank = group_processes(traces[0], "rank", busiest, 4)
    assert by_rank.titles == ["rank 1000 with its processes"] and (by_rank.of(traces[0].processes()["pid"].to_numpy()) == 0).all()
    by_process = group_processes(traces[0], "process", busiest, 4)
    assert len(by_process.titles) == 4 and by_process.note.startswith(f"{len(busiest) - 4} more")
    assert by_process.of(traces[0].processes()["pid"].to_numpy()).tolist().count(-1) == len(busiest) - 4


def test_labels(tmp_path, traces):
    assert trace_labels([tmp_path / "x" / "t", tmp_path / "y" / "t"]) == ["x/t", "y/t"]
    assert trace_labels([tmp_path / "one.trace"]) == ["one.trace"]
    assert trace_labels([tmp_path / "t", tmp_path / "t"]) == ["t", "t (again)"]
    assert plain("a\nb\x1b[31m", 20) == "a?b?[31m" and len(plain("x" * 300, 50)) == 50
    assert loss_line(traces[0].manifest) == "" and "5 ring buffer" in loss_line(traces[1].manifest)


@pytest.mark.parametrize("number", [1, 999, 999.7, 1023, 1.5e6, 1.02e12, 3.6e12, 9e13])
def test_captions_never_use_scientific_notation(number):
    assert "e+" not in format_size(number) + format_duration(number)
    assert "e+" not in format_size(number * 1024) + format_duration(number * 1000)
