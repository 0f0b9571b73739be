"""The sections and keys of a workload YAML as typed structs. Keys under ``twin:`` are iotwin's, the others are DLIO's.

DLIO's keys have DLIO's names and defaults. DLIO's keys without an effect in iotwin are fields marked "of no effect", so that
DLIO's files load unchanged. `workload_yaml.dataset` defines the section `dataset`. If DLIO has two spellings of a key,
`workload_yaml.spelling` converts the other spelling to the one used here.
"""

from typing import Annotated, Literal

import msgspec

from iotwin.common.numbers.durations import Duration, PositiveSeconds, Seconds
from iotwin.workload_yaml.dataset import Count, Dataset, Positive, Section, Size
from iotwin.workload_yaml.step_times import StepTime

OrNone = Annotated[int, msgspec.Meta(ge=-1, le=1 << 40)]  # -1: none, as in DLIO
Seed = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
# An explicit maximum keeps one typing error (a size in the place of a count) from becoming a fork bomb.
Processes = Annotated[int, msgspec.Meta(ge=0, le=1024)]
Datatype = Literal["int8", "uint8", "fp16", "bf16", "fp32", "fp64"]
Shuffle = Literal["off", "seed", "random"]  # random: a fresh order in each epoch even where seed_change_epoch is false


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
    type: str | None = None  # only `transformer` changes anything: sizes then follow from the shape
    model_size_bytes: Size = 10240  # of the model state that a rank which checkpoints writes, unless type is transformer
    model_datatype: Datatype = "fp16"
    optimizer_datatype: Datatype = "fp32"
    optimization_groups: list[Positive] = []  # elements of each optimizer tensor, given one by one
    num_layers: OrNone = -1
    layer_parameters: list[Positive] = []  # elements of each tensor of a layer, given one by one
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
    query: str | None = None  # prints one resolved value, as `reader.batch_size`, and ends


class Storage(Section):
    """Where the data set and the checkpoints are. Relative paths are below `storage_root`."""

    storage_type: Literal["local_fs", "parallel_fs", "direct_fs", "s3", "aistore", "s3dlio"] = "local_fs"
    storage_root: str = "./"
    # Of the object store: endpoint_url, region, keys.
    storage_options: dict[str, str | int | float | bool | list[str] | None] = {}
    storage_library: str | None = None  # of no effect: fsspec speaks to every store


class Reader(Section):
    """How the data loader of each rank reads samples."""

    data_loader: str = "native"  # native, pytorch, tensorflow, synthetic; dali, native_dali, terabyte as native; or a plug-in
    data_loader_classname: str | None = None  # plug-ins by `module.Class`
    reader_classname: str | None = None
    data_loader_sampler: str | None = None
    batch_size: Positive = 1
    batch_size_eval: Positive = 1
    read_threads: Processes = 1  # worker processes; 0: the main process reads
    computation_threads: Processes = 1  # tf.data's parallel parsing; of no effect, as records are not parsed
    # Batches in flight over all workers, each having ceil(size / read_threads), as in DLIO. When not given, each worker has two
    # whatever their number, as in PyTorch.
    prefetch_size: Positive | None = None
    file_shuffle: Shuffle = "off"  # with one sample per file, the same thing as sample_shuffle: either one shuffles
    sample_shuffle: Shuffle = "off"
    shuffle_size: Positive = 1024  # samples in tf.data's shuffle buffer
    read_type: Literal["on_demand", "memory"] = "on_demand"  # memory: each file is read once, in the first epoch
    file_access: Literal["multi", "shared", "collective", "mpio", "posix"] = "multi"  # of no effect, as in DLIO
    transfer_size: Positive | None = None  # bytes of one read; None: as the format's own reader has it
    preprocess_time: Duration = 0.0  # per training sample, in the worker
    multiprocessing_context: Literal["fork", "spawn", "forkserver"] = "fork"  # of the pytorch loader; native always forks
    pin_memory: bool = True  # the pytorch loader's; the native loader copies if twin.reader.pinned_copies
    odirect: bool = False  # past the page cache
    dont_use_mmap: bool = False  # of no effect
    # Of the tensor that the pytorch loader delivers for a sample, instead of record_length_bytes_resize.
    transformed_record_dims: list[Positive] = []
    transformed_record_element_type: str = "uint8"


class Train(Section):
    """Training steps."""

    epochs: Positive = 1
    computation_time: StepTime = 0.0  # per step
    # At most this many steps in each epoch, as DLIO has it; -1: all.
    total_training_steps: OrNone = -1
    seed: Seed = 123  # of order, drawn times and checkpoint content
    seed_change_epoch: bool = True  # a fresh order each epoch; False: the same order in all


class Evaluation(Section):
    """When and how to evaluate: by epochs, or by steps if `steps_between_evals` is given."""

    eval_time: Duration = 0.0  # per evaluation step
    eval_after_epoch: Positive = 1  # first after this epoch,
    epochs_between_evals: Positive = 1  # then every so many
    eval_after_step: OrNone = -1  # first after this step of the run; -1: after the first steps_between_evals
    steps_between_evals: OrNone = -1
    total_eval_steps: OrNone = -1  # of each evaluation; -1: all


class Ksm(Section):
    """DLIO's kernel same-page merging (KSM) of tensors; of no effect, since the emulator writes everything from one buffer."""

    madv_mergeable_id: int = 12
    high_ram_trigger: float = 30.0
    low_ram_exit: float = 15.0
    await_time: float = 200.0


class Checkpoint(Section):
    """When and how to write checkpoints: by epochs, or by steps if `steps_between_checkpoints` is given."""

    checkpoint_folder: str = "./checkpoints/"
    checkpoint_after_epoch: Positive = 1  # first after this epoch,
    epochs_between_checkpoints: Positive = 1  # then every so many
    checkpoint_after_step: OrNone = -1  # one more after this step of the run; 0: before the first
    steps_between_checkpoints: OrNone = -1
    time_between_checkpoints: Duration = 0.0  # seconds of computing between checkpoints, when only checkpoints run
    num_checkpoints_write: OrNone = -1  # when only checkpoints run: how many are written,
    num_checkpoints_read: OrNone = -1  # and then read back
    type: Literal["rank_zero", "all_ranks"] = "rank_zero"  # who writes the model where nothing is sharded
    mode: Literal["default", "subset"] = "default"  # subset: fewer ranks than the model's parallelism, which write their shares
    fsync: bool | None = None  # for all files; when not given, each file does as recorded
    recovery_rank_shift: bool = False  # reading back, each rank reads another's files, past its node's page cache
    rank_sync: bool = False  # ranks wait for one another after each checkpoint
    randomize_tensor: bool = True  # random bytes; false: zeros, which storage may compress away
    ksm: Ksm | None = None
    checkpoint_mechanism_classname: str | None = None
    # The fork of the artifact: writes alternate between q1 bytes and a normal curve, never below min.
    ckpt_write_sz_q1: Positive | None = None
    ckpt_write_sz_mean: Positive | None = None
    ckpt_write_sz_std: Count | None = None
    ckpt_write_sz_min: Positive | None = None


class OutputMetric(Section):
    """Which steps of an epoch the metrics exclude."""

    exclude_start_steps: Count = 1  # warming up: the first batch has no step to hide behind
    exclude_end_steps: Count = 0


class Output(Section):
    """Where the emulator writes its results."""

    folder: str = "./output/"
    log_file: str = "dlio.log"  # in the folder
    metric: OutputMetric = msgspec.field(default_factory=OutputMetric)


class Profiling(Section):
    """What iostat samples during the run if workflow.profiling is true."""

    profiler: Literal["none", "iostat", "trace", "darshan", "tensorboard"] = "iostat"
    iostat_devices: list[str] = []  # such as sda; all when none is given


class Metric(Section):
    """The accelerator utilisation at which a run counts as successful."""

    au: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.9  # accelerator utilisation to reach


# torch.save's two, torch.distributed.checkpoint's, and PCcheck's.
CheckpointFormat = Literal["zip", "legacy", "dcp", "slots"]


class CheckpointFile(Section):
    """One file of a checkpoint, as it was traced."""

    name: str  # within checkpoint_folder; '{epoch}' and '{step}' become numbers, a name without any is overwritten
    write_sizes: Annotated[list[tuple[Count, Positive]], msgspec.Meta(min_length=1)]  # [bytes, how often], in order
    fsync: bool = False
    rename: bool = False  # written under a temporary name, then renamed
    made_first: bool = False  # opened and closed once before it is opened to be written, as where tempfile.mkstemp names it
    direct: bool = False  # past the page cache, O_DIRECT, as far as writes fill blocks and the file system knows how
    # [offset, bytes] of each read once it is written, as TensorFlow merges indices; each at 0 opens it anew, no bytes: its end.
    read_back: list[tuple[Count, Count]] = []
    # At each later checkpoint while this one is there, as a store does that looks which are whole; None: it is left alone.
    looked_at: Literal["opened", "read"] | None = None
    rank: Count = 0  # that writes it; of fewer ranks the last
    epochs: list[Count] | None = None  # written only at these epochs' checkpoints (a best-so-far file); None: at every one
    after_steps: list[Count] | None = None  # the same of the whole run's steps, if two kinds have separate cadences
    keep: Count | None = None  # newest of this file alone that stay, 0: all; None: twin.checkpoint.keep
    # Seconds besides writing; None: its share, by bytes, of the section's.
    serialization_time: Duration | None = None
    format: CheckpointFormat | None = None  # that its writes are of; None: another, or not known


class CheckpointPolicy(Section):
    """CheckFreq's policy: measure steps and checkpoints, then write checkpoints as often as the bound `overhead` allows."""

    type: Literal["checkfreq"] = "checkfreq"
    overhead: Annotated[float, msgspec.Meta(gt=0, le=100)] = 0.05  # share of the time of steps that checkpoints may add
    mtbf: PositiveSeconds | None = None  # mean time between failures; below Young's interval checkpoints cost more than they save
    profile_steps: Positive = 100  # steps timed before the first checkpoint that the policy takes


class TwinCheckpoint(Section):
    """Checkpoint settings that DLIO does not have."""

    files: list[CheckpointFile] = []  # recorded; without any, sizes follow from the model section
    # Seconds per file besides writing; those of all files of a checkpoint are shared by them in proportion to their bytes.
    serialization_time: Duration = 0.0
    # Share of a file's that passes before its first write; the rest follows its writes, in proportion to their bytes.
    serialization_ahead: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    lead_time: Duration = 0.0  # seconds of a checkpoint before its first file
    first_lead_time: Duration | None = None  # of the very first checkpoint, which warms up; None: as the others
    tail_time: Duration = 0.0  # seconds of a checkpoint besides those before and in its files; they follow its last file
    write_size: Positive | None = None  # bytes of one write of files that are not recorded; None: 8 MiB
    rename: bool = True  # files that are not recorded are written under a temporary name, then renamed
    # folder: the files of a folder are written below a temporary name of it (+ .tmp), which is renamed when all ranks are done.
    commit: Literal["file", "folder"] = "file"
    directory_sync: bool = False  # fsync of the folder after each kind of rename, and of one that is renamed before
    format: CheckpointFormat | None = None  # in which the same tensors are written; None: as recorded, or writes of write_size
    persist_threads: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1  # write files at once: of dcp so many, of slots parts of one
    asynchronous: bool = False  # a snapshot in memory, persisted in the background
    in_flight: Positive = 1  # asynchronous checkpoints that may be under way; training waits for room
    snapshot_time: Duration | None = None  # of an asynchronous one; None: what copying its bytes takes here
    # Asynchronous: training waits for all of the snapshot (device), or it goes on until the end of the next step (host).
    snapshot: Literal["host", "device"] = "device"
    logged: bool | None = None  # as a separate phase; None: if training waits for it
    keep: Positive | None = None  # newest checkpoints kept, older ones are removed; None: all
    keep_every: Positive | None = None  # one in so many stays besides
    keep_epoch_ends: bool = False  # those at ends of epochs stay besides
    # [epoch, step] in the names of those that are there when the run begins, oldest first; holes of their size stand in for them.
    before: list[tuple[Count, Count]] = []
    on_processors: bool = False  # the job trains on the processors that write; a policy counts what writing takes of them
    policy: CheckpointPolicy | None = None  # decides within epochs; None: by the checkpoint section
    first_after_step: Positive | None = None  # of those by steps; None: after steps_between_checkpoints
    # Of the whole run, in place of steps_between_checkpoints; a step has as many as it stands there.
    after_steps: list[Positive] | None = None
    also_after_epoch: Positive | None = None  # one more, of those by epochs
    seconds_between: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None  # by time; None: by the checkpoint section


class TwinResume(Section):
    """The position at which a stopped run resumes, and how the run reaches it.

    * restore reads the checkpoint.
    * skip_reads resumes at the same position without reading a checkpoint.
    * replay_data reads the checkpoint and the epoch's earlier samples, as a loader that cannot skip samples does.
    * full reads the checkpoint and trains on the epoch's earlier samples again.
    """

    epoch: Positive = 1  # that it was in,
    step: Count = 0  # after so many steps of it
    mode: Literal["restore", "skip_reads", "replay_data", "full"] = "restore"


class TwinEvaluation(Section):
    """Evaluation settings that DLIO does not have."""

    read_threads: Processes | None = None  # worker processes; None: as in training
    lead_time: Duration = 0.0  # seconds of an evaluation before it requests its first batch
    preprocess_time: Duration = 0.0  # per evaluation sample
    after_checkpoint: bool = False  # where both are due
    steps_before: Count = 0  # of an evaluation before the first epoch, as frameworks make sure that one will work


class TwinReader(Section):
    """Reader settings that DLIO does not have."""

    workers: Literal["processes", "threads"] = "processes"
    start_time: Duration = 0.0  # seconds from when a pass begins to start its loader processes until the first of them reads
    mmap: bool = False  # files are mapped, not read
    interleave_files: Positive | None = None  # files that dataset.interleave takes turns among; None: 8
    # Files of any format are streamed as tf.data streams TFRecords, in records of dataset.record_length_bytes, and begun again
    # until train.total_training_steps are done.
    streamed: bool = False
    in_turn: bool = False  # a stream's open files give records in turn, though threads read them
    opening_threads: Positive | None = None  # that open a stream's files, ahead of their turn; None: those that read them
    random_batches: bool = False  # shuffles batches, not samples: one read each out of one big file
    # The request size of each read of a file, the last one again until its end; none: the format's own.
    read_sizes: list[Positive] = []
    read_past_end: bool = False  # with read_sizes: the read that finds nothing more is made too
    keep_open: bool = False  # files stay open from their first read on
    most_open: Positive | None = None  # with keep_open, in each process: the one opened first is closed for another; None: all
    # With keep_open: loaders open files for themselves, or share those that the main process opened, once or for each pass.
    opened: Literal["by_loaders", "once", "each_pass"] = "by_loaders"
    pinned_copies: bool = False  # each batch is copied to the main process, as pinned memory is


class PipelineStage(Section):
    """One stage of a pipeline: its ranks, and the times and sizes of one minibatch on one rank."""

    ranks: Annotated[list[Count], msgspec.Meta(min_length=1)]
    forward_s: Seconds
    backward_s: Seconds
    all_reduce_s: Seconds = 0.0  # that averaging gradients adds to a backward pass
    receive_s: Seconds = 0.0  # of its input's way over the link and the gradient's back
    checkpoint_bytes: Count = 0  # of its file at the end of each epoch, which its first rank writes


class Pipeline(Section):
    """The stages of a pipeline, as `iotwin pipedream twin` writes them. Only the ranks of stage 0 read samples."""

    stages: Annotated[list[PipelineStage], msgspec.Meta(min_length=1)]
    schedule: Literal["1f1b", "gpipe", "flush", "none", "2bw"] = "1f1b"
    depth: dict[str, Count] = {}  # warm-up of stages by their number, instead of the formula's
    minibatches: Positive | None = None  # at most so many in each epoch; None: all that the data set has


class TwinRecorded(Section):
    """The recording to replay, and how to replay it. A replay ignores all other keys except twin.ranks and the folders."""

    file: str  # written by `iotwin fit` next to the YAML, and read from there
    loop: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1  # times it is replayed, one after another
    cut_s: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None  # only the calls of the job's first seconds; None: all
    think_scale: Annotated[float, msgspec.Meta(ge=0, le=1000)] = 1.0  # times what the job computed between its calls


class Twin(Section):
    """The keys that iotwin adds to DLIO's."""

    source: str = ""  # the trace the twin was derived from
    host: str = ""  # the machine that trace was taken on
    assumptions: list[str] = []  # what the trace does not show, in words
    # unet3d, bert, dlrm: those workloads' files; npy: one file a sample of any name; None: by dataset.format.
    layout: Literal["unet3d", "npy", "bert", "dlrm"] | None = None
    train_files: list[str] | None = None  # names within data_folder; of a unet3d pair the part before _x.npy
    eval_files: list[str] | None = None
    # What each sample reads, FILE:OFFSET+SIZE ..., by the numbers of train_files; None: a file, or an equal part of one.
    train_reads: list[str] | None = None
    eval_reads: list[str] | None = None
    # What is read in init, in order, each from opening the file to closing it: a model to start from, a state to go on from.
    startup_files: list[str] = []  # names within data_folder, or absolute paths
    startup_reads: list[str] = []  # FILE:OFFSET+SIZE ..., by the numbers of startup_files
    startup_ranks: list[Count] = []  # which rank makes each of startup_reads; of fewer ranks the last; none: rank 0
    resume: TwinResume | None = None  # None: from the first step
    startup_time: Seconds = 0.0  # from the process's start to the start of init: imports
    init_time: Duration = 0.0  # from the start of init to the first epoch
    epoch_warm_up_time: Duration = 0.0  # seconds that the first step of an epoch takes longer than the others
    first_step_time: Duration | None = None  # of the very first training step, which warms up; None: as the others
    ranks: Annotated[int, msgspec.Meta(ge=1, le=1024)] = (
        1  # processes that each stand for one accelerator, unless `iotwin emulate --ranks` is given
    )
    barrier: bool = True  # ranks wait for one another after each step, as an all-reduce makes them
    all_reduce_time: Duration = 0.0  # seconds of each step after that wait, drawn alike on all ranks
    instrument: bool = False  # every part of every step goes into the log of rank 0; as --instrument
    busy_wait: bool = False  # computing keeps a CPU busy instead of sleeping
    persistent_workers: bool = False  # worker processes live through all epochs; False: fresh ones for each
    pipeline: Pipeline | None = None  # None: every rank reads and computes the same
    reader: TwinReader = msgspec.field(default_factory=TwinReader)
    evaluation: TwinEvaluation = msgspec.field(default_factory=TwinEvaluation)
    checkpoint: TwinCheckpoint = msgspec.field(default_factory=TwinCheckpoint)
    recorded: TwinRecorded | None = None  # replay a recording instead of reading samples


class Config(Section, kw_only=True):
    """One workload, as the emulator runs it."""

    model: Model = msgspec.field(default_factory=Model)
    framework: Literal["pytorch", "tensorflow"] = "pytorch"
    num_gpus: Positive | None = None  # for step time models, if one rank stands for several
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
