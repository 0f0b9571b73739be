"""Made-up traces of made-up training jobs, for tests that need a trace but not a traced program."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from iotwin.trace_store import schema
from iotwin.trace_store.manifest import ClockPair, Host, Manifest, Target
from iotwin.trace_store.writer import write_events, write_tables

MILLISECOND = 1_000_000
SECOND = 1_000_000_000


@dataclass
class Job:
    """A training job as its trace would show it: loaders read one file per sample, the rank computes and writes checkpoints."""

    files: int = 24
    file_bytes: int = 4 << 20
    read_bytes: int = 1 << 20
    batch: int = 2
    loaders: int = 2
    prefetch: int = 2  # batches each loader may have read ahead, as in a PyTorch DataLoader
    epochs: int = 3
    compute_ns: int = 60 * MILLISECOND
    compute_spread: float = 0.05  # share of it by which steps take more or less
    computed_ns: list[int] = field(default_factory=list)  # what each training step took, once the trace is written
    preprocess_ns: int = 10_000  # of each sample, after it is read
    evaluation_ns: int | None = None  # compute per evaluation sample, if other than compute_ns
    read_ns: int = MILLISECOND
    read_from_end: bool = False  # of each file, last request first
    by_numpy: bool = False  # numpy.load reads: Python's first buffer and the header, then the whole file
    checkpoint_every: int = 1  # epochs
    checkpoint_keep: int | None = None  # newest that stay; None: all
    checkpoint_writes: tuple[int, ...] = (4096, 1 << 20, 1 << 20, 128)
    checkpoint_leads_ns: tuple[int, ...] = (0,)  # before the file of each, the last of them before that of every further one
    checkpoint_ahead_ns: int = 0  # between the file's opening and what is before every write
    checkpoint_between_ns: int = 100_000  # before every write, from the beginning of the one before
    checkpoint_tail_ns: int = 0  # after what is behind every file
    shuffle: bool = True
    evaluation_files: int = 4
    log_phases: bool = True
    log_waits: bool = False  # the rank's poll for each batch
    pipes: bool = False  # the messages by which the rank asks each loader for a batch, and gets it
    seed: int = 1
    pid: int = 1000
    root: str = "/data"
    start_ns: int = 5 * SECOND
    lost: dict[str, int] = field(default_factory=dict)
    block: bool = False  # every second read of a file comes from the disk, in two requests; writeback follows each checkpoint
    parts: bool = False  # of the steps, eight an epoch: the wait for a batch and the computation, three times as long
    resumed_steps: int = 0  # done before this run, which begins by reading their checkpoint
    gpu: bool = False  # kernels back to back while a batch is computed, a copy before each; and samples of one device


def event_table(rows: list[tuple]) -> pa.Table:
    """Rows of (start_ns, duration_ns, op, pid, tid, file_id, fd, offset, requested, result, flags, cpu) as a sorted table."""
    rows = sorted(rows)
    columns = list(zip(*rows, strict=True)) if rows else [[] for _ in schema.EVENTS]
    types = [pa.string() if pa.types.is_dictionary(field.type) else field.type for field in schema.EVENTS]
    arrays = [pa.array(column, type=kind) for column, kind in zip(columns, types, strict=True)]
    return pa.table(arrays, names=schema.EVENTS.names).cast(schema.EVENTS)


def write_job(path: Path, job: Job | None = None) -> Path:
    """Write the trace of `job` at `path` and return the path."""
    job = job or Job()
    rng = np.random.default_rng(job.seed)
    rows: list[tuple] = []
    phases: list[tuple] = []
    total = job.files + job.evaluation_files
    paths = [f"{job.root}/case_{i:05d}_x.npy" for i in range(total)]
    paths += [f"pipe:[{number}]" for number in range(2 * job.loaders if job.pipes else 0)]
    now = job.start_ns + SECOND
    phases.append(("init", job.start_ns, now, 0, None, None))
    processes = [(job.pid, 1, "python", f"python train.py --data {job.root}", "rank", job.start_ns, None)]
    checkpoints: list[str] = []
    done, skipped = divmod(job.resumed_steps, max(job.files // job.batch, 1))
    if job.resumed_steps:
        checkpoints.append(f"{job.root}/out/step-{job.resumed_steps}/rank-0.raw")
        rows += _recovery(job, len(paths))
    for epoch in range(done, done + job.epochs):
        workers = (
            [job.pid + 1 + (epoch - done) * job.loaders + w for w in range(max(job.loaders, 1))] if job.loaders else [job.pid]
        )
        processes += [(p, job.pid, "pt_data_worker", "python train.py", "loader", now, None) for p in workers if p != job.pid]
        order = rng.permutation(job.files) if job.shuffle else np.arange(job.files)
        order = order[skipped * job.batch :] if epoch == done else order
        end, computed_ns = _read_pass(rows, job, order, workers, now, rng, job.batch, job.compute_ns)
        job.computed_ns += computed_ns
        phases.append(("epoch", now, end, 0, epoch + 1, None))
        now = end
        if job.evaluation_files:
            evaluation_ns = job.compute_ns if job.evaluation_ns is None else job.evaluation_ns
            end, _ = _read_pass(rows, job, np.arange(job.files, total), workers, now, rng, 1, evaluation_ns)
            phases.append(("evaluation", now, end, 0, epoch + 1, None))
            now = end
        if job.checkpoint_every and (epoch + 1) % job.checkpoint_every == 0:
            leads_ns = job.checkpoint_leads_ns
            lead_ns, file_id = leads_ns[min(len(checkpoints), len(leads_ns) - 1)], len(paths) + len(checkpoints)
            checkpoints.append(f"{job.root}/out/epoch_{epoch + 1}.pt")
            end = _checkpoint(rows, job, file_id, now + lead_ns)
            if job.checkpoint_keep and len(checkpoints) > job.checkpoint_keep:
                gone = file_id - job.checkpoint_keep
                rows.append((end - MILLISECOND, 9000, "unlink", job.pid, job.pid, gone, -1, None, None, 0, 0, 0))
            phases.append(("checkpoint", now, end, 0, epoch + 1, None))
            now = end
    _write(path, job, rows, phases if job.log_phases else [], processes, paths, checkpoints, now)
    return path


def crowd(trace: Path) -> Path:
    """Have the trace's samples show that other work took one of its machine's two CPUs and hardly any was idle."""
    path = trace / "samples" / "cpu.parquet"
    table = pq.read_table(path)
    for name, value in (("user", 0.9), ("system", 0.05), ("iowait", 0.0), ("idle", 0.05), ("job_cpus", 0.9)):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), pa.array([value] * len(table), table.schema.field(at).type))
    pq.write_table(table, path)
    return trace


def _recovery(job, file_id):
    """The calls by which the checkpoint is read that the job goes on from."""
    calls = [("openat", None, None, 9), ("read", 0, 70_000, 70_000), ("read", 70_000, 500, 500), ("close", None, None, 0)]
    begin = job.start_ns + SECOND // 2
    for number, (op, offset, size, result) in enumerate(calls):
        yield (begin + number * MILLISECOND, 500_000, op, job.pid, job.pid, file_id, 9, offset, size, result, 0, 0)


def _read_pass(rows, job, order, workers, now, rng, batch, compute_ns):
    busy = dict.fromkeys(workers, now)
    step_end = now
    computed_ns = []
    taken = []  # when the rank took each batch, which lets its loader begin another
    ahead = job.prefetch * len(workers) if job.loaders else 1
    for number, begin in enumerate(range(0, len(order), batch)):
        pid = workers[number % len(workers)]
        t = busy[pid] if number < ahead else max(busy[pid], taken[number - ahead] if job.loaders else step_end)
        if job.pipes and job.loaders:
            asked = now if number < ahead else taken[number - ahead] + 2000
            t = _message(rows, asked, job.pid, max(t, asked + 1000), pid, job.files + job.evaluation_files + workers.index(pid))
        for file_id in order[begin : begin + batch]:
            t = _read_file(rows, job, int(file_id), pid, t, rng)
        busy[pid] = t
        taken.append(max(step_end, t))
        if job.pipes and job.loaders:
            pipe = job.files + job.evaluation_files + len(workers) + workers.index(pid)
            _message(rows, t - 1000, pid, taken[-1] + 1000, job.pid, pipe)
        if job.log_waits and job.loaders:
            rows.append((step_end, taken[-1] - step_end + 1000, "poll", job.pid, job.pid, None, -1, None, None, 1, 0, 0))
        computed_ns.append(int(compute_ns * rng.uniform(1 - job.compute_spread, 1 + job.compute_spread)))
        step_end = taken[-1] + computed_ns[-1]
    return step_end, computed_ns


def _message(rows, sent, sender, read, receiver, pipe):
    """A message through a pipe; returns when it has been read, and the reader's next call can begin."""
    rows.append((sent, 1000, "write", sender, sender, pipe, 6, None, 96, 96, 0, 0))
    rows.append((read, 1000, "read", receiver, receiver, pipe, 6, None, 96, 96, 0, 0))
    return read + 1001


def _read_file(rows, job, file_id, pid, t, rng):
    cpu = pid % 2
    rows.append((t, 5000, "openat", pid, pid, file_id, 5, None, None, 5, 0, cpu))
    t += 20_000
    offsets = range(0, job.file_bytes, job.read_bytes)
    asked = [(offset, min(job.read_bytes, job.file_bytes - offset)) for offset in offsets]
    asked = [(0, 4096), (0, 128)] * job.by_numpy + (asked[::-1] if job.read_from_end else asked)
    for offset, size in asked:
        duration = int(job.read_ns * rng.uniform(0.8, 1.25))
        rows.append((t, duration, "read", pid, pid, file_id, 5, offset, job.read_bytes, size, 0, cpu))
        t += duration + 10_000
    rows.append((t, 2000, "close", pid, pid, file_id, 5, None, None, 0, 0, cpu))
    return t + job.preprocess_ns


def _checkpoint(rows, job, file_id, t):
    pid = job.pid
    rows.append((t, 9000, "openat", pid, pid, file_id, 7, None, None, 7, schema.FLAG_CREATE | schema.FLAG_WRITABLE, 0))
    t, offset = t + job.checkpoint_ahead_ns, 0
    for size in job.checkpoint_writes:
        t += job.checkpoint_between_ns
        rows.append((t, 50_000, "write", pid, pid, file_id, 7, offset, size, size, schema.FLAG_WRITABLE, 0))
        offset += size
    rows.append((t + 200_000, 5 * MILLISECOND, "fsync", pid, pid, file_id, 7, None, None, 0, schema.FLAG_WRITABLE, 0))
    rows.append((t + 6 * MILLISECOND, 2000, "close", pid, pid, file_id, 7, None, None, 0, 0, 0))
    return t + 10 * MILLISECOND + job.checkpoint_tail_ns


def _write(path, job, rows, phases, processes, paths, checkpoints, end_ns):
    devices = ["/dev/nvidia0"] * job.gpu
    names = paths + checkpoints + devices
    kinds = ["pipe" if path.startswith("pipe:") else "dataset" for path in paths]
    kinds += ["checkpoint"] * len(checkpoints) + ["system"] * len(devices)
    events = event_table(rows)
    ops, numbers = np.unique(np.asarray(events["op"].to_pylist(), dtype=str), return_counts=True)
    manifest = Manifest(
        status="complete",
        backend="synthetic",
        tool_version="test",
        host=Host("testhost", "6.1.0", 2, 8 << 30, "x86_64", "ext4"),
        target=Target(command=["python", "train.py"], root_pid=job.pid),
        clock=[ClockPair(time_ns, 1_700_000_000 * SECOND + time_ns - job.start_ns, 100) for time_ns in (job.start_ns, end_ns)],
        counts={str(op): int(number) for op, number in zip(ops, numbers, strict=True)},
        start_ns=job.start_ns,
        end_ns=end_ns,
        lost=job.lost,
        exit_status=0,
    )
    n = len(names)
    files = {
        "file_id": range(n),
        "device": [64] * n,
        "inode": [100 + i for i in range(n)],
        "generation": [1] * n,
        "path": names,
        "renamed_to": [None] * n,
        "container": [None] * n,
        "kind": kinds,
        "size_bytes": [job.file_bytes] * len(paths) + [0] * (len(checkpoints) + len(devices)),
    }
    names_p = ("pid", "ppid", "comm", "command_line", "role", "start_ns", "exit_status")
    proc = dict(zip(names_p, map(list, zip(*processes, strict=True)), strict=True))
    proc |= {"namespace_pid": proc["pid"], "exit_ns": [end_ns] * len(processes), "container": [None] * len(processes)}
    phase = {name: [row[i] for row in phases] for i, name in enumerate(schema.PHASES.names)}
    samples = {"cpu": _cpu_samples(job, end_ns)}
    if job.block:
        samples["disk"] = _disk_samples(job, rows, end_ns)
    if job.gpu:
        samples["gpu"] = _gpu_samples(job, phases, end_ns)
    tables = (_encode(files, schema.FILES), _encode(proc, schema.PROCESSES), _encode(phase, schema.PHASES))
    manifest.events = write_events(path / "events.parquet", [events])
    write_tables(
        path,
        manifest,
        *tables,
        {k: _encode(v, schema.SAMPLES[k]) for k, v in samples.items()},
        _block(job, rows) if job.block else None,
        _gpu(job, phases) if job.gpu else None,
        _parts(phases) if job.parts else None,
    )


def _parts(phases):
    rows = []
    for phase, begin, end, rank, epoch, _ in phases:
        step_ns = (end - begin) // 8
        for step in range(8 if phase == "epoch" else 0):
            start, waited_ns = begin + step * step_ns, step_ns // 4
            rows.append(("load_batch_mem", start, waited_ns, rank, epoch, step, None, None))
            rows.append(("all_compute", start + waited_ns, step_ns - waited_ns, rank, epoch, step, None, None))
    return _encode({name: [row[i] for row in rows] for i, name in enumerate(schema.PARTS.names)}, schema.PARTS)


def _block(job, rows):
    requests = []
    for number, (start, duration, op, pid, _, file_id, _, offset, _, result, *_) in enumerate(sorted(rows)):
        if op == "read" and number % 2 == 0:
            half = result // 2
            sector = (file_id * job.file_bytes + offset) // 512
            requests += [(start + i * 1000, duration // 2, "read", sector + i * half // 512, half, "task", pid) for i in range(2)]
        elif op == "fsync":
            size = sum(job.checkpoint_writes) // 4096 * 4096
            requests.append((start + 1000, duration - 2000, "write", 1 << 30, size, "kernel", 9))
    start, duration, op, sector, size, origin, pid = map(list, zip(*sorted(requests), strict=True))
    n = len(start)
    columns = {
        "queued_ns": [t - 500 for t in start], "issue_ns": start, "duration_ns": duration, "op": op, "device": [2049] * n,
        "sector": sector, "size_bytes": size, "flags": [0] * n, "cgroup": [1] * n, "origin": origin, "pid": pid,
        "comm": ["kworker/0:1" if name == "kernel" else "python" for name in origin],
    }  # fmt: skip
    return _encode(columns | _unknown(schema.BLOCK, columns, n), schema.BLOCK)


def _gpu(job, phases):
    rows = []
    for phase, begin, end, *_ in phases:
        for t in range(begin, end - 7 * MILLISECOND, 10 * MILLISECOND) if phase == "epoch" else ():
            rows.append((t, MILLISECOND, "copy", 8 << 20, "host_to_device", "Memcpy HtoD"))
            rows.append((t + MILLISECOND, 6 * MILLISECOND, "kernel", None, None, "conv3d"))
    start, duration, kind, size, direction, name = map(list, zip(*rows, strict=True))
    n = len(rows)
    columns = {
        "start_ns": start, "duration_ns": duration, "kind": kind, "device": [0] * n, "stream": [7] * n, "size_bytes": size,
        "direction": direction, "pid": [job.pid] * n, "tid": [job.pid] * n, "name": name, "source": ["kineto"] * n,
    }  # fmt: skip
    return _encode(columns | _unknown(schema.GPU, columns, n), schema.GPU)


def _unknown(expected, columns, rows):
    return {name: [None] * rows for name in expected.names if name not in columns}


def _gpu_samples(job, phases, end_ns):
    times = np.arange(job.start_ns + SECOND // 10, end_ns, SECOND // 10)
    busy = np.zeros(len(times))
    for phase, begin, end, *_ in phases:
        if phase == "epoch":
            busy[(times > begin) & (times <= end)] = 1
    return {
        "time_ns": times,
        "device": np.zeros(len(times), int),
        "sm_percent": 70 * busy,
        "memory_percent": 30 * busy,
        "memory_used_bytes": ((1 << 30) + busy * (3 << 30)).astype(int),
    }


def _disk_samples(job, rows, end_ns):
    edges = np.arange(job.start_ns, end_ns, SECOND // 10)
    read, written = (
        np.histogram([row[0] for row in rows if row[2] == op], edges, weights=[row[9] for row in rows if row[2] == op])[0]
        for op in ("read", "write")
    )
    n = len(edges) - 1
    return {
        "time_ns": edges[1:],
        "interval_ns": np.full(n, SECOND // 10),
        "device": ["vda"] * n,
        "reads": np.ones(n, int),
        "read_bytes": read.astype(int) // 2,
        "written_bytes": written.astype(int),
        "writes": np.zeros(n, int),
        "busy": np.minimum(read / 4e8, 1),
    }


def _cpu_samples(job, end_ns):
    times = np.arange(job.start_ns + SECOND // 10, end_ns, SECOND // 10)
    user = 0.5 + 0.3 * np.sin(times / SECOND)
    return {
        "time_ns": times,
        "interval_ns": np.full(len(times), SECOND // 10),
        "user": user,
        "system": user * 0.1,
        "iowait": user * 0,
        "idle": 1 - 1.1 * user,
        "job_cpus": user * 2,
    }


def _encode(columns, expected):
    missing = [None] * len(next(iter(columns.values())))
    kinds = {f.name: pa.string() if pa.types.is_dictionary(f.type) else f.type for f in expected}
    return pa.table({name: pa.array(columns.get(name, missing), type=kind) for name, kind in kinds.items()}).cast(expected)
