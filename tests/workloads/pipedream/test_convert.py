"""Conversion, driver files and the commands' refusals."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from iotwin.common.errors import UsageError
from iotwin.main import main
from iotwin.workloads.pipedream.plan.convert import convert
from iotwin.workloads.pipedream.plan.driver_file import Launch, commands, conf_document, read_driver
from iotwin.workloads.pipedream.plan.graph_file import write_graph
from iotwin.workloads.pipedream.plan.layer_graph import ExchangeCost
from iotwin.workloads.pipedream.plan.report import optimize
from tests.conftest import ROOT
from tests.workloads.pipedream.common import DATA, chain, options, profile

DRIVERS = DATA / "drivers"


def test_a_plan_becomes_modules_and_confs():
    partition = optimize(profile("vgg16"), options([4], [1e9])).partition
    found = convert(partition, "0:3,1:1")
    layers = [{name: module.pop(name) for name in ("nodes", "kinds")} for module in found.modules[:2]]
    assert [len(each["nodes"]) for each in layers] == [18, 23] and layers[1]["kinds"].count("Linear") == 3
    assert found.modules == [
        {"name": "Stage0", "inputs": ["input0"], "outputs": ["out0"]},
        {"name": "Stage1", "inputs": ["out0"], "outputs": ["out1"]},
        {"name": "criterion", "inputs": ["out1"], "outputs": ["loss"]},
    ]
    assert found.confs["hybrid"] == {"module_to_stage_map": [0, 1, 1], "stage_to_rank_map": {"0": [0, 1, 2], "1": [3]}}
    assert found.confs["dp"] == {"module_to_stage_map": [0, 0, 0], "stage_to_rank_map": {"0": [0, 1, 2, 3]}}
    assert found.confs["mp"]["stage_to_rank_map"] == {"0": [0], "1": [1]}
    assert [len(stage.nodes) for stage in found.stages] == [18, 23]
    assert [stage.replicas for stage in found.plan.stages] == [3, 1]
    assert found.plan.stages[1].input_bytes == found.plan.stages[0].output_bytes == 102760448


def test_tensors_of_stages_that_are_not_neighbours_are_handed_on():
    found = convert(optimize(profile("gnmt"), options([8], [1e10], straight=True)).partition)
    made = {}
    for stage, module in enumerate(found.modules[:-1]):
        for name in module["inputs"]:
            assert name.startswith("input") or made[name] < stage
        made |= dict.fromkeys(module["outputs"], stage)
    gaps = [stage - made[name] for stage, module in enumerate(found.modules[:-1]) for name in module["inputs"] if name in made]
    assert max(gaps) > 1


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ("0:3", "stage 1 is missing"),
        ("0:3,1:1,2:1", "stage 2 does not exist"),
        ("0:3,0:1", "stage 0 is given twice"),
        ("0:0,1:1", "'0:0' is not STAGE:RANKS"),
        ("three", "'three' is not STAGE:RANKS"),
    ],
)
def test_bad_maps_of_ranks_are_refused(ranks, message):
    with pytest.raises(UsageError, match=message):
        convert(optimize(profile("vgg16"), options([4], [1e9])).partition, ranks)


def test_replicas_exchange_their_share_of_the_gradients_twice_around_a_ring():
    """Three replicas of a stage of 3 MB make four exchanges of 1 MB, each of which takes 1 ms and two messages at 0.5 ms."""
    graph = replace(chain(10, 20), exchange=ExchangeCost(0.0005, 1e9))
    graph = replace(graph, nodes=tuple(replace(node, parameter_bytes=3e6) for node in graph.nodes))
    staged = graph.with_stages({node.id: stage for stage, node in enumerate(graph.nodes)})
    stages = convert(staged, "0:3,1:1").plan.stages
    assert [stage.all_reduce_s for stage in stages] == [pytest.approx(4 * graph.exchange_s(1e6)), 0.0]
    assert graph.exchange_s(1e6) == pytest.approx(0.002)
    assert convert(replace(staged, exchange=None), "0:3,1:1").plan.stages[0].all_reduce_s == 0.0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gnmt_12pipedream", "12 machines are listed, models/gnmt/gpus=12/mp_conf.json is for 10 ranks"),
        ("gnmt_large_16pipedream", "16 machines are listed, models/gnmt_large/gpus=16/mp_conf.json is for 14 ranks"),
    ],
)
def test_broken_driver_files_of_the_original_are_named(name, text):
    found = read_driver(DRIVERS / f"{name}.yml").document()
    assert not found["valid"] and [problem["text"] for problem in found["problems"]] == [text]


@pytest.mark.parametrize("name", ["vgg16_4pipedream", "resnet50_16dp"])
def test_good_driver_files_of_the_original_are_valid(name):
    assert read_driver(DRIVERS / f"{name}.yml").document()["problems"] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("vgg16__gpus=4__mp_conf", "no JSON"),
        ("vgg16__gpus=4_straight__dp_conf", "6 ranks, its folder is for gpus=4"),
        ("vgg16__gpus=2__hybrid_conf", "3 ranks, its folder is for gpus=2"),
        ("resnet50__gpus=2__hybrid_conf", "3 ranks"),
    ],
)
def test_broken_confs_of_the_original_are_named(name, text):
    found = conf_document(DATA / "confs" / f"{name}.json")
    assert not found["valid"] and text in found["problems"][0]["text"]


def test_all_shipped_confs_are_known():
    from iotwin.workloads.pipedream.plan import driver_file

    shipped = json.loads((driver_file.Path(driver_file.__file__).parent / "shipped_confs.json").read_text())
    assert len(shipped) == 58 and [name for name, ranks in shipped.items() if ranks is None] == [
        "models/vgg16/gpus=4/mp_conf.json"
    ]


GOOD = (DRIVERS / "vgg16_4pipedream.yml").read_text()


@pytest.mark.parametrize(("old", "new", "key", "text"), [
    ("'log_directory'", "'log_dir'", "log_dir", "is no key of a driver file"),
    ("'log_directory'", "'log_dir'", "log_directory", "is required and missing"),
    ("'batch_size': 64", "'batch_size': many", "batch_size", "is 'many'; it must be int"),
    ("'batch_size': 64", "'batch_size': 0", "batch_size", "must be at least 1"),
    ("'model_type': 'image_classification'", "'model_type': 'image'", "model_type", "is 'image', none of"),
    ("/mnt/deepak", "/mnt:deepak", "data_dir", "a path with a colon"),
    ("'v401:1'", "'v401'", "machines", "'v401' is not HOST:GPU"),
    ("'v401:1'", "'v401:0'", "machines", "is listed twice"),
    ("'data_dir': ", "'data_dir': !!python/object/apply:os.system ", "", "file:3: is not YAML: could not determine a"),
    ("'batch_size': 64", "'batch_size': 64\n'batch_size': 32", "", "the key 'batch_size' is given twice"),
    ("'batch_size': 64", "'lr_warmup': yep", "lr_warmup", "is 'yep'; it must be bool"),
    ("'batch_size': 64", "'batch_size': yes", "batch_size", "is 'yes'; it must be int"),
    ("models/vgg16/gpus=4/hybrid_conf.json", "models/none.json", "config_file", "is neither in the folder of the file nor below"),
])  # fmt: skip
def test_what_is_wrong_with_a_driver_file_is_named(tmp_path, old, new, key, text):
    assert old in GOOD
    path = tmp_path / "a.yml"
    path.write_text(GOOD.replace(old, new))
    found = read_driver(path).document()["problems"]
    assert any(problem["key"] == key and text in problem["text"] for problem in found), found


@pytest.mark.parametrize(("word", "is_true"), [("yes", True), ("On", True), ("TRUE", True), ("no", False), ("OFF", False)])
def test_booleans_of_yaml_1_1_are_taken_where_one_is_wanted(tmp_path, word, is_true):
    path = tmp_path / "a.yml"
    path.write_text(GOOD.replace("'compress_activations': False", f"'compress_activations': {word}") + f"'lr_warmup': {word}\n")
    driver = read_driver(path)
    assert not driver.problems and driver.keys["lr_warmup"] is is_true and driver.keys["compress_activations"] is is_true
    assert ("--lr-warmup" in commands(driver, Launch(DATA, local=True))[0]) is is_true


def test_commands_are_argument_lists_a_rank():
    driver = read_driver(DRIVERS / "vgg16_4pipedream.yml")
    local = commands(driver, Launch(DATA, local=True, resume="out/checkpoint"))
    assert len(local) == 4 and all(command[:3] == [sys.executable, "-m", "iotwin.workloads.pipedream"] for command in local)
    assert [command[command.index("--rank") + 1] for command in local] == ["0", "1", "2", "3"]
    assert local[0][-2:] == ["--resume", "out/checkpoint"]
    assert local[1][local[1].index("--master-addr") + 1] == "127.0.0.1"
    assert local[0][local[0].index("--config-path") + 1] == str(DATA / "hybrid_conf.json")
    remote = commands(driver, Launch(DATA))
    assert all(command[:3] == ["ssh", "-n", driver.machines[0][0]] and "docker run" in command[3] for command in remote)
    assert len(commands(driver, Launch(DATA, single_container=True))) == 1
    with pytest.raises(UsageError, match="has a colon"):
        commands(driver, Launch(DATA, mounts=("/a:b",)))


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ("optimize G", 2, "-n is missing"),
        ("optimize G -n 4 4", 2, "-n has 2 levels and -b has 1"),
        ("optimize G -n 0", 2, "-n 0: a level has at least one worker"),
        ("optimize G -n 4 -b 0", 2, "-b 0: it must be above 0"),
        ("optimize G -n 4 --activation-compression-ratio 0", 2, "--activation-compression-ratio 0: it must be above 0"),
        ("optimize G -n 4 -s 1e3 --use-memory-constraint", 1, "no plan on 4 workers fits 1000 bytes"),
        ("optimize G -n 99 --straight-pipeline --exact-workers", 1, "no plan of 40 states uses exactly 99 workers"),
        ("optimize G -n 4 --inputs-in-flight 0", 2, "--inputs-in-flight must be at least 1"),
        ("optimize G -n 4 --objective latency", 2, "needs --interval"),
        ("optimize none.txt -n 4", 2, "none.txt cannot be read"),
        ("evaluate G G -n 4", 1, ""),
        ("simulate none.json", 2, "none.json cannot be read"),
        ("convert G -n A -a a -o OUT", 2, "has no stage_id"),
        ("drive D", 2, "log_directory: /datadrive3/aaron/output/v2_output is no directory"),
        ("speedups G -n 4 4 -o OUT", 2, "one number of workers"),
    ],
)
def test_commands_refuse_in_one_line(tmp_path, capsys, words, status, message):
    names = {"G": DATA / "vgg16.graph.txt", "OUT": tmp_path / "out", "D": DRIVERS / "vgg16_4pipedream.yml"}
    assert main(["pipedream", *(str(names.get(word, word)) for word in words.split())]) == status
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == (1 if message else 0)


def test_validate_ends_with_one_when_a_file_is_not_valid(capsys):
    good, bad = str(DRIVERS / "vgg16_4pipedream.yml"), str(DRIVERS / "gnmt_12pipedream.yml")
    assert main(["pipedream", "validate", good, "--json"]) == 0
    assert main(["pipedream", "validate", good, bad, "--json"]) == 1
    assert [each["valid"] for each in json.loads(capsys.readouterr().out.splitlines()[-1])["files"]] == [True, False]


def test_a_partition_of_another_graph_is_refused(tmp_path):
    partition = optimize(profile("alexnet"), options([2], [1e9])).partition
    write_graph(partition.with_stages({node.id: 0 for node in partition.nodes}), tmp_path / "p.txt")
    write_graph(profile("resnet50").with_stages(dict.fromkeys(profile("resnet50").index, 0)), tmp_path / "r.txt")
    assert main(["pipedream", "evaluate", str(DATA / "alexnet.graph.txt"), str(tmp_path / "r.txt"), "-n", "2"]) == 2
    assert main(["pipedream", "evaluate", str(DATA / "alexnet.graph.txt"), str(tmp_path / "p.txt"), "-n", "2"]) == 0


@pytest.mark.parametrize(("script", "words", "said"), [
    ("optimizer_graph_hierarchical.py", "-f G -n 4 --activation_compression_ratio 1 -o OUT", "in pipeline: 0.205520896"),
    ("convert_graph_to_model.py", "-f OUT/gpus=4.txt -n V -a v -o OUT --stage_to_num_ranks 0:3,1:1", "criterion: out1 -> loss"),
    ("compress_graph_branches.py", "G OUT/c.txt", "41 nodes"),
    ("driver.py", "--config_file D --quiet", "docker run"),
])  # fmt: skip
def test_the_original_s_scripts_keep_their_options(tmp_path, script, words, said):
    partition = optimize(profile("vgg16"), options([4], [1e9])).partition
    write_graph(partition, tmp_path / "gpus=4.txt")
    names = {"G": str(DATA / "vgg16.graph.txt"), "OUT": str(tmp_path), "D": str(DRIVERS / "vgg16_4pipedream.yml")}
    arguments = [names.get(word) or word.replace("OUT/", f"{tmp_path}/") for word in words.split()]
    command = [sys.executable, str(ROOT / "workloads" / "pipedream" / script), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and said in done.stdout, done.stderr
