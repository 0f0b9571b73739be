"""Rules of retention: which checkpoints a store keeps. A commit and `iotwin checkpoints prune` remove the others."""

from dataclasses import dataclass

from iotwin.common.checkpoints import CheckpointManifest, Found, verify_once
from iotwin.common.progress import note


@dataclass(frozen=True)
class Retention:
    """Rules for keeping checkpoints: the `last` N, multiples of `every` steps, the `best` N by metric, ends of epochs.

    A checkpoint is kept if any of the rules keeps it, or if no rule is set.
    """

    last: int = 0
    every: int = 0
    best: int = 0
    epoch_ends: bool = False

    def kept(self, newest_first: list[CheckpointManifest]) -> list[bool]:
        """Return, for each checkpoint, True if the rules keep it. They always keep the newest one."""
        if not (self.last or self.every or self.best or self.epoch_ends):
            return [True] * len(newest_first)
        counted = self.counted(newest_first)
        return [
            index in counted
            or (self.every > 0 and manifest.step % self.every == 0)
            or (self.epoch_ends and manifest.position.position == 0)
            for index, manifest in enumerate(newest_first)
        ]

    def counted(self, newest_first: list[CheckpointManifest]) -> set[int]:
        """Return the indices of the checkpoints that the rules `last` and `best` keep."""
        scored = [index for index, manifest in enumerate(newest_first) if manifest.metric is not None]
        best = sorted(scored, key=lambda index: newest_first[index].metric or 0.0, reverse=True)[: self.best]
        return {*range(min(max(1, self.last), len(newest_first))), *best}


def superseded(newest_first: list[Found], retention: Retention) -> list[Found]:
    """Return the checkpoints that `retention` does not keep. Verifies those that its rules `last` and `best` keep.

    Damaged checkpoints are neither counted nor returned.
    """
    while True:
        usable = [(found, found.manifest) for found in newest_first if found.reason is None and found.manifest is not None]
        manifests = [manifest for _, manifest in usable]
        leaving = [found for (found, _), stays in zip(usable, retention.kept(manifests), strict=True) if not stays]
        counted = retention.counted(manifests) if leaving else set()
        newest_first = [verify_once(found) if index in counted else found for index, (found, _) in enumerate(usable)]
        damaged = [found for found in newest_first if found.reason is not None]
        if not damaged:
            return leaving
        for found in damaged:
            note(f"{found.path} is not counted: {found.reason}")
