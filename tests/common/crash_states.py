"""What a power cut can leave on disk, enumerated from the recorded system calls of a program; no root, no luck.

After Pillai et al., "All File Systems Are Not Created Equal: On the Complexity of Crafting Crash-Consistent Applications" (OSDI
2014). A cut after any call leaves:

* of every write and truncation that no later fsync of its file follows: all of it, nothing, its first half, or zeros instead,
  each for itself;
* of the operations on names (create, mkdir, rename, unlink) that no later fsync of their directory follows: all but the last m of
  them, for every m. An fsync of a file does not keep its name.
"""

import itertools
import os
import random
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

CALLS = (
    "openat,open,creat,mkdir,mkdirat,rename,renameat,renameat2,unlink,unlinkat,rmdir,write,pwrite64,writev,pwritev,pwritev2,"
    "fsync,fdatasync,sync_file_range,syncfs,ftruncate,truncate,lseek,link,linkat,symlink,symlinkat,fallocate,copy_file_range,"
    "sendfile,mmap,access,faccessat,faccessat2"
)
MARK = "/committed-"  # a program that looks for this file with a number says that it has returned from that commit
_LINE = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+|\?)(.*)$")
_UNFINISHED = re.compile(r"(\d+) +(\w+)\((.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>(.*)$")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_NAME = re.compile(r'(?:[\w-]+<((?:\\x[0-9a-f]{2})*)>, )?"((?:\\x[0-9a-f]{2})*)"')  # with the folder that it is relative to
_OF_DESCRIPTOR = re.compile(r"^(-?\d+)<((?:\\x[0-9a-f]{2})*)>")
_OUTCOMES = {"write": 4, "truncate": 2}


class Op(NamedTuple):
    """A call's effect: kinds write, truncate (of a file), link, unlink, rename (of names), fsync (of either), mark."""

    kind: str
    inode: int  # of the file or, of link and unlink, what the name stands for; of mark its number
    at: int = 0  # offset, or size of a truncation
    data: bytes = b""
    place: tuple[int, str] = (0, "")  # directory and name
    target: tuple[int, str] = (0, "")  # of rename


@dataclass
class Recording:
    """The calls of a program below one directory, by inodes; 0 is the directory."""

    initial: dict[int, dict[str, int] | bytes] = field(default_factory=lambda: {0: {}})
    ops: list[Op] = field(default_factory=list)


def record(command: list[str], root: Path, directory: Path, **options: object) -> Recording:
    """Run `command`, which must succeed, under strace and return what it does below `root`; `directory` takes the recording."""
    log = directory / "calls.strace"
    prefix = [
        "strace",
        "-f",
        "--seccomp-bpf",
        "-y",
        "-xx",
        "-s",
        "10000000",
        "-e",
        f"trace={CALLS}",
        "-e",
        "signal=none",
        "-o",
        str(log),
    ]
    reader = _Reader(root)
    subprocess.run([*prefix, *command], check=True, **options)  # type: ignore[call-overload]
    pending: dict[str, str] = {}
    for line in log.read_text().splitlines():
        if match := _UNFINISHED.match(line):
            pending[match[1]] = f"{match[1]} {match[2]}({match[3]}"
        elif match := _RESUMED.match(line):
            reader.line(pending.pop(match[1]) + match[3])
        else:
            reader.line(line)
    return reader.recording


def _decoded(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _paths(arguments: str) -> list[str]:
    """Return the paths that a call names; a relative one follows its folder's descriptor: 3</folder>, "name"."""
    return [str(Path(_decoded(folder).decode(), _decoded(name).decode())) for folder, name in _NAME.findall(arguments)]


class _Reader:
    """Follows names, descriptors and offsets through a recording."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self.recording = Recording()
        self._names: dict[int, dict[str, int]] = {}  # the directories as they are now
        self._offsets: dict[int, int] = {}  # by descriptor
        self._sizes: dict[int, int] = {}
        self._next = itertools.count(1)
        self._read(root, 0)

    def _read(self, directory: Path, inode: int) -> None:
        names = {}
        for path in sorted(directory.iterdir()):
            names[path.name] = number = next(self._next)
            if path.is_dir():
                self._read(path, number)
            else:
                self.recording.initial[number] = content = path.read_bytes()
                self._sizes[number] = len(content)
        self.recording.initial[inode] = names
        self._names[inode] = dict(names)

    def _place(self, path: str) -> tuple[int, str] | None:
        """Return (directory, name) of a path below the root, None of others."""
        if not path.startswith(f"{self._root}/"):
            return None
        *folders, name = path.removeprefix(f"{self._root}/").split("/")
        inode = 0
        for folder in folders:
            inode = self._names[inode][folder]
        return inode, name

    def _inode(self, path: str) -> int | None:
        if path == self._root:
            return 0
        place = self._place(path)
        return None if place is None else self._names[place[0]].get(place[1])

    def _add(self, *operation: object, **more: object) -> None:
        self.recording.ops.append(Op(*operation, **more))  # type: ignore[arg-type]

    def line(self, line: str) -> None:
        match = _LINE.match(line)
        if match is None:
            return
        _, name, arguments, result, _ = match.groups()
        if name in ("access", "faccessat", "faccessat2"):
            [path] = _TEXT.findall(arguments)
            if MARK in (text := _decoded(path).decode()):
                self._add("mark", int(text.rpartition(MARK)[2]))
        elif result != "?" and int(result) >= 0:
            self._call(name, arguments, int(result))

    def _call(self, name: str, arguments: str, result: int) -> None:
        if name in ("openat", "open", "creat"):
            self._open(_paths(arguments)[0], arguments, result)
        elif name in ("mkdir", "mkdirat"):
            self._link(_paths(arguments)[0], directory=True)
        elif name.startswith("rename"):
            self._rename(*_paths(arguments)[:2])
        elif name in ("unlink", "unlinkat", "rmdir"):
            self._unlink(_paths(arguments)[0])
        elif described := _OF_DESCRIPTOR.match(arguments):
            inode = self._inode(_decoded(described[2]).decode())
            if inode is not None:
                self._on_descriptor(name, int(described[1]), inode, arguments, result)

    def _open(self, path: str, arguments: str, descriptor: int) -> None:
        if self._place(path) is None:
            return
        if self._inode(path) is None:
            self._link(path, directory=False)
        elif "O_TRUNC" in arguments:
            inode = self._inode(path)
            self._add("truncate", inode, 0)
            self._sizes[inode] = 0  # type: ignore[index]
        inode = self._inode(path)
        self._offsets[descriptor] = self._sizes.get(inode, 0) if "O_APPEND" in arguments else 0  # type: ignore[arg-type]

    def _link(self, path: str, directory: bool) -> None:
        place = self._place(path)
        if place is None:
            return
        inode = next(self._next)
        if directory:
            self._names[inode] = {}
        self.recording.initial[inode] = {} if directory else b""  # reached by no name yet
        self._sizes[inode] = 0
        self._names[place[0]][place[1]] = inode
        self._add("link", inode, place=place)

    def _rename(self, old: str, new: str) -> None:
        place, target = self._place(old), self._place(new)
        if place is None or target is None:
            return
        inode = self._names[place[0]].pop(place[1])
        self._names[target[0]][target[1]] = inode
        self._add("rename", inode, place=place, target=target)

    def _unlink(self, path: str) -> None:
        place = self._place(path)
        if place is not None:
            self._add("unlink", self._names[place[0]].pop(place[1]), place=place)

    def _on_descriptor(self, name: str, descriptor: int, inode: int, arguments: str, result: int) -> None:
        if name in ("write", "writev", "pwrite64", "pwritev"):
            data = b"".join(_decoded(text) for text in _TEXT.findall(arguments))[:result]
            assert len(data) == result, f"strace shortened a write: {arguments[:80]}"
            at = int(arguments.rpartition(", ")[2]) if name.startswith("p") else self._offsets[descriptor]
            self._add("write", inode, at, data)
            self._sizes[inode] = max(self._sizes[inode], at + result)
            if not name.startswith("p"):
                self._offsets[descriptor] = at + result
        elif name in ("fsync", "fdatasync"):
            self._add("fsync", inode)
        elif name == "lseek":
            self._offsets[descriptor] = result
        elif name == "ftruncate":
            self._add("truncate", inode, int(arguments.rpartition(", ")[2]))
        elif name not in ("mmap",):
            raise AssertionError(f"{name} is not followed")


Tree = dict[str, bytes | None]  # paths below the root; None of a directory


def states(recording: Recording, most_a_cut: int, seed: int = 1, first: int = 0) -> Iterator[tuple[int, Tree]]:
    """Yield (cut, tree): what a loss of power before call `cut` can leave, each different tree of a cut once.

    At most `most_a_cut` combinations of a cut are looked at: those where all calls fare alike, and others drawn by `seed`.
    """
    rng = random.Random(seed)
    for cut in range(first, len(recording.ops) + 1):
        seen = set()
        for tree in _states_of(recording, cut, most_a_cut, rng):
            key = tuple(sorted(tree.items(), key=lambda item: item[0]))
            if key not in seen:
                seen.add(key)
                yield cut, tree


def _states_of(recording: Recording, cut: int, most: int, rng: random.Random) -> Iterator[Tree]:
    ops = recording.ops[:cut]
    synced = {op.inode: number for number, op in enumerate(ops) if op.kind == "fsync"}
    data = [(number, op) for number, op in enumerate(ops) if op.kind in _OUTCOMES]
    open_data = [number for number, op in data if number > synced.get(op.inode, -1)]
    names = [(number, op) for number, op in enumerate(ops) if op.kind in ("link", "unlink", "rename")]
    open_names = [number for number, op in names if number > synced.get(op.place[0], -1)]
    options = [range(_OUTCOMES[ops[number].kind]) for number in open_data]
    combinations = (len(open_names) + 1) * 4 ** len(options)
    lost = range(len(open_names) + 1)
    if combinations <= most:
        chosen: Iterator[tuple[int, tuple[int, ...]]] = itertools.product(lost, itertools.product(*options))  # type: ignore[assignment]
    else:
        alike = [(m, tuple(min(fate, len(option) - 1) for option in options)) for m in lost for fate in range(4)]
        drawn = ((rng.choice(lost), tuple(rng.choice(option) for option in options)) for _ in range(most - len(alike)))
        chosen = itertools.chain(alike, drawn)
    for m, fates in chosen:
        dropped = set(open_names[len(open_names) - m :])
        fate_of = dict(zip(open_data, fates, strict=True))
        contents = _contents(recording, data, fate_of)
        yield _tree(recording, [op for number, op in names if number not in dropped], contents)


def _contents(recording: Recording, data: list[tuple[int, Op]], fate_of: dict[int, int]) -> dict[int, bytearray]:
    """Return the files' bytes where each call of `data` has the fate given: 0 done, 1 lost, 2 half done, 3 zeros."""
    contents: dict[int, bytearray] = {}
    for number, op in data:
        initial = recording.initial[op.inode]
        assert isinstance(initial, bytes)
        content = contents.setdefault(op.inode, bytearray(initial))
        fate = fate_of.get(number, 0)
        if fate == 1:
            continue
        if op.kind == "truncate":
            del content[op.at :]
            content.extend(bytes(op.at - len(content)))
            continue
        written = op.data[: len(op.data) // 2] if fate == 2 else bytes(len(op.data)) if fate == 3 else op.data
        content.extend(bytes(max(0, op.at - len(content))))
        content[op.at : op.at + len(written)] = written
    return contents


def _tree(recording: Recording, names: list[Op], contents: dict[int, bytearray]) -> Tree:
    folders = {inode: dict(entry) for inode, entry in recording.initial.items() if isinstance(entry, dict)}
    for op in names:
        directory, name = op.place
        if op.kind == "link":
            folders[directory][name] = op.inode
        else:
            folders[directory].pop(name, None)
        if op.kind == "rename":
            folders[op.target[0]][op.target[1]] = op.inode
    tree: Tree = {}

    def walk(inode: int, prefix: str) -> None:
        for name, child in folders[inode].items():
            if child in folders:
                tree[prefix + name] = None
                walk(child, f"{prefix}{name}/")
            else:
                initial = recording.initial[child]
                tree[prefix + name] = bytes(contents.get(child, initial))  # type: ignore[arg-type]

    walk(0, "")
    return tree


def marked(recording: Recording, cut: int) -> int:
    """Return the number of the last commit that had returned before call `cut`; 0 of none."""
    return max((op.inode for op in recording.ops[:cut] if op.kind == "mark"), default=0)


def materialise(tree: Tree, directory: Path) -> None:
    """Write `tree` in `directory`, which must be empty."""
    for path, content in tree.items():  # directories come before what is in them
        if content is None:
            (directory / path).mkdir()
        else:
            (directory / path).write_bytes(content)


@dataclass
class Judged:
    """What loading in every enumerated state found."""

    states: int = 0
    lost: int = 0  # with no checkpoint that loads, or an older one than the last that was said to be committed
    wrong: int = 0  # with one that loads and is not what was written

    @property
    def safe(self) -> bool:
        return self.states > 0 and not self.lost and not self.wrong


def judge(
    recording: Recording, load: Callable[[Path], int | None], most_a_cut: int, before: int, only_after: bool = False
) -> Judged:
    """Load in every state. `load` returns the step that it finds, None without one, and raises AssertionError for wrong bytes.

    `before` is the step that was durable before the recording; `only_after`: with the cut after the last call alone.
    """
    judged = Judged()
    first = len(recording.ops) if only_after else 0
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        for number, (cut, tree) in enumerate(states(recording, most_a_cut, first=first)):
            directory = Path(name) / str(number)
            directory.mkdir()
            materialise(tree, directory)
            judged.states += 1
            try:
                step = load(directory)
                judged.lost += step is None or step < max(before, marked(recording, cut))
            except AssertionError:
                judged.wrong += 1
            shutil.rmtree(directory)
    return judged
