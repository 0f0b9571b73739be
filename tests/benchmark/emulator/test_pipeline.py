"""The emulated pipeline: who reads, who waits for whom, what is written, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from iotwin.benchmark.emulator.journal import Measured, StepParts
from iotwin.benchmark.emulator.loaders.base import Fetched
from iotwin.benchmark.emulator.pipeline import run_pipeline
from iotwin.benchmark.emulator.pipeline_channels import plan_of
from iotwin.benchmark.emulator.results.pipeline_summary import pipeline_summary
from iotwin.benchmark.emulator.results.step_table import StepTable
from iotwin.common.errors import IotwinError, UsageError
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import ImagenetLayout, Unet3dLayout
from iotwin.loops.emulation import EmulationOptions, run_workload
from iotwin.loops.pipeline_twin import PipelineTraining, expand_plan, pipeline_twin
from iotwin.main import main
from iotwin.workload_yaml import Config, Uniform, dump, load
from iotwin.workload_yaml.schema import Pipeline, PipelineStage
from iotwin.workloads.policies.pipeline import PipelinePlan, Stage, order
from tests.conftest import run_iotwin

TWO_STAGES = "[{ranks: [0], forward_s: 1, backward_s: 1}, {ranks: [1], forward_s: 1, backward_s: 1}]"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipeline") / "data"
    generate(Unet3dLayout(scale=0.05), folder, samples=30, workers=1)
    return folder


def stages(*replicas, forward_s=0.002, parameter_bytes=1000.0):
    found, first = [], 0
    for number, count in enumerate(replicas):
        ranks = tuple(range(first, first + count))
        found.append(Stage(number, ranks, forward_s, 2 * forward_s, parameter_bytes=parameter_bytes * (number + 1)))
        first += count
    return PipelinePlan(tuple(found))


def config_of(plan, data, folder, minibatches=12, epochs=1):
    config = pipeline_twin(plan, data, PipelineTraining(1, minibatches, epochs))
    config.checkpoint.checkpoint_folder = str(folder / "checkpoints")
    config.output.folder = str(folder / "output")
    return config


def run(config):
    return run_pipeline(config, None, plan_of(config.twin.pipeline).ranks, None)


def summary_of(config, measured):
    return pipeline_summary(config, measured, StepTable([one.steps for one in measured]))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("replicas", [(1, 1, 1), (2, 1), (1, 2), (1,)], ids=str)
def test_every_rank_does_its_passes_in_order_and_after_its_neighbours(data, tmp_path, replicas, schedule):
    plan = replace(stages(*replicas), schedule=schedule)
    measured = run(config_of(plan, data, tmp_path))
    begun, ended = {}, {}
    for stage in plan.stages:
        for replica, rank in enumerate(stage.ranks):
            done = [("B" if backward else "F", minibatch) for backward, minibatch, _, _ in measured[rank].passes]
            assert done == order(plan, stage.stage, replica, 12)
            for (kind, minibatch), (_, _, begin_ns, end_ns) in zip(done, measured[rank].passes, strict=True):
                begun[stage.stage, kind, minibatch], ended[stage.stage, kind, minibatch] = begin_ns, end_ns
    for (stage, kind, minibatch), begin_ns in begun.items():
        before = (stage - 1 if kind == "F" else stage + 1, kind, minibatch)
        assert before not in ended or ended[before] <= begin_ns


def test_only_stage_0_reads_and_each_stage_writes_its_own_checkpoint(data, tmp_path):
    config = config_of(stages(2, 1, parameter_bytes=7e6), data, tmp_path, epochs=2)
    measured = run(config)
    found = summary_of(config, measured)["stages"]
    assert [one.steps.rows()[:, 10].sum() for one in measured] == [12, 12, 0]  # samples, of two epochs
    read = found[0]["read_bytes"]
    sizes = [path.stat().st_size for path in sorted(data.glob("*_[xy].npy"))]
    assert 0 < read <= 2 * sum(sizes) and found[1]["read_bytes"] == 0
    assert [stage["checkpoint_bytes"] // 1_000_000 for stage in found] == [28, 56]
    folder = Path(config.checkpoint.checkpoint_folder)
    files = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*.raw")}
    assert files == {f"step-{step}/rank-{s}.raw": 14_000_000 * (s + 1) for s in (0, 1) for step in (12, 24)}
    assert {path.name for path in (folder / "step-12").iterdir()} > {"manifest.json", "rank-0.json"}
    assert not list(folder.glob("*.tmp"))
    assert [len(one.spans) for one in measured] == [4, 2, 4]  # epochs, and checkpoints of each stage's first rank


def test_a_second_run_writes_its_checkpoints_over_those_of_the_first(data, tmp_path):
    config = config_of(plan := stages(1, 1, 1, 1), data, tmp_path)
    config.twin.checkpoint.files, config.twin.checkpoint.commit = [], "file"
    for own, stage in zip(config.twin.pipeline.stages, plan.stages, strict=True):
        own.checkpoint_bytes = int(2 * stage.parameter_bytes)
    for _ in range(2):
        assert all(stage["checkpoint_bytes"] for stage in summary_of(config, run(config))["stages"])
    notes = [path.read_bytes() for path in Path(config.checkpoint.checkpoint_folder).glob("iotwin-emulated*")]
    assert len(notes) == 4 and all(note.count(b"checkpoint.") == 1 and b"\0" not in note for note in notes)


def test_a_slow_read_of_stage_0_holds_up_the_last_stage(data, tmp_path):
    config = config_of(stages(1, 1, 1, 1), data, tmp_path)
    config.reader.read_threads, config.reader.preprocess_time = 0, 0.05
    measured = run(config)
    forward = [np.array([begin for backward, _, begin, _ in one.passes if not backward]) for one in measured]
    # The last stage has a minibatch once stage 0 has read it, and all before it.
    assert np.diff(forward[3]).min() >= 0 and forward[3][-1] - forward[0][0] >= 11 * 0.05e9 * 0.9
    found = summary_of(config, measured)
    assert found["seconds"] >= 11 * 0.05 * 0.9
    assert found["stages"][0]["data_wait_s"] >= 12 * 0.05


def test_a_link_delays_what_crosses_it(data, tmp_path):
    plan = stages(1, 1)
    plan = PipelinePlan((plan.stages[0], replace(plan.stages[1], receive_s=0.06)))
    found = summary_of(config := config_of(plan, data, tmp_path), run(config))
    assert found["seconds_per_minibatch"] >= 0.05  # at least what the link takes for a minibatch


def test_an_evaluation_reads_every_sample_once_and_in_minibatches_of_its_own(tmp_path):
    generate(ImagenetLayout(classes=2, scale=0.1), tmp_path / "images", samples=24)
    evaluated = len(list((tmp_path / "images" / "val").rglob("*.JPEG")))
    images = sorted((tmp_path / "images").rglob("*.JPEG"))
    for number, path in enumerate(images):
        path.write_bytes(bytes(1000 + number**2))
    plan = stages(2, 1)
    training = PipelineTraining(4, epochs=2, eval_batch_size=1, load_s=0.02)
    config = pipeline_twin(plan, tmp_path / "images", training)
    assert config.reader.preprocess_time == config.twin.evaluation.preprocess_time == 0.005  # of each sample
    config.checkpoint.checkpoint_folder, config.output.folder = str(tmp_path / "ck"), str(tmp_path / "out")
    found = [one.steps.rows() for one in run(config)]
    samples = [{phase: int(rows[rows[:, 0] == phase][:, 10].sum()) for phase in (0, 1)} for rows in found]
    assert [sum(own[phase] for own in samples) for phase in (0, 1)] == [2 * 24, 2 * evaluated]
    assert samples[2] == {0: 0, 1: 0}  # stage 1 reads nothing
    # All images differ in size, so that these are the bytes of each image once in every epoch.
    assert sum(int(rows[:, 11].sum()) for rows in found) == 2 * sum(path.stat().st_size for path in images)
    assert [(rows[:, 0] == 1).sum() for rows in found] == [2 * -(-evaluated // 2), 2 * (evaluated // 2), 2 * evaluated]
    assert config.twin.pipeline.stages[0].evaluation_s == pytest.approx(0.002 / 4)


def test_a_checkpoint_s_small_files_are_as_large_as_those_that_a_trained_stage_writes(data):
    """Stages of vgg16 with two convolutions and with one linear layer wrote 1171 and 654 bytes."""
    (stage,) = stages(1).stages
    for kinds, written in (("Conv2d", "ReLU", "Conv2d"), 1171), (("Linear",), 654), ((), 3000):
        plan = PipelinePlan((replace(stage, nodes=tuple(map(str, range(len(kinds)))), kinds=kinds),))
        files = {file.name: file for file in pipeline_twin(plan, data, PipelineTraining(1)).twin.checkpoint.files}
        ((size, count),) = files["step-{step}/rank-0.json"].write_sizes
        assert abs(size - written) <= 2 and count == 1 and files["step-{step}/rank-0.json"].read_back[0] == (0, size)


def test_replicas_wait_for_the_slowest_one_at_each_update_of_the_weights(data, tmp_path):
    config = config_of(stages(2), data, tmp_path, minibatches=11)  # replica 0 has one minibatch more
    config.twin.pipeline.stages[0].backward_s = Uniform(0.0, 0.02)
    passes = [np.array(one.passes) for one in run(config)]
    ends = [own[own[:, 0] == 1][:, 3] for own in passes]
    begins = [own[own[:, 0] == 0][:, 2] for own in passes]
    assert all(begin >= end for end, begin in zip(ends[0], begins[1][1:], strict=False))
    assert all(begin >= end for end, begin in zip(ends[1], begins[0][1:], strict=False))


def test_the_stages_of_a_plan_in_a_file_are_those_of_the_run(data, tmp_path):
    plan = {
        "version": 1, "schedule": "gpipe", "depth": {"0": 1},
        "stages": [
            {"stage": k, "ranks": [k], "forward_s": 0.002, "backward_s": 0.004, "parameter_bytes": 500.0, "input_bytes": 1000.0}
            for k in (0, 1)
        ],
    }  # fmt: skip
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    config = config_of(stages(1, 1), data, tmp_path)
    config.twin.checkpoint.files, config.twin.checkpoint.commit = [], "file"
    config.twin.pipeline = Pipeline(plan="plan.json", minibatches=4, link_bytes_per_s=1e5)
    dump(config, tmp_path / "twin.yaml")
    done = run_iotwin("emulate", tmp_path / "twin.yaml", "--json")
    found = json.loads(done.stdout)["pipeline"]
    assert [stage["checkpoint_bytes"] for stage in found["stages"]] == [1000, 1000]
    assert found["seconds_per_minibatch"] >= 0.009  # 1000 bytes cross the link at 1e5 bytes/s
    loaded = load(tmp_path / "twin.yaml")
    expand_plan(loaded)
    assert plan_of(loaded.twin.pipeline).schedule == "gpipe" and plan_of(loaded.twin.pipeline).stages[1].receive_s == 0.02
    assert plan_of(loaded.twin.pipeline).stages[0].receive_s == 0


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("{minibatches: 3}", "stages: list the stages, or give `plan`"),
        ("{plan: p.json, stages: [{ranks: [0], forward_s: 1, backward_s: 1}]}", "stages: list the stages, or give `plan`"),
        (f"{{stages: {TWO_STAGES}, link_bytes_per_s: 1}}", "link_bytes_per_s: needs the bytes that cross it"),
    ],
)
def test_a_contradictory_section_is_refused_with_its_key(tmp_path, section, key):
    (tmp_path / "twin.yaml").write_text(f"twin: {{pipeline: {section}}}\n")
    with pytest.raises(UsageError, match=f"twin.pipeline.{key}"):
        load(tmp_path / "twin.yaml")


def test_what_a_pipeline_cannot_do_is_refused(data, tmp_path):
    config = config_of(stages(1, 1), data, tmp_path, minibatches=1000)
    with pytest.raises(IotwinError, match="1000 are asked for, the data set has 24"):
        run(config)
    with pytest.raises(UsageError, match="has 2; leave --ranks out"):
        run_pipeline(config, None, 3, None)
    with pytest.raises(UsageError, match="leave out mpirun and --for"):
        run_pipeline(config, None, 2, 1.0)
    with pytest.raises(UsageError, match="each of 0 to 1 is in one stage"):
        plan_of(Pipeline([PipelineStage([0], 1, 1), PipelineStage([0], 1, 1)]))


def test_depths_of_stages_travel_with_the_plan(data, tmp_path):
    plan = replace(stages(1, 1), depth={0: 2, 1: 0})
    config = config_of(plan, data, tmp_path)
    assert plan_of(config.twin.pipeline).depth == plan.depth
    config.twin.pipeline.depth["5"] = 1
    with pytest.raises(UsageError, match="'5' is no stage"):
        plan_of(config.twin.pipeline)


def test_a_plan_becomes_a_workload_that_the_emulator_runs(data, tmp_path):
    plan = {
        "version": 1,
        "batch_size": 2,
        "depth": {"0": 1, "1": 0},
        "stages": [{"stage": s, "ranks": [s], "forward_s": 0.002, "backward_s": 0.004, "parameter_bytes": 500.0} for s in (0, 1)],
    }
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    twin = tmp_path / "twin.yaml"
    assert (
        main(["pipedream", "twin", str(tmp_path / "plan.json"), "--data", str(data), "-o", str(twin), "--minibatches", "6"]) == 0
    )
    assert load(twin).reader.batch_size == 2
    done = run_iotwin(
        "emulate",
        str(twin),
        f"++workload.output.folder={tmp_path}/out",
        f"++workload.checkpoint.checkpoint_folder={tmp_path}/c",
        "--json",
    )
    document = json.loads(done.stdout)
    assert [stage["checkpoint_bytes"] // 1000 for stage in document["pipeline"]["stages"]] == [4, 4]
    assert document["num_accelerators"] == 2
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(["pipedream", "twin", str(tmp_path / "plan.json"), "--data", str(empty), "-o", str(twin)]) == 2


def test_a_workload_that_somebody_edited_is_replaced_only_by_force(data, tmp_path, capsys):
    stage = {"stage": 0, "ranks": [0], "forward_s": 0.002, "backward_s": 0.004, "parameter_bytes": 500.0}
    (tmp_path / "plan.json").write_text(json.dumps({"version": 1, "depth": {"0": 1}, "stages": [stage]}))
    words = ["pipedream", "twin", str(tmp_path / "plan.json"), "--data", str(data), "-o", str(twin := tmp_path / "twin.yaml")]
    assert [main(words), main(words)] == [0, 0]
    written = twin.read_text()
    twin.write_text(edited := written.replace("batch_size: 1", "batch_size: 2"))
    assert edited != written and main(words) == 2
    assert "was edited" in capsys.readouterr().err and twin.read_text() == edited
    assert main([*words, "--force"]) == 0 and twin.read_text() == written


def test_the_summary_of_passes_made_by_hand():
    """Two stages of a rank each, two epochs of two minibatches, times in ms."""
    first = [(False, 0, 0, 10), (False, 1, 10, 20), (True, 0, 40, 50), (True, 1, 60, 70)]
    second = [(False, 0, 10, 20), (True, 0, 20, 40), (False, 1, 40, 45), (True, 1, 45, 60)]
    measured = []
    for rank, passes in enumerate((first, second)):
        times = [
            (back, number, (begin + late) * 10**6, (end + late) * 10**6)
            for late in (0, 100)
            for back, number, begin, end in passes
        ]
        measured.append(Measured(rank, 0.0, passes=times))
        measured[-1].steps.add("train", 1, 1, 1, StepParts(0, 3 * 10**6, 0, 0, 0, 0), Fetched(1, 7, 0, 0))
    config = Config()
    config.train.epochs = 2
    config.twin.pipeline = Pipeline([PipelineStage([rank], 0.01, 0.02) for rank in (0, 1)])
    found = summary_of(config, measured)
    assert found["seconds"] == pytest.approx(0.14) and found["seconds_per_minibatch"] == pytest.approx(0.025)
    assert [stage["busy_share"] for stage in found["stages"]] == pytest.approx([80 / 140, 100 / 140])
    assert [stage["bubble_share"] for stage in found["stages"]] == pytest.approx([60 / 140, 40 / 140])
    assert [(stage["data_wait_s"], stage["read_bytes"]) for stage in found["stages"]] == [(0.003, 7)] * 2


@pytest.mark.parametrize(("schedule", "rounds"), [("1f1b", 1), ("gpipe", 3)])
def test_a_virtual_clock_skips_the_passes_and_keeps_their_order(data, tmp_path, schedule, rounds):
    """A minibatch takes 5 min on each of 2 stages. GPipe empties the pipeline after every 2 minibatches, 1F1B at the end."""
    config = config_of(replace(stages(1, 1, forward_s=100.0), schedule=schedule), data, tmp_path, minibatches=6)
    config.twin.clock = "virtual"
    done = run_workload(config, EmulationOptions(ranks=2, one_of_several=True))
    assert done["pipeline"]["seconds"] == pytest.approx(300 * (6 + rounds), abs=50)  # each round fills one stage more
