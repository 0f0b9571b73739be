"""Checkpoints of PyTorch jobs: written whole or not at all."""

import os
from pathlib import Path
from typing import Any

import torch

from common.errors import IotwinError
from common.files import made_whole

State = dict[str, Any]


def save(state: State, path: Path) -> None:
    """Write `state` at `path` so that a crash at any instant leaves the old file or the new one; IotwinError when it cannot."""
    try:
        with made_whole(path) as temporary, temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError of its zip writer
        reason = str(error).splitlines()[0]
        raise IotwinError(f"{path}: the checkpoint cannot be written ({reason}); free space or choose another --output") from None
