"""PipeDream's four steps from a model to its training: profile, optimize, convert, run. Weights and code of converted models."""

import importlib
import json

import pytest
import torch

from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import ImagenetLayout
from iotwin.main import main as iotwin
from iotwin.workloads.models import build
from iotwin.workloads.pipedream import convert_graph_to_model, main, optimizer_graph_hierarchical
from iotwin.workloads.pipedream.converter.weights import read_weights
from tests.workloads.pipedream.runtime.ranks import results, run_ranks

CLASSES = 3


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    generate(ImagenetLayout(classes=CLASSES, scale=0.1), folder, samples=24, workers=1, existing="add")
    return folder


def profiled(folder, arch, *words):
    options = ["-a", arch, "-b", "4", "--preset", "tiny", "--num_minibatches", "3", "--profile_directory", str(folder)]
    assert main.main([*options, *map(str, words)]) == 0
    return folder / arch / "graph.txt"


def optimized(graph, workers):
    words = ["-f", str(graph), "-n", str(workers), "--activation_compression_ratio", "1", "--straight_pipeline"]
    assert optimizer_graph_hierarchical.main([*words, "-o", str(graph.parent)]) == 0
    return graph.parent / f"gpus={workers}.txt"


def test_a_model_is_profiled_optimized_converted_and_trained(tmp_path, images):
    """Each of three ranks then trains exactly the parameters that the plan counts for its stage, replicas included."""
    graph = profiled(tmp_path / "profiles", "resnet18", "--data_dir", images)
    partition = optimized(graph, 2)
    folder = tmp_path / "models" / "gpus=3"
    words = ["-f", str(partition), "-n", "ResNet18Partitioned", "-a", "resnet18", "-o", str(folder)]
    assert convert_graph_to_model.main([*words, "--stage_to_num_ranks_map", "0:2,1:1"]) == 0
    conf, plan = folder / "hybrid_conf.json", json.loads((folder / "plan.json").read_text())
    assert json.loads(conf.read_text())["stage_to_rank_map"] == {"0": [0, 1], "1": [2]}
    options = ["--module", "models.resnet18.gpus=3", "-b", 4, "--data_dir", images, "-j", 0, "--preset", "tiny", "--epochs", 1]
    out = tmp_path / "out"
    _, outputs = run_ranks(tmp_path, [*options, "--config_path", conf, "--checkpoint_dir", out], 3)
    assert [each["stage"] for each in results(outputs)] == [0, 0, 1]
    exported = tmp_path / "exported"
    words = ["pipedream", "merge", str(out / "checkpoint"), "-o", str(tmp_path / "full.pt"), "--stages", str(exported), "--quiet"]
    assert iotwin(words) == 0
    names = {name for name, _ in build("resnet18", "tiny", CLASSES).module.named_parameters()}
    for stage in plan["stages"]:
        weights = torch.load(exported / f"checkpoint.{stage['stage']}.pth.tar")["state_dict"]["module0"]
        assert sum(tensor.nbytes for name, tensor in weights.items() if name in names) == stage["parameter_bytes"]


@pytest.fixture
def converted(tmp_path, capsys):
    """Convert a model of three stages, and return its folder and the printed document."""

    def run(arch, *words, stages=3):
        partition = optimized(profiled(tmp_path / "profiles", arch, "-s"), stages)
        folder = tmp_path / f"converted_{arch}"
        capsys.readouterr()
        words = ["pipedream", "convert", str(partition), "-n", "Whole", "-a", arch, "-o", str(folder), *map(str, words)]
        assert iotwin([*words, "--preset", "tiny", "--json"]) == 0
        return folder, json.loads(capsys.readouterr().out)

    return run


@pytest.mark.parametrize("arch", ["tied", "resnet18", "transformer"])
def test_the_code_of_the_stages_computes_what_the_model_computes(tmp_path, converted, monkeypatch, arch):
    torch.manual_seed(7)
    built = build(arch)
    torch.save(built.module.state_dict(), tmp_path / "full.pt")
    folder, document = converted(arch, "--export-code", "--weights", tmp_path / "full.pt")
    assert {path.name for path in folder.iterdir()} >= {*document["files"], "mp_conf.json", f"{arch}.py", "stage2.pt"}
    monkeypatch.syspath_prepend(str(tmp_path))
    package = importlib.import_module(folder.name)
    whole, tensors = package.full_model(), built.make_inputs(2)
    for index in range(3):
        getattr(whole, f"stage{index}").load(folder / f"stage{index}.pt")
    assert torch.equal(whole.eval()(*tensors[:-1]), built.module.eval()(*tensors[:-1]))
    modules = package.model("the loss")
    assert modules[-1][0] == "the loss" and modules[0][1] == ["input0"] and package.arch() == arch
    made = {"input0"}
    for _, read, outputs in modules:
        assert made.issuperset(read)
        made |= set(outputs)


def test_ranks_train_the_weights_of_a_converted_folder(tmp_path, converted, images, capsys):
    """Without an update, ranks and a single process evaluate the weights that were converted."""
    torch.manual_seed(7)
    torch.save(build("resnet18", "tiny", CLASSES).module.state_dict(), tmp_path / "full.pt")
    folder, _ = converted("resnet18", "--classes", CLASSES, "--weights", tmp_path / "full.pt", stages=2)
    words = ["--module", folder, "--data_dir", images, "-j", 0, "-b", 4, "--epochs", 1, "--forward_only"]
    _, outputs = run_ranks(tmp_path, [*words, "--config_path", folder / "mp_conf.json"], 2)
    found = results(outputs)[0]["evaluations"][0]["loss"]
    _, outputs = run_ranks(tmp_path, words)
    assert results(outputs)[0]["evaluations"][0]["loss"] == found
    model = build("resnet18", "tiny", CLASSES).module
    read_weights(model, folder, 2)
    expected = torch.load(tmp_path / "full.pt")
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


def test_what_cannot_be_converted_is_refused_in_one_line(tmp_path, converted, capsys):
    folder, _ = converted("skip4", stages=2)
    partition = next((tmp_path / "profiles").glob("*/gpus=2.txt"))
    for words, text in (
        (["-a", "tied", "--preset", "tiny"], "the graph's layers are not those of the model tied (tiny)"),
        (["-a", "skip4", "--export-code"], "--export-code requires --preset"),
        (["-a", "skip4", "--preset", "tiny", "--weights", str(tmp_path)], "cannot be read: Is a directory"),
        (["-a", "skip4", "--preset", "tiny", "--weights", str(partition)], "holds no state dict of PyTorch"),
        (["-a", "skip4", "--preset", "tiny", "--export-code", "-n", "a b"], "-n 'a b' is no name that Python allows"),
        (["-a", "skip", "--preset", "tiny"], "unknown model 'skip'"),
    ):
        status = iotwin(["pipedream", "convert", str(partition), "-n", "Whole", "-o", str(tmp_path / "x"), *words])
        error = capsys.readouterr().err
        assert status in (1, 2) and text in error and error.count("\n") == 1, error
    torch.save(build("mlp4").module.state_dict(), folder / "stage0.pt")
    _, [output] = run_ranks(tmp_path, ["--module", folder, "-s", "--epochs", 1, "-b", 4], succeed=False)
    assert f"{folder} does not fit the model" in output.splitlines()[-1]
