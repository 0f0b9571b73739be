#!/usr/bin/env bash
# Draws the step breakdowns of instrumented runs.
#   generate_instrumentation_plots.sh [DATA_DIR [PLOTS_DIR]]       (instrumentation_data, plots/instrumentation)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} exec "$python" -m iotwin.main plot steps "${1:-instrumentation_data}" -o "${2:-plots/instrumentation}"
