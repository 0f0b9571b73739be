"""The programs and their callbacks fit into the stack that every kernel gives them. Newer kernels give more, and show nothing."""

import shutil
import subprocess

import pytest

from iotwin.tracing_tools.probes import BCC_SOURCE
from iotwin.tracing_tools.probes.compilation import clang_command

_STACK_BYTES, _FRAME_BYTES = 512, 32  # of a program with its callbacks; what the verifier rounds the stack of a function up to


@pytest.mark.skipif(shutil.which("clang") is None, reason="clang is not installed")
@pytest.mark.parametrize(
    "calls",
    [
        ("on_block_issue", "take_piece", "change_page"),
        ("on_block_complete", "take_piece", "change_page"),
        ("on_dirty", "change_page"),
        ("on_page_removal", "change_page"),
        ("submit_aio", "submit_one"),
        ("on_exit", "finish_call"),
    ],
    ids="-".join,
)
def test_a_chain_of_calls_fits_into_the_stack(tmp_path, calls):
    command = clang_command("syscalls", BCC_SOURCE.parent, tmp_path / "syscalls.o")
    subprocess.run([*command, "-fstack-usage"], check=True)
    lines = (line.split("\t") for line in (tmp_path / "syscalls.su").read_text().splitlines())
    sizes = {place.rpartition(":")[2]: int(size) for place, size, _ in lines}
    assert sum(-(-sizes[call] // _FRAME_BYTES) * _FRAME_BYTES for call in calls) <= _STACK_BYTES
