# Functions for the scripts start_training.sh of all workloads, which source this file.
#
#   parse_arguments WORKLOAD UNIT "$@"      checks NUM_GPUS CONTAINER LOGGING_DIR IMAGE BATCH HOW_MANY [OPTION...] and sets
#                                           num_gpus container logging_dir image batch how_many options; HOW_MANY counts UNITs
#   start_container WORKLOAD JOB...         runs the command JOB in the container; its output also goes to the log file
#   start_torch_ranks WORKLOAD OPTION...    runs a PyTorch job in the container, with torchrun if there are several GPUs

fail() { echo "$0: $1" >&2; exit "${2:-1}"; }

parse_arguments() {
    local workload=$1 unit=$2
    shift 2
    if [ "$#" -lt 6 ]; then
        echo "usage: DATA_DIR=DIR OUTPUT_DIR=DIR $0 NUM_GPUS CONTAINER LOGGING_DIR IMAGE BATCH $unit [OPTION...]" >&2
        exit 2
    fi
    num_gpus=$1 container=$2 logging_dir=$3 image=$4 batch=$5 how_many=$6
    shift 6
    options=("$@")
    if [ -z "${DATA_DIR:-}" ] || [ -z "${OUTPUT_DIR:-}" ]; then
        fail "set DATA_DIR to the directory of the data set and OUTPUT_DIR to where results go" 2
    fi
    local number
    for number in "$num_gpus" "$batch" "$how_many"; do
        case $number in
            '' | *[!0-9]*) fail "NUM_GPUS, BATCH and $unit must be numbers, not '$number'" 2 ;;
        esac
    done
    if [ ! -d "$DATA_DIR" ]; then
        fail "DATA_DIR $DATA_DIR is not a directory; make one with: iotwin generate $workload -o $DATA_DIR --size 30GB"
    fi
    if docker container inspect "$container" >/dev/null 2>&1; then
        fail "the container name $container is taken; choose another or remove it with: docker rm $container"
    fi
    if ! docker image inspect "$image" >/dev/null 2>&1; then
        fail "docker has no image $image; build it with: workloads/build_image.sh $workload"
    fi
}

# Sets `gpus` to docker's option --gpus, or to nothing on a machine without GPUs. CUDA_VISIBLE_DEVICES, if set, chooses the GPUs.
choose_gpus() {
    gpus=()
    [ "$num_gpus" -gt 0 ] || return 0
    local listed
    if ! listed=$(nvidia-smi --list-gpus 2>/dev/null); then
        echo "$0: no GPU here; training on CPUs" >&2
        return 0
    fi
    listed=$(grep -c . <<<"$listed" || true)
    [ "$listed" -ge "$num_gpus" ] || fail "$num_gpus GPUs asked for and $listed there"
    gpus=(--gpus "${CUDA_VISIBLE_DEVICES:+\"device=$CUDA_VISIBLE_DEVICES\"}")
    [ -n "${gpus[1]}" ] || gpus[1]=$num_gpus
}

start_container() {
    local workload=$1
    shift
    choose_gpus
    mkdir -p "$logging_dir" "$OUTPUT_DIR"
    # The job never runs as root, but as the user who called sudo, else as user 1000. This user owns the results.
    local user=${SUDO_UID:-$(id -u)} group=${SUDO_GID:-$(id -g)}
    if [ "$user" -eq 0 ]; then user=1000 group=1000; fi
    if [ "$(id -u)" -eq 0 ]; then chown "$user:$group" "$OUTPUT_DIR"; fi
    # --ipc=host: loader processes deliver batches in shared memory, of which a container has only 64 MB by default.
    docker run --rm --name "$container" --ipc=host --user "$user:$group" --env HOME=/tmp "${gpus[@]}" \
        --mount "type=bind,source=$(realpath "$DATA_DIR"),target=/data,readonly" \
        --mount "type=bind,source=$(realpath "$OUTPUT_DIR"),target=/output" \
        "$image" "$@" "${options[@]}" | tee "$logging_dir/$workload.log"
}

start_torch_ranks() {
    local workload=$1 launch=("iotwin.workloads.$1")
    shift
    if [ "$num_gpus" -gt 1 ]; then
        launch=(torch.distributed.run --standalone --local-addr 127.0.0.1 --nproc-per-node "$num_gpus" --module "iotwin.workloads.$workload")
    fi
    start_container "$workload" "${launch[@]}" "$@"
}

# For start_training_on_generated.sh: if DATA_DIR is empty, generates DATA_SIZE of data in it; then starts the training.
train_on_generated() {
    local workload=$1
    shift
    [ -n "${DATA_DIR:-}" ] || fail "set DATA_DIR to where the data set is or is to be generated" 2
    if [ ! -e "$DATA_DIR" ] || [ -z "$(ls -A "$DATA_DIR")" ]; then
        root=$(dirname "${BASH_SOURCE[0]}")/..
        . "$root/common/environment.sh"
        iotwin generate "$workload" -o "$DATA_DIR" --size "${DATA_SIZE:-30GB}"
    fi
    exec "$(dirname "$0")/start_training.sh" "$@"
}
