"""Parse the text of strace, one call per line. strace may run with -f, -ff, -y or -yy, and must print UNIX times (-ttt)."""

import errno
import os
import re
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_LINE = re.compile(
    rb"(?P<s>\d+)\.(?P<ns>\d{6,9}) (?P<name>\w+)\((?P<arguments>.*)\) += "
    rb"(?P<result>\?|0x[0-9a-f]+|-?\d+)(?:<(?P<path>[^>]*)>(?:\(deleted\))?)?"
    rb"(?: (?P<error>[A-Z]\w+))?[^<]*(?:<(?P<took_s>\d+)\.(?P<took_ns>\d{6,9})>)?$"
)
_EXITED = re.compile(rb"(?P<s>\d+)\.(?P<ns>\d{6,9}) \+\+\+ (?:exited with (?P<status>\d{1,3})\b|killed by (?P<signal>SIG\w+))")
_LAST = re.compile(rb"\d+\.\d{6,9} \+\+\+ .* \+\+\+\n")
_DESCRIPTOR = re.compile(rb"(?P<fd>AT_FDCWD|-?\d+)(?:<(?P<path>[^>]*)>)?")
_STRING = re.compile(rb'"(?P<text>(?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|x[0-9a-f]{2}|.)")
_SIMPLE_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"v": b"\v", b"f": b"\f"}
_KERNEL_ONLY_ERRORS = {"ERESTARTSYS": 512, "ERESTARTNOINTR": 513, "ERESTARTNOHAND": 514, "ERESTART_RESTARTBLOCK": 516}


@dataclass
class Call:
    """One finished call; or the end of a thread, with the name 'exit' and a wait status as result."""

    tid: int
    start_ns: int  # UNIX time
    duration_ns: int
    name: str
    arguments: bytes
    result: int
    result_path: bytes | None  # path of the descriptor that the call returned


def unescape(text: bytes) -> bytes:
    """Return `text` with strace's C-style escapes replaced by the bytes that they mean."""

    def replace(match: re.Match[bytes]) -> bytes:
        code = match[1]
        if code[:1].isdigit():
            return bytes([int(code, 8) & 255])
        if code[:1] == b"x" and len(code) == 3:
            return bytes([int(code[1:], 16)])
        return _SIMPLE_ESCAPES.get(code, code)

    return _ESCAPE.sub(replace, text)


def parse_lines(tid: int, lines: Iterable[bytes]) -> Iterator[Call]:
    """Yield the calls and exits in `lines`, the text of the thread `tid`; other lines are left out."""
    for line in lines:
        match = _LINE.match(line)
        if match is not None:
            call = _call(tid, match)
            if call is not None:
                yield call
        elif ended := _EXITED.match(line):
            number = int(getattr(signal, ended["signal"].decode(), 0)) if ended["signal"] else 0
            status = number or int(ended["status"] or 0) << 8
            yield Call(tid, _nanoseconds(ended["s"], ended["ns"]), 0, "exit", b"", status, None)


def is_last(line: bytes) -> bool:
    """Return True if `line` ends a thread's text: the thread exited, was killed, or has another id after execve."""
    return _LAST.fullmatch(line) is not None


def _call(tid: int, match: re.Match[bytes]) -> Call | None:
    error = (match["error"] or b"").decode()
    if match["result"] in (b"?", b"-1") and error:
        result = -(_KERNEL_ONLY_ERRORS.get(error) or int(getattr(errno, error, 0)))
    elif match["result"] == b"?":
        return None  # the process ended within the call
    else:
        result = int(match["result"], 16 if match["result"].startswith(b"0x") else 10)
    start_ns = _nanoseconds(match["s"], match["ns"])
    duration_ns = _nanoseconds(match["took_s"], match["took_ns"]) if match["took_s"] else 0
    if not (-(1 << 63) <= result < 1 << 64 and start_ns < 1 << 62 and duration_ns < 1 << 62):
        return None
    path = None if match["path"] is None else unescape(match["path"])
    return Call(tid, start_ns, duration_ns, match["name"].decode(), match["arguments"], result, path)


def _nanoseconds(seconds: bytes, fraction: bytes) -> int:
    return int(seconds) * 10**9 + int(fraction.ljust(9, b"0"))


def descriptor(argument: bytes) -> tuple[int, bytes | None]:
    """Return (fd, path) of the descriptor at the start of `argument`. fd is -100 for AT_FDCWD, -1 if there is no descriptor."""
    match = _DESCRIPTOR.match(argument)
    if match is None:
        return -1, None
    path = None if match["path"] is None else unescape(match["path"])
    return (-100 if match["fd"] == b"AT_FDCWD" else int(match["fd"])), path


def strings(arguments: bytes) -> list[bytes]:
    """Return the quoted strings among `arguments`, unescaped."""
    return [unescape(match["text"]) for match in _STRING.finditer(arguments)]


def numbers_at_end(arguments: bytes, count: int) -> list[int]:
    """Return the last `count` of `arguments` as integers, with -1 for an argument that is no number."""
    values = []
    for part in arguments.rsplit(b", ", count)[-count:]:
        try:
            values.append(int(part.split(b"<")[0], 0))
        except ValueError:
            values.append(-1)
    return values


def flags(argument: bytes, prefix: bytes) -> int:
    """Return the bits of all flags in `argument` whose names begin with `prefix`, such as O_."""
    bits = 0
    for name in re.findall(prefix + rb"[A-Z0-9_]+", argument):
        bits |= getattr(os, name.decode(), 0)
    return bits
