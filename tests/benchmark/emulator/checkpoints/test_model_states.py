"""What checkpoints weigh: against published sizes, and whole whatever the parallelism."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.benchmark.emulator.checkpoints.model_states import states_read, states_written
from iotwin.common.errors import UsageError
from iotwin.workload_yaml import Checkpoint, Config, Model, Parallelism, Transformer

# Shapes of MLPerf Storage's checkpoint workloads, and their elements and GiB of checkpoint as computed in DLIO's documentation.
LLAMA = {
    "8b": (Transformer(128256, 4096, 14336, 32, 8), 32, 8.030e9, 104.7),
    "70b": (Transformer(128256, 8192, 28672, 128, 8), 80, 69.88e9, 911),
    "405b": (Transformer(128256, 16384, 53248, 128, 8), 126, 405.9e9, 5292),
    "1t": (Transformer(128256, 25872, 98304, 192, 32), 128, 1183e9, 15425),
}


def workload(shape: Transformer, layers: int, **parallelism: int) -> Config:
    return Config(model=Model(type="transformer", num_layers=layers, transformer=shape, parallelism=Parallelism(**parallelism)))  # type: ignore[arg-type]


def transformer_elements(config: Config) -> int:
    """The elements of the model by the formulas of the papers: embedding, layers with grouped queries, output, norms."""
    shape = config.model.transformer
    hidden, key_value = shape.hidden_size, shape.hidden_size // shape.num_attention_heads * shape.num_kv_heads
    attention = 2 * hidden * hidden + 2 * hidden * key_value
    layer = attention + 3 * hidden * shape.ffn_hidden_size + 2 * hidden
    return 2 * shape.vocab_size * hidden + config.model.num_layers * layer + hidden


def total_bytes(config: Config, ranks: int) -> int:
    return sum(state.size_bytes for rank in range(ranks) for state in states_written(config, rank, ranks))


@pytest.mark.parametrize("name", LLAMA)
def test_checkpoints_are_as_large_as_published(name: str) -> None:
    shape, layers, elements, gibibytes = LLAMA[name]
    config = workload(shape, layers)
    assert transformer_elements(config) == pytest.approx(elements, rel=2e-3)
    assert total_bytes(config, 1) / 2**30 == pytest.approx(gibibytes, rel=2e-3)
    assert total_bytes(config, 1) == 14 * transformer_elements(config)


@given(
    tensor=st.integers(1, 4),
    pipeline=st.integers(1, 4),
    replicas=st.integers(1, 4),
    stage=st.integers(0, 3),
    layers=st.integers(4, 9),
)
def test_the_ranks_files_make_the_whole_model_once(tensor: int, pipeline: int, replicas: int, stage: int, layers: int) -> None:
    if stage == 3:
        pipeline = 1
    config = workload(Transformer(1000, 64, 256, 8, 4), layers, tensor=tensor, pipeline=pipeline, zero_stage=stage)
    ranks = tensor * pipeline * replicas
    written = [state for rank in range(ranks) for state in states_written(config, rank, ranks)]
    names = [state.name for state in written]
    assert len(set(names)) == len(names)
    whole = 14 * transformer_elements(config)
    assert whole <= sum(state.size_bytes for state in written) <= whole + 14 * len(written) * (replicas + 1)
    # What a rank reads was written by some rank, and all of it together is all of it.
    read = {state for rank in range(ranks) for state in states_read(config, rank, ranks)}
    assert read == set(written)


@pytest.mark.parametrize(("stage", "writers"), [(0, {0, 1}), (1, set(range(8))), (2, set(range(8))), (3, set(range(8)))])
def test_zero_stages_decide_who_writes(stage: int, writers: set[int]) -> None:
    config = workload(Transformer(1000, 64, 256, 8, 4), 4, tensor=2, zero_stage=stage)
    files = {rank: states_written(config, rank, 8) for rank in range(8)}
    assert {rank for rank, states in files.items() if states} == writers
    models = [rank for rank, states in files.items() if any("model_states" in state.name for state in states)]
    assert models == (list(range(8)) if stage == 3 else [0, 1])


def test_a_subset_of_ranks_writes_its_share_of_a_larger_job() -> None:
    shape, layers, *_ = LLAMA["8b"]
    config = workload(shape, layers, data=64, zero_stage=3)
    config.checkpoint = Checkpoint(mode="subset")
    assert total_bytes(config, 8) == pytest.approx(14 * transformer_elements(config) / 8, rel=1e-6)


def test_more_ranks_than_a_subset_has_write_a_whole_replica_each_as_dlio_does() -> None:
    """MLPerf Storage's llama3-8b by two processes: mlpstorage sets `data` to 1."""
    config = workload(Transformer(1000, 64, 256, 8, 4), 4, data=1, zero_stage=3)
    config.checkpoint = Checkpoint(mode="subset")
    first, second = (states_written(config, rank, 2) for rank in range(2))
    assert [state.name for state in second] == [
        "zero_pp_rank_1_mp_rank_0_model_states.pt",
        "zero_pp_rank_1_mp_rank_0_optim_states.pt",
    ]
    assert [state.size_bytes for state in second] == [state.size_bytes for state in first]
    assert sum(state.size_bytes for state in first) == 14 * transformer_elements(config)


def test_a_model_that_does_not_fit_the_ranks_is_a_usage_error() -> None:
    config = workload(Transformer(1000, 64, 256, 8, 4), 4, tensor=3)
    with pytest.raises(UsageError, match=r"tensor \* pipeline is 3, which does not divide 4 ranks"):
        states_written(config, 0, 4)


def test_without_a_shape_the_size_given_counts() -> None:
    config = Config(model=Model(model_size_bytes=499_153_191, optimization_groups=[1000, 20]))
    assert [(state.name, state.size_bytes) for state in states_written(config, 0, 4)] == [
        ("model_states-0.pt", 499_153_191),
        ("zero_pp_rank_0_mp_rank_0_optim_states.pt", 4 * 1020 * 4),
    ]
    assert states_written(config, 1, 4) == []
    assert states_read(config, 1, 4) == states_written(config, 0, 4)
    config.checkpoint.type = "all_ranks"
    assert states_written(config, 3, 4)[0].name == "model_states-3.pt"
    assert math.isclose(total_bytes(config, 4), 4 * (499_153_191 + 16_320))
