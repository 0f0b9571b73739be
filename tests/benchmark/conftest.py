"""A small data set and a small workload over it."""

from pathlib import Path

import numpy as np
import pytest

from iotwin import workload_yaml as workload
from iotwin.workload_yaml import Config

CASES = 10
SHAPE = (1, 8, 40, 40)  # images of 51 KB: more than one block, so that numpy reads in more than one call


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of CASES unet3d pairs; read only: tests that damage files copy it."""
    folder = tmp_path_factory.mktemp("cases")
    rng = np.random.default_rng(1)
    for index in range(CASES):
        np.save(folder / f"case_{index:05d}_x.npy", rng.random(SHAPE, dtype=np.float32))
        np.save(folder / f"case_{index:05d}_y.npy", rng.integers(0, 3, SHAPE, dtype=np.uint8))
    return folder


@pytest.fixture
def twin(tmp_path: Path, cases: Path) -> Config:
    """Eight training and two evaluation cases, batch 2, two workers, two epochs, evaluation and a checkpoint after each."""
    return workload.Config(
        workflow=workload.Workflow(evaluation=True, checkpoint=True),
        dataset=workload.Dataset(data_folder=str(cases), format="npy"),
        reader=workload.Reader(batch_size=2, read_threads=2, sample_shuffle="seed"),
        train=workload.Train(epochs=2, computation_time=workload.Quantiles(values=[0.001, 0.002, 0.005])),
        checkpoint=workload.Checkpoint(checkpoint_folder=str(tmp_path / "checkpoints")),
        output=workload.Output(folder=str(tmp_path / "output")),
        twin=workload.Twin(
            layout="unet3d",
            checkpoint=workload.TwinCheckpoint(
                files=[
                    workload.CheckpointFile(
                        name="epoch_{epoch}.pt", write_sizes=[(1280, 2), (70_000, 1)], fsync=True, rename=True
                    )
                ]
            ),
        ),
    )


@pytest.fixture
def twin_path(tmp_path: Path, twin: Config) -> Path:
    """The workload as a YAML file."""
    path = tmp_path / "twin.yaml"
    workload.dump(twin, path)
    return path
