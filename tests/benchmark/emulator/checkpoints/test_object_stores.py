"""Checkpoints at a URL: written as objects in DLIO's layout, and read back."""

from itertools import count
from pathlib import Path

import pytest

from iotwin.benchmark.emulator.checkpoints.object_stores import RemoteCheckpoints
from iotwin.benchmark.emulator.checkpoints.writer import open_checkpoints
from iotwin.benchmark.emulator.ranks import Rank
from iotwin.common.errors import IotwinError, UsageError
from iotwin.workload_yaml import Checkpoint, Config, Model, Storage, Workflow, compose

_numbers = count()


def of_model(url: str) -> Config:
    model = Model(model_size_bytes=20_000_000)
    return Config(model=model, checkpoint=Checkpoint(checkpoint_folder=url, type="all_ranks"), workflow=Workflow(checkpoint=True))


def test_the_newest_whole_checkpoint_is_read_back() -> None:
    import fsspec

    config = of_model(f"memory://bucket{next(_numbers)}/checkpoints/")
    for epoch in (2, 10):
        for rank in range(2):
            written = RemoteCheckpoints(config, Rank(rank, 2)).save(epoch)
            assert [(file.name, file.size_bytes) for file in written] == [
                (f"global_epoch{epoch}_step0/model_states-{rank}.pt", 20_000_000)
            ]
    assert [file.name for file in RemoteCheckpoints(config, Rank(1, 2)).load()] == ["global_epoch10_step0/model_states-1.pt"]
    fsspec.filesystem("memory").pipe_file(f"{config.checkpoint.checkpoint_folder}global_epoch10_step0/model_states-0.pt", b"torn")
    assert [file.name for file in RemoteCheckpoints(config, Rank(0, 2)).load()] == ["global_epoch2_step0/model_states-0.pt"]
    config.checkpoint.recovery_rank_shift = True
    assert [file.name for file in RemoteCheckpoints(config, Rank(0, 2, nodes=2)).load()] == [
        "global_epoch10_step0/model_states-1.pt"
    ]
    with pytest.raises(IotwinError, match=r"^memory://none: holds no whole checkpoint of 2 ranks"):
        RemoteCheckpoints(of_model("memory://none"), Rank(0, 2)).load()


def test_a_bucket_takes_checkpoints(s3_server: str) -> None:
    config = of_model("s3://data/checkpoints")
    config.storage = Storage(storage_options={"access_key_id": "key", "secret_access_key": "secret", "endpoint_url": s3_server})
    checkpoints = open_checkpoints(config)
    checkpoints.save(1)
    assert [file.size_bytes for file in checkpoints.load()] == [20_000_000]
    config.checkpoint.checkpoint_folder = "s3://nowhere/checkpoints"
    with pytest.raises(
        IotwinError, match=r"^s3://nowhere/checkpoints/global_epoch1_step0/model_states-0.pt: the checkpoint cannot"
    ):
        open_checkpoints(config).save(1)


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("file:///nvme/checkpoints/", "/nvme/checkpoints/"),
        ("direct:///nvme/checkpoints", "/nvme/checkpoints"),
        ("s3://bucket/checkpoints", "s3://bucket/checkpoints"),
    ],
)
def test_a_url_is_taken_as_dlio_takes_it(folder: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "of_dlio.yaml").write_text(f"workflow: {{checkpoint: true}}\ncheckpoint: {{checkpoint_folder: '{folder}'}}\n")
    assert compose(tmp_path / "of_dlio.yaml", []).config.checkpoint.checkpoint_folder == expected


def test_what_only_directories_have_is_refused(tmp_path: Path) -> None:
    (tmp_path / "twin.yaml").write_text("checkpoint: {checkpoint_folder: s3://b/c}\ntwin: {checkpoint: {keep: 2}}\n")
    with pytest.raises(
        UsageError, match=r"checkpoint.checkpoint_folder: is a URL, where twin.checkpoint and twin.resume have no"
    ):
        compose(tmp_path / "twin.yaml", [])
