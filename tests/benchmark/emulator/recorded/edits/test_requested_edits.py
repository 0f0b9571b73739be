"""Edited recordings: which samples are read by whom, how often, and how long steps take."""

from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest

from iotwin.benchmark.emulator.recorded.edits.edited_recording import edit
from iotwin.benchmark.emulator.recorded.edits.requested_edits import Edits, copies_folder, edits_of, replays
from iotwin.benchmark.fit.fit_trace import fit
from iotwin.common.errors import UsageError
from iotwin.loops import page_cache_state
from iotwin.loops.answers.what_if import ask
from iotwin.loops.emulation import EmulationOptions, make_copies, run_workload
from iotwin.workload_yaml import Config, TwinRecorded, dump, load
from iotwin.workload_yaml.recorded_structure import structure_of
from iotwin.workload_yaml.recording import Op, RecordedBatches, RecordedFile, TwinRecording, write_recording
from tests.benchmark.fit.recorded.test_recorded_batches import reading_rank
from tests.benchmark.loader_job import LoaderJob, fit_once
from tests.benchmark.recordings import recording, row, write_twin

JOB = LoaderJob(evaluated=8)


def recorded(job: LoaderJob = JOB) -> TwinRecording:
    made = fit_once(job).recording
    assert made is not None and made.header.batches is not None
    return made


def on_data(made: TwinRecording, op: Op) -> np.ndarray:
    """Indices of the rows of `op` on the data set."""
    written = np.array([file.written for file in made.header.files])
    rows = np.flatnonzero(made.columns["op"] == op)
    return rows[~written[made.columns["subject"][rows]]]


def reads(made: TwinRecording) -> Counter[tuple[str, int, int]]:
    """The reads of data: file, offset (known for shards alone) and size."""
    of = made.columns
    return Counter(
        (made.header.files[of["subject"][i]].name, int(of["offset"][i]), int(of["size"][i])) for i in on_data(made, Op.READ)
    )


def writes(made: TwinRecording) -> list[str]:
    of = made.columns
    return [made.header.files[s].name for s, o in zip(of["subject"], of["op"], strict=True) if o == Op.WRITE]


def count(made: TwinRecording, op: Op, thread: int | None = None) -> int:
    chosen = made.columns["op"] == op
    return int((chosen if thread is None else chosen & (made.columns["thread"] == thread)).sum())


def rank_think_ms(made: TwinRecording) -> float:
    return float(made.columns["think_ns"][made.columns["thread"] == 0].sum()) / 1e6


def test_the_recorded_values_are_the_jobs():
    of = structure_of(recorded().header.batches)
    assert (of.batch_size, of.loaders, of.prefetch, of.epochs, of.samples, of.ranks) == (4, 2, None, 2, 24, 1)
    assert abs(of.computation_s - 0.020) < 0.0005


@pytest.mark.parametrize(("factor", "steps"), [(0.5, 12), (1, 6), (1.5, 4), (2, 3), (100, 1)])
@pytest.mark.parametrize("loaders", [None, 1, 3, 0])
def test_samples_are_dealt_to_other_batches_and_loaders(factor, steps, loaders):
    """Validation keeps its batches; every sample is read once an epoch, and the computation of all steps together remains."""
    before = recorded()
    after = edit(before, Edits(batch=factor, loaders=loaders))
    assert reads(after) == reads(before) and writes(after) == writes(before)
    workers = 2 if loaders is None else loaders
    if workers:
        assert count(after, Op.PIPE_READ, 0) == JOB.epochs * (steps + 2) == count(after, Op.PIPE_READ) / 2
    assert count(after, Op.START) == JOB.epochs * 2 * workers == count(after, Op.JOIN)
    if workers:
        assert abs(rank_think_ms(after) - rank_think_ms(edit(before, Edits(prefetch=4)))) < 2 + 1.1 * 4 * abs(workers - 2)


@pytest.mark.parametrize("loaders", [2, 0])
@pytest.mark.parametrize(("evenly", "files", "factor", "steps"), [
    (True, 26, 1, 7), (False, 26, 1, 6.5),  # of 20 ms, in an epoch: six whole ones, and one on two samples instead of four
    (True, 26, 2, 2 * 4), (False, 26, 2, 2 * 3.25), (True, 26, 0.5, 13 / 2), (False, 26, 0.5, 13 / 2),
    (False, 24, 1.25, 1.25 * 5),  # the recording has no short batch, so that the edited one counts as a whole one
    (False, 24, 100, 6),  # no batch is whole
])  # fmt: skip
def test_a_short_last_batch_computes_as_the_recording_shows(loaders, evenly, files, factor, steps):
    job = LoaderJob(files=files, evenly=evenly, epochs=3)
    before = recorded(job)
    once, thrice = (rank_think_ms(edit(before, Edits(loaders=loaders, batch=factor, computation=scale))) for scale in (1, 3))
    assert (thrice - once) / 2 == pytest.approx(job.epochs * job.compute_ms * steps, rel=0.03)


def test_loaders_deliver_batches_in_turn():
    after = edit(recorded(), Edits(loaders=3))
    rank = after.columns["thread"] == 0
    taken = after.columns["subject"][rank & (after.columns["op"] == Op.PIPE_READ)]
    assert len(set(taken[:3].tolist())) == 3 and (taken[:3] == taken[3:6]).all()


@pytest.mark.parametrize("loaders", [1, 2, 3])
def test_loaders_that_live_through_all_epochs_still_do(loaders):
    before = recorded(LoaderJob(persistent=True, epochs=3))
    after = edit(before, Edits(loaders=loaders, batch=1.5, epochs=4))
    assert count(after, Op.START) == loaders == count(after, Op.JOIN)
    assert sum(reads(after).values()) * 3 == sum(reads(before).values()) * 4


@pytest.mark.parametrize("loaders", [1, 2, 5])
def test_each_loader_takes_as_long_to_start_as_the_recorded_ones(loaders):
    def thinks_ms(made: TwinRecording) -> list[float]:
        """Of the first epoch's starts but the first, and before the first request, where training begins."""
        begin = int(np.flatnonzero(made.columns["op"] == Op.START)[0]) + 1
        end = int(np.flatnonzero(made.columns["op"] == Op.PIPE_WRITE)[0]) + 1
        thinks = made.columns["think_ns"][begin:end]
        return (thinks[thinks > 0] / 1e6).round(3).tolist()

    before = recorded()
    start_ms, request_ms = thinks_ms(before)
    assert thinks_ms(edit(before, Edits(loaders=loaders, batch=0.5))) == [start_ms] * (loaders - 1) + [request_ms]


def test_loaders_that_live_at_the_same_time_share_no_pipe():
    """Those of training live through all epochs; an evaluation between two epochs has other ones."""
    before = recorded(LoaderJob(persistent=True, epochs=3, evaluated=8, evaluate_every=2))
    of = edit(before, Edits(batch=2)).columns
    on_pipe = np.isin(of["op"], [Op.PIPE_WRITE, Op.PIPE_READ]) & (of["thread"] > 0)
    of_loader = [set(of["subject"][on_pipe & (of["thread"] == thread)].tolist()) for thread in np.unique(of["thread"][on_pipe])]
    assert len(of_loader) == 4 and len(set.union(*of_loader)) == 8


@pytest.mark.parametrize("scale", [0.25, 2.0])
def test_computation_is_scaled_and_nothing_else(scale):
    before = recorded()
    whole = JOB.epochs * (24 / 4 * JOB.compute_ms + 8 / 4 * JOB.compute_ms / 2)
    change = rank_think_ms(edit(before, Edits(computation=scale))) - rank_think_ms(edit(before, Edits()))
    assert abs(change - (scale - 1) * whole) < 0.02 * whole


@pytest.mark.parametrize("epochs", [1, 3, 5])
def test_epochs_are_left_out_or_repeated_with_their_checkpoints(epochs):
    before = recorded()
    after = edit(before, Edits(epochs=epochs))
    once = {key: number // JOB.epochs for key, number in reads(before).items()}
    assert reads(after) == {key: number * epochs for key, number in once.items()}
    assert len(set(writes(after))) == epochs and all(name.endswith(".pt") for name in writes(after))


def test_what_a_repeated_epoch_reads_again_is_removed_by_its_last_repetition():
    """Each epoch reads the checkpoints of the two before, and removes the older one."""
    before = recorded(LoaderJob(epochs=4, keeps_two=True))
    after = edit(before, Edits(epochs=7))
    of = after.columns
    assert count(before, Op.UNLINK) == count(after, Op.UNLINK) == 2
    for removal in np.flatnonzero(of["op"] == Op.UNLINK):
        uses = np.flatnonzero((of["subject"] == of["subject"][removal]) & (of["op"] == Op.OPEN))
        assert uses.max() < removal


def test_a_repeated_epoch_is_shuffled_if_epochs_are():
    after = edit(recorded(), Edits(epochs=4, loaders=1, batch=100))
    opened = after.columns["subject"][on_data(after, Op.OPEN)]
    epochs = [opened[at : at + 24].tolist() for at in range(0, 4 * 32, 32)]
    assert len({tuple(each) for each in epochs}) == 4 and all(sorted(each) == sorted(epochs[0]) for each in epochs)


@pytest.mark.parametrize("change", [Edits(epochs=5), Edits(samples=3), Edits(loaders=5), Edits(batch=0.5)])
def test_each_loader_tries_the_folder_of_temporary_files_once(change):
    """A thread of the loader does so while samples are read that go to other loaders, batches and epochs."""
    after = edit(recorded(LoaderJob(tries_folder=True)), change)
    of = after.columns
    on_file = of["op"] < Op.PIPE_WRITE
    tried = np.array(["try" in file.name for file in after.header.files])
    on_tries = on_file & tried[np.where(on_file, of["subject"], 0)]
    found = [of["op"][on_tries & (of["thread"] == thread)].tolist() for thread in np.unique(of["thread"][on_tries])]
    assert found == [[Op.OPEN, Op.WRITE, Op.CLOSE, Op.UNLINK]] * count(after, Op.START)


@pytest.mark.parametrize("factor", [0.5, 2, 3])
def test_more_samples_lie_on_copies_of_their_files(factor):
    before = recorded()
    after = edit(before, Edits(samples=factor))
    copies = [key for key in reads(after) if "-copy" in key[0]]
    assert sum(reads(after).values()) == factor * sum(reads(before).values())
    assert len(copies) == max(factor - 1, 0) * len(reads(before))
    assert all(key[0].replace("-copy1", "").replace("-copy2", "") in {name for name, _, _ in reads(before)} for key in copies)


def test_a_rank_maps_copies_as_it_maps_their_files_before_loaders_are_forked():
    before = recorded(LoaderJob(mapped=True))
    of = edit(before, Edits(samples=3)).columns
    maps = np.flatnonzero(of["op"] == Op.MAP)
    assert len(maps) == 3 * count(before, Op.MAP) == len(set(of["subject"][maps])) and not of["thread"][maps].any()
    assert maps.max() < np.flatnonzero(of["op"] == Op.START).min()


def test_ranks_share_the_samples_meet_and_the_first_one_saves():
    before = recorded()
    ranks = [edit(before, Edits(ranks=2), rank) for rank in range(2)]
    assert sum((reads(each) for each in ranks), Counter()) == reads(before)
    assert [len(writes(each)) for each in ranks] == [JOB.epochs, 0]
    assert {count(each, Op.MEET) for each in ranks} == {JOB.epochs * 3}


@pytest.mark.parametrize(("job", "ranks"), [(LoaderJob(files=23), 3), (LoaderJob(shards=True, files=22), 2)])
def test_ranks_meet_as_often_as_one_another(job, ranks):
    """Of samples that do not divide evenly some are read twice; shards belong to one rank each."""
    before = recorded(job)
    shares = [edit(before, Edits(ranks=ranks), rank) for rank in range(ranks)]
    assert len({count(each, Op.MEET) for each in shares}) == 1
    files = [{name for name, _, _ in reads(each)} for each in shares]
    assert not job.shards or (files[0] and files[1] and not files[0] & files[1])


@pytest.mark.parametrize("ranks", [1, 3, 4])
@pytest.mark.parametrize("shards", [False, True])
def test_a_recording_of_two_ranks_is_dealt_to_another_number_of_ranks(ranks, shards):
    job = LoaderJob(ranks=2, files=24, epochs=3, shards=shards, loaders=3)
    before = recorded(job)
    assert before.header.ranks == structure_of(before.header.batches).ranks == 2
    edits = Edits(ranks=ranks, regrouped=True)
    shares = [edit(before, edits, rank) for rank in range(ranks)]
    total = sum((reads(each) for each in shares), Counter())
    assert shards or total == reads(before)
    assert set(total) == set(reads(before)) or (ranks == 4 and shards)  # six streams are not even for four ranks
    assert [len(writes(each)) for each in shares] == [job.epochs] + [0] * (ranks - 1)
    steps = job.epochs * -(-24 // ranks // 4)  # the last batch of an epoch may be short
    assert shards or {count(each, Op.MEET) for each in shares} == {steps if ranks > 1 else 0}
    assert {count(each, Op.START) for each in shares} == {1 + 3 * job.epochs}  # the rank, and its loaders


def test_a_recording_of_two_ranks_is_replayed_once_for_two():
    fitted = fit_once(LoaderJob(ranks=2))
    before, found = fitted.recording, fitted.config
    assert [replays(before.header, ranks) for ranks in (1, 2, 4)] == [1, 1, 4]
    assert edits_of(found, before.header, 2) is None
    assert edits_of(found, before.header, 4) == Edits(ranks=4, regrouped=True)
    assert edits_of(found, before.header, 1) == Edits(regrouped=True)


def test_parts_of_checkpoints_belong_to_the_recorded_ranks():
    before = recorded(LoaderJob(ranks=2, save_after=2))
    with pytest.raises(UsageError, match="each rank writes a part of the checkpoints"):
        edit(before, Edits(ranks=4, regrouped=True))


@pytest.mark.parametrize(("size", "factor"), [(8, 0.5), (16, None), (24, 1.5), (32, 2.0)])
def test_batches_of_unknown_samples_can_be_halved(size, factor):
    fitted = fit_once(LoaderJob(shards=True))
    fitted.config.reader.batch_size = size
    edits = edits_of(fitted.config, fitted.recording.header, 1)
    assert (edits and edits.batch) == factor


@pytest.mark.parametrize(("data", "copies"), [("/a/data", "/a/data.x2"), ("/", "/b/saved/data.x2")])
def test_copies_lie_next_to_the_data_but_not_in_the_root(data, copies):
    config = Config()
    config.dataset.data_folder, config.checkpoint.checkpoint_folder = data, "/b/saved"
    assert str(copies_folder(config, Edits(samples=2))) == copies


def test_a_recording_of_an_earlier_version_gives_unknown_samples_as_one():
    batches = recorded(LoaderJob(shards=True)).batches
    older = msgspec.structs.replace(batches, usual_samples=RecordedBatches.__struct_defaults__[-1])
    assert [structure_of(each).batch_size for each in (batches, older)] == [16, 1]


def test_streams_keep_their_order_with_fewer_and_more_loaders():
    before = recorded(LoaderJob(shards=True))
    assert structure_of(before.header.batches).samples_known is False
    for loaders in (1, 2, 4):
        after = edit(before, Edits(loaders=loaders, batch=2))
        assert reads(after) == reads(before)
        of = after.columns
        for thread in np.unique(of["thread"]):
            own = (of["thread"] == thread) & (of["op"] == Op.READ)
            for file in np.unique(of["subject"][own]):
                offsets = of["offset"][own & (of["subject"] == file)]
                starts = np.flatnonzero(offsets == 0)
                assert (np.delete(np.diff(offsets), starts[starts > 0] - 1) > 0).all()


@pytest.mark.parametrize(("factor", "saved"), [(1, 3), (2, 1), (0.5, 6)])
def test_checkpoints_every_so_many_steps_stay_so(factor, saved):
    """12 steps of the run with one every 4; of 6 or 24 steps as many fourths."""
    after = edit(recorded(LoaderJob(save_after=4)), Edits(batch=factor))
    assert len([name for name in writes(after) if "step" in name]) == saved
    assert len([name for name in writes(after) if "epoch" in name]) == 2


@pytest.mark.parametrize(("every", "saved"), [(1, 12), (2, 6), (4, 3), (5, 2), (100, 0)])
def test_checkpoints_come_after_as_many_steps_as_are_asked_for(every, saved):
    """12 steps of the run, recorded with a checkpoint after every 4."""
    before = recorded(LoaderJob(save_after=4))
    after = edit(before, Edits(saves_every=every))
    names = [name for name in writes(after) if "step" in name]
    assert len(names) == len(set(names)) == saved and reads(after) == reads(edit(before, Edits()))
    assert len([name for name in writes(after) if "epoch" in name]) == 2


def test_a_job_that_saves_between_epochs_alone_has_no_interval_in_steps():
    with pytest.raises(UsageError, match=r"steps_between_checkpoints: the job wrote nothing after steps"):
        edit(recorded(), Edits(saves_every=2))


def test_epochs_that_evaluate_and_save_by_turns_go_on_so():
    """Evaluations after epochs 2 and 4: six epochs have three of them, and as many checkpoints as epochs."""
    before = recorded(LoaderJob(epochs=4, evaluated=8, evaluate_every=2))
    after = edit(before, Edits(epochs=6))
    held = sum(number for (name, _, _), number in reads(after).items() if "held" in name)
    once = sum(reads(before).values()) / (4 * 24 + 2 * 8)  # calls for each sample
    assert held == 3 * 8 * once and sum(reads(after).values()) == (6 * 24 + 3 * 8) * once and len(set(writes(after))) == 6


@pytest.mark.parametrize("loaders", [1, 3])
def test_loaders_take_over_from_a_rank_that_reads_by_itself(tmp_path, loaders):
    """They begin at once, since what the rank did before it read is not theirs."""
    before = fit(reading_rank(tmp_path)).recording
    after = edit(before, Edits(loaders=loaders))
    assert reads(after) == reads(before) and count(after, Op.START) == 4 * loaders
    of = after.columns
    assert not np.isin(of["op"][of["thread"] == 0], [Op.OPEN, Op.READ]).any()
    assert (of["think_ns"][(of["op"] == Op.PIPE_READ) & (of["thread"] > 0)] < 1e6).all()


@pytest.mark.parametrize("factor", [0.5, 1, 2])
def test_a_rank_that_reads_by_itself_reads_each_sample_once_an_epoch(tmp_path, factor):
    before = fit(reading_rank(tmp_path)).recording
    after = edit(before, Edits(batch=factor, prefetch=4))
    assert reads(after) == reads(before) and abs(rank_think_ms(after) - rank_think_ms(before)) < 2


def test_more_samples_of_shards_are_whole_streams_once_more():
    """In their order, since no sample of a stream is known by itself."""
    after = edit(recorded(LoaderJob(shards=True, epochs=1)), Edits(samples=2))
    of = after.columns
    for thread in np.unique(of["thread"][on_data(after, Op.READ)]):
        rows = on_data(after, Op.READ)
        rows = rows[of["thread"][rows] == thread]
        names = [after.header.files[index].name for index in of["subject"][rows]]
        assert ["-copy1" in name for name in names] == [False] * (len(names) // 2) + [True] * (len(names) // 2)
        half = len(names) // 2
        assert of["offset"][rows].tolist() == of["offset"][rows[:half]].tolist() * 2


def twin(folder: Path, job: LoaderJob = JOB) -> Path:
    made = fit_once(job)
    assert made.recording is not None
    write_recording(made.recording, folder / "job.recording")
    for name, size in made.files:
        (folder / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "data" / name).write_bytes(bytes(size))
    made.config.twin.recorded = TwinRecorded(str(folder / "job.recording"))
    made.config.dataset.data_folder = str(folder / "data")
    made.config.checkpoint.checkpoint_folder, made.config.output.folder = str(folder / "made"), str(folder / "results")
    dump(made.config, folder / "twin.yaml")
    return folder / "twin.yaml"


def test_copies_of_mapped_data_are_cached_as_the_job_found_its_data(tmp_path, monkeypatch):
    cached: list[tuple[str, list[tuple[int, int]]]] = []
    monkeypatch.setattr(page_cache_state, "cache_in_pages", lambda path, stretches: cached.append((path.name, stretches)))
    config = load(twin(tmp_path, LoaderJob(mapped=True)))
    config.dataset.num_files_train = 48
    make_copies(config, config.twin.recorded.file, 1)
    make_copies(config, config.twin.recorded.file, 1)  # those that exist are left as they are
    assert sorted(cached) == sorted((f"{i}-copy1.jpg", [(0, page_cache_state.FOLIO_BYTES)]) for i in range(24))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"batch_size": 8},
        {"read_threads": 5},
        {"read_threads": 0},
        {"epochs": 3},
        {"num_files_train": 48},
        {"ranks": 2},
        {"computation_time": 0.001},
    ],
)
def test_an_edited_twin_runs_without_a_wait_that_is_given_up(tmp_path, change):
    config = load(twin(tmp_path))
    for key, value in change.items():
        for section in (config.reader, config.train, config.dataset, config.twin):
            if hasattr(section, key):
                setattr(section, key, value)
    summary = run_workload(config, EmulationOptions(ranks=config.twin.ranks))
    assert summary is not None
    share = {"epochs": 1.5, "num_files_train": 2}.get(next(iter(change), ""), 1)
    assert summary["iotwin"]["bytes_read"] == share * JOB.epochs * (JOB.files + JOB.evaluated) * JOB.file_bytes
    assert summary["iotwin"]["recorded"]["waits_given_up"] == 0


def test_what_if_questions_compare_durations(tmp_path):
    config = load(twin(tmp_path), ["++twin.clock=virtual", "++train.computation_scale=50"])

    def run(value: str | None) -> dict:
        config.train.epochs = int(value or JOB.epochs)
        summary = run_workload(config, EmulationOptions())
        assert summary is not None
        return summary

    rows = ask("train.epochs", ["4"], run)["runs"]
    assert rows[0]["speed_up"] == 1 and rows[1]["speed_up"] == rows[0]["elapsed_s"] / rows[1]["elapsed_s"] < 1


def test_an_edit_that_a_recording_cannot_follow_is_refused(tmp_path):
    config = load(write_twin(tmp_path, recording([row(0, Op.OPEN), row(0, Op.END)], [RecordedFile("a", size_bytes=1)])))
    config.reader.batch_size = 8
    with pytest.raises(UsageError, match=r"reader.batch_size: .*when a rank took which batch"):
        run_workload(config, EmulationOptions())


def test_a_change_without_effect_is_refused(tmp_path):
    config = load(twin(tmp_path))
    config.twin.checkpoint.directory_sync = True
    with pytest.raises(UsageError, match=r"twin.checkpoint.directory_sync: has no effect on a recorded twin"):
        run_workload(config, EmulationOptions())
    config = load(twin(tmp_path), ["++workload.reader.read_type=mapped"])
    with pytest.raises(UsageError, match=r"reader.read_type: has no effect on a recorded twin"):
        run_workload(config, EmulationOptions())
    with pytest.raises(UsageError, match=r"--instrument has no effect on a recorded twin"):
        run_workload(load(twin(tmp_path)), EmulationOptions(instrument=True))
    config = load(twin(tmp_path), ["++workload.twin.checkpoint.policy.type=checkfreq"])
    with pytest.raises(UsageError, match=r"policy.type: has no effect on a recorded twin.*--parameters"):
        run_workload(config, EmulationOptions())


def test_a_yaml_with_the_recorded_values_edits_nothing(tmp_path):
    config = load(twin(tmp_path))
    header = recorded().header
    assert edits_of(config, header, 1) is None and edits_of(config, header, 2) == Edits(ranks=2)
    config.train.computation_scale = 0.5
    assert edits_of(config, header, 1) == Edits(computation=0.5)
    assert isinstance(config, Config)


def test_only_a_share_of_the_computation_grows_with_the_batch(tmp_path):
    """A batch of four times as many samples takes 1/4 + 3/4 * 4 = 3.25 times as long: a sample takes 3.25 / 4 of its time."""
    header = recorded().header
    config = load(twin(tmp_path))
    config.reader.batch_size *= 4
    assert edits_of(config, header, 1) == Edits(batch=4)
    config.train.computation_per_sample = 0.75
    assert edits_of(config, header, 1) == Edits(batch=4, computation=3.25 / 4)


def test_earlier_twins_name_the_scale_of_computation_otherwise(tmp_path):
    config = load(twin(tmp_path), ["++workload.twin.recorded.computation_scale=0.25"])
    assert config.train.computation_scale == 0.25
    config = load(write_twin(tmp_path, recording([row(0, Op.OPEN), row(0, Op.END)], [RecordedFile("a", size_bytes=1)])))
    config.train.computation_scale = 0.5
    with pytest.raises(UsageError, match=r"train.computation_scale: .*twin.recorded.think_scale"):
        run_workload(config, EmulationOptions())
