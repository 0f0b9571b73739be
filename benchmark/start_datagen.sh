#!/usr/bin/env bash
# Generate a workload's data set in a container: start_datagen.sh [WORKLOAD] [IMAGE] [DATA_DIR] [OVERRIDE...]
set -euo pipefail
source "$(dirname "$0")/container.sh"
workload=${1:-unet3d} image=${2:-dlio:latest} data_dir=${3:-./data} container=${CONTAINER:-dlio_datagen}
logging_dir=${LOGGING_DIR:-./logs} output_dir=${OUTPUT_DIR:-./results} overrides=("${@:4}")
emulate "workload=$workload" ++workload.workflow.generate_data=true ++workload.workflow.train=false \
    ++workload.workflow.evaluation=false ++workload.workflow.checkpoint=false
