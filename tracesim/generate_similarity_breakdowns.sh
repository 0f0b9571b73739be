#!/usr/bin/env bash
# Compares every real trace with every emulated one; writes a result file per pair, and the matrix of all scores.
#   generate_similarity_breakdowns.sh [REAL_DIR [EMULATED_DIR [RESULTS_DIR]]]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
. "$root/common/environment.sh"
exec iotwin compare "${1:-timeline_data/real}" "${2:-timeline_data/emulated}" -o "${3:-$here/results}"
