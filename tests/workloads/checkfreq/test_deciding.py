"""When checkpoints are taken: by the profile, what was remembered of one, the controller, time, signals and ranks."""

import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch._dynamo
from hypothesis import given
from hypothesis import strategies as st

from iotwin.common.checkpoints import checkpoints, newest, verify
from iotwin.common.errors import IotwinError
from iotwin.workloads.checkfreq import profile
from iotwin.workloads.checkfreq.batches import CFBatches
from iotwin.workloads.checkfreq.iterator import CFIterator
from iotwin.workloads.checkfreq.layouts import OurLayout
from iotwin.workloads.checkfreq.manager import CFManager
from iotwin.workloads.policies.adaptive_interval import CheckpointProfile, StepWindow
from iotwin.workloads.state.position import after, go_on, steps_left
from iotwin.workloads.state.writer_process import WriterProcess
from tests.workloads.checkfreq.job import BATCH, SAMPLES, Job

pytestmark = pytest.mark.torch
FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def _early(monkeypatch):
    monkeypatch.setattr(profile, "DECIDED", 9)
    monkeypatch.setattr(profile, "WARM_UP", 2)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a forked job would wait for threads that it does not have
    yield
    torch.set_num_threads(threads)


def reasons(store):
    return [(found.manifest.step, found.manifest.reason) for found in reversed(checkpoints(store))]


def test_calls_are_timed_over_ends_of_epochs_and_then_the_interval_is_planned(tmp_path):
    job = Job(tmp_path / "store", cache=tmp_path / "cache", manager={"overwrite": False}).train(3).close()
    iterator = job.iterator
    assert iterator.measured is not None and not iterator.measured.from_cache
    measured, planned = iterator.measured.profile, iterator.plan
    assert measured.besides_s > 0 and measured.interference_s > 0
    # The plan adds the same times in another order, which may round otherwise.
    assert iterator.plan.stall_s >= (measured.besides_s + measured.interference_s) * (1 - 1e-12)
    assert measured.size_bytes > 0 and measured.iteration_s > 0 and measured.write_s > 0 and measured.update_s > 0
    # Six steps an epoch: two ends of epochs come before the ninth call has been made in the second.
    step, interval = iterator.intervals[0]
    assert (step, interval) == (7, planned.interval) and iterator.measured.worker in ("thread", "process")
    by_profile = [step for step, reason in reasons(tmp_path / "store") if reason == "profile"]
    assert by_profile == [7] * 4  # two by each worker
    assert all(verify(found).reason is None for found in checkpoints(tmp_path / "store"))
    # The next job like it plans by what was remembered.
    again = Job(tmp_path / "other", cache=tmp_path / "cache")
    assert again.iterator.measured.from_cache and again.iterator.measured.profile == measured
    assert again.iterator.interval == planned.interval
    again.close()
    [cached] = (tmp_path / "cache").iterdir()
    cached.write_bytes(b"{}")
    third = Job(tmp_path / "third", cache=tmp_path / "cache")
    assert third.iterator.measured is None and third.iterator.interval == 0
    third.close()


def test_a_profile_is_kept_without_being_asked_for_so_a_job_that_is_often_killed_gets_checkpoints_within_epochs(tmp_path):
    first = Job(tmp_path / "store", steps_to_run=9).train(3).close()  # killed soon after its profile
    assert first.iterator.measured is not None and not first.iterator.measured.from_cache
    second = Job(tmp_path / "store")
    assert second.iterator.measured.from_cache and second.iterator.interval == first.iterator.plan.interval
    second.close()
    third = Job(tmp_path / "store", reprofile=True)
    assert third.iterator.measured is None
    third.close()


@pytest.mark.parametrize("expensive", ["thread", "process"])
def test_who_takes_less_of_the_training_process_writes_however_long_that_takes(tmp_path, monkeypatch, expensive):
    def burning(write):
        def burn(*arguments, **options):
            end_s = time.thread_time() + 0.5
            while time.thread_time() < end_s:
                pass
            return write(*arguments, **options)

        return burn

    def waiting(write):
        return lambda *arguments, **options: (time.sleep(0.8), write(*arguments, **options))[1]

    thread, process = (burning, waiting) if expensive == "thread" else (waiting, burning)
    monkeypatch.setattr(OurLayout, "commit", thread(OurLayout.commit))
    monkeypatch.setattr(WriterProcess, "receive", process(WriterProcess.receive))
    job = Job(tmp_path / "store")
    job.iterator._durations_s = [0.01]
    job.iterator.profile_all()
    measured = job.iterator.measured
    assert measured.worker == {"thread": "process", "process": "thread"}[expensive] == job.manager.worker
    assert measured.profile.write_s > 0.8 > 0.5 > measured.profile.interference_s > 0
    job.close()


def test_a_job_shorter_than_its_profile_keeps_ends_of_epochs(tmp_path):
    job = Job(tmp_path / "store").train(1).close()
    assert job.iterator.measured is None
    assert reasons(tmp_path / "store") == [(6, "epoch")]


@pytest.mark.parametrize(("interval", "cold"), [(100, 3), (8, 2), (3, 1)])
def test_steps_after_the_writing_count_as_beside_it_as_far_as_the_interval_has_others(tmp_path, monkeypatch, interval, cold):
    writing, told = iter([True, True] + [False] * 5), []
    monkeypatch.setattr(CFManager, "writing", property(lambda manager: next(writing)))
    job = Job(tmp_path / "store", chk_freq=interval)
    job.iterator._controller = SimpleNamespace(due=False, step=lambda seconds, took, stall_s, beside: told.append(beside))
    for _ in range(6):
        next(job.iterator)
    next(job.iterator, None)
    assert told == ([True, True] + [True] * cold + [False] * 5)[: len(told)] and len(told) >= 5  # of what runs nothing is known
    job.close()


def test_what_is_taken_between_steps_counts_against_the_bound(tmp_path):
    job = Job(tmp_path / "store")
    iterator = planned(job, 10)
    window = StepWindow(0, 9, 1.0, 0.01, 0.01, 0.0, 10)
    iterator._own_s = [0.02, 0.02, 5.0]  # of steps of a second
    iterator._correct(window)
    assert iterator._controller.overhead == pytest.approx(0.9 * 0.05 - 0.02) and iterator._own_s == []
    iterator._own_s = [0.5]
    iterator._correct(window)
    assert iterator._controller.overhead == pytest.approx(0.1 * 0.05)
    job.close()


def test_a_profile_that_is_asked_for_needs_a_timed_step(tmp_path):
    job = Job(tmp_path / "store")
    with pytest.raises(IotwinError, match="call it after 3 steps or more"):
        job.iterator.profile_all()
    job.train(1)
    job.iterator.profile_all()
    assert job.iterator.measured is not None and job.iterator.interval == job.iterator.plan.interval
    job.close()


def test_the_cache_of_the_original_is_read(tmp_path):
    theirs = {"avg_iter_dur": 0.1, "chk_freq": 4, "self._chk_fn": "gpu", "self._use_thread": False}
    (tmp_path / ".cache_resnet18_4").write_text(json.dumps(theirs))
    job = Job(tmp_path / "store", manager={"overwrite": False}).train(1).close()
    assert (job.iterator.interval, job.manager.snapshot, job.manager.worker) == (4, "device", "process")
    assert reasons(tmp_path / "store") == [(4, "steps"), (6, "epoch")]


def planned(job, interval, dynamic=True, in_flight=1):
    """Let a job plan from a made profile whose interval, at its bound of 5 %, is `interval`."""
    made = CheckpointProfile(1.0, 0.1, 0.9 + 0.05 * interval, None, 0.0, 100)
    job.iterator._dynamic = dynamic
    job.iterator._decide(job.manager, profile.MeasuredCosts(made, "thread"))
    return job.iterator


def drive(iterator, job, steps, seconds):
    """Let an iterator see `steps` steps of the `seconds` that a function gives for their number and what began in them."""
    for step in range(steps):
        iterator._record_duration(*seconds(step, iterator._took))
        iterator._since += 1
        iterator._took = iterator._due() == "steps"
        if iterator._took:
            iterator._since = 0


def test_the_interval_grows_with_what_checkpoints_cost_and_shrinks_again(tmp_path):
    job = Job(tmp_path / "store")
    iterator = planned(job, 10)
    assert iterator.interval == 10
    job.batches.position = SimpleNamespace(position=0, kept=10**9, batch_size=1, world_size=1)
    drive(iterator, job, 200, lambda step, took: (1 + 1.5 * took, 1.5 * took))  # a stall of three times what was planned
    high = iterator.interval
    assert 31 <= high <= 36  # 1.5 steps over nine tenths of 5 %
    drive(iterator, job, 400, lambda step, took: (1 + 0.5 * took, 0.5 * took))
    assert 8 <= iterator.interval <= 13
    assert iterator.intervals[0][1] == 10 and len(iterator.windows) > 5
    job.close()


def test_without_dynamic_it_is_corrected_until_it_holds_and_then_left(tmp_path):
    job = Job(tmp_path / "store")
    iterator = planned(job, 10, dynamic=False)
    job.batches.position = SimpleNamespace(position=0, kept=10**9, batch_size=1, world_size=1)
    drive(iterator, job, 200, lambda step, took: (1 + 1.5 * took, 1.5 * took))
    settled = iterator.interval
    assert settled >= 28 and iterator._controller is None
    drive(iterator, job, 100, lambda step, took: (1 + 9 * took, 9 * took))
    assert iterator.interval == settled
    job.close()


def test_checkpoints_at_every_step_and_several_in_flight(tmp_path):
    for in_flight in (1, 3):
        store = tmp_path / f"store{in_flight}"
        job = Job(store, chk_freq=1, manager={"overwrite": False, "in_flight": in_flight}).train(2).close()
        assert reasons(store) == [(step, "epoch" if step % 6 == 0 else "steps") for step in range(1, 13)]
        assert len(job.manager.persisted) == len(job.manager.stalls.each_s) == 12
        assert all(verify(found).reason is None for found in checkpoints(store))


def test_a_signal_stops_the_job_with_a_checkpoint_and_time_asks_for_one(tmp_path):
    before = signal.getsignal(signal.SIGUSR2)
    job = Job(tmp_path / "store", stop_at=(signal.SIGUSR2,))
    for _batch in job.iterator:
        if job.iterator.state_dict()["iter"] == 4:
            os.kill(os.getpid(), signal.SIGUSR2)
    assert job.iterator.exit and reasons(tmp_path / "store") == [(4, "signal")]
    job.iterator.close()
    job.close()
    assert signal.getsignal(signal.SIGUSR2) == before
    timed = Job(tmp_path / "timed", seconds=1e-9, manager={"overwrite": False}).train(1).close()
    assert reasons(tmp_path / "timed")[:-1] == [(step, "seconds") for step in range(1, 7)]
    assert timed.iterator.interval == 0


def test_a_plain_iterable_is_read_again(tmp_path, capsys):
    job = Job(tmp_path / "store", chk_freq=2, steps_to_run=4).train(1).close()
    left = job.iterator.state_dict()
    iterator = CFIterator(range(6), bs=1)
    iterator.load_state_dict(left)
    assert list(iterator) == [4, 5] and iterator.epoch == 1 and list(iterator) == list(range(6))
    assert "4 batches read again and dropped" in capsys.readouterr().err
    assert len(json.dumps(left)) < 1000
    generator = CFIterator(iter([1, 2]))
    assert list(generator) == [1, 2]


def test_a_checkpoint_of_another_order_is_refused(tmp_path):
    Job(tmp_path / "store", chk_freq=2, steps_to_run=4).train(1).close()
    job = Job(tmp_path / "other")
    job.manager.restored_position = newest(tmp_path / "store", print).manifest.position
    job.batches.position = CFBatches(SAMPLES, BATCH, seed=4).position
    with pytest.raises(IotwinError, match="has the seed 3, this job has the seed 4"):
        job.iterator.load_state_dict({"epoch": 0, "iter": 4, "steps_so_far": 4, "start_index": 16})
    job.close()


@given(
    samples=st.integers(1, 60),
    batch=st.integers(1, 5),
    world=st.integers(1, 4),
    seed=st.integers(0, 5),
    stops=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 4)), max_size=3),
)
def test_each_sample_is_taken_once_whatever_the_stops_and_the_ranks(samples, batch, world, seed, stops):
    once(samples, batch, world, seed, stops)


def once(samples, batch, world, seed, stops):
    """Take an epoch, stopping after so many steps and going on on so many ranks; every kept sample must have come once."""
    if samples < batch * world:
        return
    position = CFBatches(samples, batch, seed, 0, world).position
    whole = CFBatches(samples, batch, seed).order()
    taken = []
    for steps, ranks in [*stops, (10**6, world)]:
        position = go_on(position, samples, batch, position.world_size)
        steps = min(steps, steps_left(position))
        for rank in range(position.world_size):
            batches = CFBatches(samples, batch, seed, rank, position.world_size)
            batches.position = position
            read = [index for indices, _ in zip(batches, range(steps), strict=False) for index in indices]
            taken += read
        position = after(position, steps)
        if position.position and samples >= batch * ranks:
            position = go_on(position, samples, batch, ranks)
    kept = position.kept
    import numpy as np

    assert position.position == kept and Counter(taken) == Counter(whole(np.arange(kept)).tolist())


@given(st.integers(1, 90), st.integers(1, 5), st.integers(1, 5), st.integers(0, 20))
def test_slices_are_the_original_s_and_a_stop_repeats_and_leaves_out_nothing(samples, batch, world, stop):
    if samples < batch * world:
        return
    for rank in range(world):
        ours = CFBatches(samples, batch, 3, rank, world, sliced=True)
        first, end = rank * samples // world, (rank + 1) * samples // world
        steps = samples // (batch * world)
        slice_of_order = ours.order()(np.arange(first, end))[: steps * batch].tolist()
        whole = [index for indices in ours for index in indices]
        assert whole == slice_of_order and len(ours) == steps
        ours.position = after(ours.position, min(stop, steps))
        assert [index for indices in ours for index in indices] == whole[min(stop, steps) * batch :]


def test_slices_go_on_with_as_many_ranks_only(tmp_path):
    job = Job(tmp_path / "store", chk_freq=1, steps_to_run=2).train().close()
    again = Job(tmp_path / "other")
    again.manager.restored_position = job.batches.position
    again.batches = again.iterator.batches = CFBatches(SAMPLES, BATCH // 2, 3, sliced=True)
    with pytest.raises(IotwinError, match="of 1 rank with batches of 4; a sliced order resumes only with the same"):
        again.iterator.load_state_dict(job.iterator.state_dict())
    again.close()


def _killed(store, step, worker, delay_s):
    """A job that is killed `delay_s` after it has come to `step`, in the middle of whatever its writer does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    job = Job(store, chk_freq=2)
    job.manager.worker = worker
    iterator = job.iterator
    count = iterator._record_duration

    def then_die(*of_step):
        count(*of_step)
        # On a fast machine the job before was killed later than at `step`.
        if iterator.state_dict()["steps_so_far"] >= step and not signal.getitimer(signal.ITIMER_REAL)[0]:
            signal.setitimer(signal.ITIMER_REAL, delay_s)

    iterator._record_duration = then_die
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, 0)
    if not delay_s:
        iterator._record_duration = lambda *of_step: (
            count(*of_step),
            iterator._steps == step and os.kill(os.getpid(), signal.SIGKILL),
        )
    job.train(100)


@pytest.mark.parametrize(("worker", "step"), [("thread", 5), ("thread", 12), ("process", 8)])
def test_a_job_killed_at_a_step_loses_fewer_than_two_intervals(tmp_path, worker, step):
    store = tmp_path / "store"
    whole = Job(tmp_path / "whole").train(3).close()
    child = FORK.Process(target=_killed, args=(store, step, worker, 0))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    resumed = Job(store, chk_freq=2)
    assert step - 4 < resumed.resumed_step <= step
    resumed.train(3).close()
    assert resumed.digest == whole.digest
    first = Job(tmp_path / "first", steps_to_run=resumed.resumed_step).train(3).close()
    assert Counter(first.taken) + Counter(resumed.taken) == Counter(whole.taken)


def test_a_job_killed_at_any_moment_can_go_on(tmp_path):
    rng = random.Random(7)
    for number in range(4):
        child = FORK.Process(
            target=_killed,
            args=(tmp_path / "store", 6 * number + 3, "process" if number % 2 else "thread", rng.uniform(0.001, 0.05)),
        )
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        found = newest(tmp_path / "store", print)
        assert found is not None or number == 0  # the first may come before the first checkpoint has
