"""What a container prints goes on to our own streams, and who reads those cannot hold the recorder up."""

import io
import os

import pytest

from iotwin.common import mllog
from iotwin.tracing_tools.targets import output_keeper
from iotwin.tracing_tools.targets.job_output import Tail, _writable


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


def _printed() -> bytes:
    """Two lines of a job's own log, and two of the emulator's between them that are for tracers."""
    own, tracers = io.StringIO(), io.StringIO()
    mllog.MlLog(own).point("seed", 1)
    mllog.MlLog(tracers, mllog.FOR_TRACERS, rank=1).start("epoch", epoch_num=1)
    return b"epoch 1\n" + tracers.getvalue().encode() * 2 + own.getvalue().encode() + b"half a line"


@pytest.mark.parametrize("on_terminal", [True, False])
def test_lines_for_tracers_are_logged_and_shown_on_no_terminal(tmp_path, on_terminal):
    printed = _printed()
    ours, shown = os.openpty() if on_terminal else os.pipe()
    pipe, end = os.pipe()
    log = os.open(tmp_path / "stdout", os.O_WRONLY | os.O_CREAT)
    try:
        stream = output_keeper._Stream(pipe, log, shown)
        stream.show()
        os.write(end, printed)
        assert stream.take() == len(printed)
        stream.show_some()
        seen = os.read(ours, 1 << 16).replace(b"\r\n", b"\n")
    finally:
        for descriptor in (ours, shown, pipe, end, log):
            os.close(descriptor)
    assert (tmp_path / "stdout").read_bytes() == printed
    assert seen.count(b":::MLLOG") == (1 if on_terminal else 3)
    assert seen.startswith(b"epoch 1\n") and seen.endswith(b"half a line") and b'"seed"' in seen


def test_a_line_for_tracers_within_another_line_leaves_it_whole():
    """A job's buffer is flushed when it is full, whatever line that cuts."""
    stream = io.StringIO()
    mllog.MlLog(stream, mllog.FOR_TRACERS).start("step", step_num=1)
    line = stream.getvalue().encode()
    assert bytes(output_keeper.for_people(memoryview(b"lo" + line + b"ss 0.5\n" + 2 * line + b"end"))) == b"loss 0.5\nend"
