"""Whatever a stranger puts at a path: readers return its content or refuse it in one line that names it, and never wait."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iotwin.common.errors import IotwinError
from iotwin.common.untrusted_files import (
    decode_foreign,
    open_foreign,
    open_foreign_unpacked,
    read_foreign,
    read_foreign_end,
    read_foreign_json,
    read_foreign_lines,
    read_foreign_struct,
    read_foreign_text,
)

MOST_BYTES = 1 << 12


class Layer(msgspec.Struct):
    name: str = ""
    number: int = 0
    size: float = 0.0
    inner: list["Layer"] = []


READERS = {
    "open": lambda path: open_foreign(path).read(MOST_BYTES),
    "bytes": lambda path: read_foreign(path, MOST_BYTES),
    "text": lambda path: read_foreign_text(path, MOST_BYTES),
    "end": read_foreign_end,
    "lines": lambda path: list(read_foreign_lines(path, 64)),
    "json": lambda path: read_foreign_json(path, MOST_BYTES),
    "struct": lambda path: read_foreign_struct(path, Layer, MOST_BYTES),
}
each_reader = pytest.mark.parametrize("read", READERS.values(), ids=READERS)

NUMBERS = st.one_of(
    st.integers(),
    st.sampled_from([2**63, -(2**63) - 1, 2**64, 10**20, 10**400, 0.0, -0.0, 1e308]),
    st.floats(),  # NaN and Infinity, which Python writes as such
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text()), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)
LAYERS = st.fixed_dictionaries({}, optional={"name": VALUES, "number": NUMBERS, "size": NUMBERS, "inner": VALUES})
TEXTS = st.one_of(VALUES, LAYERS).map(lambda value: json.dumps(value).encode())
ODD_BYTES = (
    b"1e999", b"-1e999", b"NaN", b"1" * 5000, b"1" * 30, b"[" * 100_000, b'{"inner":[' * 30_000, b"\0" * 100, b"\xff\xfe", b"",
    b'"\\ud800"', b"\xef\xbb\xbf{}", b"{}x", b"\xed\xa0\x80", b"0" * 100_000, b'"' + b'\\"' * 2000, b"\n" * 50,
)  # fmt: skip
ODD = st.sampled_from(ODD_BYTES)
INPUTS = st.one_of(
    TEXTS, ODD, st.binary(), st.tuples(TEXTS, ODD, st.integers(0, 50)).map(lambda t: t[0][: t[2]] + t[1] + t[0][t[2] :])
)


def is_plain(value: Any) -> bool:
    """Whether all numbers in `value` are finite and of 64 bits, and all text can be written."""
    if isinstance(value, dict):
        return all(is_plain(each) for pair in value.items() for each in pair)
    if isinstance(value, list):
        return all(map(is_plain, value))
    if isinstance(value, Layer):
        return is_plain([value.name, value.number, value.size, value.inner])
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    if isinstance(value, float):
        return abs(value) <= 1.7976931348623157e308
    return value is None or isinstance(value.encode() if isinstance(value, str) else value, bytes)


@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=INPUTS)
def test_any_content_is_read_or_decoded_or_refused_in_one_line(tmp_path, content):
    path = tmp_path / "a stranger's"
    path.write_bytes(content)
    for name, read in READERS.items():
        try:
            assert is_plain(read(path)), name
        except IotwinError as error:
            assert str(path) in str(error) and "\n" not in str(error), name
    for kind in (object, Layer, dict[str, float], int):
        try:
            assert is_plain(decode_foreign(content, kind, "the message"))
        except IotwinError as error:
            assert str(error).startswith("the message") and "\n" not in str(error)


def fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def circle(path: Path) -> Path:
    path.symlink_to(path)
    return path


SPECIAL = {
    "fifo": fifo,
    "folder": folder,
    "device": lambda path: Path("/dev/zero"),
    "terminal": lambda path: Path("/dev/tty"),
    "circle": circle,
    "failing reads": lambda path: Path("/proc/self/mem"),  # read(2) at its first page is EIO
    "long name": lambda path: path / ("x" * 5000),
    "NUL": lambda path: path.with_name("a\0b"),
}


@each_reader
@pytest.mark.parametrize("make", SPECIAL.values(), ids=SPECIAL)
def test_what_is_no_readable_file_is_refused(read, make, tmp_path):
    path = make(tmp_path / "name")
    with pytest.raises(IotwinError, match="cannot be read"):
        read(path)


@each_reader
def test_a_missing_file_is_the_callers_to_judge(read, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none")
    with pytest.raises(NotADirectoryError):
        read(tmp_path / "file" / "none")


@pytest.mark.parametrize("name", ["bytes", "text", "json", "struct"])
def test_a_tebibyte_of_zeros_is_refused_unread(name, tmp_path):
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(IotwinError, match=r"holds more than 4 KiB"):
        READERS[name](path)
    assert read_foreign_end(path, 8) == "\0" * 8
    assert next(read_foreign_lines(path, 8)) == b"\0" * 8


def test_links_are_followed_unless_the_caller_forbids_it(tmp_path):
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    assert read_foreign(tmp_path / "link", 4) == b"text"
    with pytest.raises(IotwinError, match="symbolic link"):
        read_foreign(tmp_path / "link", 4, follow=False)


@pytest.mark.parametrize("number", ["9223372036854775807", "-9223372036854775808", "0.12345678901234567890123", "1e300"])
def test_numbers_that_64_bits_hold_are_taken(number):
    assert decode_foreign(f'["{"9" * 40}", {number}]'.encode(), object, "it") == ["9" * 40, json.loads(number)]


@pytest.mark.parametrize("number", ["9223372036854775808", "-9223372036854775809", "1" * 5000, "1e999", "NaN", "-Infinity"])
def test_numbers_that_no_table_holds_are_refused(number):
    for kind in (object, list[int], list[float]):
        with pytest.raises(IotwinError, match=r"^it"):
            decode_foreign(b"[%b]" % number.encode(), kind, "it")


def test_the_line_that_is_no_json_is_named():
    with pytest.raises(IotwinError, match=r"^a.json:3: no JSON"):
        decode_foreign(b'{"a": 1,\n"b": [2,\n3,, 4]}', object, "a.json")


def test_long_lines_are_cut_and_the_next_one_is_whole(tmp_path):
    (tmp_path / "log").write_bytes(b"a" * 200 + b"\nb\n" + b"c" * 65)
    assert list(read_foreign_lines(tmp_path / "log", 64)) == [b"a" * 64, b"b\n", b"c" * 64]


def test_a_packed_file_is_unpacked_and_closed(tmp_path):
    for name, packed in (("a.json", b"text"), ("a.json.gz", gzip.compress(b"text"))):
        (tmp_path / name).write_bytes(packed)
        with open_foreign_unpacked(tmp_path / name) as file:
            assert file.read() == b"text"
    with pytest.raises(IotwinError, match="not a regular file"):
        open_foreign_unpacked(fifo(tmp_path / "b.gz"))
