"""Profiles: the times, sizes and edges of a model's layers, as graph.txt and as inputs of the optimizer."""

import errno
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from iotwin.common.errors import IotwinError, UsageError
from iotwin.main import main as iotwin
from iotwin.workloads.common.torch_ranks import TorchRanks
from iotwin.workloads.launch import Ending
from iotwin.workloads.models import build
from iotwin.workloads.pipedream.converter.layers import trace_layers
from iotwin.workloads.pipedream.plan.graph_file import format_graph, parse_graph, read_graph
from iotwin.workloads.pipedream.plan.layer_graph import ExchangeCost
from iotwin.workloads.pipedream.plan.report import optimize
from iotwin.workloads.pipedream.profile import model_profile, on_ranks, timing
from iotwin.workloads.pipedream.profile.activations import ActivationFiles
from iotwin.workloads.pipedream.profile.model_profile import ProfileOptions, profile
from iotwin.workloads.pipedream.profile.on_ranks import profile_on_ranks
from iotwin.workloads.pipedream.profile.timing import LayerTimer
from tests.workloads.pipedream.common import options


class _Clock:
    """Replaces the module time: layers advance it."""

    def __init__(self):
        self.now_s = 0.0

    def perf_counter(self):
        return self.now_s

    thread_time = perf_counter


class _Advancing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        layer.clock.now_s += layer.forward_s()
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.layer.clock.now_s += 3
        return gradient * 2, None


class _Layer(nn.Module):
    """Takes 100 s in its first call, and then as many seconds as it was called before."""

    def __init__(self, clock):
        super().__init__()
        self.clock, self.calls = clock, 0
        self.weight = nn.Parameter(torch.ones(5))

    def forward_s(self):
        self.calls += 1
        return 100 if self.calls == 1 else self.calls - 1

    def forward(self, x):
        return _Advancing.apply(x * self.weight, self)


@pytest.fixture
def clock(monkeypatch):
    found = _Clock()
    monkeypatch.setattr(timing, "time", found)
    return found


def test_times_are_those_of_each_layer_s_passes_and_update(clock, monkeypatch):
    def next_value(self, name, weight, gradient, out=None):
        clock.now_s += 7

    monkeypatch.setattr(timing.SgdVersions, "next_value", next_value)
    model = nn.Sequential(_Layer(clock), nn.Identity(), _Layer(clock))
    timer = LayerTimer(trace_layers(model), torch.device("cpu"))
    for _ in range(4):
        timer.run([torch.ones(2, 5)], torch.sum)
    first, between, last = timer.times.values()
    assert first.forward_s == last.forward_s == [100, 1, 2, 3] and first.backward_s == last.backward_s == [3] * 4
    assert first.update_s == last.update_s == [7] * 4 and not between.update_s
    assert between.forward_s == between.backward_s == [0] * 4
    assert first.output_bytes == [40] and first.parameter_bytes == 20 and between.parameter_bytes == 0


def test_the_median_leaves_out_the_warm_up(clock, monkeypatch):
    built = build("mlp4")._replace(module=nn.Sequential(nn.Linear(16, 5), _Layer(clock), nn.Linear(5, 16)))
    monkeypatch.setattr(model_profile, "build", lambda *_: built)
    found = profile(ProfileOptions("mlp4", warm_up=1, minibatches=5))
    assert [node.forward_ms for node in found.graph.nodes[1:]] == [0, 3000, 0]
    assert found.document["quartiles"][1]["forward_ms"] == [2000, 3000, 4000] and found.document["backward_s"] == 3


@pytest.mark.parametrize("name", ["skip4", "tied", "resnet18", "unet", "transformer", "gpt", "gnmt"])
def test_backward_passes_give_the_model_s_gradients(name, monkeypatch):
    """Checked for branches, tied weights, layers that overwrite their inputs, and tuples: nothing is left out of the times."""
    built = build(name)
    for layer in built.module.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    tensors = built.make_inputs(2)
    traced = trace_layers(built.module)
    count = sum(node.op == "placeholder" for node in traced.graph.nodes)
    sums = {}
    grad = torch.autograd.grad

    def recorded(outputs, inputs, *more, **named):
        found = grad(outputs, inputs, *more, **named)
        for tensor, each in zip(inputs, found, strict=True) if isinstance(inputs, list) else ():
            if each is not None:
                sums[tensor] = sums[tensor] + each if tensor in sums else each
        return found

    monkeypatch.setattr(torch.autograd, "grad", recorded)
    timer = LayerTimer(traced, torch.device("cpu"))
    timer.run(tensors[:count], lambda output: built.loss(lambda *_: output, *[None] * count, *tensors[count:]))
    monkeypatch.undo()
    expected = grad(built.loss(built.module, *tensors), list(built.module.parameters()))
    for parameter, each in zip(built.module.parameters(), expected, strict=True):
        assert torch.allclose(sums[parameter], each, atol=1e-6)
    assert sum(each.parameter_bytes for each in timer.times.values()) == sum(p.nbytes for p in built.module.parameters())


def test_a_profile_is_a_graph_in_pipedream_s_format_and_the_optimizer_reads_it():
    found = profile(ProfileOptions("gnmt", minibatches=2, warm_up=1))
    text = format_graph(found.graph)
    assert format_graph(parse_graph(text)) == text
    nodes = {node.description.partition("(")[0]: node for node in found.graph.nodes}
    assert {"Input0", "Input1", "Embedding", "LSTM", "_Attention", "Concat", "__getitem__", "Linear"} <= nodes.keys()
    assert "activation_size=[" in nodes["LSTM"].written and nodes["__getitem__"].forward_ms == 0
    (last,) = (node for node in found.graph.nodes if node.description.startswith("Linear(in_features=16, out_features=64"))
    assert last.activation_bytes == 4 * 8 * 4 * 64 and last.parameter_bytes == 4 * (16 * 64 + 64)
    plan = optimize(found.graph, options([2], [1e9])).plan
    total = sum(stage.forward_s + stage.backward_s for stage in plan.stages)
    assert total == pytest.approx(sum(found.document[each] for each in ("forward_s", "backward_s", "update_s")))
    assert found.document["update_s"] > 0


def test_inference_has_no_backward_pass_and_no_update():
    found = profile(ProfileOptions("skip4", minibatches=2, warm_up=0, forward_only=True))
    assert found.document["forward_s"] > 0 == found.document["backward_s"] == found.document["update_s"]
    assert found.document["parameter_bytes"] == 4 * 4 * (16 * 16 + 16)


def test_ranks_profile_at_once_and_measure_their_exchanges(monkeypatch, tmp_path):
    """One forked rank alone exchanges nothing, so the launch and the exchange are replaced; the files between are real."""
    options = ProfileOptions("skip4", minibatches=1, warm_up=0, activations=tmp_path / "outputs")

    class _Plan:
        def __init__(self, words, ranks, port, folder):
            self.folder = folder
            assert ranks == 3 and words == [on_ranks.__name__, str(folder)]

        def run(self):
            on_ranks._run_rank(self.folder)
            return Ending([0])

    monkeypatch.setattr(on_ranks, "local_plan", _Plan)
    monkeypatch.setattr(on_ranks, "join_ranks", lambda gpu: nullcontext(TorchRanks(0, 1, torch.device("cpu"))))
    monkeypatch.setattr(on_ranks.distributed, "barrier", lambda: None)
    sizes = []
    monkeypatch.setattr(on_ranks, "there_and_back", lambda tensor, _: sizes.append(tensor.nbytes))
    times = iter([0.0, 0.02, 0.0, 0.02 + 20 * (on_ranks._LARGE - on_ranks._SMALL) / 1e6])
    monkeypatch.setattr(on_ranks.time, "process_time", lambda: next(times))
    found = profile_on_ranks(options, 3)
    assert found.graph.exchange == ExchangeCost(pytest.approx(0.001), pytest.approx(1e6)) and set(sizes) == {1 << 10, 4 << 20}
    assert len(list((tmp_path / "outputs").iterdir())) == 8 and found.document["minibatches"] == 1
    assert sum(node.update_ms for node in found.graph.nodes) / 1000 == pytest.approx(found.document["update_s"])
    with pytest.raises(UsageError, match="compute on CPUs; leave out --ranks"):
        profile_on_ranks(replace(options, device="cuda"), 2)


def test_edges_into_a_layer_are_in_the_order_of_its_arguments():
    class _Late(nn.Module):
        def forward(self, x):
            first = x + 1
            return torch.cat([x * 2, first], 1)

    traced = trace_layers(_Late())
    timer = LayerTimer(traced, torch.device("cpu"))
    timer.run([torch.ones(1, 2)], torch.sum)
    graph = model_profile._described(ProfileOptions("mlp4", warm_up=0), traced, timer, [1.0]).graph
    assert [node.description for node in graph.nodes] == ["Input", "Add(1)", "Mul(2)", "Concat(1)"]
    assert graph.predecessors[3] == [2, 1] and graph.nodes[0].forward_ms == 1000


def test_the_command_writes_the_profile_and_pictures(tmp_path, capsys):
    words = ["pipedream", "profile", "skip4", "-o", str(tmp_path), "--minibatches", "2", "--warm-up", "0", "--threads", "1"]
    assert iotwin([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    graph = read_graph(tmp_path / "graph.txt")
    assert document["layers"] == len(graph.nodes) - 1 == 8 and document["parameter_bytes"] == 4 * 4 * (16 * 16 + 16)
    assert document["load_s"] == pytest.approx(graph.nodes[0].forward_ms / 1000)
    assert [Path(path).read_text()[:5] for path in document["pictures"]] == ["<?xml"] * 2
    assert len(json.loads((tmp_path / "profile.json").read_text())["quartiles"]) == 8


def test_outputs_and_gradients_are_written_with_their_zeros(tmp_path, capsys):
    """The gradient of a layer's output before a ReLU is 0 where the output of the ReLU is."""
    folder = tmp_path / "outputs"
    options = ["--minibatches", "1", "--warm-up", "0", "--threads", "1", "--activations", str(folder), "--json"]
    assert iotwin(["pipedream", "profile", "resnet18", "-b", "2", "-o", str(tmp_path / "p"), *options]) == 0
    found = json.loads(capsys.readouterr().out)["activations"]
    nodes = [node for node in read_graph(tmp_path / "p" / "graph.txt").nodes if not node.is_input]
    assert [layer["id"] for layer in found["layers"]] == [node.id for node in nodes] and found["directory"] == str(folder)
    arrays = [dict(np.load(folder / f"{node.id}.npz", allow_pickle=False)) for node in nodes]
    assert [each["output0"].nbytes for each in arrays] == [node.activation_bytes for node in nodes]
    (index, *_) = (index for index, node in enumerate(nodes) if node.description.startswith("ReLU"))
    zeros = arrays[index]["output0"] == 0
    assert (arrays[index - 1]["gradient0"][zeros] == 0).all() and found["layers"][index]["output_sparsity"] == zeros.mean() > 0
    every = np.concatenate([each["output0"].ravel() for each in arrays])
    assert found["output_sparsity"] == pytest.approx((every == 0).mean()) and found["output_compression_ratio"] > 1
    assert found["gradient_sparsity"] > 0 and found["gradient_compression_ratio"] > 1


def test_files_of_activations_replace_links_and_are_whole_or_missing(tmp_path, monkeypatch):
    traced = trace_layers(nn.Sequential(nn.ReLU()))
    (node,) = (each for each in traced.graph.nodes if each.op.startswith("call_"))
    other, path = tmp_path / "other", tmp_path / "outputs" / "node2.npz"
    written = ActivationFiles(path.parent, traced)
    other.write_text("somebody's")
    path.symlink_to(other)
    written.write(node, {0: torch.ones(2)}, {})
    assert other.read_text() == "somebody's" and (np.load(path, allow_pickle=False)["output0"] == 1).all()
    path.unlink()

    def write_part(file, **arrays):
        file.write(b"PK")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", write_part)
    with pytest.raises(IotwinError, match=r"node2\.npz cannot be written: No space left on device"):
        written.write(node, {0: torch.ones(2)}, {})
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize(("words", "text"), [
    ("lstm", "cannot be split, since its control flow depends on data"),
    ("mlp5", "unknown model 'mlp5' (did you mean 'mlp'?)"),
    ("mlp4 --preset paper", "the model mlp4 has no published size"),
    ("mlp4 --data-dir .", "the model mlp4 reads no images"),
    *([] if torch.cuda.is_available() else [("mlp4 --device cuda", "torch finds no GPU; use --device cpu")]),
])  # fmt: skip
def test_what_cannot_be_profiled_is_refused_in_one_line(words, text, tmp_path, capsys):
    assert iotwin(["pipedream", "profile", *words.split(), "-o", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert text in error and error.count("\n") == 1 and not (tmp_path / "out").exists()
