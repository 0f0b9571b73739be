"""Logs of real models: valid, complete, and recorded without changing what is computed."""

import pytest

from iotwin.workloads.dtr.simulator.heuristics import HEURISTICS
from iotwin.workloads.dtr.simulator.log_format import read_log
from iotwin.workloads.dtr.simulator.simulate import SimulationSettings, baseline, simulate
from tests.processes import call
from tests.workloads.test_models import DISTINCT

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


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


def test_parameters_and_inputs_are_the_only_constants(tmp_path):
    from iotwin.workloads.dtr.record import record_model
    from iotwin.workloads.models import build

    record_model("mlp", tmp_path / "log")
    assert int(read_log(tmp_path / "log").graph.op_constant.sum()) == len(list(build("mlp")[0].parameters())) + 2


def test_a_fake_log_has_the_same_shapes(tmp_path):
    from iotwin.workloads.dtr.record import record_model

    record_model("mlp", tmp_path / "real")
    record_model("mlp", tmp_path / "fake", fake=True)
    real, fake = (read_log(tmp_path / which).graph for which in ("real", "fake"))
    assert (real.op_names, real.tensor_size.tolist()) == (fake.op_names, fake.tensor_size.tolist())


def test_an_unknown_model_is_guessed():
    done = call("dtr", "log", "resnett", "-o", "x.log")
    assert done.returncode == 2 and "did you mean 'resnet'" in done.stderr
