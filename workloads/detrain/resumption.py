"""A checkpoint at which a run resumes, or whose state a run from the start must reach."""

from typing import Any, NamedTuple

from iotwin.common.errors import IotwinError
from iotwin.workloads.detrain.saving.script_store import ResumePoint
from iotwin.workloads.detrain.steps_log import inputs_sha256
from iotwin.workloads.state.gathering import encode

RESTORE, SKIP_READS, REPLAY_DATA, FULL = "restore", "skip-reads", "replay-data", "full"


class Resumption(NamedTuple):
    """A checkpoint's name, point (epoch and batch) and state, and how the run skips or repeats the batches before this point."""

    name: str
    point: ResumePoint
    state: dict[str, Any]
    replay: str

    @property
    def jumps(self) -> bool:
        """True if the run skips earlier epochs and batches without reading them."""
        return self.replay in (RESTORE, SKIP_READS)

    def is_in(self, epoch: int) -> bool:
        """Return whether the checkpoint's point is in `epoch` (-1: the script has no loop over epochs)."""
        return self.point.epoch == max(epoch, 0)

    def is_after(self, epoch: int, batch: int) -> bool:
        """Return whether the point comes after a batch."""
        return not self.is_in(epoch) or batch < self.point.batch


def check_inputs(saved: Resumption, item: Any) -> None:
    """Check that the loop fetched the same batch as before the checkpoint.

    `item`: the fetched batch. If it is None, or if `saved` has no digest of a batch, nothing is checked.
    Raises IotwinError if the digests differ.
    """
    wanted = saved.state["inputs_sha256"]
    if item is not None and wanted is not None and wanted != inputs_sha256(item):
        other = REPLAY_DATA if saved.jumps else FULL
        raise IotwinError(
            f"the loader gives another batch {saved.point.batch} of epoch {saved.point.epoch} than before: its samples do not "
            f"depend on the generators' states alone; resume with --replay {other}, or run with --determinism seeded from the "
            "start"
        )


def certify(saved: Resumption, state: dict[str, Any]) -> None:
    """Raise IotwinError that names the first difference unless `state` equals the checkpoint's state bit for bit."""
    for key in ("objects", "gradients", "tensors", "plain", "made"):
        for path in sorted(state[key].keys() | saved.state[key].keys()):
            if encode(state[key].get(path)) != encode(saved.state[key].get(path)):
                raise IotwinError(f"{path} is not what it was in {saved.name}; find the cause with: iotwin detrain verify")
