#!/usr/bin/env bash
# Train an image classifier with CheckFreq in a container.
#
#   DATA_DIR=images OUTPUT_DIR=results start_training.sh NUM_GPUS CONTAINER LOGGING_DIR IMAGE BATCH EPOCHS [OPTION...]
#
# Starts NUM_GPUS ranks, each on its own GPU; on a machine without GPUs the ranks compute on the CPUs. BATCH is per rank. The
# options go to `python -m iotwin.workloads.checkfreq`. CUDA_VISIBLE_DEVICES, if set, chooses the GPUs.
set -euo pipefail
source "$(dirname "$0")/../container.sh"
parse_arguments checkfreq EPOCHS "$@"

start_torch_ranks checkfreq --data /data --output /output --batch-size "$batch" --epochs "$how_many"
