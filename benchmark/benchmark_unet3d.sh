#!/usr/bin/env bash
# Emulate 3D U-Net: benchmark_unet3d.sh [NUM_GPUS=8] [CONTAINER] [LOGGING_DIR] [IMAGE] [BATCH=4] [EPOCHS=50] [OVERRIDE...]
# Evaluations come halfway and at the end, the checkpoint at the end. DATA_DIR and OUTPUT_DIR are the folders of data and results.
set -euo pipefail
source "$(dirname "$0")/container.sh"
parse_arguments 4 50 "$@"
half=$(((how_many + 1) / 2))
emulate workload=unet3d --ranks "$num_gpus" "++workload.reader.batch_size=$batch" "++workload.train.epochs=$how_many" \
    "++workload.evaluation.eval_after_epoch=$half" "++workload.evaluation.epochs_between_evals=$half" \
    "++workload.checkpoint.checkpoint_after_epoch=$how_many"
