"""Each threshold of tracesim at its value: a case on either side of it, or a figure that moves with it."""

from dataclasses import make_dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from iotwin.tracesim import compare
from iotwin.tracesim.call_sums import CallSums
from iotwin.tracesim.calls import OPEN, READ, SYNC, WRITE, Calls
from iotwin.tracesim.checkpoint_writing import CheckpointWriting
from iotwin.tracesim.concurrency import LEVEL_BINS, Readers, _level_bin
from iotwin.tracesim.difference_sentences import differences
from iotwin.tracesim.dimensions import DEFINITIONS, Score, _bars
from iotwin.tracesim.interval import confidence_interval
from iotwin.tracesim.latency import latency
from iotwin.tracesim.logbins import BINS, log_bin
from iotwin.tracesim.order import FileParts, order_of
from iotwin.tracesim.phases import PHASES, TIMED, TRAINING, Occurrences, whole_run
from iotwin.tracesim.read_pauses import ReadRhythm
from iotwin.tracesim.verdict.aspects import AMOUNT, READERS, TIME, aspects_of
from iotwin.tracesim.verdict.equivalence import INCONCLUSIVE, Equivalence, _margin
from iotwin.tracesim.verdict.verdict_words import verdict as verdict_of
from iotwin.tracesim.verdict.wrong_twins import order_shuffled, order_sorted
from tests.synthetic import Job

MS = 1_000_000
JOB = Job(files=16, log_waits=True)


def calls(*rows):
    """Calls of rows (start_ns, thread, offset, bytes) on file 0, all reads of no duration."""
    start, thread, offset, moved = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    zeros = np.zeros(len(rows), np.int64)
    return Calls(start, zeros, zeros + READ, zeros, thread, zeros, offset, moved)


def zeros_of(batch):
    return np.zeros(len(batch.start_ns), np.int64)


def run_of(length_ns):
    """One occurrence of training from 0."""
    lowest, one = np.iinfo(np.int64).min, np.array([length_ns])
    return Occurrences(np.array([TRAINING]), np.array([0]), one, one, np.array([lowest]), np.array([0]))


def test_a_gap_of_a_millisecond_is_a_pause_and_a_shorter_one_is_not():
    rhythm = ReadRhythm(np.array([TRAINING]))
    batch = calls((0, 0, 0, 1), (900_000, 0, 0, 1), (2_000_000, 0, 0, 1))
    rhythm.add(batch, zeros_of(batch))
    assert rhythm.pauses_and_bursts()[0].sum() == 1_100_000
    assert rhythm.busy_ns.tolist() == [900_000]


def test_readers_that_take_turns_of_an_eighth_of_the_time_read_one_at_once():
    """Two threads: each reads for an eighth of the time, then for a sixteenth."""
    for turn_ns, at_once in ((1000, 1), (500, 2)):
        readers = Readers(run_of(8000))
        batch = calls(*((now, now // turn_ns % 2, 0, 1) for now in range(0, 8000, 100)))
        readers.add(batch, zeros_of(batch))
        windows = readers.counts()[1][0]
        assert windows[log_bin(np.array([at_once]))[0]] == 8


def test_up_to_4096_calls_in_flight_are_told_apart():
    bins = _level_bin(np.array([2048, 4096, 8192])).tolist()
    assert bins[0] < bins[1] == bins[2] == LEVEL_BINS - 1 == 48


def test_activity_is_seen_in_64ths_of_a_phase():
    tallies = CallSums(run_of(6400), 1)
    batch = calls((0, 0, 0, 8), (100, 0, 0, 8))
    tallies.add(batch, zeros_of(batch))
    assert np.flatnonzero(tallies.activity).tolist() == [0, 1]


def test_parts_of_a_large_file_are_64ths_of_it():
    """Neighbours in the wrong order are seen, while two of them do not lie in one part."""
    jumps = {}
    for name, order in (("in order", np.arange(64)), ("neighbours swapped", np.arange(64) ^ 1)):
        parts = FileParts(np.array([64 << 20]))
        batch = calls(*((now, 0, int(at) << 20, 1) for now, at in enumerate(order)))
        parts.add(batch, zeros_of(batch))
        jumps[name] = order_of([np.arange(0)], np.array([TRAINING]), np.arange(1), parts.of_each(1), 64).jumps[0]
    assert jumps["in order"] == 0 < 0.01 < jumps["neighbours swapped"]


@pytest.mark.parametrize(
    ("files", "size_bytes", "known"), [(1, 4 << 20, True), (1, (4 << 20) - 1, False), (32, 4 << 20, True), (33, 4 << 20, False)]
)
def test_the_parts_of_at_most_32_files_of_4_mib_or_more_count(files, size_bytes, known):
    parts = FileParts(np.full(files, size_bytes))
    batch = calls(*((now, 0, at, 1) for now, at in enumerate(range(0, size_bytes, size_bytes // 16))))
    parts.add(batch, zeros_of(batch))
    assert bool(len(parts.of_each(1)[0])) is known


def test_reads_during_checkpoints_count_in_full_from_two_expected_ones_on():
    """A read every 10 ms, and one checkpoint in the time of which as many reads fall as usual."""
    rates = {}
    for reads in (1, 2, 4):
        batch = [(now * MS, READ, 0, 0, 1 << 20, 0) for now in range(0, 1000, 10)]
        batch.append((405 * MS, WRITE, 1, 1, 4096, reads * 10 * MS))
        start, group, kind, file, moved, duration = np.array(sorted(batch), np.int64).T
        (saving := CheckpointWriting(whole_run(0, 1000 * MS))).add(
            Calls(start, duration, group, kind, 0 * file, file, 0 * file, moved), 0 * file
        )
        rates[reads] = saving.rate_during()
    assert rates[4] == pytest.approx(rates[2], abs=0.05)
    assert rates[1] == pytest.approx(rates[2] / 2, abs=0.05)


def test_bars_a_quarter_of_a_phase_apart_share_nothing_and_an_eighth_apart_a_quarter():
    def bars(begin):
        shares = np.zeros((len(PHASES), 4, 64))
        shares[TRAINING, 0, begin] = 1.0
        return SimpleNamespace(row_shares=shares)

    shared = {apart: _bars(bars(8), bars(8 + apart), 0, TRAINING) for apart in (0, 8, 16)}
    assert shared[0] == 1.0 and shared[8] == pytest.approx(0.25, abs=0.03) and shared[16] == 0.0


# The weights of the parts of a score, as docs/similarity.md has them.
PARTS = {
    "volume": {"calls": 0.5, "bytes": 0.5},
    "timing": {"duration": 0.7, "activity": 0.3},
    "bursts": {"pauses": 0.4, "bursts": 0.4, "inter_arrival": 0.2},
    "steps": {"data_wait": 0.5, "step_time": 0.5},
    "concurrency": {"readers": 0.5, "readers_at_once": 0.25, "calls_in_flight": 0.25},
    "files": {"count": 0.5, "size": 0.5},
    "block": {"bytes": 0.6, "size": 0.4},
}


@pytest.mark.parametrize("name", PARTS)
def test_the_parts_of_a_score_have_the_weights_of_the_documentation(name, monkeypatch):
    given = {}

    def mean(parts):
        given.update({part: weight for part, (_, weight) in parts.items()})
        return Score(1.0, {})

    monkeypatch.setattr("iotwin.tracesim.dimensions._mean", mean)
    definition = next(each for each in DEFINITIONS if each.name == name)
    n = len(PHASES)
    some = SimpleNamespace(
        calls=np.ones((n, 2, 6)), bytes=np.ones((n, 2, 6)), duration_ns=np.ones(n), activity=np.ones((n, 64)),
        busy_ns=np.ones(n), pause_ns=np.ones((n, BINS)), burst_bytes=np.ones((n, BINS)), gap_ns=np.ones((n, BINS)),
        wait_ns=np.ones(n), step_ns=np.ones((n, BINS)), readers=np.ones(n), windows=np.ones((n, 49)),
        in_flight_ns=np.ones((n, 49)), file_sizes=np.ones((2, BINS)), block_bytes=np.ones((n, 2, BINS)),
    )  # fmt: skip
    assert definition.score(some, some) is not None
    assert given == PARTS[name]


def test_the_interval_holds_95_of_100_samples_of_a_score_and_five_lie_beyond_each_end(monkeypatch):
    monkeypatch.undo()  # all samples, as users have them
    numbers, drawn = iter(np.arange(10_000) / 200), []

    def score(*_):
        drawn.append(float(next(numbers)))
        return drawn[-1]

    phase = np.array([TRAINING] * 50)  # so many that all samples differ, since equal ones are scored once
    run = SimpleNamespace(trainings=50, occurrences=SimpleNamespace(number=50, phase=phase))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("iotwin.tracesim.interval.summarise", lambda *_: None)
        low, high = confidence_interval(run, run, score)
    assert (low, high) == (pytest.approx(0.025 * drawn[-1]), pytest.approx(0.975 * drawn[-1]))
    assert min(np.sum(np.array(drawn) < low), np.sum(np.array(drawn) > high)) >= 5
    one_epoch = SimpleNamespace(trainings=1)
    assert confidence_interval(one_epoch, run, lambda *_: 1.0) is None


def test_latencies_are_a_median_and_a_99th_percentile():
    durations = np.zeros((6, BINS))
    for share, octave in ((0.6, 10), (0.38, 14), (0.02, 20)):
        durations[READ, log_bin(np.array([1 << octave]))[0]] = share
    profile = SimpleNamespace(latency=durations)
    assert latency(profile, profile)["read"]["a"] == {"median_ns": 1 << 10, "p99_ns": 1 << 20}
    assert latency(profile, profile)["read"]["b"] == {"median_ns": 1 << 10, "p99_ns": 1 << 20}


def with_lost(trace, share):
    """A trace that lost so large a share of its events."""
    events = trace(JOB).manifest.events
    return trace(JOB, lost={"ring": round(events * share / (1 - share))})


def test_a_score_is_withheld_from_one_lost_event_in_a_hundred_on(trace):
    whole = trace(JOB)
    assert compare(whole, with_lost(trace, 0.008)).overall is not None
    withheld = compare(whole, with_lost(trace, 0.014))
    assert withheld.overall is None and "more than 1 %" in withheld.verdict


@pytest.mark.parametrize(
    ("overall", "worst", "verdict"), [(0.91, 0.76, "inconclusive"), (0.89, 0.76, "diff"), (0.91, 0.74, "diff")]
)
def test_without_reruns_0_90_overall_and_0_75_in_a_dimension_are_the_least(overall, worst, verdict):
    scores = {"timing": worst, "volume": 1.0}
    unknown = Equivalence(INCONCLUSIVE, "no reruns of the job are given", None, None, None, (), ())
    assert verdict_of(overall, None, scores, ["one", "two", "three", "four"], unknown).startswith(verdict)


def test_a_verdict_has_three_differences():
    unknown = Equivalence(INCONCLUSIVE, "no reruns", None, None, None, (), ())
    assert verdict_of(0.5, None, {"timing": 0.5}, ["one", "two", "three", "four"], unknown) == "different: one; two; three"


def test_a_dimension_that_scores_0_99_is_not_explained(trace):
    base = trace(JOB)
    for near in (compare(base, trace(JOB, seed=2)), compare(base, trace(JOB, seed=2, loaders=4))):
        for dimension in near.dimensions:
            if dimension.score >= 0.99:
                assert dimension.differences == ()
    assert any(d.differences for d in near.dimensions if d.score < 0.98)


@pytest.mark.parametrize(
    ("kind", "runs", "margin"), [(TIME, 2, 0.1246), (TIME, 3, 0.1014), (AMOUNT, 3, 0.0422), (READERS, 3, 0.1721)]
)
def test_margins_of_equal_runs(kind, runs, margin):
    """Four aspects share the level of 2 %, the usual spread counts as four runs: t is 4.773 of 5 degrees, 4.317 of 6."""
    assert _margin(kind, np.zeros(runs), 4) == pytest.approx(margin, rel=0.02)


def test_equal_reruns_leave_each_score_its_tolerance(trace):
    base = trace(JOB)
    margins = {name: found["margin"] for name, found in _aspects(compare(base, base, [base])).items()}
    assert {margins[name] for name in ("volume", "operation_mix", "request_size", "access_order", "files")} == {0.05}
    assert {margins[name] for name in ("timing", "bursts", "steps", "concurrency", "timeline")} == {0.10}
    assert margins["overall"] == 0.02


def _aspects(similarity):
    return similarity.to_document()["equivalence"]["aspects"]


def test_a_score_may_differ_by_twice_the_distance_of_the_reruns(trace):
    base, rerun = trace(JOB), trace(JOB, seed=2, compute_ns=JOB.compute_ns * 21 // 20)
    apart = {d.name: 1 - d.score for d in compare(base, rerun).dimensions}
    margins = _aspects(compare(base, base, [rerun]))
    assert apart["timing"] > 0.001
    assert margins["timing"]["margin"] == pytest.approx(0.10 + 2 * apart["timing"])


def summary_of_amounts(**changes):
    """A summary of a run whose amounts are all given by literals: 1000 time units, 100 calls, 10,000 bytes, two files."""
    n = len(PHASES)
    counts, moved = np.zeros((n, 2, 6)), np.zeros((n, 2, 6))
    counts[TRAINING, 0, READ], counts[TRAINING, 0, OPEN] = 99, 1
    counts[TRAINING, 1, SYNC] = changes.get("syncs", 0)
    moved[TRAINING, 0, READ], moved[TRAINING, 1, WRITE] = 9_900, 100
    times = np.zeros(n)
    times[TRAINING], times[2] = 900, 100
    quiet = np.zeros(n)
    quiet[TRAINING] = 18
    return SimpleNamespace(
        occurrences=np.ones(n), quickest_ns=times, quickest_step_ns=np.zeros(n), least_without_waits_ns=quiet, calls=counts,
        bytes=moved, file_sizes=np.ones((2, 2)), written_files=0.0, readers=np.zeros(n),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "amount", "counted"),
    [
        ("time in all", 1000, 1000),
        ("time in evaluation", 100, 200),  # with a tenth of all time
        ("time in training without waits for data", 18, 36),  # with a fiftieth of the time in training
        ("open calls on dataset files", 1, 2),  # with a hundredth of all calls
        ("bytes written to checkpoint files", 100, 200),  # with a hundredth of all bytes
        ("sync calls on checkpoint files", 0, 0.5),
        ("dataset files", 2, 2.5),
        ("checkpoint files written", 0, 0.5),
    ],
)
def test_small_amounts_count_less(name, amount, counted):
    aspect = next(each for each in aspects_of(summary_of_amounts()) if each.name == name)
    assert aspect.amount == amount and aspect.log == pytest.approx(np.log(counted))


@pytest.mark.parametrize(("scatter", "is_random"), [(0.3, False), (0.45, False), (0.55, True), (0.7, True)])
def test_an_order_is_random_from_half_the_scatter_of_a_shuffle_on(scatter, is_random):
    order = make_dataclass("Order", ("scatter", "drift", "jumps"))(np.array([scatter]), np.array([scatter]), np.array([np.nan]))
    each = make_dataclass("Each", ("step_calls", "step_bytes"))(np.ones((1, 10)), np.ones((1, 10)))
    profile = make_dataclass("Profile", ("order", "each"))(order, each)
    assert (order_shuffled(profile) is None) is is_random
    assert (order_sorted(profile) is not None) is is_random


def spike(value):
    histogram = np.zeros(BINS)
    histogram[log_bin(np.array([value]))[0]] = 1.0
    return histogram


def steps_of(step_ns, wait):
    n = len(PHASES)
    return SimpleNamespace(
        step_ns=np.tile(spike(step_ns), (n, 1)), wait_ns=np.full(n, wait * 1000.0), duration_ns=np.full(n, 1000.0)
    )


@pytest.mark.parametrize(
    ("name", "without", "within"),
    [
        ("steps", (steps_of(1 << 20, 0.0), steps_of(round(2**20.25), 0.09)), (steps_of(1 << 20, 0.0), steps_of(1 << 21, 0.11))),
    ],
)
def test_differences_of_steps_and_waits_that_are_worth_a_sentence(name, without, within):
    assert differences(name, *without) == ()
    assert len(differences(name, *within)) == 2 * 3  # of training, evaluation and the whole run


def bursts_of(size):
    return SimpleNamespace(burst_bytes=np.tile(spike(size), (len(PHASES), 1)))


def test_bursts_half_an_octave_apart_are_worth_a_sentence():
    assert differences("bursts", bursts_of(1 << 20), bursts_of(round(2**20.25))) == ()
    assert len(differences("bursts", bursts_of(1 << 20), bursts_of(round(2**20.5) + 1))) == 1


def checkpoints_of(written, removed, at_once=1.0):
    n = len(PHASES)
    return SimpleNamespace(
        written_files=written, removed_files=removed, saves_at_once=at_once, bytes=np.full((n, 2, 6), written / n)
    )


def test_shares_of_removed_checkpoints_a_tenth_apart_are_worth_a_sentence():
    assert differences("checkpoint", checkpoints_of(100, 10), checkpoints_of(100, 19)) == ()
    assert len(differences("checkpoint", checkpoints_of(100, 10), checkpoints_of(100, 21))) == 1


def test_amounts_that_differ_by_a_tenth_are_worth_a_sentence():
    assert differences("checkpoint", checkpoints_of(100, 0), checkpoints_of(108, 0)) == ()
    (sentence,) = differences("checkpoint", checkpoints_of(100, 0), checkpoints_of(112, 0))
    assert sentence == "B writes 112 checkpoint files, A 100"


def mix_of(reads, syncs):
    counted = np.zeros((len(PHASES), 2, 6))
    counted[TRAINING, 0, READ], counted[TRAINING, 0, SYNC] = reads, syncs
    return SimpleNamespace(calls=counted)


def test_shares_of_calls_a_fiftieth_apart_are_worth_a_sentence():
    assert differences("operation_mix", mix_of(100, 0), mix_of(98.5, 1.5)) == ()
    assert len(differences("operation_mix", mix_of(100, 0), mix_of(97, 3))) == 2


def order_with(scatter=0.0, sequential=1.0):
    flat = np.zeros(len(PHASES))
    moved = np.array([[sequential, 0.0, 1 - sequential, 0.0]] * 2)
    return SimpleNamespace(scatter=flat + scatter, drift=flat, jumps=flat, step_bytes=moved)


def test_orders_0_3_apart_and_sequential_shares_a_tenth_apart_are_worth_a_sentence():
    assert differences("access_order", order_with(0.0), order_with(0.25)) == ()
    assert len(differences("access_order", order_with(0.0), order_with(0.35))) == 3
    assert differences("access_order", order_with(sequential=1.0), order_with(sequential=0.92)) == ()
    assert len(differences("access_order", order_with(sequential=1.0), order_with(sequential=0.88))) == 1


def times_of(factor):
    times = np.zeros(len(PHASES))
    times[list(TIMED)] = 100.0
    return SimpleNamespace(duration_ns=times * factor)


@pytest.mark.parametrize(("factor", "words"), [(1.4, "40 % more"), (1.6, "1.6 times more"), (120, "120 times more")])
def test_factors_are_times_from_one_and_a_half_on(factor, words):
    assert any(words in sentence for sentence in differences("timing", times_of(1), times_of(factor)))
