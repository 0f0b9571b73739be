"""A policy of the emulator that decides by what its steps and writes were measured to take."""

import io
import itertools
import json
import threading
import time
from pathlib import Path

import pytest

from iotwin.benchmark.emulator.checkpoints.background import Background
from iotwin.benchmark.emulator.checkpoints.writer import CheckpointWriter
from iotwin.benchmark.emulator.results.run_files import write_results
from iotwin.benchmark.emulator.results.step_table import StepTable
from iotwin.benchmark.emulator.run import emulate
from iotwin.common.errors import UsageError
from iotwin.common.numbers.sleeper import Sleeper
from iotwin.workload_yaml import (
    Checkpoint,
    CheckpointPolicy,
    Config,
    Dataset,
    Model,
    Reader,
    Train,
    Twin,
    TwinCheckpoint,
    Workflow,
)
from iotwin.workload_yaml.checked_config import checked_config
from iotwin.workloads.policies.checkpoint_frequency import Frequency, Took

STEP_S = 1.0


def drive(steps, write=lambda step: 5.5, stall=lambda step: 0.2, in_flight=1, work_s=0.0, on_processors=False, **policy):
    """Run a made job under the policy; return at which steps it took checkpoints, and what was decided."""
    frequency = Frequency(CheckpointPolicy(**policy), in_flight, on_processors)
    taken, under_way = [], []  # the latter: when each will have been written, and what it takes
    now = 0.0
    for step in range(1, steps + 1):
        due = frequency.time_is_up(0)
        now += STEP_S
        ended = [Took(seconds, work_s) for end, seconds in under_way if end <= now]
        under_way = [(end, seconds) for end, seconds in under_way if end > now]
        frequency.stepped(STEP_S, 0.0, bool(under_way), ended)
        if due:
            waited = max(0.0, under_way[0][0] - now) if len(under_way) == in_flight else 0.0
            now += waited + stall(step)
            frequency.saved(waited + stall(step))
            under_way.append((now + write(step), write(step)))
            taken.append(step)
    return taken, frequency.decided


def gaps(taken):
    return [after - before for before, after in itertools.pairwise(taken)]


def test_a_probe_comes_after_the_steps_that_are_timed_and_then_the_planned_interval():
    taken, decided = drive(300, profile_steps=20, overhead=0.05)
    assert taken[:2] == [20, 27] and set(gaps(taken)[2:]) == {6}  # 5.5 s of writing keep two apart
    assert decided.intervals == ((33, 6),) and (decided.step_s, decided.stall_s, decided.write_s) == (1.0, 0.2, 5.5)


def test_stalls_count_against_the_bound():
    _, decided = drive(300, stall=lambda step: 1.0, write=lambda step: 2.0, profile_steps=20, overhead=0.05)
    assert decided.intervals[0][1] == 20


def test_what_writing_works_on_the_processors_that_train_counts_against_the_bound():
    plans = [drive(300, work_s=1.0, on_processors=on, profile_steps=20, overhead=0.05)[1].intervals for on in (False, True)]
    assert [intervals[0][1] for intervals in plans] == [6, 24]  # 5.5 s of writing keep two apart; 0.2 s and 1 s are 5 % of 24
    assert plans[1][-1][1] < 24  # where steps show none of it, it is not believed for ever


def test_a_checkpoint_works_where_it_computes_and_where_the_job_does_and_not_where_it_waits():
    def wait_and_compute():
        time.sleep(0.05)
        while time.thread_time() < 0.02:
            pass
        return []

    background = Background(wait_and_compute, 3.0)
    background.result()
    # A thread has worked a little before its time is taken.
    assert background.took.seconds >= 0.05 and 3.02 <= background.took.work_s < 3.0 + background.took.seconds - 0.04


def test_a_writer_tells_what_its_job_works_beside_calls(tmp_path):
    config = job(tmp_path / "c")
    config.twin.checkpoint = TwinCheckpoint(asynchronous=True, lead_time=0.02, tail_time=0.03)
    writer = CheckpointWriter(config)
    writer.save(1)
    writer.finish()
    [took] = writer.progress()[1]
    assert took.work_s > 0.05


def test_a_slower_write_makes_the_interval_grow_and_a_faster_one_shrink():
    taken, decided = drive(1500, write=lambda step: 5.5 if step < 300 or step > 900 else 40.0, profile_steps=20)
    within = {begin: gaps([step for step in taken if begin <= step < begin + 250]) for begin in (50, 600, 1200)}
    assert max(within[50]) < 10 and min(within[600]) >= 40 and max(within[1200]) < 10
    intervals = [interval for _, interval in decided.intervals]
    assert intervals[0] == 6 and max(intervals) >= 40 and intervals[-1] < 10


def test_more_in_flight_come_closer():
    one, _ = drive(400, write=lambda step: 30.0, profile_steps=20)
    three, _ = drive(400, write=lambda step: 30.0, profile_steps=20, in_flight=3)
    assert min(gaps(one)[2:]) == 30 and sorted(gaps(three))[len(gaps(three)) // 2] == 10


def test_failures_that_are_far_apart_ask_for_longer_intervals():
    _, decided = drive(300, profile_steps=20, mtbf=1000)
    assert decided.intervals[0][1] == 20  # sqrt(2 * 0.2 * 1000)
    assert decided.goodput_steps_per_s(1000) == pytest.approx(1 - (5.5 + 20) / 1000)


def job(folder: Path, **checkpoint) -> Config:
    policy = CheckpointPolicy(profile_steps=8, overhead=50.0)
    return Config(
        model=Model(model_size_bytes=30_000),
        workflow=Workflow(checkpoint=True),
        dataset=Dataset(format="synthetic", num_files_train=120, record_length_bytes=100),
        reader=Reader(data_loader="synthetic", batch_size=1, read_threads=0),
        train=Train(epochs=1, computation_time=0.002),
        checkpoint=Checkpoint(checkpoint_folder=str(folder), **checkpoint),
        twin=Twin(checkpoint=TwinCheckpoint(policy=policy, asynchronous=True, snapshot_time=0.0)),
    )


def numbers(measured):
    return [int(Path(file.name).parent.name.partition("_step")[2]) for file in measured.saved]


def test_the_emulator_moves_its_interval_by_its_own_writes(tmp_path, monkeypatch):
    """What writes take is told in place of the clock: at first nothing, then days."""
    told = iter([0.0] * 4)
    real = CheckpointWriter.progress

    def progress(writer):
        writing, took = real(writer)
        return writing, [Took(next(told, 1e6), 0.0) for _ in took]

    monkeypatch.setattr(CheckpointWriter, "progress", progress)
    config = job(tmp_path / "c")
    config.output.folder = str(tmp_path)
    measured = emulate(config, None)
    assert numbers(measured)[0] == 8 and numbers(measured)[-1] == 120  # the policy's first, and the epoch's
    (_, first), *others = measured.decided.intervals
    assert others and others[-1][1] > 100 * first
    policy = write_results(config, [measured], StepTable([measured.steps]))["iotwin"]["checkpoint_policy"]
    assert policy["interval"] == others[-1][1] and policy["goodput_steps_per_s"] is None
    assert json.loads((tmp_path / "summary.json").read_text())["iotwin"]["checkpoint_policy"] == policy


def test_without_asynchronous_writing_a_policy_waits_for_each(tmp_path):
    config = job(tmp_path / "c")
    config.twin.checkpoint.asynchronous = False
    measured = emulate(config, None)
    assert numbers(measured)[0] == 8 and measured.decided.write_s == 0.0


def test_a_policy_decides_in_place_of_the_cadence_over_steps_and_beside_that_over_epochs(tmp_path):
    config = job(tmp_path / "c", steps_between_checkpoints=3)
    config.train.epochs = 2
    assert [step for step in numbers(emulate(config, None)) if step <= 8 or step % 120 == 0] == [8, 120, 240]


def test_ranks_checkpoint_together(tmp_path):
    from iotwin.benchmark.emulator.ranks import run_local

    config = job(tmp_path / "c")
    config.twin.ranks = 2
    first, second = run_local(2, lambda rank: emulate(config, None, rank))
    when = [[span.number for span in rank.spans if span.kind == "save_ckpt"] for rank in (first, second)]
    blocks = [[span.amount for span in rank.spans if span.kind == "block"] for rank in (first, second)]
    assert when[0] == when[1] and blocks[0] == blocks[1] and len(when[0]) >= 2
    assert first.decided is not None and second.decided is None


def test_a_host_snapshot_goes_on_beside_the_step_and_ends_before_its_update(tmp_path, monkeypatch):
    config = job(tmp_path / "c")
    config.twin.checkpoint.snapshot = "host"
    gate, settled = threading.Event(), threading.Event()
    monkeypatch.setattr(Sleeper, "sleep", lambda *_: gate.wait())
    writer = CheckpointWriter(config)
    writer.save(1)  # returns: the snapshot is taken by another thread
    waiting = threading.Thread(target=lambda: (writer.settle(), settled.set()))
    waiting.start()
    time.sleep(0.05)
    assert not settled.is_set()
    gate.set()
    waiting.join()
    writer.finish()
    assert writer.progress()[0] is False and writer.newest() == (1, 0)


def test_one_in_so_many_stays_besides_the_newest(tmp_path):
    config = job(tmp_path / "c")
    config.twin.checkpoint = TwinCheckpoint(keep=2, keep_every=3)
    writer = CheckpointWriter(config)
    for epoch in range(1, 9):
        writer.save(epoch)
    assert sorted(path.name for path in (tmp_path / "c").glob("global*")) == [f"global_epoch{n}_step0" for n in (3, 6, 7, 8)]


def test_those_at_ends_of_epochs_stay_besides_the_newest(tmp_path):
    config = job(tmp_path / "c", steps_between_checkpoints=50)
    config.train.epochs, config.twin.checkpoint = (
        3,
        TwinCheckpoint(keep=1, keep_every="epoch", after=[50, 120, 130, 240, 250]),
    )
    emulate(config, None)
    assert {path.name.partition("_step")[2] for path in (tmp_path / "c").glob("global*")} == {"120", "240", "250"}
    writer = CheckpointWriter(config)
    assert writer.newest() == (3, 250)


def phases(config):
    """What the log of a run says of its phases, in order: (key, ends), without what goes on for the whole run."""
    log = io.StringIO()
    emulate(config, log)
    lines = [json.loads(line.partition(" ")[2]) for line in log.getvalue().splitlines()]
    told = [(line["key"].removesuffix("_start").removesuffix("_stop"), line["event_type"] == "INTERVAL_END") for line in lines]
    return [entry for entry in told if entry[0] in ("epoch", "block", "checkpoint")]


def test_checkpoints_that_the_job_does_not_log_are_part_of_its_epochs(tmp_path):
    config = job(tmp_path / "c", steps_between_checkpoints=40)
    config.twin.checkpoint = TwinCheckpoint(logged=False, after=[40, 120])
    epoch = [("epoch", False), ("epoch", True)]
    assert phases(config) == epoch
    config.twin.checkpoint.after, config.checkpoint.steps_between_checkpoints = None, -1
    measured = emulate(config, None)  # at the end of the epoch
    inside = {span.kind: (span.start_s, span.end_s) for span in measured.spans}
    assert inside["block"][0] < inside["save_ckpt"][0] <= inside["save_ckpt"][1] <= inside["block"][1]
    config.twin.checkpoint.logged = None
    assert phases(config) == [*epoch, ("checkpoint", False), ("checkpoint", True)]
    config.twin.checkpoint.asynchronous = True
    assert phases(config) == epoch


def test_a_policy_and_another_rule_for_the_same_are_refused():
    raw = {"twin": {"checkpoint": {"policy": {"type": "checkfreq"}, "seconds_between": 5}}}
    with pytest.raises(UsageError, match=r"twin\.checkpoint\.policy: decides alone"):
        checked_config(raw, str)
    with pytest.raises(UsageError, match="overhead"):
        checked_config({"twin": {"checkpoint": {"policy": {"overhead": 0}}}}, str)
    found = checked_config({"twin": {"checkpoint": {"policy": {"type": "checkfreq"}}}}, str).twin.checkpoint.policy
    assert found == CheckpointPolicy(overhead=0.05, mtbf=None, profile_steps=100)
