#!/usr/bin/env bash
# The same as start_training.sh, but if DATA_DIR is empty, DATA_SIZE (default 30GB) of synthetic data are generated there first.
set -euo pipefail
source "$(dirname "$0")/../container.sh"
train_on_generated bert "$@"
