#!/usr/bin/env bash
# Runs a TensorFlow script with deterministic operations, as DETrain's example does: run-tf-example.sh SCRIPT [ARG...]
# The variables are those of the script `run` in this folder.
set -euo pipefail
export TF_DETERMINISTIC_OPS=1
exec "$(dirname "$0")/run" "$@"
