"""Small stores for tests: states whose every byte tells the step they are of."""

import msgspec
import numpy as np

from iotwin.common.checkpoints import MANIFEST, CheckpointManifest, Found, Position, encode, look, read_rank
from iotwin.common.commit import Store
from iotwin.common.retention import Retention
from iotwin.common.tensor_file import Tensor


def manifest(step, world_size=1, **changes):
    position = Position(seed=1, epoch=1, position=step * 4, samples=1000, batch_size=4, world_size=world_size)
    return CheckpointManifest(
        **{"version": 1, "step": step, "epoch": 1, "position": position, "world_size": world_size, **changes}
    )


def tensors(step, rank=0, sizes=(100, 0, 7)):
    """Float tensors of `sizes` elements, all of them step + rank / 100."""
    for number, size in enumerate(sizes):
        data = np.full(size, step + rank / 100, np.float32)
        yield Tensor(f"layer{number}.weight", "float32", (size,), data.view(np.uint8))


def fill(directory, *steps, retention=None, **changes):
    """Commit `steps` in turn; return the folders."""
    with Store(directory, retention or Retention()) as store:
        return [store.commit(manifest(step, **changes), tensors(step), {"step": step}) for step in steps]


def step_of(found: Found, rank=0, sizes=(100, 0, 7)):
    """The step of a checkpoint whose bytes are, all of them, those that `tensors` gives."""
    read, values = read_rank(found, rank)
    step = found.manifest.step
    expected = {tensor.name: tensor.data.tobytes() for tensor in tensors(step, rank, sizes)}
    assert {name: tensor.data.tobytes() for name, tensor in read.items()} == expected
    assert values == {"step": step}
    return step


def names(directory):
    """What a directory holds, in order."""
    return sorted(path.name for path in directory.iterdir())


def rewritten(folder, **changes):
    """Put a manifest with other values in a checkpoint, its own checksum right."""
    (folder / MANIFEST).write_bytes(encode(msgspec.structs.replace(look(folder).manifest, **changes)))
