"""The resume court, tried with real scripts that are killed for real, and its parts."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.commands.detrain.court import DetrainCourtCommand
from iotwin.common.errors import IotwinError
from iotwin.workloads.detrain.court import held_calls
from iotwin.workloads.detrain.court.final_files import FinalFiles, compare_files
from iotwin.workloads.detrain.court.first_difference import Difference, first_difference, resumed_at
from iotwin.workloads.detrain.court.held_calls import CallHolder, HeldCall, hold_own_calls
from iotwin.workloads.detrain.court.kill_points import BATCH, BATCHES, CALLS, CallLog, KillPoint, drawn, kill_points
from iotwin.workloads.detrain.court.own_resume import newest_checkpoint, resume_arguments, resume_template
from iotwin.workloads.detrain.court.script_process import Run, imported_names
from iotwin.workloads.detrain.court.trial import CourtCase, Trial
from iotwin.workloads.detrain.court.update_log import Update, read_updates, rows_of, tensor_digest
from iotwin.workloads.detrain.forked_runs import RunEnd
from tests.conftest import run_iotwin

STACKS = Path(__file__).with_name("stacks")
UPDATES, CALLS_OF_EXACT = 10, 24  # of torch_exact.py: 2 epochs of 5 batches, 4 checkpoints of 6 calls each


def _case(folder, script="torch_exact", arguments=(), kinds=(BATCHES, CALLS), kills=None, resume=None):
    return CourtCase((STACKS / f"{script}.py").resolve(), list(arguments), folder, resume, kinds, kills, 0)


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """Processes that have imported PyTorch, for all trials."""
    pytest.importorskip("torch")
    with Trial(_case(tmp_path_factory.mktemp("none"))) as trial:
        yield trial.processes


def _trial(case, processes):
    trial = Trial(case)
    trial.processes = processes
    trial.run_uninterrupted()
    return trial


@pytest.fixture(scope="module")
def exact(processes, tmp_path_factory):
    """The trial of a script that resumes exactly, with its two uninterrupted runs done."""
    return _trial(_case(tmp_path_factory.mktemp("exact")), processes)


@pytest.fixture(scope="module")
def naive(processes, tmp_path_factory):
    return _trial(_case(tmp_path_factory.mktemp("naive"), "torch_naive"), processes)


def test_every_update_and_every_call_on_a_checkpoint_is_a_kill_point(exact):
    points = exact.points()
    assert [point.update for point in points if point.at == BATCH] == list(range(1, UPDATES + 1))
    calls = [point for point in points if point.call]
    assert [point.call for point in calls] == list(range(1, CALLS_OF_EXACT + 1))
    last = calls[-6:]  # of one checkpoint
    assert {point.update for point in last} == {9}
    assert [point.at for point in last] == ["write", "write", "write", "write", "fsync", "rename"]
    assert [point.path for point in last] == ["checkpoints/latest.pt.tmp"] * 5 + ["checkpoints/latest.pt"]


def test_exact_script_is_exact_at_points_of_all_kinds(exact):
    points = drawn(exact.points(), 8, seed=1)
    kills = list(exact.judged(points))
    assert {point.at for point in points} == {"batch", "write", "fsync", "rename"}
    assert [kill.verdict for kill in kills] == ["exact"] * 8, kills
    # Checkpoints are whole after updates 2, 4, 7 and 9, once the call `rename` has happened.
    whole = {2: 6, 4: 12, 7: 18, 9: 24}
    for kill in kills:
        point = kill.point
        done = [update for update, call in whole.items() if (point.call > call if point.call else point.update > update)]
        assert kill.resumed_at_step == max(done, default=0)
    document = exact.document(kills)
    assert document["verdict"] == "exact" and document["exact"] == 8
    assert document["checkpoints"] == ["checkpoints/latest.pt"]


def test_naive_resume_is_caught_with_its_first_difference(naive):
    in_first_epoch, before_any = KillPoint(BATCH, 5), KillPoint(BATCH, 1)
    in_second_epoch = KillPoint("rename", 9, 16, "last.pt")
    kills = list(naive.judged([before_any, in_first_epoch, in_second_epoch]))
    assert [kill.verdict for kill in kills] == ["exact", "differs", "differs"]
    assert [kill.resumed_at_step for kill in kills] == [0, 4, 7]
    # The seed gives the first epoch's order again, so there only dropout differs; the second epoch has another order.
    assert kills[1].first_difference.what == "loss" and kills[1].first_difference.step == 4
    assert kills[1].first_difference.also == ["weights (Sequential.0.weight)", "optimizer", "rng (torch)"]
    assert kills[2].first_difference.what == "samples" and kills[2].first_difference.step == 7
    assert len(kills[2].first_difference.expected[0]) == 8
    document = naive.document(kills)
    assert document["verdict"] == "not exact" and document["exact"] == 1
    assert document["resume_arguments"] == "--resume"


def test_observed_script_prints_what_the_plain_script_prints(exact):
    command = [sys.executable, str(STACKS / "torch_exact.py")]
    folder = exact._case.folder / "plain"
    folder.mkdir()
    plain = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert (exact._case.folder / "uninterrupted" / "run.stdout").read_text() == plain.stdout
    assert plain.stdout.count("epoch") == 2


def test_torn_checkpoint_does_not_resume_and_ignored_one_is_lost(processes, tmp_path):
    """A script that overwrites its checkpoint in place; without its option it begins anew."""
    trial = _trial(_case(tmp_path, "torch_epochs", ["--seed", "1"]), processes)
    torn = [point for point in trial.points() if point.at == "write" and point.update == 10]
    assert len(torn) == 2  # torch.save wrote the first part only
    (kill,) = trial.judged(torn[1:])
    assert kill.verdict == "does not resume" and kill.resumed_at_step is None
    assert "failed finding central directory" in kill.error
    (kill,) = trial.judged([KillPoint(BATCH, 7)])
    assert kill.verdict == "differs" and kill.first_difference.what == "order"  # each epoch has all samples
    trial._template = ""
    (kill,) = trial.judged([KillPoint(BATCH, 7)])
    assert kill.verdict == "lost" and kill.resumed_at_step == 0


def test_without_held_calls_the_script_is_killed_after_updates_only(processes, tmp_path):
    trial = Trial(_case(tmp_path, kinds=(CALLS, BATCHES)))
    trial.processes, trial._holds, trial._reason = processes, False, "the reason"
    trial.run_uninterrupted()
    points = trial.points()
    assert [point.at for point in points] == [BATCH] * UPDATES
    (kill,) = trial.judged(points[4:5])
    assert kill.verdict == "exact" and kill.resumed_at_step == 4
    assert trial.notes() == ["no kills at calls: the reason"]
    assert trial.document([kill])["checkpoints"] == ["checkpoints/latest.pt"]
    trial._case = trial._case._replace(kinds=(CALLS,))
    with pytest.raises(IotwinError, match=r"nothing to kill it at \(the reason\)"):
        trial.points()


def test_lost_history_is_found_in_the_checkpoint(processes, tmp_path):
    """The steps are all exact, but a list in the checkpoint begins anew."""
    source = (STACKS / "torch_exact.py").read_text()
    assert source.count('state["history"]') == 1
    script = tmp_path / "forgets.py"
    script.write_text(source.replace('state["history"]', "[]"))
    trial = _trial(_case(tmp_path / "trial")._replace(script=script), processes)
    (kill,) = trial.judged([KillPoint(BATCH, 8)])
    assert kill.verdict == "differs" and kill.resumed_at_step == 7
    assert kill.first_difference == Difference(None, "bytes", "checkpoints/latest.pt ['history']")


def test_file_that_differs_without_a_kill_is_not_compared(processes, tmp_path):
    source = (STACKS / "torch_exact.py").read_text()
    script = tmp_path / "stamps.py"
    assert source.count('"history": history') == 1
    script.write_text(source.replace('"history": history', '"history": history, "stamp": int.from_bytes(os.urandom(6), "big")'))
    trial = _trial(_case(tmp_path / "trial")._replace(script=script), processes)
    (kill,) = trial.judged([KillPoint(BATCH, 8)])
    assert kill.verdict == "exact" and kill.resumed_at_step == 7
    assert trial.notes() == ["checkpoints/latest.pt: not compared, as two runs without a kill differ"]


def test_script_without_seed_that_begins_anew_is_another_run(processes, tmp_path):
    """A restarted process draws other numbers, also where nothing is seeded."""
    trial = _trial(_case(tmp_path, "torch_epochs"), processes)
    (kill,) = trial.judged([KillPoint(BATCH, 2)])
    assert kill.verdict == "lost" and kill.resumed_at_step == 0 and kill.first_difference.step == 0


def test_command(tmp_path):
    """A script without seeds cannot be judged; files that are no scripts are refused in one line."""
    pytest.importorskip("torch")
    script = tmp_path / "unseeded.py"
    script.write_text(
        "import os, torch\nmodel = torch.nn.Linear(2, 1)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "inputs = torch.frombuffer(bytearray(os.urandom(8)), dtype=torch.uint8).float().view(4, 2)\n"
        "for _ in range(3):\n    model(inputs).sum().backward()\n    optimizer.step()\n"
    )
    done = run_iotwin("detrain", "court", script, "-o", tmp_path / "out", "--kill-at", "batches")
    assert done.returncode == 1
    assert "two runs without a kill differ at step 0, in samples" in done.stdout
    assert "not repeatable: 0 of 0 kills exact" in done.stdout
    done = run_iotwin("detrain", "court", script, "-o", tmp_path / "other", "--kill-at", "writes")
    assert done.returncode == 2 and "'writes' is neither batches nor calls" in done.stderr


def test_document_and_messages(naive, capsys):
    kill = next(iter(naive.judged([KillPoint(BATCH, 8)])))
    import msgspec

    DetrainCourtCommand().show(msgspec.to_builtins(naive.document([kill])))
    line, *_, verdict = capsys.readouterr().out.splitlines()
    assert line.startswith("killed after update 8: differs (resumed at step 7), first at step 7, in samples ([[")
    assert verdict == "not exact: 0 of 1 kill exact"


def test_script_that_fails_or_trains_nothing_is_refused(processes, tmp_path):
    for text, message in (
        ("import torch\nopen('data.txt')\n", "fails without any kill .*No such file.*relative paths"),
        ("print('no training')\n", "no optimizer of PyTorch updated weights"),
    ):
        script = tmp_path / "script.py"
        script.write_text(text)
        with pytest.raises(IotwinError, match=message):
            _trial(_case(tmp_path / "trial")._replace(script=script), processes)


_OBSERVED = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out = torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1)
    def forward(self, *, x, y):
        return (self.out(self.norm(x)) - y).square().mean()
torch.manual_seed(0)
data = TensorDataset(torch.randn(8, 3), torch.randn(8, 1))
train, test = DataLoader(data, 2, num_workers=int(sys.argv[1])), DataLoader(data, 4)
net, other = Net(), torch.nn.Linear(1, 1)
first, second = torch.optim.Adam(net.parameters()), torch.optim.SGD(other.parameters(), 0.1)
for index, (x, y) in enumerate(train):
    net(x=x, y=y).backward()
    if index % 2:
        first.step()
        other(torch.ones(1, 1)).backward()
        second.step()
        for x, y in test:  # with gradients, which are not used
            net.eval()(x=x, y=y)
        net.train()
"""


def run_of(script, folder, arguments=(), seed=0, holds_calls=False):
    files = {"folder": folder, "log": folder / "updates", "output": folder / "out", "errors": folder / "err"}
    words = {name: str(path) for name, path in files.items()}
    return Run(script=str(script), arguments=list(arguments), seed=seed, holds_calls=holds_calls, **words)


@pytest.mark.parametrize("workers", [0, 2])
def test_updates_have_the_samples_that_were_trained_on(processes, tmp_path, workers):
    script, log = _script(tmp_path, _OBSERVED), tmp_path / "updates"
    run = run_of(script, tmp_path, [str(workers)], seed=5)
    ended = processes[0].run(run, lambda call: False, 300.0)
    assert ended.status == 0, (tmp_path / "err").read_text()
    updates = read_updates(log)
    assert [update.optimizer for update in updates] == [0, 1, 0, 1]
    assert [update.indices for update in updates] == [[[0, 1], [2, 3]], None, [[4, 5], [6, 7]], None]
    assert [len(update.rows) for update in updates] == [4, 1, 4, 1]
    assert [len(update.losses) for update in updates] == [2, 1, 2, 1]
    net = [name for name in updates[0].weights if name.startswith("Net.")]
    assert net == [
        "Net.norm.weight", "Net.norm.bias", "Net.out.weight", "Net.out.bias",
        "Net.norm.running_mean", "Net.norm.running_var", "Net.norm.num_batches_tracked",
    ]  # fmt: skip
    assert updates[0].weights["Net.norm.running_mean"] != updates[2].weights["Net.norm.running_mean"]
    assert [update.before is None for update in updates] == [False, False, True, True]
    assert updates[0].before != updates[0].after != updates[2].after
    assert updates[0].rng["python"] == updates[3].rng["python"] and updates[0].state != updates[2].state


def test_digests_depend_on_type_shape_and_every_element(processes):
    import torch

    tensor = torch.arange(6.0).view(2, 3)
    others = [tensor.view(3, 2), tensor.double(), tensor + torch.eye(6)[5].view(2, 3), tensor.to(torch.bfloat16), tensor[:1]]
    assert len({tensor_digest(each) for each in [tensor, *others]}) == 6
    assert tensor_digest(tensor.t().contiguous().t()) == tensor_digest(tensor)
    assert rows_of([tensor, {"y": torch.tensor([5, 6])}])[0] == rows_of([tensor[:1], torch.tensor([5])])[0]
    assert rows_of([[tensor[0], tensor[1]]]) != rows_of([[tensor[1], tensor[0]]])


def test_run_that_takes_too_long_is_killed(processes, tmp_path):
    script = _script(tmp_path, "import time\ntime.sleep(1000)\n")
    run = run_of(script, tmp_path, holds_calls=True)
    assert processes[0].run(run, lambda call: False, 0.2) == RunEnd(-signal.SIGKILL, timed_out=True)


@pytest.mark.parametrize(
    ("ending", "status"), [("raise SystemExit(3)", 3), ("raise SystemExit('why')", 1), ("1 / 0", 1), ("", 0)]
)
def test_script_ends_as_under_python(processes, tmp_path, ending, status):
    text = f"import atexit\natexit.register(print, 'registered')\nfile = open('unclosed.txt', 'w')\nfile.write('all')\n{ending}\n"
    script = _script(tmp_path, text)
    run = run_of(script, tmp_path)
    assert processes[1].run(run, lambda call: False, 300.0) == RunEnd(status)
    assert (tmp_path / "out").read_text() == "registered\n" and (tmp_path / "unclosed.txt").read_text() == "all"
    plain = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert plain.returncode == status
    assert (tmp_path / "err").read_text().splitlines()[-1:] == plain.stderr.splitlines()[-1:]


# --- parts ---


def _held(work, folder):
    """Run `work` in a process whose calls are held; return them, with paths relative to `folder`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        try:
            listener = hold_own_calls()
            socket.send_fds(theirs, [b"-"], [listener])
            os.close(listener)
            work()
        finally:
            os._exit(0)
    _, (listener,), _, _ = socket.recv_fds(ours, 1, 1)
    holder, calls = CallHolder(listener), []
    while call := holder.receive():  # waits until no process is left
        calls.append(call)
        holder.let_go(call)
    os.waitpid(pid, 0)
    holder.close()
    ours.close(), theirs.close()
    return [(call.kind, *(str(path.relative_to(folder)) for path in call.paths)) for call in calls]


@pytest.mark.skipif(held_calls.unavailable_reason() is not None, reason="no calls can be held here")
def test_calls_are_held_whatever_makes_them(tmp_path):
    def work():
        os.chdir(tmp_path)
        descriptor = os.open("a", os.O_WRONLY | os.O_CREAT)
        os.write(descriptor, b"one")
        os.pwrite(descriptor, b"two", 5)
        os.writev(descriptor, [b"three", b"four"])
        os.ftruncate(descriptor, 4)
        os.fsync(descriptor)
        os.fdatasync(descriptor)
        os.rename("a", "b")  # noqa: PTH104
        os.replace(tmp_path / "b", "c")  # noqa: PTH105
        os.mkdir("sub")  # noqa: PTH102
        folder = os.open("sub", os.O_RDONLY)
        os.rename("c", "d", dst_dir_fd=folder)
        os.truncate("sub/d", 2)
        os.unlink("d", dir_fd=folder)
        os.rmdir("sub")  # noqa: PTH106
        os.write(1, b"")  # standard output is never held
        if os.fork() == 0:
            os.close(os.open("child", os.O_WRONLY | os.O_CREAT))
            os.unlink("child")  # noqa: PTH108
            os._exit(0)
        os.wait()

    assert _held(work, tmp_path) == [
        ("write", "a"), ("write", "a"), ("write", "a"), ("truncate", "a"), ("fsync", "a"), ("fsync", "a"),
        ("rename", "a", "b"), ("rename", "b", "c"), ("rename", "c", "sub/d"), ("truncate", "sub/d"), ("unlink", "sub/d"),
        ("unlink", "sub"), ("unlink", "child"),
    ]  # fmt: skip


@pytest.mark.skipif(held_calls.unavailable_reason() is not None, reason="no calls can be held here")
def test_reason_is_known_if_the_calls_are_held_already():
    """A process can have one listener only, as a script under a debugger of this kind has."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        listener = hold_own_calls()
        holder = CallHolder(listener)
        if os.fork() == 0:
            os.write(2, b"")  # never held
            os.close(listener)
            os.dup2(writable, 2)
            os.write(2, (held_calls.unavailable_reason() or "").encode())
            os._exit(0)
        os.wait()
        holder.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert b"may not have its calls held" in os.read(readable, 1000)
    os.close(readable), os.close(writable)


@pytest.mark.skipif(held_calls.unavailable_reason() is not None, reason="no calls can be held here")
def test_killed_process_never_makes_the_held_call(tmp_path):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = tmp_path / "file"
    pid = os.fork()
    if pid == 0:
        listener = hold_own_calls()
        socket.send_fds(theirs, [b"-"], [listener])
        os.close(listener)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.write(descriptor, b"first")
        os.write(descriptor, b"second")
        os._exit(0)
    _, (listener,), _, _ = socket.recv_fds(ours, 1, 1)
    holder = CallHolder(listener)
    holder.let_go(holder.receive())
    assert holder.receive().kind == "write"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert path.read_bytes() == b"first"
    holder.close()
    ours.close(), theirs.close()


def _call(kind, *names):
    return HeldCall(kind, tuple(Path("/run/work") / name for name in names), 0)


def test_files_outside_of_the_folder_are_noted(tmp_path):
    log = CallLog(tmp_path / "work", tmp_path / "updates")
    (tmp_path / "shared.pt").touch()
    for path in (tmp_path / "shared.pt", tmp_path / "gone", Path("/dev/null"), Path("/proc/self/comm"), Path("pipe:[5]")):
        assert not log(HeldCall("write", (path,), 0))
    assert log.outside() == [tmp_path / "shared.pt"] and log.points == []


def test_call_log_counts_calls_on_checkpoints_only():
    log = CallLog(Path("/run/work"), Path("/run/updates"), killed_at=3)
    update = HeldCall("write", (Path("/run/updates"),), 0)
    assert not any(
        log(call) for call in (_call("write", "data.bin"), update, _call("write", "a.pt.tmp"), _call("write", "x.log"))
    )
    assert not log(HeldCall("write", (Path("/tmp/elsewhere"),), 0))
    assert log(_call("rename", "a.pt.tmp", "a.pt"))  # the third
    assert log.points == [
        KillPoint("write", 0, 1, "data.bin"), KillPoint("write", 1, 2, "a.pt.tmp"), KillPoint("rename", 1, 3, "a.pt"),
    ]  # fmt: skip
    assert log.checkpoints() == {"a.pt"}
    named_as_log = CallLog(Path("/run/work"), Path("/run/updates"))
    assert not any(named_as_log(call) for call in (update, _call("rename", "part.txt", "c.pt"), _call("unlink", "d.txt")))
    assert named_as_log.points == [KillPoint("rename", 1, 1, "c.pt")]
    moved_in = CallLog(Path("/run/work"), Path("/run/updates"))
    assert not any(moved_in(call) for call in (update, HeldCall("rename", (Path("/tmp/x"), Path("/run/work/b.pt")), 0)))
    assert moved_in.checkpoints() == {"b.pt"}
    assert kill_points(2, log, [BATCHES]) == [KillPoint(BATCH, 1), KillPoint(BATCH, 2)]
    assert kill_points(2, log, [CALLS]) == log.points[1:]
    # The checkpoint after update 1 is whole once its last call, the third, has happened.
    assert not log.has_whole_checkpoint(3, 1) and log.has_whole_checkpoint(4, 2)
    assert not log.has_whole_checkpoint(None, 1) and log.has_whole_checkpoint(None, 2)


@given(
    st.lists(st.tuples(st.sampled_from(["batch", "write", "rename"]), st.integers(1, 50)), unique=True),
    st.integers(1, 40),
    st.integers(0, 9),
)
def test_drawn_points_are_distinct_in_order_and_of_all_kinds(pairs, count, seed):
    points = [KillPoint(at, update) for at, update in pairs]
    chosen = drawn(points, count, seed)
    assert len(chosen) == min(count, len(points)) and chosen == [point for point in points if point in chosen]
    assert chosen == drawn(points, count, seed)
    kinds = {point.at for point in points}
    if count >= len(kinds):
        assert {point.at for point in chosen} == kinds


def _script(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("options", "template"),
    [
        ("'--resume', type=str", "--resume {checkpoint}"), ("'--resume', action='store_true'", "--resume"),
        ("'-r', '--resume', action=argparse.BooleanOptionalAction", "--resume"), ("'--epochs', type=int", ""),
        ("'--resume_from_checkpoint'", "--resume_from_checkpoint {checkpoint}"), ("'--load'", "--load {checkpoint}"),
        ("'--checkpoint-dir'", ""), ("'--auto-resume', action='store_true'", "--auto-resume"),
        ("'--ckpt_path', default=None", "--ckpt_path {checkpoint}"), ("'--resume-lr', type=float", ""),
    ],
)  # fmt: skip
def test_option_that_resumes_is_found(tmp_path, options, template):
    assert resume_template(_script(tmp_path, f"p.add_argument({options})\n")) == template


def test_likelier_option_wins(tmp_path):
    text = "p.add_argument('--checkpoint')\np.add_argument('--resume', action='store_true')\n"
    assert resume_template(_script(tmp_path, text)) == "--resume"


def _files(folder, *names):
    for index, name in enumerate(names):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(b"-")
        os.utime(folder / name, (index, index))


def test_newest_checkpoint_is_chosen(tmp_path):
    names = ["epoch_1.pt", "epoch_2.pt", "best.pt"]
    _files(tmp_path, *names)
    assert newest_checkpoint(tmp_path, names) == tmp_path / "epoch_2.pt"
    assert newest_checkpoint(tmp_path, ["best.pt", "absent.pt"]) == tmp_path / "best.pt"
    assert newest_checkpoint(tmp_path, ["absent.pt"]) is None
    _files(tmp_path, "last.ckpt")
    assert newest_checkpoint(tmp_path, [*names, "last.ckpt"]) == tmp_path / "last.ckpt"
    folders = ["out/step_2/model.bin", "out/step_2/optimizer.bin", "out/step_4/model.bin"]
    _files(tmp_path, *folders)
    assert newest_checkpoint(tmp_path, folders) == tmp_path / "out/step_4"
    assert resume_arguments("--load {checkpoint} --strict", tmp_path, folders) == [
        "--load",
        str(tmp_path / "out/step_4"),
        "--strict",
    ]
    assert resume_arguments("--load {checkpoint}", tmp_path, ["absent.pt"]) == []
    assert resume_arguments("--resume", tmp_path, []) == ["--resume"]


def _update(number, **changes):
    """The update `number`, after which the weights are called w1, w2 and so on."""
    values = {
        "optimizer": 0, "indices": [[number]], "rows": [f"r{number}"], "losses": [f"l{number}"], "weights": {"w": f"w{number}"},
        "state": f"s{number}", "rng": {"torch": f"t{number}", "python": "same"}, "before": None, "after": f"w{number}",
    }  # fmt: skip
    return Update(**(values | changes))


_WHOLE = [_update(1, before="w0"), *(_update(number) for number in range(2, 7))]


def _resumed(at, **changes):
    first, *rest = _WHOLE[at:]
    fields = {name: getattr(first, name) for name in Update.__struct_fields__} | {"before": f"w{at}"} | changes
    return [Update(**fields), *rest]


@given(st.integers(0, 5))
def test_resumed_run_is_placed_by_its_weights_and_equal_runs_have_no_difference(at):
    assert resumed_at(_WHOLE, _resumed(at), 6) == at
    assert first_difference(_WHOLE, _resumed(at), at) is None


def test_run_that_did_nothing_has_resumed_at_the_end():
    assert resumed_at(_WHOLE, [], 6) == 6 and first_difference(_WHOLE, [], 6) is None


@pytest.mark.parametrize(
    ("changes", "what", "name"),
    [
        ({"indices": [[9]]}, "samples", None), ({"rows": ["other"]}, "inputs", None), ({"losses": ["other"]}, "loss", None),
        ({"weights": {"w": "other"}}, "weights", "w"), ({"weights": {"w": "w4", "bias": "new"}}, "weights", "bias"),
        ({"state": "other"}, "optimizer", None), ({"rng": {"torch": "other", "python": "same"}}, "rng", "torch"),
    ],
)  # fmt: skip
def test_each_kind_of_difference_is_named(changes, what, name):
    difference = first_difference(_WHOLE, _resumed(3, **changes), 3)
    assert (difference.step, difference.what, difference.name) == (3, what, name)


def test_other_differences_of_the_step_are_listed_after_the_first():
    difference = first_difference(_WHOLE, _resumed(3, losses=["other"], weights={"w": "other"}, state="other"), 3)
    assert difference.what == "loss" and difference.also == ["weights (w)", "optimizer"]
    assert (difference.expected, difference.found) == (["l4"], ["other"])


def test_same_samples_in_another_order_differ_in_order():
    resumed = _resumed(3, indices=[[5]])
    resumed[1] = _update(5, indices=[[4]])
    assert first_difference(_WHOLE, resumed, 3).what == "order"
    unknown = [_update(number, indices=None, before="w0" if number == 1 else None) for number in range(1, 7)]
    swapped = [_update(1, indices=None, before="w0", rows=["r2"]), _update(2, indices=None, rows=["r1"]), *unknown[2:]]
    assert first_difference(unknown, swapped, 0).what == "order"
    assert first_difference(unknown, [_update(1, indices=None, before="w0", rows=["r9"]), *unknown[1:]], 0).what == "samples"


def test_generator_that_nothing_uses_later_does_not_count():
    assert first_difference(_WHOLE, _resumed(3, rng={"torch": "t4", "python": "other"}), 3) is None
    assert first_difference(_WHOLE, _resumed(5, rng={"torch": "other", "python": "same"}), 5) is None  # no update follows


def test_too_few_and_too_many_steps_differ():
    assert first_difference(_WHOLE, _resumed(3)[:2], 3) == Difference(5, "steps", None, [], 6, 5)
    assert first_difference(_WHOLE, [*_resumed(3), _update(7)], 3) == Difference(6, "steps", None, [], 6, 7)


def test_weights_that_no_update_began_with_differ_at_once():
    resumed = _resumed(3, before="foreign")
    assert resumed_at(_WHOLE, resumed, 6) == 3  # by the number of its updates
    assert resumed_at(_WHOLE, [*resumed, *resumed], 6) == 0
    assert first_difference(_WHOLE, resumed, 3) == Difference(3, "weights", "before the first update")


def test_of_equal_weights_the_number_of_updates_decides_else_the_last_before_the_kill():
    """As while the learning rate is 0: updates 3 to 5 leave the weights as they are."""
    still = [*_WHOLE[:2], *(_update(number, weights={"w": "w2"}, after="w2") for number in (3, 4, 5)), _WHOLE[5]]
    assert resumed_at(still, [_update(4, before="w2"), *still[4:]], 6) == 3  # 3 updates were left
    assert resumed_at(still, [_update(3, before="w2")] * 7, 4) == 4
    assert resumed_at(still, [_update(3, before="w2")] * 7, 1) == 2
    two = [
        _update(1, before="a0"),
        _update(1, before="b0", optimizer=1, after="b1"),
        _update(2),
        _update(2, optimizer=1, after="b2"),
    ]
    assert resumed_at(two, [_update(2, optimizer=1, before="b1", after="b2")], 4) == 3  # the second optimizer's second update


def test_final_files_are_equal_by_value_if_not_by_byte(tmp_path, processes):
    import numpy as np
    import torch

    expected, found = tmp_path / "expected", tmp_path / "found"
    for folder in (expected, found, found / "version_1"):
        folder.mkdir()
    state = {"nan": float("nan"), "array": np.arange(3), "list": [torch.ones(2), {"a": 1}]}
    turned = {key: state[key] for key in reversed(state)}
    names = ["state.pt", "moved.pt", "notes.bin", "gone.pt"]

    def compared(other, notes=b"same"):
        for folder, value in ((expected, state), (found, other)):
            torch.save(value, folder / "state.pt")
            (folder / "notes.bin").write_bytes(b"same" if folder is expected else notes)
        for path in (expected / "moved.pt", found / "version_1" / "moved.pt"):
            torch.save(state, path)
        return compare_files(expected, found, names)

    assert compared(state) == FinalFiles(True, None, [])
    assert compared(turned) == FinalFiles(False, None, [])
    for other, at in (
        (turned | {"nan": 0.0}, "['nan']"), (turned | {"array": np.arange(3) + 1}, "['array']"),
        (turned | {"more": 1}, "['more']"),
        (turned | {"list": [torch.ones(2), {"a": 2}]}, "['list'][1]['a']"), (turned | {"list": [torch.zeros(2)]}, "['list']"),
        (turned | {"list": [torch.ones(2).double(), {"a": 1}]}, "['list'][0]"),
    ):  # fmt: skip
        assert compared(other) == FinalFiles(False, Difference(None, "bytes", f"state.pt {at}"), ["state.pt"])
    assert compared(state, b"other") == FinalFiles(False, Difference(None, "bytes", "notes.bin"), ["notes.bin"])
    (expected / "gone.pt").touch()
    assert compared(state) == FinalFiles(False, Difference(None, "bytes", "gone.pt is missing"), ["gone.pt"])


def test_log_without_its_last_line_end_has_one_update_less(tmp_path):
    import msgspec

    line = msgspec.json.encode(_WHOLE[0])
    (tmp_path / "log").write_bytes(line + b"\n" + line[:20])
    assert read_updates(tmp_path / "log") == _WHOLE[:1]
    assert read_updates(tmp_path / "absent") == []


def test_names_that_a_script_imports_from_packages(tmp_path):
    (tmp_path / "mine.py").touch()
    text = "import os\nimport torch.nn as nn\nfrom torch import optim\nfrom mine import x\nimport numpy, torch\n"
    assert imported_names(_script(tmp_path, text)) == ["torch.nn", "torch:optim", "numpy", "torch"]
    assert imported_names(_script(tmp_path, text + "os.environ['A'] = '1'\n")) == []
    with pytest.raises(IotwinError, match="is no Python program"):
        imported_names(_script(tmp_path, "def (:\n"))
