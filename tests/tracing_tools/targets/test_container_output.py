"""A trace notes what its logs lack of a container's output: after a full disk, and if the engine breaks off or never ends it."""

import os
import threading

from iotwin.tracing_tools.targets import container_output
from iotwin.tracing_tools.targets.container_output import ContainerOutput


def test_all_streams_are_copied(tmp_path):
    output = ContainerOutput([[(b"a", b"c"), (b"b", None)], [(None, b"d")]], tmp_path)
    assert output.finish() == []
    assert (tmp_path / "stdout").read_bytes() == b"ab" and sorted((tmp_path / "stderr").read_bytes()) == [*b"cd"]


def test_an_engine_that_breaks_off_is_noted(tmp_path):
    def parts():
        yield b"begun", None
        raise ConnectionError("Connection broken\nby its end")

    (note,) = ContainerOutput([parts()], tmp_path).finish()
    assert note.startswith("some of the container's output may be missing") and note.endswith("broke off: Connection broken")
    assert (tmp_path / "stdout").read_bytes() == b"begun"


def test_a_stream_without_an_end_is_noted(tmp_path, monkeypatch):
    monkeypatch.setattr(container_output, "_END_S", 0.01)
    end = threading.Event()

    def parts():
        end.wait()
        yield None, None

    (note,) = ContainerOutput([parts()], tmp_path).finish()
    end.set()
    assert note.startswith("some of the container's output may be missing in logs: it did not end within")


def test_bytes_that_the_disk_had_no_room_for_are_counted(tmp_path, monkeypatch):
    """The rest is copied, and the stream is read to its end."""
    monkeypatch.setattr(
        container_output,
        "open_append",
        lambda path, mode: os.open("/dev/full" if path.name == "stderr" else path, os.O_WRONLY | os.O_CREAT),
    )
    output = ContainerOutput([[(None, b"12345"), (b"out", b"678")]], tmp_path)
    assert output.finish() == ["logs/stderr lacks 8 bytes that the disk had no room for"]
    assert (tmp_path / "stdout").read_bytes() == b"out"
