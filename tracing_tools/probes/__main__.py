"""``python -m tracing_tools.probes``: compile the eBPF programs, as setup.sh does."""

import sys

from common.errors import IotwinError
from tracing_tools.probes import PROGRAMS, compiled_probes

try:
    for program in PROGRAMS:
        print(compiled_probes(program))
except IotwinError as error:
    sys.exit(f"setup: {error}")
