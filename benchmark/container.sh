# Functions that the benchmark scripts source: they parse the arguments and run the emulator's image in a container.
#
#   DATA_DIR=data OUTPUT_DIR=results benchmark_WORKLOAD.sh \
#       [NUM_GPUS] [CONTAINER] [LOGGING_DIR] [IMAGE] [BATCH] [HOW_MANY] [OVERRIDE...]

# parse_arguments DEFAULT_BATCH DEFAULT_HOW_MANY "$@": sets num_gpus, container, logging_dir, image, batch, how_many and overrides
parse_arguments() {
    local default_batch=$1 default_how_many=$2
    shift 2
    num_gpus=${1:-8} container=${2:-dlio} logging_dir=${3:-./logs} image=${4:-dlio:latest}
    batch=${5:-$default_batch} how_many=${6:-$default_how_many}
    overrides=("${@:7}")
    local name
    for name in num_gpus batch how_many; do
        if ! [[ ${!name} =~ ^[1-9][0-9]*$ ]]; then
            echo "$0: $name '${!name}' is not a number above 0; usage: $0 [NUM_GPUS] [CONTAINER] [LOGGING_DIR] [IMAGE] [BATCH] [HOW_MANY]" >&2
            exit 2
        fi
    done
    data_dir=${DATA_DIR:-./data} output_dir=${OUTPUT_DIR:-./results}
}

# refuse_unusable: ends the script when the container's name is taken or there is no such image
refuse_unusable() {
    if docker container inspect "$container" >/dev/null 2>&1; then
        echo "$0: a container named '$container' exists already; remove it or choose another name" >&2
        exit 1
    fi
    if ! docker image inspect "$image" >/dev/null 2>&1; then
        echo "$0: no image '$image'; build it with: docker build -f benchmark/Dockerfile -t $image ." >&2
        exit 1
    fi
}

# emulate ARGUMENT...: iotwin emulate in the container, its output also in LOGGING_DIR
emulate() {
    refuse_unusable
    mkdir -p "$data_dir" "$output_dir" "$logging_dir"
    local data output
    data=$(readlink -f "$data_dir") output=$(readlink -f "$output_dir")
    docker run --rm --name "$container" --user "$(id -u):$(id -g)" --ipc=host \
        --mount "type=bind,source=$data,target=/job/data" --mount "type=bind,source=$output,target=/job/results" \
        "$image" emulate "$@" ++workload.dataset.data_folder=data ++workload.output.folder=results \
        ++workload.checkpoint.checkpoint_folder=results/checkpoints "${overrides[@]}" | tee "$logging_dir/dlio.log"
}
