"""``python -m tracing_tools.probes``: compile the eBPF programs, as setup.sh does."""

import sys

from tracing_tools.probes import compiled_probes
from tracing_tools.trace.errors import IotwinError

try:
    print(compiled_probes())
except IotwinError as error:
    sys.exit(f"setup: {error}")
