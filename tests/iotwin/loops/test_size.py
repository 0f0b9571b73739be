"""The least storage: the search on storage whose AU is a closed formula, and the command on a real disk."""

import hashlib
import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from iotwin.common.errors import IotwinError, UsageError
from iotwin.loops.size import least_storage as module
from iotwin.loops.size import limited_runs
from iotwin.loops.size.least_storage import SizeQuestion, size
from iotwin.loops.size.limit_search import MeasuredRun, SizeTarget, parse_target, tightest
from iotwin.loops.size.limited_runs import LimitedTwin, SizedRun, StorageLimits, _unmet_waits
from iotwin.tracing_tools.targets.storage_limits import READS
from tests.conftest import run_iotwin
from tests.synthetic import Job, write_job

AU = SizeTarget("au", 0.9)


def limited_by(knee: float, inverse: bool = False):
    """Return a `measure` whose AU is 1 on fast storage and falls in proportion beyond the knee."""
    return lambda limit: MeasuredRun(min(1.0, knee / limit if inverse else limit / knee), None)


@pytest.mark.parametrize("knee", [3e5, 1e7, 8.5e8])
def test_the_least_bandwidth_is_found_to_5_percent_wherever_the_search_begins(knee):
    found = tightest(limited_by(knee), AU, 4e7, 2.5e6, runs=1)
    assert found.edge == "found"
    assert 0.9 * knee <= found.point.limit <= 0.9 * knee * 1.05
    assert found.low < 0.9 * knee <= found.high == found.point.limit


@pytest.mark.parametrize("knee", [2e-5, 3e-3, 0.2])
def test_the_most_latency_is_found_to_5_percent(knee):
    found = tightest(limited_by(knee, inverse=True), AU, 1e-4, 1e-2, runs=1)
    assert knee / 0.9 / 1.05 <= found.point.limit <= knee / 0.9
    assert found.low == found.point.limit and found.high > knee / 0.9


def test_a_limit_without_effect_is_reported_as_not_reached():
    found = tightest(lambda limit: MeasuredRun(1.0, 1.0), AU, 1e6, 1e4, runs=3, floor=1e3)
    assert (found.edge, found.point.limit) == ("not reached", 1e3)


def test_storage_on_which_no_limit_keeps_the_target_has_no_least():
    found = tightest(lambda limit: MeasuredRun(0.5, 0.5), AU, 1e6, 1e4, runs=3)
    assert found.edge == "too slow" and found.point is None


def test_points_near_the_target_are_measured_several_times_and_disagreeing_runs_widen_the_edge():
    figures = {100.0: [1.0], 25.0: [0.3], 50.0: [0.91, 0.89, 0.88]}
    measured = {limit: iter(of_limit) for limit, of_limit in figures.items()}
    found = tightest(lambda limit: MeasuredRun(next(measured.get(limit, iter([1.0]))), None), AU, 100, 25, runs=3)
    (twice,) = (point for point in found.points if point.limit == 50)
    assert twice.figures == figures[50.0]
    assert (found.low, found.point.limit) == (50, found.high) and found.high < 53


def test_an_epoch_time_keeps_its_target_from_below():
    found = tightest(lambda limit: MeasuredRun(max(1.0, 1e6 / limit), 0.7), SizeTarget("epoch_time", 1.05), 1e7, 1e5, runs=1)
    assert 1e6 / 1.05 <= found.point.limit <= 1e6 and found.point.au == 0.7


@pytest.mark.parametrize("text", ["au", "au=2", "au=x", "epoch_time=0.9", "step=1", "epoch_time=inf", "au=nan"])
def test_other_targets_are_refused_with_an_example(text):
    with pytest.raises(UsageError, match=r"au=0\.9"):
        parse_target(text)


class MadeStorage:
    """Stands in for the twin: AU is the product of what each limit leaves, by its knee. Notes every run."""

    KNEES = StorageLimits(bandwidth=5e6, requests=40, latency=2e-3, cache=64 << 20)

    def __init__(self, trace: Path, fastest: float = 1.0) -> None:
        self._trace, self._fastest, self.runs, self.ran, self.stopped = trace, fastest, 0, [], 0
        self.is_recorded, self.caveats, self.clocks, self.clock = True, [], [], "virtual"

    def data_bytes(self) -> int:
        return 256 << 20

    def devices(self) -> set[str]:
        return {"8:0"}

    def run(self, limits: StorageLimits, is_cold: bool, clock: str | None = None, limit_s: float | None = None) -> SizedRun:
        self.runs += 1
        self.ran.append((limits, is_cold))
        self.clocks.append(clock)
        au = self._fastest
        for axis in ("bandwidth", "requests", "cache"):
            if (limit := getattr(limits, axis)) and (is_cold or axis == "cache"):
                au *= min(1.0, limit / getattr(self.KNEES, axis))
        if limits.latency and is_cold:
            au *= min(1.0, self.KNEES.latency / limits.latency)
        elapsed_s = 10 / au
        if limit_s is not None and elapsed_s > limit_s:
            self.stopped += 1
            return SizedRun(0.95, limit_s, limit_s, self._trace, stopped_early=True)  # its first steps did not wait
        return SizedRun(au, elapsed_s, elapsed_s, self._trace)


@pytest.fixture
def storage(monkeypatch, tmp_path) -> MadeStorage:
    made = MadeStorage(write_job(tmp_path / "made.trace", Job()))
    (empty := tmp_path / "empty.yaml").write_text("twin: {}\n")

    def limited(twin, data, scratch, ranks, clock):
        made.clock = clock or made.clock
        return made

    monkeypatch.setattr(module, "LimitedTwin", limited)
    monkeypatch.setattr(module, "reason_against", lambda what: None)

    def opened(twin, scratch):
        from contextlib import nullcontext

        return nullcontext((twin if twin.is_file() else empty, [], 1))

    monkeypatch.setattr(module, "open_twin", opened)
    monkeypatch.setattr(module.os, "cpu_count", lambda: 2)
    return made


def question(**changed) -> SizeQuestion:
    given = {
        "target": AU,
        "ranks": None,
        "caches": ["cold"],
        "axes": ["bandwidth", "requests", "latency", "cache"],
        "runs": 1,
        "clock": "real",
    } | changed
    return SizeQuestion(**given)


@pytest.mark.parametrize("target", [AU, SizeTarget("epoch_time", 1.5)])
def test_a_run_that_cannot_keep_the_target_any_more_is_ended_and_does_not_keep_it(storage, tmp_path, target):
    document = size(tmp_path, question(target=target, axes=["latency"]), tmp_path / "out", force=False)
    longest_s = 10 / 0.9 if target is AU else 15
    points = document["needs"][0]["points"]
    ended = [point["figures"][0] for point in points if 10 * point["limit"] / 2e-3 > 2 * longest_s]
    assert storage.stopped == len(ended) > 0
    assert ended == [pytest.approx(0.45 if target is AU else 3.0)] * len(ended)
    assert document["needs"][0]["least"] == pytest.approx(2e-3 * longest_s / 10, rel=0.05)


def test_every_axis_alone_and_all_together(storage, tmp_path):
    document = size(tmp_path, question(), tmp_path / "out", force=False)
    needs = {need["axis"]: need for need in document["needs"]}
    assert list(needs) == ["bandwidth", "requests", "latency", "cache"]
    for axis in ("bandwidth", "requests", "cache"):
        assert needs[axis]["least"] == pytest.approx(0.9 * getattr(MadeStorage.KNEES, axis), rel=0.05)
        assert needs[axis]["au_there"] >= 0.9
    assert needs["latency"]["least"] == pytest.approx(2e-3 / 0.9, rel=0.05)
    together = document["together"]
    assert together["holds"] and together["au"] >= 0.9  # four limits that keep 0.9 each give 0.66 together, so they are relaxed
    assert together["bandwidth"] > needs["bandwidth"]["least"] and together["latency"] < needs["latency"]["least"]
    assert document["runs"] == storage.runs
    assert document["demand"]["window"]["phase"] == "training"
    assert json.loads((tmp_path / "out/size.json").read_text())["needs"] == document["needs"]
    assert (tmp_path / "out/size.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "out/table.csv").read_text().startswith("axis,cache,least,unit,au_there")
    assert r"\begin{tabular}" in (tmp_path / "out/table.tex").read_text()


def test_an_answer_holds_its_recipe(storage, tmp_path):
    (tmp_path / "twin.yaml").write_text("train: {epochs: 2}\ntwin: {recorded: {file: twin.recording}}\n")
    (tmp_path / "twin.recording").write_bytes(b"calls")
    recipe = size(tmp_path / "twin.yaml", question(axes=["latency"]), tmp_path / "out", force=False)["recipe"]
    digests = {key: hashlib.sha256((tmp_path / recipe[key]["path"]).read_bytes()).hexdigest() for key in ("twin", "recording")}
    assert digests == {key: recipe[key]["sha256"] for key in digests}
    assert recipe["variants"][0]["values"]["train.epochs"] == 2
    assert json.loads((tmp_path / "out/size.json").read_text())["recipe"] == recipe


def test_cached_data_need_no_bandwidth_but_the_cache_is_limited_from_cold(storage, tmp_path):
    asked = question(caches=["cold", "warm"], axes=["bandwidth", "cache"])
    document = size(tmp_path, asked, tmp_path / "out", force=False)
    edges = {(need["axis"], need["cache"]): need["edge"] for need in document["needs"]}
    assert edges[("bandwidth", "warm")] == "not reached" and edges[("bandwidth", "cold")] == "found"
    assert all(is_cold for limits, is_cold in storage.ran if limits.cache)


def test_ranks_beyond_this_machine_scale_bandwidth_and_requests_but_not_latency(storage, tmp_path):
    one = size(tmp_path, question(), tmp_path / "one", force=False)
    many = size(tmp_path, question(ranks=64), tmp_path / "many", force=False)
    ratios = {a["axis"]: b["least"] / a["least"] for a, b in zip(one["needs"], many["needs"], strict=True)}
    assert ratios == {"bandwidth": 32, "requests": 32, "latency": 1, "cache": 1}  # two ranks were run
    assert (many["ranks"], many["ranks_run"]) == (64, 2)
    assert many["together"]["bandwidth"] == 32 * one["together"]["bandwidth"]
    assert any("32 times the bandwidth" in text for text in many["assumptions"])


def test_a_target_above_the_unlimited_run_is_refused_before_any_limit(storage, tmp_path):
    storage._fastest = 0.8
    with pytest.raises(UsageError, match=r"the AU is 0\.800, below the target 0\.9"):
        size(tmp_path, question(), tmp_path / "out", force=False)
    assert storage.runs == 1


def test_axes_that_cannot_be_limited_are_named_and_the_others_run(storage, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "reason_against", lambda what: "it needs root" if what == READS else None)
    document = size(tmp_path, question(axes=["bandwidth", "latency"]), tmp_path / "out", force=False)
    assert [need["axis"] for need in document["needs"]] == ["latency"]
    assert "bandwidth was not run: it needs root" in document["assumptions"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "au=7"], "is no target"),
        (["--axes", "speed"], "'speed' is none of bandwidth"),
        (["--cache", "hot"], "'hot' is none of cold, warm"),
        ([], "does not exist; give a folder of iotwin twin"),
    ],
)
def test_bad_arguments_end_in_one_line(tmp_path, arguments, message):
    done = run_iotwin("size", tmp_path / "none", "-o", tmp_path / "out", *arguments)
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_twin_whose_reads_outlast_its_training_is_refused_and_warned_about_before():
    assert _unmet_waits(9.0, 8.0, Path("t")) is None
    assert "need more than found" in _unmet_waits(14.0, 8.0, Path("t"))
    with pytest.raises(IotwinError, match="its ranks do not wait for all data: reads took 34"):
        _unmet_waits(34.0, 5.7, Path("t"))


@pytest.mark.parametrize("clock", ["virtual", None])
def test_on_a_virtual_clock_the_demand_is_measured_in_real_time(storage, tmp_path, clock):
    document = size(tmp_path, question(clock=clock, axes=["latency"]), tmp_path / "out", force=False)
    assert storage.clocks.count("real") == 1 and document["clock"] == "virtual"


def test_time_is_virtual_by_default_unless_the_twin_keeps_processors_busy(tmp_path):
    (idle := tmp_path / "idle.yaml").write_text("train:\n  epochs: 1\n")
    (busy := tmp_path / "busy.yaml").write_text("twin:\n  busy_wait: true\n")
    clocks = [LimitedTwin(twin, [], tmp_path, None, clock).clock for twin in (idle, busy) for clock in (None, "real")]
    assert clocks == ["virtual", "real", "real", "real"]


@pytest.mark.parametrize(("limits", "ends"), [(StorageLimits(cache=4 << 20), True), (StorageLimits(), False)])
def test_a_twin_that_is_killed_for_lack_of_cache_does_not_keep_the_target(tmp_path, monkeypatch, limits, ends):
    (tmp_path / "twin.yaml").write_text("train: {epochs: 1}\n")

    def killed(*given, **named):
        raise IotwinError("the run failed with exit status -9: ; see logs")

    monkeypatch.setattr(limited_runs, "run_traced", killed)
    monkeypatch.setattr(limited_runs, "LimitedCgroups", lambda *given: nullcontext())
    twin = LimitedTwin(tmp_path / "twin.yaml", [], tmp_path, None, "real")
    if ends:
        run = twin.run(limits, is_cold=True, limit_s=7.0)
        assert run.stopped_early and (run.au, run.elapsed_s) == (0.0, 7.0)
    else:
        with pytest.raises(IotwinError, match="status -9"):
            twin.run(limits, is_cold=True, limit_s=7.0)
