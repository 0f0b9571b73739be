"""Programs that save checkpoints as others do; what they have returned from they say by looking for a file.

python -m tests.common.saving in_place|renamed|dcp DIRECTORY STEP
"""

import os
import sys
from pathlib import Path

import torch

FLOATS = 500


def state(step):
    return {"weights": torch.full((FLOATS,), float(step)), "step": step}


def in_place(directory, step):
    torch.save(state(step), directory / "checkpoint.pt")


def renamed(directory, step):
    torch.save(state(step), directory / "checkpoint.pt.partial")
    (directory / "checkpoint.pt.partial").rename(directory / "checkpoint.pt")


def dcp(directory, step):
    from torch.distributed import checkpoint

    checkpoint.save(state(step), checkpoint_id=directory / f"step-{step}", no_dist=True)


def load_torch(directory):
    """The step of checkpoint.pt, None when it does not load."""
    try:
        found = torch.load(directory / "checkpoint.pt", weights_only=True)
        weights = found["weights"]
    except Exception:  # torch has no common type for what a damaged file raises
        return None
    assert torch.equal(weights, torch.full((FLOATS,), float(found["step"])))
    return found["step"]


def load_dcp(directory, step):
    """`step` when its folder loads, None otherwise."""
    from torch.distributed import checkpoint

    found = state(0)
    try:
        checkpoint.load(found, checkpoint_id=directory / f"step-{step}", no_dist=True)
    except BaseException:  # CheckpointException is no Exception
        return None
    assert torch.equal(found["weights"], state(step)["weights"]) and found["step"] == step
    return step


if __name__ == "__main__":
    torch.set_num_threads(1)
    number = int(sys.argv[3])
    globals()[sys.argv[1]](Path(sys.argv[2]), number)
    os.access(f"/committed-{number}", os.F_OK)
