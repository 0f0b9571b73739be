"""Pack a twin into a zip archive of YAML, data-set recipe, summary and scores, without data or names; unpack and run it."""

import copy
import io
import lzma
import math
import os
import struct
import subprocess
import sys
import time
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from iotwin.command_lines import own_command
from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import check_output, scratch_folder, write_json, write_whole
from iotwin.common.processes.children import end_programs
from iotwin.common.result_folder import MadeFolder
from iotwin.common.units import format_size
from iotwin.common.untrusted_files import read_foreign
from iotwin.loops.twin_from_trace import (
    DATA,
    KIND,
    OUTPUT,
    RECIPE,
    RECORDING,
    SUMMARY,
    TWIN,
    confine,
    generate_data,
    read_summary,
)

if TYPE_CHECKING:
    from iotwin.workload_yaml import Config
    from iotwin.workload_yaml.recording import TwinRecording

MOST_DATA_BYTES = 100 << 30  # most bytes that an unpacked twin may write unless the user allows more
# interval in which the twin's output is measured, and the largest share of time for measuring
_CHECK_EVERY_S, _SHARE_OF_TIME = 0.5, 0.1
_GRACE_S = 10.0
_MEMBERS = (TWIN, RECIPE, SUMMARY)
# limits of the archive's members, far above what iotwin writes
_LARGEST_BYTES = {TWIN: 1 << 20, RECIPE: 64 << 20, SUMMARY: 1 << 20, RECORDING: 1 << 30}
# The errors that zipfile and its decompressors raise for a broken archive; they have no common base class.
_BROKEN_ARCHIVE = (
    KeyError, ValueError, OverflowError, MemoryError, EOFError, OSError, RuntimeError, struct.error, zipfile.BadZipFile,
    zlib.error, lzma.LZMAError,
)  # fmt: skip
_KEPT = ("overall", "verdict", "caveats", "noise_floor", "best_round", "source")


def pack(directory: Path, archive: Path, keep_names: bool) -> dict[str, Any]:
    """Write the twin that `make_twin` left in `directory` to the file `archive`, and return the number and bytes of its files.

    Unless `keep_names` is set, the archive holds no path, host, file or model name of the owner. Files are numbered in the order
    of their names.
    """
    from iotwin.datagen.datasets.recorded import read_recipe
    from iotwin.workload_yaml import load
    from iotwin.workload_yaml.recording import read_recording

    check_output(archive)
    missing = [name for name in _MEMBERS if not (directory / name).is_file()]
    if missing:
        raise UsageError(f"{directory} holds no finished twin ({missing[0]} is missing); make one with: iotwin twin TRACE -o DIR")
    config, files = load(directory / TWIN), list(read_recipe(directory / RECIPE).files)
    summary = read_summary(directory)
    summarised = {key: summary[key] for key in _KEPT if key in summary} | {
        "rounds": summary["rounds"],
        "assumptions": len(summary["assumptions"]),
    }
    recording = None if config.twin.recorded is None else read_recording(Path(config.twin.recorded.file))
    if not keep_names:
        recording = None if recording is None else _renamed_recording(recording, files)
        config, files = _without_names(config, files)
    if config.twin.recorded is not None:
        config.twin.recorded.file = RECORDING
    write_whole(archive, _zip(config, files, summarised, recording))
    return {"archive": str(archive), "files": len(files), "size_bytes": sum(size for _, size in files), "names_kept": keep_names}


def unpack(archive: Path, directory: Path, allow_plugins: bool = False, most_data_bytes: int = MOST_DATA_BYTES) -> int:
    """Write the twin of `archive` to `directory`, which must be empty or missing, and generate its data set.

    Raises UsageError and writes nothing if the twin could do harm (see `_foreign_config`), or if its data set and its output
    would exceed `most_data_bytes`. Returns the most bytes that the twin's output may have.
    """
    from iotwin.workload_yaml import dump

    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} is not an empty directory; choose another")
    contents = _read(archive)
    config = _foreign_config(contents[TWIN], archive, allow_plugins)
    data_bytes, output_bytes, kept = _data_bytes(contents[RECIPE]), _checkpoint_bytes(config), [RECIPE, SUMMARY]
    if config.twin.recorded is not None:
        output_bytes = _output_bytes(_recording(contents, archive))
        config.twin.recorded.file = str(directory.absolute() / RECORDING)  # replaces any path in the archive's YAML
        kept.append(RECORDING)
    if data_bytes + output_bytes > most_data_bytes:
        needed = f"--most-data {math.ceil((data_bytes + output_bytes) / (1 << 30))}GiB"
        both = f"a data set of {format_size(data_bytes)} and output of {format_size(output_bytes)}"
        raise UsageError(f"{archive}: it would write {both} or more; to allow that, add {needed}")
    folder = MadeFolder.claim(directory, KIND, force=False)
    for name in kept:
        write_whole(folder.entry(name), contents[name])
    confine(config, directory.absolute())
    dump(config, folder.entry(TWIN))
    folder.entry(OUTPUT)
    folder.entry(DATA)
    generate_data(directory)
    return most_data_bytes - data_bytes


def run_unpacked(directory: Path, most_output_bytes: int) -> int:
    """Run the twin in `directory` and return its exit status.

    Ends the twin and raises IotwinError once its output takes more than `most_output_bytes` on disk.
    """
    with subprocess.Popen(own_command("emulate", directory / TWIN), stdout=sys.stderr) as process:
        try:
            looked_s = 0.0
            while True:
                with suppress(subprocess.TimeoutExpired):
                    return process.wait(max(_CHECK_EVERY_S, looked_s / _SHARE_OF_TIME))
                began = time.monotonic()
                used = _disk_bytes(directory / OUTPUT)
                looked_s = time.monotonic() - began
                if used > most_output_bytes:
                    written, left = format_size(used), format_size(most_output_bytes)
                    raise IotwinError(f"{directory}: its twin was ended: it wrote {written} of {left}; allow more by --most-data")
        except BaseException:
            end_programs([process], _GRACE_S)
            raise


def _disk_bytes(folder: Path) -> int:
    """Return the bytes on disk of all files below `folder`. Holes do not count."""
    total = 0
    for above, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # the twin may remove a file meanwhile
                total += Path(above, name).lstat().st_blocks * 512
    return total


def _checkpoint_bytes(config: "Config") -> int:
    """Return the bytes of one checkpoint of a twin without a recording: its listed files, or the model's files for one rank."""
    from iotwin.benchmark.emulator.checkpoints.model_states import states_written

    if not config.workflow.checkpoint:
        return 0
    if recorded := config.twin.checkpoint.files:
        return sum(size * count for file in recorded for size, count in file.write_sizes)
    return sum(state.size_bytes for state in states_written(config, 0, 1))


def _output_bytes(recording: "TwinRecording") -> int:
    """Return the most bytes that the output of a replay can have: files that exist at its start, and files it writes."""
    from iotwin.workload_yaml.recording import Op

    files, columns = recording.header.files, recording.columns
    lengths = np.array([file.size_bytes if file.written and not file.made else 0 for file in files], np.float64)
    writes = np.isin(columns["op"], [Op.WRITE, Op.COPY_TO])
    file, size, offset = (columns[name][writes] for name in ("subject", "size", "offset"))
    written = np.bincount(file, weights=size, minlength=len(files))
    reached = np.zeros(len(files), np.int64)
    np.maximum.at(reached, file, offset + size)
    appended = np.bincount(file, weights=offset < 0, minlength=len(files)) > 0
    return int((lengths + np.where(appended, written, np.minimum(written, reached))).sum())


def _data_bytes(recipe: bytes) -> int:
    """Return the bytes of the data set that the content of a recipe lists. Raises UsageError if it is no recipe."""
    from iotwin.datagen.datasets.recorded import read_recipe

    with scratch_folder() as folder:
        path = folder / RECIPE
        write_whole(path, recipe)
        return sum(size for _, size in read_recipe(path).files)


def _foreign_config(content: bytes, archive: Path, allow_plugins: bool) -> "Config":
    """Return the workload in the twin.yaml of an archive. It reads and writes in its own directory only.

    Raises UsageError if the YAML takes values from the environment or other files, or names code to import although
    `allow_plugins` is not set. As root, only plug-ins of installed packages may be named. `pack` writes no such YAML.
    """
    from iotwin.benchmark.emulator.plugins import imported_by_name
    from iotwin.workload_yaml import Storage, parse_foreign

    config = parse_foreign(content, f"{archive}: {TWIN}")
    for key, name in imported_by_name(config):
        if not allow_plugins:
            raise UsageError(f"{archive}: {key}: the twin would run the code of {name!r}; if you trust it, add --allow-plugins")
        if os.geteuid() == 0:
            raise UsageError(
                f"{archive}: {key}: the twin would run the code of {name!r} as root; run it as a user, or install a package that "
                "announces it as an entry point"
            )
    config.storage = Storage()
    config.workflow.generate_data = False  # `unpack` generates the data, from the recipe
    config.dataset.keep_files = True
    return config


def _recording(contents: dict[str, bytes], archive: Path) -> "TwinRecording":
    """Return the archive's recording. Raises IotwinError if it is missing or damaged."""
    from iotwin.workload_yaml.recording import read_recording

    if RECORDING not in contents:
        raise IotwinError(f"{archive}: {RECORDING} is not in it, which the twin replays; pack it again")
    with scratch_folder() as scratch:
        path = scratch / RECORDING
        write_whole(path, contents[RECORDING])
        return read_recording(path)


def _read(archive: Path) -> dict[str, bytes]:
    """Return the contents of the known members. Other members are not read, and no name in the archive is used as a path."""
    try:
        with zipfile.ZipFile(archive) as file:
            members = [*_MEMBERS, *([RECORDING] if RECORDING in file.namelist() else [])]
            for name in members:
                if file.getinfo(name).file_size > _LARGEST_BYTES[name]:
                    raise IotwinError(f"{archive}: {name} in it is too large for a twin; pack it again")
            return {name: file.read(name) for name in members}
    except FileNotFoundError:
        raise UsageError(f"{archive}: no such archive; make one with: iotwin twin pack DIR -o FILE") from None
    except _BROKEN_ARCHIVE as error:
        reason = " ".join(str(error).split())[:200]
        raise IotwinError(f"{archive}: is not a whole twin archive ({reason}); pack it again") from None


def _without_names(config: "Config", files: list[tuple[str, int]]) -> tuple["Config", list[tuple[str, int]]]:
    config = copy.deepcopy(config)
    names = _numbered([name for name, _ in files], config.twin.layout == "unet3d")
    for kind in ("train_files", "eval_files"):
        given: list[str] | None = getattr(config.twin, kind)
        if given is not None:
            setattr(config.twin, kind, [_renamed(name, names) for name in given])
    for number, file in enumerate(config.twin.checkpoint.files, 1):
        counted = "".join(f"-{word}" for word in ("{epoch}", "{step}") if word in file.name)
        file.name = f"checkpoint-{number}{counted}{PurePosixPath(file.name).suffix}"
    config.model.name = "twin"
    # A sentence with a path would reveal the owner's names.
    config.twin.assumptions = [text for text in config.twin.assumptions if "/" not in text]
    config.dataset.data_folder, config.checkpoint.checkpoint_folder, config.output.folder = "data", "output", "output"
    return config, [(names[name], size) for name, size in files]


def _renamed_recording(recording: "TwinRecording", files: list[tuple[str, int]]) -> "TwinRecording":
    """Return the recording with new names: data-set files are named as in the packed recipe, written files by new names."""
    import dataclasses

    import msgspec

    data = _numbered([name for name, _ in files], pairs=False)
    made = [file for file in recording.header.files if file.written]
    written = _numbered(sorted({name for file in made for name in (file.name, file.renamed_to) if name is not None}), pairs=False)
    renamed = [
        msgspec.structs.replace(
            file,
            name=(written if file.written else data)[file.name],
            renamed_to=None if file.renamed_to is None else written[file.renamed_to],
        )
        for file in recording.header.files
    ]
    return dataclasses.replace(recording, header=msgspec.structs.replace(recording.header, files=renamed))


def _numbered(names: list[str], pairs: bool) -> dict[str, str]:
    """Return a new name for each file name. New names keep the order, the folders and the suffixes of the old ones.

    `pairs`: True if the files are images (CASE_x.npy) and masks (CASE_y.npy).
    """
    if pairs:
        cases = {case: index for index, case in enumerate(sorted({_case(name) for name in names}))}
        return {name: f"case_{cases[_case(name)]:05d}{name[-6:]}" for name in names}
    folders = {folder: index for index, folder in enumerate(sorted({str(PurePosixPath(name).parent) for name in names}))}
    digits = len(str(len(names)))
    numbered = {}
    for index, name in enumerate(sorted(names)):
        path = PurePosixPath(name)
        below = "" if str(path.parent) == "." else f"folder{folders[str(path.parent)]:05d}/"
        numbered[name] = f"{below}file{index:0{digits}d}{path.suffix}"
    return numbered


def _case(name: str) -> str:
    """Return the part of an image's or mask's name before _x.npy or _y.npy."""
    return name[:-6]


def _renamed(name: str, names: dict[str, str]) -> str:
    if name in names:
        return names[name]
    image = names.get(f"{name}_x.npy")  # the YAML lists a pair of files by the name of the case
    if image is None:
        raise IotwinError(f"the recipe lacks {name}, which the twin reads; make the twin again")
    return _case(image)


def _zip(
    config: "Config", files: list[tuple[str, int]], summary: dict[str, Any], recording: "TwinRecording | None" = None
) -> bytes:
    from iotwin.datagen.datasets.recorded import write_recipe
    from iotwin.workload_yaml import dump
    from iotwin.workload_yaml.recording import write_recording

    buffer = io.BytesIO()
    with scratch_folder() as scratch, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        dump(config, scratch / TWIN)
        write_recipe(scratch / RECIPE, files)
        write_json(scratch / SUMMARY, summary)
        if recording is not None:
            write_recording(recording, scratch / RECORDING)
        for name in [*_MEMBERS, *([] if recording is None else [RECORDING])]:
            # Dated 1980, so that the same twin gives the same archive.
            file.writestr(zipfile.ZipInfo(name), read_foreign(scratch / name, _LARGEST_BYTES[name]), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
