"""Which files count as the data set: what the job reads for training, and not the programs and scripts that run it."""

import pytest

from tracing_tools.trace.classify import file_kind
from tracing_tools.trace.records import TYPE_REGULAR


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/case_00000_x.npy", "dataset"),
        ("/data/bin/day_0.bin", "dataset"),
        ("/data/part-00000-of-00500", "dataset"),
        ("/home/u/project/.venv/bin/iotwin", "library"),
        ("/home/u/project/start_training.sh", "library"),
        ("/home/u/project/train.py", "library"),
        ("/home/u/project/config.yaml", "other"),
        ("/home/u/jobs/random.fio", "other"),
        ("/home/u/project/model.pt", "checkpoint"),
    ],
)
def test_kind_of_a_file_that_is_read(path, kind):
    assert file_kind(path, TYPE_REGULAR, read_bytes=59, written_bytes=0, is_log=False) == kind
