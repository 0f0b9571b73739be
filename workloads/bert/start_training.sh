#!/usr/bin/env bash
# Pretrain BERT in a container.
#
#   DATA_DIR=shards OUTPUT_DIR=results start_training.sh NUM_GPUS CONTAINER LOGGING_DIR IMAGE BATCH STEPS [OPTION...]
#
# Starts NUM_GPUS ranks, each on its own GPU; on a machine without GPUs the ranks compute on the CPUs. BATCH is per rank. The
# options go to `python -m iotwin.workloads.bert`. CUDA_VISIBLE_DEVICES, if set, chooses the GPUs.
set -euo pipefail
source "$(dirname "$0")/../container.sh"
parse_arguments bert STEPS "$@"

launch=(iotwin.workloads.bert)
if [ "$num_gpus" -gt 1 ]; then
    launch=(iotwin.workloads.launch "$num_gpus" iotwin.workloads.bert)
fi
start_container bert "${launch[@]}" --data /data --output /output --batch-size "$batch" --steps "$how_many"
