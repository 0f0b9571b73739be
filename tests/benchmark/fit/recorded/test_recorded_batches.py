"""The batches of a recording: who read them, when they were taken, and which passes they form."""

import numpy as np
import pytest

from iotwin.benchmark.fit.batches.repeated_regions import numbers_of_repeats
from iotwin.benchmark.fit.fit_trace import fit
from iotwin.trace_store.reader import Trace
from iotwin.workload_yaml.recorded_structure import structure_of
from iotwin.workload_yaml.recording import Label, Op, RecordedBatches, TwinRecording
from tests.benchmark.fit.made_jobs import sampled_with_replacement
from tests.benchmark.loader_job import RANK, LoaderJob
from tests.benchmark.made_trace import Made


def recorded(trace: Trace) -> TwinRecording:
    made = fit(trace).recording
    assert made is not None
    return made


def batches_of(folder, job: LoaderJob) -> RecordedBatches:
    return recorded(job.trace(folder / "t")).batches


def reading_rank(folder, epochs: int = 2, every: int = 1) -> Trace:
    """Epochs of six batches of four, none logged; after `every` so many an evaluation of two, which is shorter to compute."""
    made, now = Made(), 105.0
    made.process(RANK, 1, "rank")
    files = [made.file(f"/d/train/{i}.jpg", size=100_000) for i in range(24)]
    held = [made.file(f"/d/held/{i}.jpg", size=100_000) for i in range(8)]
    for epoch in range(epochs):
        order = [files[(5 * i + 7 * epoch) % 24] for i in range(24)]
        for pass_files, compute_ms in ((order, 30), (held, 15))[: 2 if (epoch + 1) % every == 0 else 1]:
            for at in range(0, len(pass_files), 4):
                for file in pass_files[at : at + 4]:
                    now = made.read_file(now, RANK, file) + 0.005
                now += compute_ms
    return made.trace(folder / "t")


@pytest.mark.parametrize("persistent", [False, True])
def test_passes_of_loaders_are_epochs_and_evaluations(tmp_path, persistent):
    found = batches_of(tmp_path, LoaderJob(evaluated=8, epochs=3, persistent=persistent, files=26))
    assert [(each.training, each.batches) for each in found.passes] == [(True, 7), (False, 2)] * 3
    assert {each.depth for each in found.passes if each.training} == {4}
    assert [set(found.loader[at : at + 7]) for at in (0, 9)] == ([{1, 2}] * 2 if persistent else [{1, 2}, {5, 6}])
    assert found.samples == [4, 4, 4, 4, 4, 4, 2, 4, 4] * 3


@pytest.mark.parametrize("pins", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
def test_an_evaluation_while_loaders_hold_batches_of_an_epoch_is_part_of_a_step(tmp_path, persistent, pins):
    """Evaluations of 4 batches after steps 8, 16 and 24 of 30, the first of which is in the first epoch of 15."""
    job = LoaderJob(evaluated=16, evaluate_every=9, interrupt_every=8, files=60, persistent=persistent, pins=pins)
    found = batches_of(tmp_path, job)
    assert [(each.training, each.batches, each.depth) for each in found.passes] == [(True, 15, 4)] * 2
    computed = np.subtract(found.computed_ns, found.taken_ns) / 1e6
    assert (computed[[7, 15, 23]] > 50).all() and np.delete(computed, [7, 15, 23]) == pytest.approx(20, abs=0.2)


@pytest.mark.parametrize(("decode_ms", "waits"), [(0.5, False), (12.0, True)])
def test_unpacking_a_batch_is_no_computation(tmp_path, decode_ms, waits):
    """Two loaders need 2 or 48 ms for a batch, the rank 13."""
    found = batches_of(tmp_path, LoaderJob(epochs=1, files=60, compute_ms=3, decode_ms=decode_ms, unpack_ms=10))
    computed = np.subtract(found.computed_ns, found.taken_ns) / 1e6
    assert len(computed) == 15 and computed == pytest.approx(3, abs=0.3)
    until_taken = np.subtract(found.taken_ns[1:], found.computed_ns[:-1]) / 1e6
    assert (until_taken > 10).all() and (until_taken < 10.3).all() != waits


@pytest.mark.parametrize("decode_ms", [0.5, 12.0])  # the rank takes as long as for 1 or 0.2 batches of two loaders
def test_a_rank_may_request_a_batch_at_the_end_of_a_step(tmp_path, decode_ms):
    job = LoaderJob(epochs=1, files=60, compute_ms=10, decode_ms=decode_ms, requests_at_end=True, save_after=5)
    found = batches_of(tmp_path, job)
    assert [each.depth for each in found.passes] == [4]
    computed = np.subtract(found.computed_ns, found.taken_ns) / 1e6
    assert np.delete(computed, [4, 9, 14]) == pytest.approx(10, abs=0.3) and (computed[[4, 9, 14]] > 11).all()


def test_pytorch_requests_a_batch_when_it_has_taken_one_even_if_it_computes_for_no_time(tmp_path):
    found = batches_of(tmp_path, LoaderJob(epochs=1, files=60, compute_ms=10, requests_at_end=True, of_torch=True))
    assert np.median(np.subtract(found.computed_ns, found.taken_ns)) < 1e6


@pytest.mark.parametrize("persistent", [False, True])
def test_a_checkpoint_or_an_evaluation_is_in_no_step(tmp_path, persistent):
    """Nor is the pause in which loaders that live on do nothing."""
    found = batches_of(tmp_path, LoaderJob(evaluated=8, epochs=3, persistent=persistent, files=48))
    computed = np.subtract(found.computed_ns, found.taken_ns) / 1e6
    training = np.concatenate([np.full(each.batches, each.training) for each in found.passes])
    assert computed[training].max() < 1.3 * 20 and computed[~training].max() < 2 * 10


@pytest.mark.parametrize("compute_ms", [3.0, 40.0])  # slower and faster than the loaders
def test_steps_take_as_long_as_the_rank_computes(tmp_path, compute_ms):
    found = batches_of(tmp_path, LoaderJob(compute_ms=compute_ms, files=64))
    times = {name: np.array(getattr(found, name)) / 1e6 for name in ("requested_ns", "received_ns", "delivered_ns", "taken_ns")}
    assert (times["requested_ns"] < times["received_ns"]).all() and (times["received_ns"] < times["delivered_ns"]).all()
    assert (times["delivered_ns"] <= times["taken_ns"]).all() and (np.diff(times["taken_ns"]) > 0).all()
    whole = structure_of(found)
    assert abs(1e3 * whole.computation_s - compute_ms) < 0.5


@pytest.mark.parametrize(("size", "batches"), [(34, 7), (90, 6)])
def test_an_answer_that_nothing_was_read_for_is_a_batch_if_it_was_requested_as_one(tmp_path, size, batches):
    """A loader may deliver samples that it has read before, or answer a message of another kind."""
    made, now = Made(), 0.0
    rank, loader = made.process(RANK, 1, "rank"), made.process(1001, RANK, "loader")
    requests, results = made.file("pipe:[0]", "pipe"), made.file("pipe:[1]", "pipe")
    for number in range(7):
        asked = size if number == 6 else 34
        made.call(now, rank, "write", requests, None, asked)
        now = made.call(now + 0.2, loader, "read", requests, None, asked)
        if number < 6:
            now = made.read_file(now, loader, made.file(f"/d/{number}.jpg", size=200_000))
        now = made.call(now + 1, loader, "write", results, None, 3000)
        now = 20 + made.call(now, rank, "read", results, None, 3000)
    found = recorded(made.trace(tmp_path / "t")).batches
    assert sum(each.batches for each in found.passes) == batches


def test_without_requests_there_are_no_batches(tmp_path):
    made, now = Made(), 0.0
    pid = made.process(RANK, 1, "helper")
    for number in range(6):
        now = made.read_file(now, pid, made.file(f"/d/{number}", "other", 1000))
    found = recorded(made.trace(tmp_path / "t"))
    assert found.header.batches is None and "label" not in found.columns


def test_a_rank_that_reads_by_itself_has_passes_too(tmp_path):
    found = recorded(reading_rank(tmp_path)).batches
    assert [(each.training, each.batches, each.depth) for each in found.passes] == [(True, 6, 0), (False, 2, 0)] * 2
    assert set(found.loader) == {0} and set(found.samples) == {4}
    assert abs(structure_of(found).computation_s - 0.030) < 0.001


def test_passes_begin_where_samples_come_again():
    assert numbers_of_repeats([{1}, {2}, {3}, {2}, {1}, {3}, {3}, {1}, {2}]).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert numbers_of_repeats([{1}, {2}, {9}, {2}, {1}, {9}]).tolist() == [0, 0, 1, 2, 2, 3]
    assert numbers_of_repeats([{1}, {1}, {2}, {2}, {1}]).tolist() == [0] * 5  # drawn with replacement
    assert numbers_of_repeats([{1}, {2}, {3}, {1}, {2}]).tolist() == [0] * 5  # too few batches to tell
    assert numbers_of_repeats([{1}, {2}, {3}, {1}, {2}, {3}]).tolist() == [0, 0, 0, 1, 1, 1]


def test_rows_carry_the_labels_of_their_calls(tmp_path):
    made = recorded(LoaderJob(evaluated=8).trace(tmp_path / "t"))
    of, written = made.columns, np.array([file.written for file in made.header.files])
    on_file = of["op"] < Op.PIPE_WRITE
    on_data = on_file & ~written[np.where(on_file, of["subject"], 0)]
    assert (of["label"][on_data] == Label.DEALT).all() and (of["label"][~on_data] == Label.TIMED).all()
    assert (of["batch"][~on_data] == -1).all() and sorted(set(of["batch"][on_data])) == list(range(len(made.batches.loader)))
    opened = on_data & (of["op"] == Op.OPEN)
    assert (np.bincount(of["batch"][opened]) == made.batches.samples).all()


def reading_on(folder, epochs: int = 2, logged: bool = True) -> Trace:
    """A rank reads 12 stretches of one file in their order, a step each, and evaluates on 4 of another one: 30 and 10 ms a step.

    After each pass it is idle for 500 ms.
    """
    made, now = Made(), 100.0
    made.process(RANK, 1, "rank")
    passes = [
        ("epoch", made.file("/d/train.bin", size=12 << 20), 12, 30),
        ("evaluation", made.file("/d/held.bin", size=4 << 20), 4, 10),
    ]
    for _ in range(epochs):
        for name, file, steps, compute_ms in passes:
            begin = now
            for step in range(steps):
                now = compute_ms + made.call(now, RANK, "pread64", file, step << 20, 1 << 20)
            if logged:
                made.phase(name, begin, now)
            now += 500
    return made.trace(folder / "t")


@pytest.mark.parametrize(("logged", "passes"), [(True, [(True, 12), (False, 4)]), (False, [(True, 16)])])
def test_a_rank_that_reads_on_in_one_file_deals_a_batch_for_each_step(tmp_path, logged, passes):
    made = recorded(reading_on(tmp_path, logged=logged))
    assert (made.columns["label"][made.columns["op"] == Op.READ] == Label.DEALT).all()
    assert [(each.training, each.batches) for each in made.batches.passes] == passes * 2
    assert structure_of(made.batches).computation_s == pytest.approx(0.030, abs=0.001)


def test_the_last_step_of_a_pass_ends_with_the_logged_pass(tmp_path):
    found = recorded(reading_on(tmp_path)).batches
    last = np.subtract(found.computed_ns, found.taken_ns)[[11, 15, 27, 31]] / 1e6
    assert last == pytest.approx([30, 10, 30, 10], abs=1)


def test_samples_drawn_with_replacement_are_one_pass(tmp_path):
    found = recorded(sampled_with_replacement(tmp_path)).batches
    assert [(each.training, each.batches) for each in found.passes] == [(True, 120)]
    assert numbers_of_repeats([{1, 2}, {3}, {4}, {1}, {5}, {6}, {7}, {5}, {8}, {9}]).tolist() == [0] * 10


@pytest.mark.parametrize("loaders", [1, 2])
def test_requests_that_loaders_ignore_at_the_end_of_a_stream_shift_no_batch(tmp_path, loaders):
    """Persistent loaders end a pass by a short message, ignore one request each, and are then asked to resume."""
    found, plain = (
        batches_of(tmp_path / str(resumes), LoaderJob(epochs=3, persistent=True, shards=True, loaders=loaders, resumes=resumes))
        for resumes in (True, False)
    )
    assert [each.batches for each in found.passes] == [each.batches for each in plain.passes] == [6, 6, 6]
    assert [each.depth for each in found.passes] == [each.depth for each in plain.passes] == [2 * loaders] * 3
    for begin in (0, 6, 12):
        lengths = [np.subtract(each.delivered_ns, each.received_ns)[begin : begin + 6].tolist() for each in (found, plain)]
        assert lengths[0] == pytest.approx(lengths[1], abs=2)


def test_a_recording_holds_what_tracing_added_to_a_call(tmp_path):
    trace = LoaderJob(epochs=1).trace(tmp_path / "t")
    assert (recorded(trace).header.transfer_ns, recorded(trace).header.call_ns) == (0, 0)
    trace.manifest.cost.transfer_ns, trace.manifest.cost.call_ns = 300, 700
    assert (recorded(trace).header.transfer_ns, recorded(trace).header.call_ns) == (300, 700)
