"""Writes the timeline of a step, recorded by TensorFlow's profiler, as timeline-STEP.json in the Chrome trace format."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from iotwin.common.files import scratch_folder, write_json
from iotwin.common.untrusted_files import read_foreign

_MOST_PROFILE_BYTES = 1 << 33
_HOST_LEVEL = 2  # the profiler's lowest level that records the operations that TensorFlow runs


@contextmanager
def timeline_of(path: Path) -> Iterator[None]:
    """Record the operations that TensorFlow runs within the block, and write them to `path` unless the block raises an error."""
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=_HOST_LEVEL, python_tracer_level=0)
    with scratch_folder(path.parent) as folder:
        with tf.profiler.experimental.Profile(str(folder), options):
            yield
        events = [event for profile in folder.rglob("*.xplane.pb") for event in _events(profile)]
    write_json(path, {"traceEvents": events}, indent=None)


def _events(profile: Path) -> Iterator[dict[str, Any]]:
    """Yield a profile's events for Chrome: a process for each device, a thread for each stream or thread, times in us."""
    space = xplane_pb2.XSpace.FromString(read_foreign(profile, _MOST_PROFILE_BYTES))
    for process, plane in enumerate(space.planes):
        yield {"name": "process_name", "ph": "M", "pid": process, "args": {"name": plane.name}}
        for thread, line in enumerate(plane.lines):
            yield {"name": "thread_name", "ph": "M", "pid": process, "tid": thread, "args": {"name": line.name}}
            for event in line.events:
                yield {
                    "name": plane.event_metadata[event.metadata_id].name,
                    "ph": "X",
                    "cat": "Op",
                    "pid": process,
                    "tid": thread,
                    "ts": line.timestamp_ns / 1e3 + event.offset_ps / 1e6,
                    "dur": event.duration_ps / 1e6,
                }
