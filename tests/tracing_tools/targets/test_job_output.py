"""What a container prints goes on to our own streams, and who reads those cannot hold the recorder up."""

import os

from tracing_tools.targets.job_output import Tail, _writable


def test_a_reader_that_does_not_read_holds_nobody_up(tmp_path):
    content = bytes(range(256)) * 1024
    log = tmp_path / "stdout"
    log.write_bytes(content)
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb") as reader, os.fdopen(theirs, "wb") as stream:
        tail = Tail(log, stream, _writable(stream))
        assert not tail.forward()  # a pipe holds less than that
        found = b""
        while len(found) < len(content):
            found += os.read(reader.fileno(), 1 << 20)
            tail.forward()
        assert found == content and tail.forward()
