"""How much of a job its twin accounts for, in numbers and in words; and data that no call shows."""

import pandas as pd
import pytest

from iotwin.benchmark.fit.coverage import coverage_of, describe_coverage
from iotwin.benchmark.fit.fit_trace import fit
from iotwin.trace_store.reader import Trace
from tests.benchmark.made_trace import Made
from tests.synthetic import Job, write_job


@pytest.mark.parametrize("pipes", [True, False])
def test_a_twin_accounts_for_every_byte_and_open(tmp_path, pipes):
    coverage = fit(Trace(write_job(tmp_path / "t", Job(pipes=pipes)))).coverage
    assert [coverage[f"{name}_share"] for name in ("read", "write", "open")] == [1.0, 1.0, 1.0]
    assert describe_coverage(coverage).startswith("the twin accounts for 100% of what is read (")


@pytest.mark.parametrize(("twin", "share"), [(100, 1 / 3), (300, 1.0), (600, 1 / 2), (0, 0.0)])
def test_too_little_and_too_much_count_alike(twin, share):
    calls = pd.DataFrame({"op": ["read"] * 3, "file_id": [0] * 3, "result": [100] * 3})
    covered = coverage_of(calls, pd.Series(["dataset"]).to_numpy(), {("read", "dataset"): twin})
    assert covered["read_share"] == pytest.approx(share, abs=1e-4) and len(covered["flows"]) == 1


@pytest.mark.parametrize(
    ("twin", "seen", "said"),
    [
        (57 << 20, 57 << 20, "57 MiB of 57 MiB"),
        (1 << 20, 57 << 20, "1 MiB of 57 MiB"),
        ((57 << 20) + 1, 57 << 20, "57 MiB of 57 MiB"),
        (57 << 30, 57 << 20, "57 GiB instead of 57 MiB"),
        (4096, 0, "4 KiB instead of 0 B"),
    ],
)
def test_what_the_twin_has_too_much_is_no_share(twin, seen, said):
    flow = {"direction": "write", "kind": "checkpoint", "calls": 1, "seen": seen, "twin": twin}
    document = {"write_share": 0.01, "flows": [flow]}
    assert describe_coverage(document) == f"the twin accounts for 1% of what is written ({said} checkpoints)"


def test_data_that_were_mapped_and_not_traced_are_named(tmp_path, capsys):
    """An index of it may be read by calls, so that all that is seen is accounted for."""
    made = Made()
    made.process(1000, 1, "rank")
    data = made.file("/d/tokens.bin", size=1 << 20)
    made.call(0, 1000, "openat", data), made.call(1, 1000, "mmap", data, 0, 1 << 20), made.call(2, 1000, "read", data, 0, 4096)
    (trace := made.trace(tmp_path / "t")).manifest.counts = {"mmap": 1}
    fit(trace)
    warning = capsys.readouterr().err
    assert "1 MiB of the data set (1 file) are mapped into memory" in warning and "--detail data,mmap" in warning
