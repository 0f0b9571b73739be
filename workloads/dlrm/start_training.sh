#!/usr/bin/env bash
# Train DLRM in a container.
#
#   DATA_DIR=criteo OUTPUT_DIR=results start_training.sh NUM_GPUS CONTAINER LOGGING_DIR IMAGE BATCH NUM_BATCHES [OPTION...]
#
# One process computes on NUM_GPUS GPUs; on a machine without GPUs it computes on the CPUs. BATCH is the sum over all GPUs. The
# options go to `python -m iotwin.workloads.dlrm`. CUDA_VISIBLE_DEVICES, if set, chooses the GPUs.
set -euo pipefail
source "$(dirname "$0")/../container.sh"
parse_arguments dlrm NUM_BATCHES "$@"
start_container dlrm iotwin.workloads.dlrm --data /data --output /output --batch-size "$batch" --steps "$how_many"
