"""The sections and keys of a workload YAML as typed structs. Keys under ``twin:`` are iotwin's, the others are DLIO's.

DLIO's keys have DLIO's names and defaults. DLIO's keys without an effect in iotwin are fields marked "of no effect", so that
DLIO's files load unchanged. `workload_yaml.dataset` defines the section `dataset`. If DLIO has two spellings of a key,
`workload_yaml.dlio_spellings` converts the other spelling to the one used here.
"""

import re
from typing import Annotated, Literal

import msgspec

from iotwin.common.numbers.durations import Duration, PositiveSeconds, Seconds
from iotwin.workload_yaml.dataset import Count, Dataset, OrNone, Positive, Section, Share, Size
from iotwin.workload_yaml.recorded_section import TwinRecorded
from iotwin.workload_yaml.train_section import Train

# The maximum prevents a typing error, such as a size in place of a count, from starting thousands of processes.
Processes = Annotated[int, msgspec.Meta(ge=0, le=1024)]
Datatype = Literal["int8", "uint8", "fp16", "bf16", "fp32", "fp64"]
Shuffle = Literal["off", "seed", "random"]  # random: a new order in each epoch even if seed_change_epoch is false


class Parallelism(Section):
    """How the model is divided among ranks."""

    tensor: Positive = 1
    pipeline: Positive = 1
    data: OrNone = -1  # -1: ranks / (tensor * pipeline)
    zero_stage: Literal[0, 1, 2, 3] = 0


class Transformer(Section):
    """The shape of a transformer, from which the emulator computes checkpoint sizes."""

    vocab_size: Positive = 32000
    hidden_size: Positive = 2048
    ffn_hidden_size: Positive = 8192
    num_attention_heads: Positive = 32
    num_kv_heads: Positive = 8


class Model(Section):
    """The emulated model: its name, and the sizes of its checkpoints."""

    name: str = "default"
    type: str | None = None  # `transformer`: sizes follow from the shape; other values have no effect
    model_size_bytes: Size = 10240  # bytes of model state that each writing rank writes, unless type is transformer
    model_datatype: Datatype = "fp16"
    optimizer_datatype: Datatype = "fp32"
    optimization_groups: list[Positive] = []  # number of elements of each optimizer tensor
    num_layers: OrNone = -1
    layer_parameters: list[Positive] = []  # number of elements of each tensor of a layer
    parallelism: Parallelism = msgspec.field(default_factory=Parallelism)
    transformer: Transformer = msgspec.field(default_factory=Transformer)


class Workflow(Section):
    """The parts of the job that run. If `train` is false, only generation or only checkpoints run."""

    generate_data: bool = False
    train: bool = True
    evaluation: bool = False
    checkpoint: bool = False
    profiling: bool = False
    debug: bool = False  # of no effect; see --debug
    query: str | None = None  # key, such as reader.batch_size: print its value and run nothing


class Storage(Section):
    """Where the data set and the checkpoints are. Relative paths are below `storage_root`."""

    storage_type: Literal["local_fs", "parallel_fs", "direct_fs", "s3", "aistore", "s3dlio"] = "local_fs"
    storage_root: str = "./"
    # Options of the object store: endpoint_url, region, keys.
    storage_options: dict[str, str | int | float | bool | list[str] | None] = {}
    storage_library: str | None = None  # of no effect: iotwin accesses all object stores by fsspec


class Reader(Section):
    """How the data loader of each rank reads samples."""

    data_loader: str = "native"  # native, pytorch, tensorflow, synthetic; dali, native_dali, terabyte as native; or a plug-in
    data_loader_classname: str | None = None  # plug-ins by `module.Class`
    reader_classname: str | None = None
    data_loader_sampler: str | None = None
    batch_size: Positive = 1
    batch_size_eval: Positive = 1
    read_threads: Processes = 1  # number of worker processes per rank; 0: the main process reads
    computation_threads: Processes = 1  # tf.data's parallel parsing; of no effect, as records are not parsed
    # Batches in flight over all workers of a rank. As in DLIO, each worker has ceil(prefetch_size / read_threads) of them. None:
    # each worker has two, as in PyTorch.
    prefetch_size: Positive | None = None
    file_shuffle: Shuffle = "off"  # with one sample per file, the same as sample_shuffle
    # batches: each batch is one read of one big file; sorted: samples of a recording are read in the order of their files
    sample_shuffle: Shuffle | Literal["batches", "sorted"] = "off"
    shuffle_size: Positive = 1024  # samples in tf.data's shuffle buffer
    # memory: each file is read once, in the first epoch; kept_open: in a recording, each process opens each file only once
    read_type: Literal["on_demand", "memory", "mapped", "kept_open"] = "on_demand"
    file_access: Literal["multi", "shared", "collective", "mpio", "posix"] = "multi"  # of no effect, as in DLIO
    # Most bytes of one read; None: as the format's reader chooses. A recording's sequential reads are joined up to this size.
    transfer_size: Positive | None = None
    preprocess_time: Duration = 0.0  # seconds that a worker spends on preprocessing each training sample
    # How the pytorch loader starts its workers. The native loader forks them, or starts threads of the main process if `threads`.
    multiprocessing_context: Literal["fork", "spawn", "forkserver", "threads"] = "fork"
    # None: as True for the pytorch loader, as False for native. If True, native copies each batch once into page-locked memory.
    pin_memory: bool | None = None
    odirect: bool = False  # read with O_DIRECT, which bypasses the page cache
    dont_use_mmap: bool = False  # of no effect
    # Shape of the tensor that the pytorch loader delivers for a sample, instead of record_length_bytes_resize.
    transformed_record_dims: list[Positive] = []
    transformed_record_element_type: str = "uint8"


class Evaluation(Section):
    """When and how to evaluate: by epochs, or by steps if `steps_between_evals` is given."""

    eval_time: Duration = 0.0  # per evaluation step
    eval_after_epoch: Positive = 1  # epoch after which the first evaluation is due
    epochs_between_evals: Positive = 1
    eval_after_step: OrNone = -1  # step of the run after which the first evaluation is due; -1: steps_between_evals
    steps_between_evals: OrNone = -1
    total_eval_steps: OrNone = -1  # most steps of each evaluation; -1: all


class Ksm(Section):
    """DLIO's kernel same-page merging (KSM) of tensors; of no effect, since the emulator writes everything from one buffer."""

    madv_mergeable_id: int = 12
    high_ram_trigger: float = 30.0
    low_ram_exit: float = 15.0
    await_time: float = 200.0


class Checkpoint(Section):
    """When and how to write checkpoints: by epochs, or by steps if `steps_between_checkpoints` is given."""

    checkpoint_folder: str = "./checkpoints/"
    checkpoint_after_epoch: Positive = 1  # epoch after which the first checkpoint is due
    epochs_between_checkpoints: Positive = 1
    checkpoint_after_step: OrNone = -1  # step of the run after which one more checkpoint is due; 0: before the first step
    steps_between_checkpoints: OrNone = -1
    time_between_checkpoints: Duration = 0.0  # seconds of computing between checkpoints if workflow.train is false
    num_checkpoints_write: OrNone = -1  # number of checkpoints to write if workflow.train is false
    num_checkpoints_read: OrNone = -1  # how often the newest checkpoint is read back at the end
    type: Literal["rank_zero", "all_ranks"] = "rank_zero"  # which ranks write a model that is not sharded
    mode: Literal["default", "subset"] = "default"  # subset: fewer ranks run than the parallelism has; they write their shares
    fsync: bool | None = None  # True: sync every file; False: sync none; None: sync the files that the traced job synced
    recovery_rank_shift: bool = False  # each rank reads back files that another node wrote, as this node does not cache them
    rank_sync: bool = False  # ranks wait for one another after each checkpoint
    randomize_tensor: bool = True  # random bytes; false: zeros, which storage may compress away
    ksm: Ksm | None = None
    checkpoint_mechanism_classname: str | None = None
    # Keys that only the paper artifact's fork of DLIO has. Sizes of writes alternate between q1 bytes and a draw from a normal
    # distribution with this mean and standard deviation. A draw below min is raised to min.
    ckpt_write_sz_q1: Positive | None = None
    ckpt_write_sz_mean: Positive | None = None
    ckpt_write_sz_std: Count | None = None
    ckpt_write_sz_min: Positive | None = None


class OutputMetric(Section):
    """Which steps of an epoch the metrics exclude."""

    exclude_start_steps: Count = 1  # the first step waits for its batch, as no step before it covers the read
    exclude_end_steps: Count = 0


class Output(Section):
    """Where the emulator writes its results."""

    folder: str = "./output/"
    log_file: str = "dlio.log"  # in the folder
    metric: OutputMetric = msgspec.field(default_factory=OutputMetric)


class Profiling(Section):
    """What iostat samples during the run if workflow.profiling is true."""

    profiler: Literal["none", "iostat", "trace", "darshan", "tensorboard"] = "iostat"
    iostat_devices: list[str] = []  # names of the devices to sample, such as sda; empty: all


class Metric(Section):
    """The accelerator utilisation at which a run counts as successful."""

    au: Share = 0.9  # accelerator utilisation to reach


# Two formats of torch.save, the format of torch.distributed.checkpoint, and PCcheck's format.
CheckpointFormat = Literal["zip", "legacy", "dcp", "slots"]


class CheckpointFile(Section):
    """One file of a checkpoint, as it was traced."""

    name: str  # within checkpoint_folder; '{epoch}' and '{step}' become numbers, a name without both is overwritten
    write_sizes: Annotated[list[tuple[Count, Positive]], msgspec.Meta(min_length=1)]  # [bytes, how often], in order
    fsync: bool = False
    rename: bool = False  # written under a temporary name, then renamed
    direct: bool = False  # written with O_DIRECT, if writes fill blocks and the file system supports it
    # [offset, bytes] of each read after writing, as of TensorFlow's indices. Offset 0 reopens the file; 0 bytes: reads its end.
    read_back: list[tuple[Count, Count]] = []
    # What the job does with this file at each later checkpoint, for example to check the checkpoint; None: nothing.
    looked_at: Literal["opened", "read"] | None = None
    rank: Count = 0  # the rank that writes the file; if there are fewer ranks, the last one
    # The file is written only at the checkpoints after these epochs, as best-so-far files are. If checkpoints come by steps, it
    # is written after these steps of the run. None: the file is written at all checkpoints.
    after: list[Count] | None = None
    keep: Count | None = None  # number of newest versions of this file that stay, 0: all; None: twin.checkpoint.keep
    serialization_time: Duration = 0.0  # seconds in addition to writing
    format: CheckpointFormat | None = None  # format of the file's writes; None: another format, or unknown


class CheckpointPolicy(Section):
    """CheckFreq's policy: measure steps and checkpoints, then write checkpoints as often as the bound `overhead` allows."""

    type: Literal["checkfreq"] = "checkfreq"
    overhead: Annotated[float, msgspec.Meta(gt=0, le=100)] = 0.05  # time that checkpoints may add, as a share of the steps' time
    mtbf: PositiveSeconds | None = None  # mean time between failures, which sets a least interval by Young's formula
    profile_steps: Positive = 100  # number of steps that are timed before the policy's first checkpoint


class TwinCheckpoint(Section):
    """Checkpoint settings that DLIO does not have."""

    files: list[CheckpointFile] = []  # recorded files; if empty, files and sizes follow from the model section
    # Share of a file's serialization time that passes before its first write. The rest is spread over the writes by their bytes.
    serialization_ahead: Share = 0.0
    # Seconds of a checkpoint before its first file. If the first checkpoint takes longer, this is a list: the times in order.
    lead_time: Duration = 0.0
    tail_time: Duration = 0.0  # seconds of a checkpoint after its last file
    # folder: a checkpoint is a folder, written under a temporary name (+ .tmp) that is renamed when all ranks are done.
    commit: Literal["file", "folder"] = "file"
    directory_sync: bool = False  # fsync a folder after files in it are renamed, and before the folder is renamed
    format: CheckpointFormat | None = None  # format in which the tensors are written; None: as recorded
    persist_threads: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1  # threads that write files, or parts of a slot, concurrently
    asynchronous: bool = False  # a snapshot in memory is written in the background
    in_flight: Positive = 1  # most asynchronous checkpoints under way; training waits until there are fewer
    snapshot_time: Duration | None = None  # seconds of an asynchronous checkpoint's snapshot; None: the time to copy its bytes
    # device: training waits for the snapshot; host: the snapshot is taken during the next step, and that step ends after it.
    snapshot: Literal["host", "device"] = "device"
    logged: bool | None = None  # True: the log has checkpoints as phases; None: only if training waits for them
    keep: Positive | None = None  # number of newest checkpoints that stay; older ones are removed; None: all stay
    keep_every: Positive | Literal["epoch"] | None = None  # every n-th checkpoint, or those at ends of epochs, also stay
    # [epoch, step] in the names of checkpoints from before the run, oldest first. Sparse files of the same size replace them.
    before: list[tuple[Count, Count]] = []
    on_processors: bool = False  # the job trains on the CPUs that write checkpoints, so a policy counts the CPU time of writing
    policy: CheckpointPolicy | None = None  # decides when checkpoints within epochs are due; None: the checkpoint section does
    # Checkpoints are due after these epochs, not at an interval. With steps_between_checkpoints, these are steps of the run.
    # A step may be listed several times.
    after: list[Positive] | None = None
    seconds_between: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None  # None: checkpoints are not due by time


class TwinResume(Section):
    """The position at which a stopped run resumes, and how the run gets there.

    * restore reads the checkpoint.
    * skip_reads resumes at the same position without reading a checkpoint.
    * replay_data reads the checkpoint and the epoch's earlier samples, as a loader that cannot skip samples does.
    * replay_all also reads the samples of earlier epochs, as `iotwin detrain run --replay replay-data` does.
    * full reads the checkpoint and trains on the epoch's earlier samples again.
    """

    epoch: Positive = 1  # the epoch in which the run stopped
    step: Count = 0  # number of steps of that epoch that were done
    mode: Literal["restore", "skip_reads", "replay_data", "replay_all", "full"] = "restore"


class TwinEvaluation(Section):
    """Evaluation settings that DLIO does not have."""

    read_threads: Processes | None = None  # worker processes; None: as in training
    preprocess_time: Duration = 0.0  # per evaluation sample
    after_checkpoint: bool = False  # if both are due, the checkpoint comes first


class TwinReader(Section):
    """Reader settings that DLIO does not have."""

    # Request sizes of the reads of a file, in order; the last one is repeated until the end of the file. A final 0: one more read
    # finds the end. Empty: the format's reader chooses.
    read_sizes: list[Count] = []


class PipelineStage(Section):
    """One stage of a pipeline: its ranks, and the times and sizes of one minibatch on one rank."""

    ranks: Annotated[list[Count], msgspec.Meta(min_length=1)]
    forward_s: Duration
    backward_s: Duration
    all_reduce_s: Seconds = 0.0  # time that averaging gradients adds to a backward pass
    receive_s: Seconds = 0.0  # seconds to transfer the stage's input over the link, and the gradient back
    input_bytes: Count = 0  # size of the stage's input, for link_bytes_per_s
    evaluation_s: Duration | None = None  # forward pass of an evaluation; None: forward_s
    checkpoint_bytes: Count = 0  # size of the file that the stage's first rank writes, unless twin.checkpoint.files lists files


class Pipeline(Section):
    """The stages of a pipeline, as `iotwin pipedream twin` writes them. Only the ranks of stage 0 read samples."""

    stages: list[PipelineStage] = []
    plan: str | None = None  # plan.json or conf.json whose stages, schedule and depth the run has; relative to the YAML
    schedule: Literal["1f1b", "gpipe", "flush", "none", "2bw"] | None = None  # None: that of `plan`, else 1f1b
    depth: dict[str, Count] = {}  # by the stage's index: minibatches in flight during warm-up; replaces the schedule's formula
    minibatches: Positive | None = None  # minibatches in each epoch; None: all of the data set
    # Speed of each rank's link to the previous stage, which replaces receive_s; None: receive_s.
    link_bytes_per_s: Annotated[float, msgspec.Meta(gt=0, le=1e15)] | None = None


class Twin(Section):
    """The keys that iotwin adds to DLIO's."""

    assumptions: list[str] = []  # sentences about properties of the twin that the trace does not show
    # unet3d, bert, dlrm: file names as in these workloads; npy: one file of any name per sample; None: dataset.format decides.
    layout: Literal["unet3d", "npy", "bert", "dlrm"] | None = None
    train_files: list[str] | None = None  # names within data_folder; for a pair of unet3d, the part before _x.npy
    eval_files: list[str] | None = None
    resume: TwinResume | None = None  # None: from the first step
    startup_time: Seconds = 0.0  # seconds from the start of the process to the start of init (imports)
    init_time: Duration = 0.0  # seconds from the start of init to the first epoch
    epoch_warm_up_time: Duration = 0.0  # additional seconds of the first step of each epoch that the run trains
    # Number of ranks, that is, processes that each stand for one accelerator. `iotwin emulate --ranks` replaces it.
    ranks: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    busy_wait: bool = False  # keep a CPU busy instead of sleeping in place of computation
    clock: Literal["real", "virtual"] = "real"  # virtual: the time in which all threads sleep or wait is skipped
    persistent_workers: bool = False  # True: worker processes run through all epochs; False: each epoch starts new ones
    pipeline: Pipeline | None = None  # pipeline-parallel stages; None: all ranks do the same
    reader: TwinReader = msgspec.field(default_factory=TwinReader)
    evaluation: TwinEvaluation = msgspec.field(default_factory=TwinEvaluation)
    checkpoint: TwinCheckpoint = msgspec.field(default_factory=TwinCheckpoint)
    recorded: TwinRecorded | None = None  # replay a recording instead of reading samples


# Keys that only twins of earlier versions have, and that have no effect, by the key or option that replaces them.
_EARLIER = {
    "": "train_reads eval_reads startup_files startup_reads startup_ranks all_reduce_time barrier source host reader.start_time "
    "reader.keep_open reader.most_open reader.opened reader.streamed reader.in_turn reader.opening_threads evaluation.lead_time "
    "evaluation.steps_before pipeline.replicas_wait checkpoint.rename checkpoint.write_size checkpoint.files.made_first",
    "--instrument": "instrument",
    "--for": "recorded.cut_s",
    "train.epochs": "recorded.loop",
    "dataset.interleave": "reader.interleave_files",
    "reader.multiprocessing_context": "reader.workers",
    "reader.pin_memory": "reader.pinned_copies",
    "reader.read_type": "reader.mmap recorded.keep_open recorded.read_once",
    "reader.sample_shuffle": "reader.random_batches recorded.read_order",
    "reader.transfer_size": "recorded.request_bytes",
    "twin.epoch_warm_up_time": "first_step_time",
    "twin.reader.read_sizes": "reader.read_past_end",
    "twin.checkpoint.files": "checkpoint.serialization_time",
    "twin.checkpoint.lead_time": "checkpoint.first_lead_time",
    "twin.checkpoint.after": "checkpoint.first_after_step checkpoint.also_after_epoch",
}
_REPLACED = {f"twin.{key}": now for now, keys in _EARLIER.items() for key in keys.split()}


def is_earlier(path: str) -> bool:
    """Return True if only earlier versions had the key `path`. In `path`, sections within a list have an index."""
    return re.sub(r"\[\d+\]", "", path) in _REPLACED


def with_replacement(path: str) -> str:
    """Return the key `path` with the key or option that replaces it, if any."""
    now = _REPLACED.get(path)
    return f"{path} (now {now})" if now else path


class Config(Section, kw_only=True):
    """One workload, as the emulator runs it."""

    model: Model = msgspec.field(default_factory=Model)
    framework: Literal["pytorch", "tensorflow"] = "pytorch"
    num_gpus: Positive | None = None  # number of GPUs for step time models, if a rank stands for several GPUs
    workflow: Workflow = msgspec.field(default_factory=Workflow)
    storage: Storage = msgspec.field(default_factory=Storage)
    dataset: Dataset = msgspec.field(default_factory=Dataset)
    reader: Reader = msgspec.field(default_factory=Reader)
    train: Train = msgspec.field(default_factory=Train)
    evaluation: Evaluation = msgspec.field(default_factory=Evaluation)
    checkpoint: Checkpoint = msgspec.field(default_factory=Checkpoint)
    output: Output = msgspec.field(default_factory=Output)
    profiling: Profiling = msgspec.field(default_factory=Profiling)
    metric: Metric = msgspec.field(default_factory=Metric)
    twin: Twin = msgspec.field(default_factory=Twin)
