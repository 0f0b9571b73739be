"""Files by what the kernel says of them: device, inode, generation."""

import os

import numpy as np

from iotwin.trace_store.raw import records
from iotwin.trace_store.raw.file_table import FileTable


def test_a_device_is_the_kernels_number_split_as_stat_has_it():
    """The kernel keeps twelve bits of major number over twenty of minor number: 259:5 and 8:0x12345."""
    table = FileTable(set())
    requests = np.zeros(3, records.BLOCK)
    requests["inode"] = 11, 12, 11
    requests["file_device"] = 259 << 20 | 5, 8 << 20 | 0x12345, 259 << 20 | 5
    assert table.assign_blocks(requests).tolist() == [0, 1, 0]
    devices = table.table()["device"].to_pylist()
    assert [(os.major(device), os.minor(device)) for device in devices] == [(259, 5), (8, 0x12345)]
