#!/usr/bin/env bash
# Train the 3-D U-Net in a container.
#
#   DATA_DIR=cases OUTPUT_DIR=results start_training.sh NUM_GPUS CONTAINER LOGGING_DIR IMAGE BATCH EPOCHS [OPTION...]
#
# One rank per GPU asked for; on a machine without GPUs the ranks compute on its CPUs. BATCH is per rank. The options go to
# `python -m workloads.unet3d`; a later one replaces an earlier one. CUDA_VISIBLE_DEVICES, if set, chooses the GPUs.
set -euo pipefail

if [ "$#" -lt 6 ]; then
    echo "usage: DATA_DIR=DIR OUTPUT_DIR=DIR $0 NUM_GPUS CONTAINER LOGGING_DIR IMAGE BATCH EPOCHS [OPTION...]" >&2
    exit 2
fi
num_gpus=$1 container=$2 logging_dir=$3 image=$4 batch=$5 epochs=$6
shift 6
if [ -z "${DATA_DIR:-}" ] || [ -z "${OUTPUT_DIR:-}" ]; then
    echo "$0: set DATA_DIR to the directory of the cases and OUTPUT_DIR to where results go" >&2
    exit 2
fi
for number in "$num_gpus" "$batch" "$epochs"; do
    case $number in
        '' | *[!0-9]*) echo "$0: NUM_GPUS, BATCH and EPOCHS must be numbers, not '$number'" >&2; exit 2 ;;
    esac
done
if [ ! -d "$DATA_DIR" ]; then
    echo "$0: DATA_DIR $DATA_DIR is not a directory; make one with: iotwin generate unet3d -o $DATA_DIR --size 30GB" >&2
    exit 1
fi
if docker container inspect "$container" >/dev/null 2>&1; then
    echo "$0: the container name $container is taken; choose another or remove it with: docker rm $container" >&2
    exit 1
fi
mkdir -p "$logging_dir" "$OUTPUT_DIR"

gpus=()
if [ "$num_gpus" -gt 0 ]; then
    if nvidia-smi --list-gpus >/dev/null 2>&1; then
        gpus=(--gpus "${CUDA_VISIBLE_DEVICES:+\"device=$CUDA_VISIBLE_DEVICES\"}")
        [ -n "${gpus[1]}" ] || gpus[1]=$num_gpus
    else
        echo "$0: no GPU here; training on CPUs" >&2
    fi
fi
launch=(workloads.unet3d)
if [ "$num_gpus" -gt 1 ]; then
    launch=(torch.distributed.run --standalone --nproc-per-node "$num_gpus" --module workloads.unet3d)
fi

# Loader processes hand batches over in shared memory, of which a container has 64 MB unless told otherwise.
docker run --rm --name "$container" --ipc=host --user "$(id -u):$(id -g)" --env HOME=/tmp "${gpus[@]}" \
    --mount "type=bind,source=$(realpath "$DATA_DIR"),target=/data,readonly" \
    --mount "type=bind,source=$(realpath "$OUTPUT_DIR"),target=/output" \
    "$image" "${launch[@]}" --data /data --output /output --batch-size "$batch" --epochs "$epochs" \
    --checkpoint-every "$epochs" "$@" | tee "$logging_dir/unet3d.log"
