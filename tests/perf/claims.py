"""What docs/performance.md promises, in plain words: each claim, and the pattern of the figures that hold it."""

from dataclasses import dataclass


@dataclass
class Claim:
    """One row of the page."""

    what: str
    subject: str  # of tests/perf/subjects.py
    figures: str  # regular expression for the whole names of the figures
    unit: str = ""


@dataclass
class Section:
    """One table of the page: what a user gains, and compared with whom."""

    title: str
    text: str
    claims: list[Claim]


INTRODUCTION = """# Performance

This page is generated from `tests/perf/records`. Do not edit it: see [CONTRIBUTING](../CONTRIBUTING.md#measurements).

* Repeat a row with `python -m tests.perf NAME`, where NAME is its last column. That also records the new values.
* † marks figures measured with an earlier program: their code has changed since. `make perf` lists them with their commands.
* Several figures in one row are shown as a range. Their records give load and details, `tests/perf/perf_NAME.py` the method.
* A ratio compares two programs that ran alternately on the same machine, so that other load slows both. It is a ratio of medians.
"""

SECTIONS = [
    Section(
        "Tracing",
        "A traced job keeps its speed, and its trace is complete. Rivals trace the same C program, which reads a cached file.\n"
        "Tracepoints alone cost most of what is missed: the details of these records have the cost of programs that do nothing.",
        [
            Claim(
                "read of 64 and 4 KiB from the page cache: time traced / untraced",
                "capture",
                r"cached preads of \d+ KiB: traced .*",
            ),
            Claim("training of unet3d: time traced / untraced", "capture", r"unet3d training: traced .*"),
            Claim("calls missing from the trace, or counted twice", "capture", r"operations counted otherwise .*"),
            Claim("tracer killed: length of the trace that is lost", "capture", r"kill -9 of the tracer: seconds lost", "s"),
            Claim("tracer killed, disk full, Ctrl-C: jobs harmed, traces wrong or unreadable", "faults", r".*"),
            Claim(
                "2 million calls a second, and a full ring of 1 GiB: calls neither recorded nor counted as lost",
                "probes",
                r"(two readers, two writers|ring under full load: calls).*",
            ),
            Claim("the same: peak memory of the tracer", "probes", r"tracer's memory.*", "MB"),
            Claim("cost to an untraced program, for each call", "probes", r"an untraced neighbour.*", "ns"),
            Claim("time from `iotwin trace` to the job's first instruction", "probes", r"start-up.*", "s"),
            Claim("samples of CPU, memory and disk once a second: share of a CPU", "samplers", r"samplers: share.*"),
            Claim(
                "time that DFTracer, bpftrace, perf trace and strace add to a read / iotwin adds", "probes", r"added time of .*"
            ),
            Claim("broken or hostile inputs: crashes, hangs, wrong answers", "fuzz", r"fuzzing: findings.*"),
        ],
    ),
    Section(
        "Twins",
        "A twin resembles its job as a rerun of the job does. Scores are those of [similarity](similarity.md): 1 is identical.",
        [
            Claim("demo: real run compared with its twin", "demo", r"demo: real against twin, overall"),
            Claim("README: time from the first command to the picture", "newcomer", r"README: seconds.*", "s"),
            Claim("iotwin's own jobs: twin compared with unseen runs", "held_out", r"\w+: twin against a rerun not fitted.*"),
            Claim("foreign jobs: labels as the programs read", "unseen", r".*: (bytes of the data that are|batches with the) .*"),
            Claim("foreign jobs: twin compared with an unseen run", "unseen", r"(?!fio).*, unseen: twin against.*"),
            Claim("foreign jobs: bytes read that the twin accounts for", "unseen", r".*: bytes read that its twin accounts for"),
            Claim(
                "foreign jobs: edited twin compared with the job so edited",
                "edits",
                r".*: edited recorded twin compared.*",
            ),
            Claim(
                "foreign jobs: its time of training, relative difference", "edits", r".*edited recorded twin: time of training.*"
            ),
            Claim("four shapes of fio", "unseen", r"fio's .*"),
            Claim("killed and resumed jobs: twin", "resume", r".*(twin against a resumed run|edited twin of the job).*"),
            Claim("other storage: error of the twin's predicted duration", "respond", r"respond: .*"),
            Claim("advice: predicted step time, off that of the job so changed", "advise", r".*: predicted step time, off.*"),
            Claim("best rival's distance from the job / our twin's", "rivals", r"rivals: .*"),
            Claim("verdict: reruns called alike, and wrong twins different", "verdict", r".*, % called (alike|different)", "%"),
            Claim("runs and twins whose nearest job is their own", "identification", r"identification: .*", "%"),
            Claim("virtual clock: utilisation, points off that in real time", "virtual", r"virtual, .*points off"),
            Claim("virtual clock: duration of epochs, % off that in real time", "virtual", r"virtual, .*% off", "%"),
            Claim("size: job's utilisation on the found bandwidth, off its target", "size", r"size: .*found bandwidth.*"),
        ],
    ),
    Section(
        "Data sets and emulator",
        "The emulator replaces dlio_benchmark 2.0.0 at a fraction of its processor time, and uses the disk as fio and dd do.",
        [
            Claim("generation: bytes per second / dd's", "datagen", r"generate .*: bytes/s over dd's"),
            Claim("generation: DLIO's processor time / ours, each format", "datagen", r"generate .*: upstream's CPU over ours"),
            Claim("smallest run: DLIO's processor time / ours", "emulator", r"smallest emulated run: DLIO's.*"),
            Claim("accelerator utilisation without I/O, steps of 1 and 0.25 ms", "virtual", r"AU without I/O at .*", "%"),
            Claim("six MLPerf workloads: samples/s, ours / DLIO's", "dlio", r".*: samples/s, ours over upstream's"),
            Claim("reading files: bytes per second / fio's", "reading", r"read .*"),
            Claim("loading: samples per processor second / DLIO's", "reading", r"load .*"),
            Claim("checkpoint with fsync: bytes per second / fio's", "reading", r"checkpoint of 1 GiB.*"),
        ],
    ),
    Section(
        "Reading traces",
        "Traces of ten million calls and more are analysed in seconds and in bounded memory.",
        [
            Claim("picture and report of ten million calls", "visuals", r"(timeline PNG|report) of 10 million events: s", "s"),
            Claim("comparison of ten million calls with ten million", "tracesim", r"compare 10 million.*", "s"),
            Claim(
                "a million files of 64 hosts, 100 million calls: peak at `--memory 1GiB`",
                "cluster",
                r".* 100,000,000 events on 1,000,000 files .*: peak MiB.*",
                "MiB",
            ),
            Claim("import of strace text: line-by-line time / ours", "visuals", r"import of .*preparation's.*"),
        ],
    ),
    Section(
        "Checkpoints",
        "No kill and no power cut loses a committed checkpoint, and checkpoints hardly slow training.",
        [
            Claim("power cut: states without a right checkpoint", "checkpoints", r"\.\.\. (without a checkpoint|that load).*"),
            Claim(
                "kill, disk error or full disk at a system call: checkpoints lost", "checkpoints", r"(kill -9|EIO|ENOSPC) at .*"
            ),
            Claim("jobs killed at each step and resumed: differences", "checkpoints", r".*, killed at each step and resumed.*"),
            Claim("writing 1 GiB: bytes per second / fio's", "checkpoints", r"writing 1 GiB .*"),
            Claim("snapshot / one copy of as many bytes", "checkfreq", r"CheckFreq: snapshot .*"),
            Claim("training paused by a checkpoint: waiting / two phases", "checkfreq", r"CheckFreq: stall .*"),
            Claim("time of training / with torch or torchsnapshot", "checkfreq", r"\.\.\. time of the loop .*"),
            Claim("share of time for checkpoints, goals 3.5 and 5 %", "checkfreq_overhead", r".* bound (3\.)?5 %"),
            Claim("kinds of loader: of 10 killed jobs, resumed exactly", "checkfreq_loaders", r".*resumed to the samples.*"),
            Claim("jobs killed in a checkpoint: checkpoints lost", "checkfreq_crash", r".*: checkpoints lost"),
            Claim("correction after a competing program, in windows", "checkfreq_hogs", r"CheckFreq (beside|after) .*"),
            Claim(
                "scripts resumed by DETrain at each batch: runs equal bit for bit", "detrain", r"detrain, .*: of \d+ resumed.*"
            ),
            Claim(
                "the same: samples that a resumed run reads wrongly",
                "detrain",
                r"detrain, (restore|replay-data): samples read wrongly.*",
            ),
            Claim("the same: time added to a batch by instrumentation", "detrain", r"detrain, empty body: us added.*", "us"),
            Claim(
                "the same: processor time before the first step, resumed / new and loading",
                "detrain",
                r"detrain, \w+: time of restore.*",
            ),
            Claim(
                "the same: a loader's added time / processor time of a batch",
                "detrain",
                r"detrain, \w+: share of processor time.*",
            ),
        ],
    ),
    Section(
        "Planning",
        "Plans are computed in seconds, are optimal wherever the exact optimum can be computed, and predict the training.",
        [
            Claim("PipeDream: slowest plan", "pipedream", r"optimize: slowest .*", "s"),
            Claim("PipeDream: gap to the exact optimum", "pipedream", r".* straight: gap to .*"),
            Claim("PipeDream: emulated pipeline / its simulation", "pipedream", r"emulated pipeline: seconds.*"),
            Claim("DTR: the original simulator's time / ours", "dtr", r"CPU, original over ours, .*"),
            Claim("DTR: runs of 1232 equal to the original's", "dtr", r"runs equal to the original's, of \d+"),
            Claim(
                "DTR: step within a budget / without, 0.9 and 0.5 of activations",
                "dtr_live",
                r"dtr live: step time, .* at 0\.[59] .*",
            ),
            Claim("DTR: predicted cost of a budget, off the measured one", "dtr_live", r"dtr live: overhead predicted .*"),
            Claim("PipeDream: twins of a trained pipeline and of its plan alone", "pipedream_loop", r"pipeline: .*against the.*"),
            Claim("instrumented jobs: step / the original's", "workloads", r".*: instrumented step over the original's"),
        ],
    ),
]
