#!/usr/bin/env bash
# Train the 3-D U-Net in a container.
#
#   DATA_DIR=cases OUTPUT_DIR=results start_training.sh NUM_GPUS CONTAINER LOGGING_DIR IMAGE BATCH EPOCHS [OPTION...]
#
# Starts NUM_GPUS ranks, each on its own GPU; on a machine without GPUs the ranks compute on the CPUs. BATCH is per rank. The
# options go to `python -m iotwin.workloads.unet3d`. CUDA_VISIBLE_DEVICES, if set, chooses the GPUs.
set -euo pipefail
source "$(dirname "$0")/../container.sh"
parse_arguments unet3d EPOCHS "$@"

start_torch_ranks unet3d --data /data --output /output --batch-size "$batch" --epochs "$how_many" \
    --checkpoint-every "$how_many"
