"""The training program: its options, lines, parts, checkpoints, and that stages train what a single process trains."""

import json
import re
import signal
import socket
from itertools import pairwise

import pytest
import torch

from iotwin.common.checkpoints import checkpoints
from iotwin.common.errors import IotwinError
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import ImagenetLayout
from iotwin.main import main as iotwin
from iotwin.workloads.common.images import Images
from iotwin.workloads.common.parts import Parts
from iotwin.workloads.common.torch_ranks import join_ranks
from iotwin.workloads.models import build
from iotwin.workloads.pipedream.__main__ import main
from iotwin.workloads.pipedream.runtime.learning_rate import LearningRate
from tests.workloads.mllog import entries
from tests.workloads.pipedream.runtime.ranks import checkpoint_names, die_in_checkpoint, results, run_ranks, write_conf

IMAGES, CLASSES, BATCH = 42, 3, 4
COMMON = ("--preset", "tiny", "-b", BATCH, "-j", 0, "--lr", 0.02)
OPTIONS = """
    --data_dir --distributed_backend --module -m -j --workers --epochs --start-epoch -b --batch-size --eval-batch-size --lr
    --lr_policy --lr_warmup --momentum --weight-decay --wd -p --print-freq --fp16 --loss_scale --master_addr --config_path
    --no_input_pipelining --rank --local_rank --forward_only --num_minibatches --resume --checkpoint_dir
    --checkpoint_dir_not_nfs -s --synthetic_data -v --verbose_frequency --num_ranks_in_server --recompute --macrobatch
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    generate(ImagenetLayout(classes=CLASSES, scale=0.1), folder, samples=IMAGES, workers=1, existing="add")
    return folder


def run(tmp_path, images, name, *words, conf=None, ranks=1, **more):
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)
    given = ["--data_dir", images, *COMMON, *(["--config_path", conf] if conf else []), *words]
    return run_ranks(folder, given, ranks, **more)


def test_a_port_on_which_another_program_listens_is_named(monkeypatch):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        own = {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
        for name, value in own.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
        with pytest.raises(IotwinError, match=f"rank 0 cannot use port {port}: Address already in use"), join_ranks(gpu=False):
            pass


def merged(tmp_path, store):
    path = tmp_path / "full.pt"
    assert iotwin(["pipedream", "merge", str(store), "-o", str(path), "--quiet"]) == 0
    return torch.load(path)


def test_stages_without_pipelining_train_what_one_process_trains(tmp_path, images):
    """The merged checkpoint is also loaded strictly, and gives the precision and loss that the ranks report."""
    arguments = ("-m", "resnet18", "--epochs", 1, "--eval-batch-size", 2)
    alone, stages = tmp_path / "alone", tmp_path / "stages"
    run(tmp_path, images, "alone", *arguments, "--checkpoint_dir", alone)
    conf = write_conf(tmp_path, 1, 1, modules=[0, 1, 1])
    _, outputs = run(
        tmp_path, images, "stages", *arguments, "--checkpoint_dir", stages, "--no_input_pipelining", conf=conf, ranks=2
    )
    expected, found = merged(tmp_path, alone / "checkpoint"), merged(tmp_path, stages / "checkpoint")
    assert found.keys() == expected.keys() == build("resnet18", "tiny", CLASSES).module.state_dict().keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    loss, top1 = _evaluated(images, found)
    reported = results(outputs)[0]["evaluations"][0]
    assert reported["loss"] == pytest.approx(loss, rel=1e-5) and reported["top1"] == pytest.approx(top1)


def _evaluated(images, weights):
    model = build("resnet18", "tiny", CLASSES).module
    model.load_state_dict(weights, strict=True)
    model.eval()
    _, files = ImagenetLayout.discover(images, "val")
    data = Images(files, 32, 0, Parts(False))
    pixels, labels = torch.stack([data[k][0] for k in range(len(data))]), torch.tensor([data[k][1] for k in range(len(data))])
    with torch.no_grad():
        scores = model(pixels)
    right = (scores.argmax(1) == labels).float().mean()
    return float(torch.nn.functional.cross_entropy(scores, labels)), 100 * float(right)


@pytest.mark.parametrize(("every", "rank", "number", "left"), [(5, 0, 4, "step-5"), (3, 1, 3, "step-6"), (10, 1, 2, "step-10")])
def test_a_run_killed_in_a_checkpoint_resumes_from_the_last_whole_one_bit_for_bit(tmp_path, images, every, rank, number, left):
    """A rank kills itself when it writes a file of a checkpoint: rank 0 the manifest, rank 1 its index. An epoch has 10 steps."""
    arguments = ("-m", "vgg16", "--epochs", 2, "--checkpoint-steps", every, "--lr_warmup")
    conf = write_conf(tmp_path, 1, 1)
    _, whole = run(tmp_path, images, "whole", *arguments, "--checkpoint_dir", tmp_path / "a", conf=conf, ranks=2)
    store, words = tmp_path / "b" / "checkpoint", (*arguments, "--checkpoint_dir", tmp_path / "b")
    killed = {rank: die_in_checkpoint(number)}
    statuses, outputs = run(tmp_path, images, "killed", *words, conf=conf, ranks=2, prepare=killed, succeed=False)
    assert statuses[rank] == -signal.SIGKILL and statuses[1 - rank] == 1
    assert "the connection to another rank broke, so that rank has probably ended" in outputs[1 - rank].splitlines()[-1]
    assert left == next(found.name for found in checkpoints(store))
    assert rank or any(name.endswith(".tmp") for name in checkpoint_names(store))
    _, resumed = run(tmp_path, images, "resumed", *words, "--resume", store, conf=conf, ranks=2)
    for before, after in zip(results(whole), results(resumed), strict=True):
        assert after["resumed_from"]["trained"] == int(left.removeprefix("step-"))
        assert after["weights_sha256"] == before["weights_sha256"] and after["minibatches"] == before["minibatches"] == 20
    assert not any(name.endswith(".tmp") for name in checkpoint_names(store))


def test_lines_are_those_that_the_original_prints(tmp_path, images):
    conf = write_conf(tmp_path, 1, 1)
    _, (first, last) = run(tmp_path, images, "a", "-m", "vgg16", "--epochs", 1, "-p", 4, conf=conf, ranks=2)
    number = r"-?[0-9]+\.[0-9]{3}"
    both, loss = rf"{number} \({number}\)", r"[0-9]+\.[0-9]{4} \([0-9]+\.[0-9]{4}\)"
    ends = rf"Memory: {both}\tLoss: {loss}\tPrec@1: {both}\tPrec@5: {both}"
    for index in (0, 4, 8):
        assert re.search(rf"^Epoch: \[0\]\[{index}/10\]\tTime: {both}\tEpoch time \[hr\]: {both}\t{ends}$", last, re.MULTILINE)
        assert re.search(rf"^Epoch: \[0\]\[{index}/10\]\tMemory: {both}$", first, re.MULTILINE)
    assert re.search(rf"^Test: \[0\]\[0/1\]\tTime: {both}\t{ends}$", last, re.MULTILINE)
    assert re.search(rf"^ \* Prec@1 {number} Prec@5 {number}$", last, re.MULTILINE) and "* Prec" not in first
    assert re.search(rf"^Epoch 0: {number} seconds\nEpoch start time: {number}, epoch end time: {number}$", last, re.MULTILINE)


def test_parts_name_stage_replica_minibatch_version_and_bytes(tmp_path, images):
    """Two replicas share 5 minibatches, so that one of them has a minibatch more."""
    conf = write_conf(tmp_path, 2, 1)
    words = ("-m", "resnet18", "--epochs", 1, "--num_minibatches", 5, "--variant", "instrumented", "--checkpoint_dir", tmp_path)
    _, outputs = run(tmp_path, images, "a", *words, conf=conf, ranks=3)
    found = [_parts(output) for output in outputs]
    assert [sorted(each["minibatch"] for each in parts["F"]) for parts in found] == [[0, 2, 4], [1, 3], [0, 1, 2, 3, 4]]
    assert [each["version"] for each in found[2]["B"]] == [0, 1, 2, 3, 4]
    assert [each["version"] for each in found[0]["F"]] == [0, 0, 1]  # the warm-up is 1
    assert {each["stage"] for each in found[2]["F"]} == {1} and {each["replica"] for each in found[1]["F"]} == {1}
    sent = {each["minibatch"]: each["size_bytes"] for parts in found[:2] for each in parts["recv_grad"]}
    arrived = {each["minibatch"]: each["size_bytes"] for each in found[2]["send_grad"]}
    assert sent == arrived and len(arrived) == 5 and min(arrived.values()) > 0
    first = {"F", "B", "send_act", "recv_grad", "allreduce", "opt_step", "data_wait", "sample_load", "sample_preproc"}
    assert found[1].keys() == first and found[0].keys() == first | {"eval_F", "ckpt_write"}
    assert found[2].keys() == {"F", "B", "recv_act", "send_grad", "opt_step", "eval_F", "ckpt_write"}
    assert len(found[0]["allreduce"]) == len(found[1]["allreduce"]) == 3
    done = results(outputs)
    assert done[0]["weights_sha256"] == done[1]["weights_sha256"] != done[2]["weights_sha256"]


def _parts(output):
    found = {}
    for entry in entries(output):
        if isinstance(entry["value"], dict):
            found.setdefault(entry["key"], []).append(entry["metadata"])
    return found


def test_forward_only_changes_no_weight(tmp_path, images):
    words = ("-m", "resnet18", "--epochs", 2, "--forward_only", "--checkpoint_dir", tmp_path / "out")
    _, outputs = run(tmp_path, images, "a", *words)
    assert outputs[0].count("Test: [") == 2 and "Epoch: [" not in outputs[0] and not checkpoint_names(tmp_path / "out/checkpoint")
    evaluations = results(outputs)[0]["evaluations"]
    assert evaluations[0]["loss"] == evaluations[1]["loss"]


def test_a_model_without_images_trains_on_random_data(tmp_path):
    conf = write_conf(tmp_path, 1, 1)
    words = ("-m", "mlp4", "-s", *COMMON, "--epochs", 1, "--num_minibatches", 4, "--config_path", conf, "--recompute", "-v", 2)
    _, outputs = run_ranks(tmp_path, words, 2)
    assert results(outputs)[1]["minibatches"] == 4
    assert "Minibatch 3: " in outputs[0] and "weight versions 1-2" in outputs[0]


@pytest.mark.parametrize(("words", "text"), [
    ("-m vgg16 --fp16", "--fp16: ranks compute on CPUs"),
    ("-m vgg16 --loss_scale 2", "--loss_scale: only half precision"),
    ("-m vgg16 --distributed_backend nccl", "nccl connects GPUs"),
    ("-m vgg16 --distributed_backend mpi", "--distributed_backend 'mpi' is unknown; choose gloo, nccl"),
    ("-m vgg16 --checkpoint_dir_not_nfs", "--checkpoint_dir_not_nfs: one manifest lists the files of all stages"),
    ("-m vgg16 --macrobatch --no_input_pipelining", "exclude one another"),
    ("-m vgg17", "--module 'vgg17' is unknown (did you mean 'vgg16'?)"),
    ("", "name the model by --module"),
    ("-m mlp4", "--module mlp4 reads no images; use --synthetic_data"),
    ("-m vgg16 --lr_policy cosine", "--lr_policy 'cosine' is unknown"),
    ("-m vgg16 --num_minibatches 0", "--num_minibatches must be at least 1"),
    ("-m vgg16 -b 0", "--batch-size 0 must be at least 1"),
    ("-m vgg16 --rank 1", "--rank 1 is none of the 1 rank"),
    ("-m vgg16 --start-epoch 90", "--start-epoch 90 must be below --epochs 90"),
    ("-m vgg16 --config_path none.json", "none.json cannot be read"),
    ("-m vgg16 --checkpoint-steps 3", "--checkpoint-steps requires --checkpoint_dir"),
])  # fmt: skip
def test_what_cannot_work_is_refused_in_one_line(capsys, words, text):
    assert main(["--data_dir", "data", *words.split()]) == 2
    error = capsys.readouterr().err
    assert text in error and error.count("\n") == 1 and error.startswith("pipedream: ")


def test_data_are_required(capsys):
    assert main(["-m", "vgg16"]) == 2
    assert "name the images by --data_dir, or use --synthetic_data" in capsys.readouterr().err


def test_the_original_s_options_are_all_known(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = set(re.findall(r"--?[a-zA-Z_][\w-]*", capsys.readouterr().out))
    assert set(OPTIONS.split()) <= shown


def test_another_checkpoint_is_refused(tmp_path, images):
    words = ("-m", "resnet18", "--epochs", 1, "--num_minibatches", 1)
    run(tmp_path, images, "a", *words, "--checkpoint_dir", tmp_path / "out")
    store = tmp_path / "out" / "checkpoint"
    _, [output] = run(tmp_path, images, "b", *words, "--resume", store, "--seed", 5, succeed=False)
    assert "is of seed 1, this training of seed 5" in output.splitlines()[-1]
    conf = write_conf(tmp_path, 1, 1)
    statuses, outputs = run(tmp_path, images, "c", *words, "--resume", store, conf=conf, ranks=2, succeed=False)
    assert statuses == [1, 1] and all("is of stages 1, this training of stages 2" in each for each in outputs)
    (store / "step-1" / "rank-0.raw").write_bytes(b"")
    assert iotwin(["pipedream", "merge", str(store / "step-1"), "-o", str(tmp_path / "full.pt")]) == 1


def test_learning_rates_follow_the_original_s_formulas():
    step = LearningRate(0.1, 2, "step", 90)
    assert [step.at(epoch, 0, 7) for epoch in (0, 29, 30, 60)] == pytest.approx([0.2, 0.2, 0.02, 0.002])
    assert LearningRate(0.1, 1, "polynomial", 10).at(5, 0, 7) == pytest.approx(0.025)
    assert LearningRate(0.1, 1, "exponential_decay", 10).at(5, 0, 7) == pytest.approx(0.1 * 0.97**0.5)
    warm = LearningRate(0.1, 1, "step", 90, warm_up=True)
    rates = [warm.at(epoch, update, 7) for epoch in range(6) for update in range(7)]
    assert rates[0] == pytest.approx(0.1 / 35) and rates[34:36] == pytest.approx([0.1, 0.1])
    assert all(after - before == pytest.approx(0.1 / 35) for before, after in pairwise(rates[:35]))


def test_merge_exports_files_of_the_original_s_names(tmp_path, images, capsys):
    run(tmp_path, images, "a", "-m", "resnet18", "--epochs", 1, "--num_minibatches", 2, "--checkpoint_dir", tmp_path / "out")
    words = [
        "pipedream",
        "merge",
        str(tmp_path / "out/checkpoint"),
        "-o",
        str(tmp_path / "f.pt"),
        "--stages",
        str(tmp_path / "s"),
    ]
    capsys.readouterr()
    assert iotwin([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["stages"], document["minibatches"], document["epoch"]) == (1, 2, 1)
    stage = torch.load(tmp_path / "s" / "checkpoint.0.pth.tar")
    assert stage.keys() == {"epoch", "arch", "state_dict", "best_prec1", "optimizer"} and stage["arch"] == "resnet18"
    whole = torch.load(tmp_path / "f.pt")
    assert stage["state_dict"]["module0"].keys() == whole.keys()
    assert document["parameters"] == sum(p.numel() for p in build("resnet18", "tiny", CLASSES).module.parameters())
