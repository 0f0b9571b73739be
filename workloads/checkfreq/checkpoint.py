"""CheckFreq's class CFCheckpoint, which tracks the objects of a job whose states are saved."""

from typing import Any

from iotwin.workloads.state.snapshot import StateSnapshot
from iotwin.workloads.state.torch_state import unflatten
from iotwin.workloads.state.tracked_objects import State, TrackedObjects


class CFCheckpoint(TrackedObjects):
    """The tracked objects of a job and, in `latest_snapshot`, their newest copy."""

    _latest: StateSnapshot | None = None

    @property
    def tracking_map(self) -> dict[str, Any]:
        """Return the tracked objects by name."""
        return self.tracked

    @property
    def latest_snapshot(self) -> State:
        """Return the newest snapshot as one dict: the states of the objects by name, and the job's additional state.

        The next snapshot overwrites the tensors in this dict.
        """
        if self._latest is None:
            return {}
        self._latest.copied.wait()
        state = unflatten(self._latest.values, {tensor.name: tensor for tensor in self._latest.tensors})
        return {**state["objects"], **(state["additional"] or {})}

    def taken(self, snapshot: StateSnapshot) -> None:
        """Set `latest_snapshot` to the states in `snapshot`. CFManager calls this."""
        self._latest = snapshot
