"""strace's calls mean the same to the backend, which makes records of them, and to the import, which makes rows."""

from iotwin.trace_store import strace_text as text
from iotwin.trace_store.importers import strace as importer
from iotwin.trace_store.raw import records
from iotwin.trace_store.strace_replay import Replay
from iotwin.trace_store.syscalls import CALLS, NUMBER_OF_OP, Kind
from iotwin.tracing_tools.backends import strace as backend

CALLS_TEXT = """\
7 openat(AT_FDCWD</w>, "data", O_RDWR) = 3</w/data>
7 read(3</w/data>, "..."..., 100) = 100
7 ftruncate(3</w/data>, 5000) = 0
7 fallocate(3</w/data>, 0, 4096, 8192) = 0
7 read(3</w/data>, "..."..., 10) = 10
7 fcntl(3</w/data>, F_DUPFD_CLOEXEC, 0) = 5</w/data>
7 read(5</w/data>, "..."..., 10) = 10
7 clone(child_stack=NULL, flags=SIGCHLD) = 8
8 readv(3</w/data>, [{iov_base="..", iov_len=6}, {iov_base="..", iov_len=4}], 2) = 7
7 clone3({flags=CLONE_VM|CLONE_THREAD}, 88) = 9
9 lseek(5</w/data>, 1000, SEEK_SET) = 1000
9 write(3</w/data>, "..."..., 20) = -1 EIO (Input/output error)
7 pread64(3</w/data>, "..."..., 50, 64) = 50
7 mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, 3</w/data>, 0x2000) = 0x7f0000000000
7 mmap(NULL, 4096, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f0000001000
8 close(3</w/data>) = 0
"""
# (call, process, thread, descriptor, offset, bytes asked for); offset None where the call has none
EXPECTED = [
    ("read", 7, 7, 3, 0, 100), ("ftruncate", 7, 7, 3, None, 5000), ("fallocate", 7, 7, 3, 4096, 8192),
    ("read", 7, 7, 3, 100, 10), ("read", 7, 7, 5, 110, 10), ("readv", 8, 8, 3, 120, 10), ("lseek", 7, 9, 5, None, 0),
    ("write", 7, 9, 3, 1000, 20), ("pread64", 7, 7, 3, 64, 50), ("mmap", 7, 7, 3, 0x2000, 4096), ("close", 8, 8, 3, None, 0),
]  # fmt: skip


def calls() -> list[text.Call]:
    found = []
    for number, line in enumerate(CALLS_TEXT.splitlines()):
        tid, rest = line.split(" ", 1)
        found += text.parse_lines(int(tid), [f"{100 + number}.000000000 {rest} <0.000010>".encode()])
    assert len(found) == 16
    return found


def test_the_backend_s_records():
    made = backend.StraceRecords(0, [name for name, (_, kind) in CALLS.items() if kind not in backend._NOT_IN_TEXT])
    fields, got = records.EVENT.names, []
    for call in calls():
        for event in made.apply(call):
            row = dict(zip(fields, event, strict=True))
            name = {number: name for name, number in NUMBER_OF_OP.items()}[row["call_flags_cpu"] & 1023]
            offset = None if row["offset"] < 0 else row["offset"]
            got.append((name, row["pid"], row["tid"], row["fd"], offset, row["requested"]))
    assert [row for row in got if row[0] not in ("openat", "fcntl")] == EXPECTED


def test_the_import_s_rows():
    made = importer._CallRows()
    for call in calls():
        made.apply(call)
    got = [(op, pid, tid, fd, offset, requested or 0) for _, _, op, pid, tid, _, fd, offset, requested, _ in made.rows]
    assert [row for row in got if row[0] != "openat"] == EXPECTED
    assert set(made.processes) == {7, 8} and made.processes[8]["ppid"] == 7


def test_a_closed_descriptor_begins_anew():
    replay = Replay()
    read, close, opened = (next(call for call in calls() if call.name == name) for name in ("read", "close", "openat"))
    replay.open(opened)
    assert [replay.use(read, Kind.READ_WRITE).offset for _ in range(2)] == [0, 100]
    close.tid = 7
    replay.use(close, Kind.CLOSE)
    assert replay.use(read, Kind.READ_WRITE).offset == 0


def test_a_result_is_a_number_of_64_bits():
    """Signed or unsigned; what no call can return is left out."""
    lines = [b"1.000000 lseek(3, 0, SEEK_SET) = %d" % n for n in (-(1 << 63), -(1 << 63) - 1, (1 << 64) - 1, 1 << 64)]
    assert [call.result for call in text.parse_lines(7, lines)] == [-(1 << 63), (1 << 64) - 1]


def test_a_time_is_less_than_two_to_the_62_nanoseconds():
    last = (1 << 62) - 1
    lines = [
        b"%d.%09d close(3) = 0 <%d.%09d>" % (*divmod(t, 10**9), *divmod(d, 10**9))
        for t in (last, last + 1)
        for d in (last, last + 1)
    ]
    assert [(call.start_ns, call.duration_ns) for call in text.parse_lines(7, lines)] == [(last, last)]


def test_what_a_descriptor_is_told_later_counts_as_if_it_had_been_opened_so():
    """Also through a duplicate; until it is told otherwise, and in no other descriptor."""
    lines = [
        b'openat(AT_FDCWD</w>, "a", O_WRONLY|O_CREAT, 0666) = 3</w/a>', b'openat(AT_FDCWD</w>, "b", O_WRONLY|O_DIRECT) = 4</w/b>',
        b'write(3</w/a>, "..."..., 512) = 512', b"dup(3</w/a>) = 5</w/a>", b"fcntl(5</w/a>, F_SETFL, O_WRONLY|O_DIRECT) = 0",
        b'write(3</w/a>, "..."..., 512) = 512', b"fcntl(3</w/a>, F_SETFL, O_WRONLY) = 0", b'write(5</w/a>, "..."..., 7) = 7',
        b'write(4</w/b>, "..."..., 512) = 512', b"close(4</w/b>) = 0", b'write(4</w/b>, "..."..., 1) = 1',
    ]  # fmt: skip
    made = backend.StraceRecords(0, ["openat", "write", "close"])
    read = [
        line
        for number, each in enumerate(lines)
        for line in text.parse_lines(7, [b"%d.000000000 %s <0.000010>" % (number, each)])
    ]
    packed = [
        dict(zip(records.EVENT.names, event, strict=True))["call_flags_cpu"] >> 10 for call in read for event in made.apply(call)
    ]
    assert [bool(flags & records.RAW_FLAG_DIRECT) for flags in packed] == [False, True, False, True, False, True, True, False]
