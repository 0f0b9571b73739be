"""Run upstream DLIO by its interpreter with the words of dlio_benchmark's command line, for perf_dlio.

    python upstream_run.py WORD...

DALI is replaced by dummies, and so is the index that its tfrecord2idx makes. In dlio_benchmark 2.0.0 the methods of the profiler
that is there without DFTracer take fewer arguments than its readers give them; here they take any.
"""

import subprocess
import sys
from unittest.mock import MagicMock

from upstream_generation import _DUMMIES


def main() -> None:
    """Generate and train as the command line specifies."""
    sys.modules.update({dummy: MagicMock() for dummy in _DUMMIES if "tensorflow" not in dummy})
    subprocess.call = lambda *_: 0
    from dlio_benchmark import main as upstream
    from dlio_benchmark.utils import utility

    utility.Profile.update = lambda *_, **__: None
    upstream.main()


if __name__ == "__main__":
    main()
