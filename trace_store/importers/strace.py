"""Import the text that strace writes: the file of `strace -f` with -ttt or -tt, -T, -y or -yy, or one of the files of -ff."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iotwin.common.errors import UsageError
from iotwin.common.untrusted_files import open_foreign
from iotwin.trace_store import strace_text as text
from iotwin.trace_store.importers.assemble import Imported
from iotwin.trace_store.importers.sorted_calls import Runs, calls_of
from iotwin.trace_store.importers.text import read_lines
from iotwin.trace_store.raw.file_table import readable
from iotwin.trace_store.strace_replay import FORKS, Replay, command_line, mapped
from iotwin.trace_store.syscalls import CALLS as TRACED
from iotwin.trace_store.syscalls import OPEN_KINDS, Kind

_HEAD = re.compile(r"(?:\[pid +)?(?P<pid>\d+)?\]? *(?P<time>\d+\.\d{6,9}|\d\d:\d\d:\d\d(?:\.\d+)?) (?P<rest>.*)")
_UNFINISHED = re.compile(r"(?P<begun>.*?)\s*<unfinished \.\.\.>$")
_RESUMED = re.compile(r"<\.\.\. (?P<name>\w+) resumed>(?P<rest>.*)")
_OTHER_FILE_CALLS = {"mkdir", "mkdirat", "rmdir", "ftruncate", "truncate", "stat", "newfstatat", "statx", "fstat"}
_DAY_NS = 86_400 * 10**9


def recognises(source: Path) -> bool:
    """Return True if one of the first lines of `source` is a call in strace's format."""
    with open_foreign(source) as file:
        lines = file.read(1 << 14).decode("utf-8", "replace").splitlines()[:50]
    heads = [match["rest"] for line in lines if (match := _HEAD.fullmatch(line))]
    return any(re.match(r"\w+\(.*\) += ", rest) for rest in heads)


def read(source: Path, timezone: str | None) -> Imported:
    """Return the calls in strace's text `source`. Times are UNIX ns if strace ran with -ttt, ns since midnight with -tt.

    Offsets follow from earlier calls on the descriptor. If strace ran without -y there are no paths; without -T, durations are 0.
    """
    if not source.is_file():
        raise UsageError(f"{source} is not a file: give the text that strace -o wrote; of strace -ff, one file")
    torn = {source.name: 0}
    replay = _CallRows()
    for call in sorted(_calls(source, torn), key=lambda call: call.start_ns):
        try:
            replay.apply(call)
        except (ValueError, IndexError):  # the arguments do not fit the call
            replay.torn += 1
    rows = replay.rows
    notes = ["durations are 0: strace ran without -T"] if rows and not any(row[1] for row in rows) else []
    notes += ["times are of the day: strace ran with -tt, not -ttt"] if replay.of_the_day else []
    names = ("start_ns", "duration_ns", "op", "pid", "tid", "path", "fd", "offset", "requested", "result")
    calls, impossible = calls_of(rows, names)
    torn[source.name] += impossible + replay.torn
    return Imported(Runs.of(calls), torn, notes, processes=[row for row in replay.processes.values() if _is_process(row)])


def _is_process(row: dict[str, Any]) -> bool:
    times = [row.get(name) or 0 for name in ("start_ns", "exit_ns")]
    numbers = [row.get(name) or 0 for name in ("pid", "ppid", "exit_status")]
    return all(abs(time_ns) <= 1 << 62 for time_ns in times) and all(abs(number) < 1 << 31 for number in numbers)


def _calls(source: Path, torn: dict[str, int]) -> Iterator[text.Call]:
    """Yield the calls in `source`. Join a call that strace printed in two lines, "<unfinished ...>" and "<... resumed>"."""
    begun: dict[int, str] = {}
    suffix = source.suffix[1:]
    alone = int(suffix) if suffix.isdecimal() else 0
    before_ns = None  # time of the line before
    for line in read_lines(source):
        head = _HEAD.fullmatch(line)
        if head is None:
            torn[source.name] += bool(line.strip())
            continue
        tid, time_ns, rest = int(head["pid"] or alone), _time_ns(head["time"]), head["rest"]
        if ":" in head["time"]:
            # strace prints no date: choose the day nearest to the line before. Lines of several threads are not quite in order.
            time_ns += 0 if before_ns is None else round((before_ns - time_ns) / _DAY_NS) * _DAY_NS
            before_ns = time_ns
        stamp = f"{time_ns // 10**9}.{time_ns % 10**9:09d} "
        if cut := _UNFINISHED.fullmatch(rest):
            begun[tid] = stamp + cut["begun"]
            continue
        if resumed := _RESUMED.fullmatch(rest):
            if tid not in begun:
                torn[source.name] += 1
                continue
            whole = begun.pop(tid) + resumed["rest"]
        else:
            whole = stamp + rest
        found = list(text.parse_lines(tid, [whole.encode("utf-8", "surrogateescape")]))
        yield from found
        torn[source.name] += not found and not re.search(r"= \?|^\S+ (---|\+\+\+) ", whole)


def _time_ns(time: str) -> int:
    whole, _, fraction = time.rpartition(".") if "." in time else (time, "", "")
    seconds = 0
    for part in whole.split(":"):
        seconds = seconds * 60 + int(part)
    return seconds * 10**9 + int(f"{fraction:0<9}"[:9])


@dataclass
class _CallRows:
    """Converts calls, in order of time, to rows of a trace, and collects the processes that the calls start and end."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    processes: dict[int, dict[str, Any]] = field(default_factory=dict)
    of_the_day: bool = False
    torn: int = 0
    _replay: Replay = field(default_factory=Replay)

    def apply(self, call: text.Call) -> None:
        pid = self._replay.process_of(call)
        self.of_the_day |= call.start_ns < 2 * _DAY_NS
        process = self.processes.setdefault(pid, {"pid": pid})
        if call.name in FORKS:
            if child := self._replay.fork(call):
                self._add_child(child, pid, call.start_ns)
        elif call.name == "execve" and call.result == 0:
            arguments = [readable(word) for word in command_line(call)]
            process |= {
                "command_line": " ".join(arguments),
                "comm": Path(arguments[0]).name[:15] if arguments else "",
                "started_program": True,
            }
        elif call.name == "exit":
            if call.tid == pid:
                signal = call.result & 127
                process |= {"exit_ns": call.start_ns, "exit_status": -signal if signal else call.result >> 8}
        else:
            self._replay.move(call)
        if call.name in TRACED or call.name in _OTHER_FILE_CALLS:
            self._add(call, pid)

    def _add_child(self, child: int, pid: int, start_ns: int) -> None:
        parent = self.processes[pid]
        self.processes[child] = {
            "pid": child,
            "ppid": pid,
            "start_ns": start_ns,
            "comm": parent.get("comm", ""),
            "command_line": parent.get("command_line"),
        }

    def _add(self, call: text.Call, pid: int) -> None:
        kind = TRACED[call.name][1] if call.name in TRACED else Kind.NAME
        path, use = None, None
        if kind in OPEN_KINDS:
            names = text.strings(call.arguments)
            path = call.result_path or (names[0] if names else None)
            self._replay.open(call)
        elif kind in (Kind.NAME, Kind.NAME_AT, Kind.RENAME, Kind.RENAME_AT):
            names = text.strings(call.arguments)
            path = names[0] if names else text.descriptor(call.arguments)[1]
        elif kind is Kind.MAP:
            if (use := mapped(call)) is None:
                return
        elif kind is not Kind.WAIT:
            use = self._replay.use(call, kind)
        fd, path, offset, requested = (-1, path, None, None) if use is None else (use.fd, use.path, use.offset, use.requested)
        named = None if path is None else readable(path)
        if offset is not None and named is not None and not named.startswith("/"):
            offset = None  # a pipe or a socket has no offsets
        self.rows.append((call.start_ns, call.duration_ns, call.name, pid, call.tid, named, fd, offset, requested, call.result))
