#!/usr/bin/env bash
# Emulate BERT: benchmark_bert.sh [NUM_GPUS=8] [CONTAINER] [LOGGING_DIR] [IMAGE] [BATCH=6] [STEPS=2400] [OVERRIDE...]
# Checkpoints come after the first step and the last. DATA_DIR and OUTPUT_DIR are the folders of data and results.
set -euo pipefail
source "$(dirname "$0")/container.sh"
parse_arguments 6 2400 "$@"
emulate workload=bert --ranks "$num_gpus" "++workload.reader.batch_size=$batch" "++workload.train.total_training_steps=$how_many" \
    "++workload.checkpoint.steps_between_checkpoints=$how_many"
