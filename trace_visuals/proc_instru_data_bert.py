"""The paper artifact's script for runs of BERT. It does the same as proc_instru_data.py, which reads all runs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from iotwin.trace_visuals.proc_instru_data import main

if __name__ == "__main__":
    sys.exit(main())
