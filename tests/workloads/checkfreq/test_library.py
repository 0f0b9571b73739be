"""The library as a training script uses it: what a restore brings back, what a snapshot holds, what failures do."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from iotwin.common.checkpoints import checkpoints, newest, verify
from iotwin.common.errors import IotwinError, UsageError
from iotwin.workloads.checkfreq.checkpoint import CFCheckpoint
from iotwin.workloads.checkfreq.iterator import CFIterator
from iotwin.workloads.checkfreq.manager import CFManager, CFMode
from iotwin.workloads.state import snapshot as snapshots
from iotwin.workloads.state.snapshot import Buffer, take
from iotwin.workloads.state.writer_process import WriterProcess
from tests.conftest import ROOT
from tests.workloads.checkfreq.job import BATCH, SAMPLES, Job, network, optimizer_of

pytestmark = pytest.mark.torch
EPOCHS, STEPS = 3, 18
ALL = Counter((epoch, index) for epoch in range(EPOCHS) for index in range(SAMPLES))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    with torch.random.fork_rng():
        return Job(tmp_path_factory.mktemp("whole") / "store").train(EPOCHS).close()


@pytest.fixture
def _nothing_is_small(monkeypatch):
    """Copy beside training what only an update changes, however small it is."""
    monkeypatch.setattr(snapshots, "_SMALL_BYTES", -1)


def names(store):
    return sorted(path.name for path in store.iterdir())


@pytest.mark.parametrize(
    ("stop", "worker", "snapshot"),
    [(1, "thread", "host"), (5, "process", "device"), (6, "thread", "device"), (17, "process", "host")],
)
def test_a_job_stopped_anywhere_and_restored_ends_as_one_that_never_stopped(tmp_path, whole, stop, worker, snapshot):
    def job(**options):
        made = Job(tmp_path / "store", chk_freq=1, **options)
        made.manager.worker, made.manager.snapshot = worker, snapshot
        return made

    first = job(steps_to_run=stop).train(EPOCHS).close()
    assert first.iterator.exit and len(first.taken) == stop * BATCH
    torch.manual_seed(0)
    second = job().train(EPOCHS).close()
    assert second.resumed_step == (stop if stop != 6 else 5)  # at the end of an epoch it stopped before that one's checkpoint
    assert second.digest == whole.digest
    assert Counter(first.taken[: second.resumed_step * BATCH]) + Counter(second.taken) == ALL
    assert second.data.read == [index for _, index in second.taken]  # none to pass over what was consumed


def test_manual_checkpoints_are_those_asked_for_and_ends_of_epochs(tmp_path, whole):
    job = Job(tmp_path / "store", mode=CFMode.MANUAL, chk_freq=4, manager={"overwrite": False}).train(EPOCHS).close()
    assert job.digest == whole.digest
    found = {each.manifest.step: each.manifest.reason for each in checkpoints(tmp_path / "store")}
    assert found == {4: "steps", 6: "epoch", 10: "steps", 12: "epoch", 16: "steps", 18: "epoch"}


def test_without_an_interval_manual_takes_ends_of_epochs_only(tmp_path):
    Job(tmp_path / "store", mode=CFMode.MANUAL).train(EPOCHS).close()
    assert [name for name in names(tmp_path / "store") if "step" in name] == ["step-12", "step-18", "step-6"]


def test_only_the_newest_stays_unless_ends_of_epochs_are_kept(tmp_path):
    Job(tmp_path / "a", chk_freq=2, manager={"keep_epoch_chk": False}).train(EPOCHS).close()
    assert [name for name in names(tmp_path / "a") if "step" in name] == ["step-18"]
    job = Job(tmp_path / "b", chk_freq=4, steps_to_run=11).train(EPOCHS).close()
    assert [name for name in names(tmp_path / "b") if "step" in name] == ["step-10", "step-6"]
    assert job.manager.get_latest_checkpoint() == str(tmp_path / "b" / "step-10")


def test_the_end_of_an_epoch_comes_back_by_its_number(tmp_path):
    Job(tmp_path / "store", mode=CFMode.MANUAL).train(EPOCHS).close()
    job = Job(tmp_path / "store", mode=CFMode.MANUAL)
    left = job.manager.restore(latest=False, epoch=1)
    assert (left["epoch"], left["iter"], left["steps_so_far"]) == (2, 0, 12)
    with pytest.raises(IotwinError, match="no valid checkpoint of the end of epoch 7"):
        job.manager.restore(latest=False, epoch=7)
    job.close()


@pytest.mark.usefixtures("_nothing_is_small")
@pytest.mark.parametrize("beside", [False, True])
def test_a_snapshot_is_a_copy_of_every_leaf_and_does_not_follow_the_state(beside):
    model = network()
    optimizer = optimizer_of(model)
    chk = CFCheckpoint(model=model, optimizer=optimizer)
    model(torch.ones(3, 6)).sum().backward()
    optimizer.step()
    strided = torch.arange(24.0).reshape(4, 6).t()
    extra = {
        "lr": 0.5,
        "n": 3,
        "none": None,
        "tuple": (1, torch.ones(2)),
        "flag": torch.tensor(True),
        7: strided,
        "empty": torch.empty(0, 3),
    }
    state = {**chk.state(), "extra": extra}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    buffer = Buffer()
    snapshot = take(buffer, state, beside, chk.updated() if beside else ())
    assert snapshot.copied.is_set() is not beside
    model.train()(torch.randn(5, 6))  # a forward pass beside the copying: running means move
    snapshot.finish()
    with torch.no_grad():
        for value in [*model.state_dict().values(), strided]:
            value.fill_(99)
    optimizer.param_groups[0]["lr"] = 7.0
    held = {tensor.name: tensor for tensor in snapshot.tensors}
    first = buffer.memory.data_ptr()
    assert all(not t.data.size or first <= t.data.ctypes.data < first + snapshot.size_bytes for t in snapshot.tensors)
    from iotwin.workloads.state.torch_state import unflatten

    restored = unflatten(snapshot.values, held)
    assert all(torch.equal(restored["model"][name], value) for name, value in before.items())
    assert restored["optimizer"]["param_groups"][0]["lr"] == 0.01
    assert restored["optimizer"]["param_groups"][0]["betas"] == (0.9, 0.999)
    assert restored["extra"][7].tolist() == torch.arange(24.0).reshape(4, 6).t().tolist()
    assert restored["extra"]["flag"].item() is True and restored["extra"]["empty"].shape == (0, 3)
    optimizer_of(network()).load_state_dict(restored["optimizer"])
    buffer.close()


@pytest.mark.usefixtures("_nothing_is_small")
@pytest.mark.parametrize("beside", [False, True])
def test_a_buffer_serves_states_of_any_shape_one_after_another(beside):
    shapes = [[3, 5], [3, 5], [3], [3, 7, 2], [4, 7, 2], [], [3, 5, 1, 1], [3, 2, 6]]
    buffer = Buffer()
    for number, sizes in enumerate(shapes):
        kinds = [torch.float32, torch.float64] if number % 2 else [torch.float32, torch.int16]
        tensors = [torch.arange(size * 3).reshape(3, size).to(kinds[size % 2]) + number for size in sizes]
        later = {tensor.data_ptr() for tensor in tensors[::2]} if beside else ()
        snapshot = take(buffer, tensors, beside, later)
        snapshot.finish()
        held = [bytes(each.data) for each in snapshot.tensors]
        assert held == [tensor.numpy().tobytes() for tensor in tensors]
        assert [(each.dtype, each.shape) for each in snapshot.tensors] == [(str(t.dtype)[6:], tuple(t.shape)) for t in tensors]
        packed = bytearray(buffer.memory[: snapshot.size_bytes].numpy().tobytes())
        for offset, content in zip(snapshot.offsets, held, strict=True):  # as they are written: with zeros between them
            assert packed[offset : offset + len(content)] == content
            packed[offset : offset + len(content)] = bytes(len(content))
        assert not any(packed)
    buffer.close()


def test_beside_training_only_large_tensors_that_an_update_changes_are_copied_later():
    large = 100_000  # float32s
    tensors = {name: torch.ones(size) for name, size in {"weights": large, "bias": 8, "mean": large}.items()}
    updated = {tensors[name].data_ptr() for name in ("weights", "bias")}
    buffer = Buffer()
    snapshot = take(buffer, tensors, True, updated)
    assert not snapshot.copied.is_set()
    for name in ("bias", "mean"):
        tensors[name].fill_(2)
    snapshot.finish()
    assert {each.name: set(each.data.view(np.float32)) for each in snapshot.tensors} == {name: {1.0} for name in tensors}
    tensors["weights"].fill_(3)
    assert set(snapshot.tensors[0].data.view(np.float32)) == {1.0}
    small = take(buffer, {"bias": tensors["bias"]}, True, updated)
    assert small.copied.is_set()  # no update needs to wait for another thread
    assert set(small.tensors[0].data.view(np.float32)) == {2.0}
    buffer.close()


def test_views_that_are_computed_are_copied_as_what_they_stand_for():
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    buffer = Buffer()
    snapshot = take(buffer, [numbers.conj(), numbers.conj().imag])
    assert snapshot.tensors[0].data.view(np.complex64).tolist() == [1 - 2j, 3 + 4j]
    assert snapshot.tensors[1].data.view(np.float32).tolist() == [-2, 4]
    buffer.close()


@pytest.mark.usefixtures("_nothing_is_small")
def test_the_update_waits_for_the_snapshot_and_for_nothing_else(tmp_path):
    model = network()
    optimizer = optimizer_of(model, "sgd")
    order = []
    with CFManager(tmp_path / "store", CFCheckpoint(model=model, optimizer=optimizer)) as manager:
        model(torch.arange(18.0).reshape(3, 6)).square().sum().backward()  # rows that are alike would give no gradient
        before = model[0].weight.clone()
        from iotwin.workloads.state.snapshot import StateSnapshot

        finish = StateSnapshot.finish

        def slowly(snapshot):
            order.append("copying")
            assert torch.equal(model[0].weight, before)
            finish(snapshot)

        StateSnapshot.finish = slowly
        try:
            manager.save_cpu()
            manager.weight_update()
        finally:
            StateSnapshot.finish = finish
        order.append("updated")
        assert not torch.equal(model[0].weight, before)
        manager.wait()
        restored = manager.chk.latest_snapshot["model"]["0.weight"]
        assert torch.equal(restored, before)
    assert order == ["copying", "updated"]


def test_a_scaler_that_skips_an_update_counts_none(tmp_path):
    model = nn.Linear(2, 1)
    optimizer = optimizer_of(model, "sgd")
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with CFManager(tmp_path / "store", CFCheckpoint(model=model, optimizer=optimizer, scaler=scaler)) as manager:
        for value in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale(model(torch.full((1, 2), value)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        assert len(manager.stalls.update_s) == 2
        manager.save()
        manager.wait()
        scale = scaler.get_scale()
        scaler.update(64.0)
        manager.restore()
        assert scaler.get_scale() == scale


def test_a_model_without_an_optimizer_is_copied_at_once(tmp_path):
    model = nn.Linear(2, 2)
    with CFManager(tmp_path / "store", CFCheckpoint(model=model)) as manager:
        expected = model.weight.clone()
        manager.save_cpu()
        with torch.no_grad():
            model.weight.zero_()
        manager.wait()
        assert manager.restore() is None
        assert torch.equal(model.weight, expected)
        with pytest.raises(IotwinError, match="needs an optimizer"):
            manager.weight_update()


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_a_state_that_grows_fits(tmp_path, worker):
    class Growing:
        size = 1

        def state_dict(self):
            return {"values": torch.full((self.size,), float(self.size))}

        def load_state_dict(self, state):
            self.loaded = state["values"]

    growing = Growing()
    with CFManager(tmp_path / "store", CFCheckpoint(growing=growing), overwrite=False) as manager:
        manager.worker = worker
        for size in (1, 100_000, 3, 200_000):
            growing.size = size
            manager.save()
        manager.wait()
        manager.restore()
        assert growing.loaded.tolist() == [200_000.0] * 200_000
    assert [verify(found).reason for found in checkpoints(tmp_path / "store")] == [None] * 4


def test_what_cannot_be_held_is_said_and_the_next_checkpoint_works(tmp_path):
    class Odd:
        value = object()

        def state_dict(self):
            return {"value": self.value}

        def load_state_dict(self, state):
            pass

    odd = Odd()
    with CFManager(tmp_path / "store", CFCheckpoint(odd=odd)) as manager:
        with pytest.raises(TypeError, match=r"objects.odd.value is a object, which a checkpoint cannot hold"):
            manager.save()
        odd.value = torch.ones(2, 2).to_sparse()
        with pytest.raises(TypeError, match="in layout"):
            manager.save()
        odd.value = 1
        manager.save()
        manager.wait()
    assert newest(tmp_path / "store", print).name == "step-1"


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_a_checkpoint_that_cannot_be_written_is_told_at_the_next_update_and_loses_nothing(tmp_path, worker):
    job = Job(tmp_path / "store", chk_freq=1, steps_to_run=2).train(EPOCHS)
    job.manager.wait()
    (tmp_path / "store" / "step-3.tmp").write_text("in the way of the next checkpoint's folder")
    job.manager.worker = worker
    job.iterator._steps_to_run, job.iterator.exit = -1, False
    with pytest.raises(IotwinError, match="the checkpoint cannot be written"):
        job.train(EPOCHS)
    with contextlib.suppress(IotwinError):  # of the one after it
        job.manager.wait()
    (tmp_path / "store" / "step-3.tmp").unlink()
    job.train(EPOCHS).close()
    assert newest(tmp_path / "store", print).manifest.step == STEPS


def test_a_writer_that_is_killed_is_told_and_replaced(tmp_path):
    model = nn.Linear(2, 2)
    with CFManager(tmp_path / "store", CFCheckpoint(model=model, optimizer=optimizer_of(model))) as manager:
        manager.worker = "process"
        manager.save()
        manager.wait()
        pid = manager._persister.process.pid
        os.kill(pid, signal.SIGKILL)
        manager.save()
        with pytest.raises(IotwinError, match=r"the process that writes checkpoints ended with status -9"):
            manager.wait()
        manager.save()
        manager.wait()
        assert manager._persister.process.pid != pid
    assert newest(tmp_path / "store", print).manifest.step == 3
    assert not Path(f"/proc/{pid}").exists()


def test_a_whole_snapshot_is_sent_to_an_idle_process_by_the_training_thread(tmp_path, monkeypatch):
    senders, send = [], WriterProcess.send

    def sending(process, request, descriptor):
        senders.append(threading.current_thread().name)
        send(process, request, descriptor)

    monkeypatch.setattr(WriterProcess, "send", sending)
    model = nn.Linear(2, 2)
    with CFManager(tmp_path / "store", CFCheckpoint(model=model, optimizer=optimizer_of(model)), in_flight=2) as manager:
        manager.worker = "process"
        manager.save()  # starts the process
        manager.wait()
        manager.save()
        manager.wait()
        held = manager._persister.buffer()  # as if another one were on its way
        manager.save()
        manager._persister.give_back(held)
        manager.wait()
    assert senders == ["persist", threading.current_thread().name, "persist"]
    assert newest(tmp_path / "store", print).manifest.step == 3


def test_foreign_files_are_refused_and_damaged_checkpoints_passed_over(tmp_path):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "holiday.jpg").write_text("")
    with pytest.raises(UsageError, match="holds other files than checkpoints"):
        Job(tmp_path / "foreign")
    Job(tmp_path / "store", chk_freq=1, steps_to_run=4, manager={"overwrite": False}).train(EPOCHS).close()
    raw = tmp_path / "store" / "step-4" / "rank-0.raw"
    raw.write_bytes(raw.read_bytes()[:-1] + b"\xff")
    job = Job(tmp_path / "store", steps_to_run=0)
    assert job.resumed_step == 3
    job.close()


def test_a_store_has_one_job(tmp_path):
    with CFManager(tmp_path / "store", CFCheckpoint(model=nn.Linear(1, 1))):
        second = (
            "import sys; from pathlib import Path; from iotwin.common.commit import Store; Store(Path(sys.argv[1])).__enter__()"
        )
        done = subprocess.run([sys.executable, "-c", second, tmp_path / "store"], cwd=ROOT, capture_output=True, text=True)
        assert "is being written by another job" in done.stderr


def test_a_restart_counts_on_and_is_the_newest(tmp_path):
    model = nn.Linear(1, 1)
    for value in (1.0, 2.0, 3.0):
        with CFManager(tmp_path / "store", CFCheckpoint(model=model), overwrite=False) as manager:
            manager.restore()
            nn.init.constant_(model.weight, value)
            manager.save()
    with CFManager(tmp_path / "store", CFCheckpoint(model=model)) as manager:
        manager.restore()
        assert model.weight.item() == 3.0 and manager.restored_from["step"] == 3


def test_a_clock_that_is_set_back_makes_no_old_checkpoint_the_newest(tmp_path):
    Job(tmp_path / "store", chk_freq=1, steps_to_run=4, manager={"overwrite": False}).train(EPOCHS).close()
    for number in range(1, 5):  # as if each had been written an hour before the one before it
        for path in (tmp_path / "store" / f"step-{number}", *(tmp_path / "store" / f"step-{number}").iterdir()):
            os.utime(path, (10**9 - 3600 * number,) * 2)
    job = Job(tmp_path / "store", chk_freq=1, steps_to_run=1)
    assert job.resumed_step == 4
    job.train(EPOCHS).close()
    assert newest(tmp_path / "store", print).manifest.step == 5


def test_what_a_job_adds_comes_back(tmp_path):
    model = nn.Linear(1, 1)
    with CFManager(tmp_path / "store", CFCheckpoint(model=model)) as manager:
        assert manager.restore() is None
        manager.save_cpu({"best": 0.5, "history": [1, 2], "seen": torch.arange(3)})
        manager.wait()
        left = manager.restore()
        assert left["best"] == 0.5 and left["history"] == [1, 2] and left["seen"].tolist() == [0, 1, 2]
        assert list(manager.chk.latest_snapshot) == ["model", "best", "history", "seen"]
        assert manager.get_chk_size == pytest.approx(8 / (1 << 20))


def test_impossible_requests_are_one_line(tmp_path):
    with pytest.raises(ValueError, match="nothing to checkpoint"):
        CFCheckpoint(model=3)
    with pytest.raises(UsageError, match=r"dali=True needs NVIDIA DALI"):
        CFIterator([], dali=True)
    with pytest.raises(UsageError, match="max_overhead 0 must be above 0"):
        CFIterator([], max_overhead=0)
    with pytest.raises(ValueError, match="in_flight must be at least 1"):
        CFManager(tmp_path / "store", CFCheckpoint(model=nn.Linear(1, 1)), in_flight=0)
    model = nn.Linear(2, 2)
    with CFManager(tmp_path / "store", CFCheckpoint(model=model), job={"seed": 1}) as manager:
        manager.save()
        manager.wait()
        manager._job = {"seed": 2}
        with pytest.raises(IotwinError, match="has the seed 1, this job has the seed 2"):
            manager.restore()
        manager._job = {}
        manager.chk = CFCheckpoint(model=nn.Linear(3, 3))
        with pytest.raises(IotwinError, match="model does not fit this job's"):
            manager.restore()
        manager.chk = CFCheckpoint(network=model)
        with pytest.raises(IotwinError, match="the checkpoint has no network; it has model"):
            manager.restore()


def test_scripts_of_the_original_change_only_their_path(tmp_path):
    script = f"""
import sys
sys.path.insert(0, {str(ROOT / "workloads" / "checkfreq" / "compat")!r})
from cf_checkpoint import CFCheckpoint
from cf_manager import CFManager, CFMode
from cf_iterator import CFIterator
import torch
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
chk = CFCheckpoint(model=model, optimizer=optimizer)
manager = CFManager({str(tmp_path / "chk")!r}, chk, mode=CFMode.AUTO, chk_prefix="model_v_")
data = [torch.ones(2, 3)] * 10
loader = CFIterator(data, bs=2, dali=False, steps_this_epoch=0, epoch=0, arch="resnet18", worker_id=0, chk_freq=0,
                    steps_to_run=-1, max_overhead=5, dynamic=False, persist=True, cf_manager=manager)
for batch in loader:
    model(batch).sum().backward()
    manager.weight_update()
print(loader.state_dict())
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{'iter': 0, 'steps_so_far': 10, 'start_index': 0, 'epoch': 1}"
    assert newest(tmp_path / "chk", print).manifest.reason == "epoch"  # written though the script never closed the manager
