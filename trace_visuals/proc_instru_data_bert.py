"""The command of the paper artifact for BERT, kept for its users: proc_instru_data.py, which knows every kind of run."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from iotwin.trace_visuals.proc_instru_data import main

if __name__ == "__main__":
    sys.exit(main())
