"""Copy the output of a container to the logs of the container's trace, as long as the Docker Engine delivers output."""

import os
import threading
from collections.abc import Iterable
from pathlib import Path

from iotwin.common.files import open_append

Parts = tuple[bytes | None, bytes | None]  # output to (stdout, stderr)

_NAMES = ("stdout", "stderr")
_END_S = 60.0  # how long a working engine may take to deliver an ended container's last output on a busy machine


class ContainerOutput:
    """Copies a container's streams to the files `stdout` and `stderr` in `logs`, each stream in a separate thread."""

    def __init__(self, streams: Iterable[Iterable[Parts]], logs: Path) -> None:
        self._missing_bytes = [0, 0]
        self._loss: Exception | None = None
        self._copying: list[threading.Thread] = []
        for stream in streams:
            files = [open_append(logs / name, 0o644) for name in _NAMES]
            self._copying.append(threading.Thread(target=self._copy, args=(stream, files), daemon=True))
            self._copying[-1].start()

    def lose(self, cause: Exception) -> None:
        """Record that the engine stopped delivering output before the container ended, because of `cause`."""
        self._loss = self._loss or cause

    def _copy(self, stream: Iterable[Parts], files: list[int]) -> None:
        try:
            for parts in stream:
                for index, part in enumerate(parts):
                    self._append(index, files[index], memoryview(part or b""))
        except Exception as error:  # the connection broke; the container may still run
            self.lose(error)
        for file in files:
            os.close(file)

    def _append(self, index: int, file: int, content: memoryview) -> None:
        while content:
            try:
                content = content[os.write(file, content) :]
            except OSError:
                self._missing_bytes[index] += len(content)
                return

    def finish(self) -> list[str]:
        """Wait for the last output of the ended container. Return one note for each reason why the logs lack output."""
        for copying in self._copying:
            copying.join(_END_S)
        notes = []
        if self._loss is not None:
            cause = (str(self._loss).splitlines() or [type(self._loss).__name__])[0]
            notes.append(f"some of the container's output may be missing in logs: the Docker Engine broke off: {cause}")
        elif any(copying.is_alive() for copying in self._copying):
            notes.append(
                f"some of the container's output may be missing in logs: it did not end within {_END_S:.0f} s of the container"
            )
        missing = zip(self._missing_bytes, _NAMES, strict=True)
        return notes + [f"logs/{name} lacks {size} bytes that the disk had no room for" for size, name in missing if size]
