#!/usr/bin/env bash
# As start_training.sh, on synthetic data: generated in DATA_DIR (DATA_SIZE, default 30GB) unless data is there.
set -euo pipefail
source "$(dirname "$0")/../container.sh"
train_on_generated checkfreq "$@"
