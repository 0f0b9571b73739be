"""Checkpoint files by DLIO's names: states, layers and optimizer of a model given tensor by tensor, in two frameworks."""

import pytest

from iotwin.benchmark.emulator.checkpoints.model_states import states_read, states_written
from iotwin.workload_yaml import Config, Model, Parallelism


def model(zero_stage: int = 0, tensor: int = 2, framework: str = "pytorch") -> Config:
    parallel = Parallelism(tensor=tensor, zero_stage=zero_stage)  # type: ignore[arg-type]
    groups = Model(
        model_size_bytes=1024, optimization_groups=[1024, 128], num_layers=2, layer_parameters=[16], parallelism=parallel
    )
    return Config(model=groups, framework=framework)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("zero_stage", "layers"),
    [
        (0, "zero_pp_rank_0_mp_rank_1_model_states.pt"),
        (1, "model_1_model_states.pt"),
        (3, "zero_pp_rank_0_mp_rank_1_model_states.pt"),
    ],
)
def test_each_model_parallel_rank_writes_three_files(zero_stage: int, layers: str) -> None:
    states = states_written(model(zero_stage), 1, 2)
    assert [state.name for state in states] == ["model_states-1.pt", layers, "zero_pp_rank_0_mp_rank_1_optim_states.pt"]
    assert [state.size_bytes for state in states] == [1024, 2 * 16 * 2, 4 * 1152 * 4]
    assert states_read(model(zero_stage), 1, 2) == states


def test_replicas_write_where_states_are_sharded() -> None:
    assert states_written(model(0), 2, 4) == []
    assert states_read(model(0), 3, 4) == states_written(model(0), 1, 4)
    assert [state.name for state in states_written(model(1), 2, 4)] == [
        "model_states-2.pt",
        "zero_pp_rank_1_mp_rank_0_optim_states.pt",
    ]


def test_tensorflow_has_data_and_index_and_one_list() -> None:
    names = [state.name for rank in (0, 1) for state in states_written(model(framework="tensorflow"), rank, 2)]
    assert len(names) == len(set(names)) == 2 * 3 * 2 + 1
    assert names[:2] == ["model_states-0.pb-1.data-00000-of-00001", "model_states-0.pb-1.index"] and "checkpoint" in names
    assert sum(name.endswith(".index") for name in names) == 6
