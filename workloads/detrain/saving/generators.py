"""Saves and restores the global random generators of Python, numpy, torch and TensorFlow, and that of --fix-entropy."""

from typing import Any

from iotwin.workloads.detrain.detectors.entropy import EntropySources
from iotwin.workloads.detrain.saving import tensorflow_states
from iotwin.workloads.state.torch_state import TorchGenerators


def generator_states() -> dict[str, Any]:
    """Return the states of all global generators."""
    return {
        **TorchGenerators().state_dict(),
        "tensorflow": tensorflow_states.generator_state(),
        "entropy_draws": EntropySources.draws,
    }


def set_generator_states(states: dict[str, Any]) -> None:
    """Set the generators to states that `generator_states` returned."""
    TorchGenerators().load_state_dict(states)
    tensorflow_states.set_generator_state(states["tensorflow"])
    EntropySources.draws = states["entropy_draws"]
