"""The small data set and workload of the emulator's tests."""

from tests.benchmark.conftest import cases, twin, twin_path

__all__ = ["cases", "twin", "twin_path"]
