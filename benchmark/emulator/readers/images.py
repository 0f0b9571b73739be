"""Read JPEG and PNG files without decoding them: `reader.preprocess_time` stands for the computation of decoding."""

from iotwin.benchmark.emulator.readers.access import Opener, damaged
from iotwin.benchmark.emulator.readers.sample import Sample, check_member

# First and last bytes of each kind of file: ITU-T T.81 (SOI, EOI) and RFC 2083 (signature, IEND chunk).
_EDGES = {
    "JPEG": (b"\xff\xd8\xff", b"\xff\xd9"),
    "PNG": (b"\x89PNG\r\n\x1a\n", b"\x00\x00\x00\x00IEND\xaeB`\x82"),
}


class Image:
    """Reads a whole image file by one read."""

    def __init__(self, opener: Opener, kind: str) -> None:
        self._open, self._kind = opener, kind
        self._head, self._tail = _EDGES[kind]

    def read(self, path: str, sample: int, samples: int) -> Sample:
        check_member(path, sample, 1)
        with self._open(path) as file:
            content = file.read(0, file.size_bytes)
            if content[: len(self._head)] != self._head or content[-len(self._tail) :] != self._tail:
                raise damaged(path, f"not a whole {self._kind} image")
            return Sample(content, file.size_bytes)
