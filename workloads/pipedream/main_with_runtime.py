"""Runs ``python -m iotwin.workloads.pipedream``, one rank of a pipeline, with the options of PipeDream's script of this name."""

import runpy
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

if __name__ == "__main__":
    runpy.run_module("iotwin.workloads.pipedream", run_name="__main__")
