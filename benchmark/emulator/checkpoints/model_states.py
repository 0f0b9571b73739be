"""Compute the sizes of each rank's checkpoint files from the shape of a transformer, or from sizes in the workload.

Elements of a transformer with L layers, hidden size H, feed-forward size F, vocabulary V, and k key and value heads of h:

    embedding V H, output V H, last norm H; a layer: two norms 2 H, query, key and value H (H + 2 k H / h), attention output H H,
    gated feed-forward 3 H F

Sources: Touvron et al., LLaMA, 2023. Grouped queries: Ainslie et al., GQA, 2023. Three feed-forward matrices: Shazeer, GLU
Variants Improve Transformer, 2020.

The optimizer holds three numbers per element: master weight, momentum and variance (Rajbhandari et al., ZeRO, 2020, section 3.1).
All elements are divided by tensor parallelism, and the layers also by pipeline parallelism. The first stage has the embedding.
The last stage has the output and the last norm.

Which ranks write, where d is a rank's data-parallel rank (its model-parallel rank is rank mod (tensor * pipeline)):

| ZeRO stage | model states | optimizer states |
|---|---|---|
| 0 | d = 0 | d = 0 |
| 1, 2 | d = 0 | every rank its share of 1 / data |
| 3 | every rank its share of 1 / data | every rank its share of 1 / data |
"""

from typing import NamedTuple

from iotwin.common.errors import UsageError
from iotwin.common.units import counted
from iotwin.workload_yaml import Config

DATATYPE_BYTES = {"int8": 1, "uint8": 1, "fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8}
_OPTIMIZER_STATES = 3
_TENSORFLOW_INDEX_BYTES = 512  # index of a few variables
_TENSORFLOW_LIST = "checkpoint"  # file with the names of the newest checkpoint's files
_TENSORFLOW_LIST_BYTES = 128


class ModelState(NamedTuple):
    """One checkpoint file whose size is computed from the model."""

    name: str
    size_bytes: int


class _Coordinates(NamedTuple):
    """A rank's coordinates among the ranks of the divided model."""

    model: int  # rank mod (tensor * pipeline)
    stage: int  # index of the pipeline's stage
    replica: int  # the data-parallel rank
    replicas: int


def _parts(config: Config) -> tuple[int, int, int]:
    """Return the numbers of elements of the embedding, of one layer, and of the parts after the last layer."""
    shape = config.model.transformer
    hidden = shape.hidden_size
    key_value = hidden // shape.num_attention_heads * shape.num_kv_heads
    layer = 2 * hidden + hidden * (hidden + 2 * key_value) + hidden * hidden + 3 * hidden * shape.ffn_hidden_size
    if config.model.layer_parameters:
        layer = sum(config.model.layer_parameters)
    return shape.vocab_size * hidden, layer, shape.vocab_size * hidden + hidden


def states_written(config: Config, rank: int, ranks: int) -> list[ModelState]:
    """Return the files that `rank` of `ranks` writes at each checkpoint.

    Raises UsageError if the model cannot be divided among `ranks` ranks.
    """
    states = [file for state in _own_states(config, rank, ranks) for file in _files_of(config, state)]
    if config.framework == "tensorflow" and rank == 0:
        states.append(ModelState(_TENSORFLOW_LIST, _TENSORFLOW_LIST_BYTES))
    return states


def _own_states(config: Config, rank: int, ranks: int) -> list[ModelState]:
    if not _spread(config):
        parallel = config.model.parallelism
        writes = rank < parallel.tensor * parallel.pipeline or parallel.zero_stage or config.checkpoint.type == "all_ranks"
        return _flat(config, rank) if writes else []
    coordinates = _coordinates(config, rank, ranks)
    model, optimizer = _model_file(config, coordinates), _optimizer_file(config, coordinates)
    stage = config.model.parallelism.zero_stage
    return [state for state, least in ((model, 3), (optimizer, 1)) if coordinates.replica == 0 or stage >= least]


def states_read(config: Config, rank: int, ranks: int) -> list[ModelState]:
    """Return the files that `rank` reads to recover, including files that other ranks wrote."""
    return [file for state in _needed_states(config, rank, ranks) for file in _files_of(config, state)]


def _needed_states(config: Config, rank: int, ranks: int) -> list[ModelState]:
    if not _spread(config):
        parallel = config.model.parallelism
        return _flat(config, rank if _own_states(config, rank, ranks) else rank % (parallel.tensor * parallel.pipeline))
    coordinates = _coordinates(config, rank, ranks)
    stage = config.model.parallelism.zero_stage
    first = coordinates._replace(replica=0)
    return [
        _model_file(config, coordinates if stage >= 3 else first),
        _optimizer_file(config, coordinates if stage >= 1 else first),
    ]


def _spread(config: Config) -> bool:
    return config.model.type == "transformer" and config.model.num_layers > 0


def _flat(config: Config, rank: int) -> list[ModelState]:
    """Return a file of the configured model size, and files of the layers' and the optimizer's tensors if configured."""
    model, parallel = config.model, config.model.parallelism
    replica, part = divmod(rank, parallel.tensor * parallel.pipeline)
    shard = f"zero_pp_rank_{replica}_mp_rank_{part}"
    states = [ModelState(f"model_states-{rank}.pt", int(model.model_size_bytes))]
    layers = max(0, model.num_layers) * sum(model.layer_parameters) * DATATYPE_BYTES[model.model_datatype]
    if layers and parallel.zero_stage in (1, 2) and replica == 0:
        states.append(ModelState(f"model_{part}_model_states.pt", layers))
    elif layers and parallel.zero_stage in (0, 3):
        states.append(ModelState(f"{shard}_model_states.pt", layers))
    if model.optimization_groups:
        # Each group is written as two tensors and a combined one of both, as DLIO has it.
        elements = 4 * sum(model.optimization_groups)
        states.append(ModelState(f"{shard}_optim_states.pt", elements * DATATYPE_BYTES[model.optimizer_datatype]))
    return states


def _files_of(config: Config, state: ModelState) -> list[ModelState]:
    """Return the files that the framework writes for one state. TensorFlow's Checkpoint.save writes several."""
    if config.framework != "tensorflow":
        return [state]
    name = f"{state.name.removesuffix('.pt')}.pb-1"
    return [ModelState(f"{name}.data-00000-of-00001", state.size_bytes), ModelState(f"{name}.index", _TENSORFLOW_INDEX_BYTES)]


def _coordinates(config: Config, rank: int, ranks: int) -> _Coordinates:
    parallel = config.model.parallelism
    model_ranks = parallel.tensor * parallel.pipeline
    if parallel.pipeline > config.model.num_layers:
        raise UsageError(
            f"model.parallelism.pipeline: {parallel.pipeline} stages are more than {counted(config.model.num_layers, 'layer')}"
        )
    subset = config.checkpoint.mode == "subset"
    if not subset and ranks % model_ranks:
        raise UsageError(
            f"model.parallelism: tensor * pipeline is {model_ranks}, which does not divide {counted(ranks, 'rank')}; "
            "change either, or set checkpoint.mode to subset"
        )
    replicas = parallel.data if subset and parallel.data > 0 else max(1, ranks // model_ranks)
    model, replica = rank % model_ranks, rank // model_ranks
    return _Coordinates(model, model // parallel.tensor, replica, replicas)


def _stage_elements(config: Config, coordinates: _Coordinates) -> int:
    """Return the number of elements of the rank's share of its stage. Stages differ by at most one layer."""
    parallel = config.model.parallelism
    embedding, layer, last = _parts(config)
    layers, more = divmod(config.model.num_layers, parallel.pipeline)
    elements = (layers + (coordinates.stage < more)) * layer
    elements += embedding * (coordinates.stage == 0) + last * (coordinates.stage == parallel.pipeline - 1)
    return -(-elements // parallel.tensor)


def _model_file(config: Config, coordinates: _Coordinates) -> ModelState:
    size_bytes = _stage_elements(config, coordinates) * DATATYPE_BYTES[config.model.model_datatype]
    if config.model.parallelism.zero_stage == 3:
        return ModelState(
            f"zero_pp_rank_{coordinates.replica}_mp_rank_{coordinates.model}_model_states.pt",
            -(-size_bytes // coordinates.replicas),
        )
    return ModelState(f"model_{coordinates.model}_model_states.pt", size_bytes)


def _optimizer_file(config: Config, coordinates: _Coordinates) -> ModelState:
    size_bytes = _OPTIMIZER_STATES * _stage_elements(config, coordinates) * DATATYPE_BYTES[config.model.optimizer_datatype]
    shares = coordinates.replicas if config.model.parallelism.zero_stage else 1
    return ModelState(f"zero_pp_rank_{coordinates.replica}_mp_rank_{coordinates.model}_optim_states.pt", -(-size_bytes // shares))
