#!/usr/bin/env bash
# Emulate DLRM: benchmark_dlrm.sh [NUM_GPUS=8] [CONTAINER] [LOGGING_DIR] [IMAGE] [BATCH=32768] [STEPS=32768] [OVERRIDE...]
# One process reads for all GPUs, so BATCH is the sum over GPUs. DATA_DIR and OUTPUT_DIR are the folders of data and results.
set -euo pipefail
source "$(dirname "$0")/container.sh"
parse_arguments 32768 32768 "$@"
emulate workload=dlrm "++workload.num_gpus=$num_gpus" "++workload.reader.batch_size=$batch" \
    "++workload.train.total_training_steps=$how_many"
