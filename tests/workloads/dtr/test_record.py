"""Logs of real models: valid, complete, and recorded without changing what is computed."""

from dataclasses import replace

import pytest

from iotwin.workloads.dtr.simulator.heuristics import HEURISTICS
from iotwin.workloads.dtr.simulator.log_format import read_log
from iotwin.workloads.dtr.simulator.simulate import SimulationSettings, baseline, simulate
from tests.processes import call
from tests.workloads.test_models import DISTINCT

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors are computed faster by one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", DISTINCT)
def test_the_log_of_each_model_is_valid_and_fits_its_own_peak_only(tmp_path, name):
    from iotwin.workloads.dtr.record import record_model

    told = record_model(name, tmp_path / "log")
    log = read_log(tmp_path / "log")
    assert told["operators"] > 50 and log.backward_line is not None
    base = baseline(log.graph)
    runs = [simulate(log.graph, SimulationSettings(HEURISTICS["DTR"], int(base.eager_peak * share))) for share in (1.0, 0.1)]
    assert base.constant < base.peak and [run.result for run in runs] == ["pass", "oom"]


def test_recording_changes_no_gradient():
    from iotwin.workloads.dtr.record import Recorder
    from iotwin.workloads.models import build

    def gradients(recorded):
        torch.manual_seed(0)
        module, make_inputs, loss = build("resnet")
        inputs = make_inputs(2)
        if recorded:
            with Recorder():
                loss(module, *inputs).backward()
        else:
            loss(module, *inputs).backward()
        return [parameter.grad for parameter in module.parameters()]

    assert all(torch.equal(ours, plain) for ours, plain in zip(gradients(True), gradients(False), strict=True))


@pytest.mark.parametrize("warm_up", [0, 1])
def test_parameters_inputs_and_the_optimizers_tensors_are_the_only_constants(tmp_path, warm_up):
    from iotwin.workloads.dtr.record import record_model
    from iotwin.workloads.models import build

    record_model("mlp", tmp_path / "log", warm_up=warm_up)
    assert int(read_log(tmp_path / "log").graph.op_constant.sum()) == (1 + warm_up) * len(list(build("mlp")[0].parameters())) + 2


@pytest.mark.parametrize("name", ["alexnet", "transformer"])
def test_a_fake_log_gives_the_same_simulation(tmp_path, name):
    """With equal times of operations: those of a fake log are estimates."""
    from iotwin.workloads.dtr.record import record_model

    record_model(name, tmp_path / "real")
    record_model(name, tmp_path / "fake", fake=True)
    real, fake = (read_log(tmp_path / which).graph for which in ("real", "fake"))
    assert real.op_names == fake.op_names and sorted(real.tensor_size) == sorted(fake.tensor_size)
    graphs = [replace(graph, op_cost=1000 * (1 - graph.op_constant)) for graph in (real, fake)]
    peak = simulate(graphs[0], SimulationSettings(HEURISTICS["LRU"], plain=True)).peak
    for budget in (peak, round(0.8 * peak), round(0.6 * peak)):
        settings = SimulationSettings(HEURISTICS["DTREqClass"], budget, plain=True)
        assert simulate(graphs[0], settings).same() == simulate(graphs[1], settings).same()


@pytest.mark.parametrize("name", ["unet"])
def test_a_log_and_the_runtime_mean_the_same_budget(tmp_path, name):
    from iotwin.workloads.dtr.live.train import BudgetedTraining, train
    from iotwin.workloads.dtr.record import record_model

    record_model(name, tmp_path / "log")
    graph, training = read_log(tmp_path / "log").graph, BudgetedTraining(name, steps=2)
    peak = simulate(graph, SimulationSettings(HEURISTICS["LRU"], plain=True)).peak
    assert peak == pytest.approx(train(training)["peak_bytes"], rel=0.002)
    limited = train(training, round(0.8 * peak))
    run = simulate(graph, SimulationSettings(HEURISTICS["DTREqClass"], round(0.8 * peak), plain=True))
    assert run.result == "pass" and run.evictions > 0 and limited["evictions"] > 0 and limited["overhead"] > 1


def test_a_log_counts_what_an_allocator_and_kernels_take(tmp_path, monkeypatch):
    """As on a GPU: sizes are rounded, kernels take memory besides their results, and other tensors are in memory, too."""
    from iotwin.workloads.dtr.live import rematerializer
    from iotwin.workloads.dtr.live.device_memory import DeviceMemory
    from iotwin.workloads.dtr.live.session import Rematerialize
    from iotwin.workloads.dtr.live.train import sgd
    from iotwin.workloads.dtr.record import record_step
    from iotwin.workloads.models import build

    plans = rematerializer.AllocationPlans(DeviceMemory(torch.device("cpu")))
    monkeypatch.setattr(rematerializer, "_plans", lambda device: plans)
    monkeypatch.setattr(DeviceMemory, "rounded", lambda self, size: -(-size // 512) * 512)
    timed = DeviceMemory.timed

    def greedy(self, plan, func, args, kwargs):
        found = timed(self, plan, func, args, kwargs)
        plan.allocates_besides(300_000 * ("mm" in str(func)))
        return found

    monkeypatch.setattr(DeviceMemory, "timed", greedy)
    module, make_inputs, loss = build("mlp")
    inputs = make_inputs(32)
    with Rematerialize(None, device="cpu") as session:
        other = torch.ones(50_000) + 1
        for _ in range(2):
            sure = record_step(session, sgd(module), lambda: loss(module, *inputs))[1].finish()
            module.zero_grad()
        (tmp_path / "log").write_bytes(b"".join(sure))
        peak = session.account.peak_bytes
    graph = read_log(tmp_path / "log").graph
    sizes = dict(zip(graph.tensor_names, graph.tensor_size.tolist(), strict=True))
    assert sizes["held"] == other.nbytes + 192  # rounded
    assert all(size % 512 == 0 or size == 300_000 for size in sizes.values())
    assert simulate(graph, SimulationSettings(HEURISTICS["LRU"], plain=True)).peak == pytest.approx(peak, rel=0.002)


def test_a_write_through_a_view_changes_all_tensors_of_its_storage(tmp_path):
    from iotwin.workloads.dtr.record import Recorder

    with Recorder() as recorder:
        whole = torch.zeros(4, 16) + 1
        left, right = whole.chunk(2, 1)
        left.sigmoid_()
        right.mul_(2)
        del left, right
        result = whole * 2
        lines = recorder.finish()
    (tmp_path / "log").write_bytes(b"".join(lines))
    graph = read_log(tmp_path / "log").graph
    written, read = graph.op_names.index("mul_"), graph.op_names.index("mul")
    assert graph.tensor_storage[graph.arguments(read)[0]] == graph.tensor_storage[graph.results(written)[0]]
    assert simulate(graph, SimulationSettings(HEURISTICS["LRU"], plain=True)).peak == whole.nbytes + result.nbytes


def test_an_unknown_model_is_guessed():
    done = call("dtr", "log", "resnett", "-o", "x.log")
    assert done.returncode == 2 and "did you mean 'resnet'" in done.stderr
