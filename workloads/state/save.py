"""Writes a checkpoint file of a PyTorch job atomically."""

import os
from pathlib import Path
from typing import Any

import torch

from iotwin.common.errors import IotwinError
from iotwin.common.files import open_rewritten, rename
from iotwin.common.removal import remove_own

State = dict[str, Any]


def save(state: State, path: Path) -> None:
    """Write `state` to `path`; a crash at any instant leaves the old file or the new one. Raises IotwinError on failure."""
    try:
        _save(state, path)
    except (OSError, RuntimeError) as error:  # torch raises RuntimeError if the disk is full
        reason = str(error).splitlines()[0]
        raise IotwinError(f"{path}: the checkpoint cannot be written ({reason}); free space or choose another --output") from None


def _save(state: State, path: Path) -> None:
    partial = path.with_name(f"{path.name}.partial")
    try:
        with open_rewritten(partial) as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        rename(partial, path)
    except BaseException:
        remove_own(partial)
        raise
