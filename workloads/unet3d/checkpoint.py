"""Loads the checkpoints that MLPerf's image-segmentation job writes at the ends of epochs."""

from pathlib import Path

import torch

from iotwin.common.errors import IotwinError
from iotwin.workloads.state.save import State

LAST, BEST = "checkpoint_last.pt", "checkpoint_best.pt"


def load(path: Path, device: torch.device, network: dict[str, int]) -> State:
    """Return the state saved at `path`, with its tensors on `device`.

    Only tensors and plain values are read, never pickled objects. Raises IotwinError if the file is not a checkpoint, or if
    base_channels or depth differ from the values in `network`.
    """
    try:
        state: State = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise IotwinError(f"{path}: no such checkpoint; give --resume a file that this job wrote") from None
    except Exception:  # torch raises errors of many types for a damaged file
        raise IotwinError(f"{path} is not a readable checkpoint: damaged, or not written by this job") from None
    if not isinstance(state, dict) or not {"epoch", "best_score", "network", "model", "optimizer"} <= state.keys():
        raise IotwinError(f"{path} is not a checkpoint of this job: it lacks the epoch, the model or the optimizer")
    if state["network"] != network:
        found = " and ".join(f"--{key.replace('_', '-')} {value}" for key, value in state["network"].items())
        raise IotwinError(f"{path} holds another network; resume it with {found}")
    return state
