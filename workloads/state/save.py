"""Checkpoints of PyTorch jobs: written whole or not at all."""

import os
from pathlib import Path
from typing import Any

import torch

from common.errors import IotwinError

State = dict[str, Any]


def save(state: State, path: Path) -> None:
    """Write `state` at `path` so that a crash at any instant leaves the old file or the new one; IotwinError when it cannot."""
    temporary = path.with_name(path.name + ".partial")
    try:
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError of its zip writer
        reason = str(error).splitlines()[0]
        raise IotwinError(f"{path}: the checkpoint cannot be written ({reason}); free space or choose another --output") from None
    finally:
        temporary.unlink(missing_ok=True)
