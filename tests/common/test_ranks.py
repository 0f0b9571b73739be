"""Which of several processes this one is, as its launcher's environment says."""

import os

import pytest

from iotwin.common.errors import UsageError
from iotwin.common.ranks import launched_by_torchrun, node_task

HERE = os.uname().nodename


def test_a_rank_is_alone_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert launched_by_torchrun() == (0, 1)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert launched_by_torchrun() == (2, 3)


@pytest.mark.parametrize(("rank", "size"), [("0", "0"), ("3", "3"), ("7", "2")])
def test_a_rank_that_there_cannot_be_is_refused(monkeypatch, rank, size):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(UsageError, match=f"RANK {rank} and WORLD_SIZE {size} name no rank"):
        launched_by_torchrun()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (
            {
                "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "7", "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "2",
                "SLURMD_NODENAME": "c2", "SLURM_JOB_ID": "42", "SLURM_STEP_ID": "1",
            },
            (5, "c2", "42.1", 2),
        ),
        (
            {"SLURM_PROCID": "6", "SLURM_STEP_NUM_TASKS": "7", "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3"},
            (6, HERE, f"parent {os.getppid()}", 1),
        ),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, (1, HERE, f"parent {os.getppid()}", None)),
        (
            {
                "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
                "PMIX_NAMESPACE": "9", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "42",
            },
            (3, HERE, "9", 2),
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1", "PMI_JOBID": "7"}, (1, HERE, "7", 1)),
        (  # MPICH's descriptor is the same in every launch
            {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "HYDI_CONTROL_FD": "7"},
            (1, HERE, f"parent {os.getppid()}", 2),
        ),
        (  # and so are torchrun's port and run, unless somebody chooses them; the folder is not
            {
                "RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "29500",
                "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_x/none_y/attempt_0/1/error.json",
            },
            (1, HERE, "/tmp/torchelastic_x/none_y", 2),
        ),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, (1, HERE, f"parent {os.getppid()}", None)),
        ({"RANK": "9" * 23, "WORLD_SIZE": "2"}, (0, HERE, f"parent {os.getppid()}", None)),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_JOB_ID": "42"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_a_task_knows_its_node_and_its_launch(monkeypatch, variables, expected):
    launchers = ("SLURM", "OMPI", "PMI", "MPI", "RANK", "WORLD", "LOCAL_", "MASTER", "TORCHEL")
    for name in [name for name in os.environ if name.startswith(launchers)]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert node_task() == expected
