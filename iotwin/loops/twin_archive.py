"""Twins that travel: one zip archive of YAML, data-set recipe, summary of the source trace and scores; no data, no names."""

import copy
import io
import json
import lzma
import math
import os
import struct
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from common.beneath import stays_within
from common.errors import IotwinError, UsageError
from common.files import check_output, write_whole
from common.units import format_size
from iotwin.loops.twin import RECIPE, RECORDING, SUMMARY, TWIN, confine, generate_data

if TYPE_CHECKING:
    from benchmark.config import Config
    from benchmark.config.recording import Recording

MOST_DATA_BYTES = 100 << 30  # that a sent twin may have written without being told so
_MEMBERS = (TWIN, RECIPE, SUMMARY)
_LARGEST_BYTES = {TWIN: 1 << 20, RECIPE: 64 << 20, SUMMARY: 1 << 20, RECORDING: 1 << 30}  # far more than any of our own twins has
# What zipfile and its decompressors raise for bytes that are no archive; they have no common base.
_BROKEN_ARCHIVE = (
    KeyError, ValueError, OverflowError, MemoryError, EOFError, OSError, RuntimeError, struct.error, zipfile.BadZipFile,
    zlib.error, lzma.LZMAError,
)  # fmt: skip
_KEPT = ("overall", "verdict", "noise_floor", "best_round", "source")


def pack(directory: Path, archive: Path, keep_names: bool) -> dict[str, Any]:
    """Write the twin that `make_twin` left in `directory` to `archive` and return what it holds.

    Without `keep_names` no path, host, file or model name of the owner's is in it: files are numbered in the order of
    their names.
    """
    from benchmark.config import load
    from benchmark.config.recording import read_recording
    from datagen.datasets.recorded import read_recipe

    check_output(archive)
    missing = [name for name in _MEMBERS if not (directory / name).is_file()]
    if missing:
        raise UsageError(f"{directory} holds no finished twin ({missing[0]} is missing); make one with: iotwin twin TRACE -o DIR")
    config, files = load(directory / TWIN), list(read_recipe(directory / RECIPE).files)
    summary = json.loads((directory / SUMMARY).read_text())
    summarised = {key: summary[key] for key in _KEPT} | {"rounds": summary["rounds"], "assumptions": len(summary["assumptions"])}
    recording = None if config.twin.recorded is None else read_recording(Path(config.twin.recorded.file))
    if not keep_names:
        recording = None if recording is None else _renamed_recording(recording, files)
        config, files = _without_names(config, files)
    if config.twin.recorded is not None:
        config.twin.recorded.file = RECORDING
    write_whole(archive, _zip(config, files, summarised, recording))
    return {"archive": str(archive), "files": len(files), "size_bytes": sum(size for _, size in files), "names_kept": keep_names}


def unpack(archive: Path, directory: Path, allow_plugins: bool = False, most_data_bytes: int = MOST_DATA_BYTES) -> None:
    """Write the twin of `archive` to `directory`, which must be empty or missing, and generate its data set.

    Nothing is written unless the twin is harmless (see `_foreign_config`) and its data set has at most `most_data_bytes`.
    """
    from benchmark.config import dump

    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} is not an empty directory; choose another")
    contents = _read(archive)
    config = _foreign_config(contents[TWIN], archive, allow_plugins)
    data_bytes = _data_bytes(contents[RECIPE])
    if data_bytes > most_data_bytes:
        needed = f"--most-data {math.ceil(data_bytes / (1 << 30))}GiB"
        raise UsageError(f"{archive}: its data set has {format_size(data_bytes)}; to have so much written, add {needed}")
    kept = [RECIPE, SUMMARY]
    if config.twin.recorded is not None:
        _check_recording(contents, archive)
        config.twin.recorded.file = str(directory.absolute() / RECORDING)  # whatever the archive calls it
        kept.append(RECORDING)
    directory.mkdir(parents=True, exist_ok=True)
    for name in kept:
        write_whole(directory / name, contents[name])
    confine(config, directory.absolute())
    dump(config, directory / TWIN)
    generate_data(directory)


def _data_bytes(recipe: bytes) -> int:
    """Return the bytes of the data set that a recipe lists; UsageError when it lists none."""
    from datagen.datasets.recorded import read_recipe

    with TemporaryDirectory() as folder:
        path = Path(folder) / RECIPE
        path.write_bytes(recipe)
        return sum(size for _, size in read_recipe(path).files)


def _foreign_config(content: bytes, archive: Path, allow_plugins: bool) -> "Config":
    """Return the workload in the twin.yaml of an archive: one that reads and writes in its own directory and nowhere else.

    Raises UsageError for what `pack` never writes: values from the environment or from other files, and code to import unless
    that is allowed; never for root, whose Python may import what an installed package announces and nothing else.
    """
    from benchmark.config import Storage, parse_foreign
    from benchmark.emulator.plugins import imported_by_name

    config = parse_foreign(content, f"{archive}: {TWIN}")
    for key, name in imported_by_name(config):
        if not allow_plugins:
            raise UsageError(f"{archive}: {key}: the twin would run the code of {name!r}; if you trust it, add --allow-plugins")
        if os.geteuid() == 0:
            raise UsageError(
                f"{archive}: {key}: the twin would run the code of {name!r} as root; run it as a user, or install a package that "
                "announces it as an entry point"
            )
    for name in config.twin.startup_files:
        if not stays_within(name):
            raise UsageError(f"{archive}: twin.startup_files: {name!r} leads out of the data folder; pack the twin again")
    config.storage = Storage()
    config.workflow.generate_data = False  # its data are those of the recipe
    config.dataset.keep_files = True
    return config


def _check_recording(contents: dict[str, bytes], archive: Path) -> None:
    """Raise IotwinError unless the archive's recording is there and sound."""
    from tempfile import TemporaryDirectory

    from benchmark.config.recording import read_recording

    if RECORDING not in contents:
        raise IotwinError(f"{archive}: {RECORDING} is not in it, which the twin replays; pack it again")
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / RECORDING
        path.write_bytes(contents[RECORDING])
        read_recording(path)


def _read(archive: Path) -> dict[str, bytes]:
    """Return the contents of the members we know; nothing else in the archive is looked at, and no name in it is a path to us."""
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
    config.twin.startup_files = [_renamed(name, names) for name in config.twin.startup_files]
    for number, file in enumerate(config.twin.checkpoint.files, 1):
        counted = "".join(f"-{word}" for word in ("{epoch}", "{step}") if word in file.name)
        file.name = f"checkpoint-{number}{counted}{PurePosixPath(file.name).suffix}"
    config.model.name = "twin"
    config.twin.source = config.twin.host = ""
    # A sentence with a path in it is the owner's; what it says beside the path stands in the documentation of fit.
    config.twin.assumptions = [text for text in config.twin.assumptions if "/" not in text]
    config.dataset.data_folder, config.checkpoint.checkpoint_folder, config.output.folder = "data", "output", "output"
    return config, [(names[name], size) for name, size in files]


def _renamed_recording(recording: "Recording", files: list[tuple[str, int]]) -> "Recording":
    """Return the recording with the data set's files named as in the packed recipe, and written ones by numbers of their own."""
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
    """Return a new name for each file that keeps the order of names, the folders' structure and what follows the last dot."""
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
    """The part of an image's or mask's name before _x.npy or _y.npy."""
    return name[:-6]


def _renamed(name: str, names: dict[str, str]) -> str:
    if name in names:
        return names[name]
    image = names.get(f"{name}_x.npy")  # of a pair the YAML names the case
    if image is None:
        raise IotwinError(f"the recipe lacks {name}, which the twin reads; make the twin again")
    return _case(image)


def _zip(config: "Config", files: list[tuple[str, int]], summary: dict[str, Any], recording: "Recording | None" = None) -> bytes:
    from tempfile import TemporaryDirectory

    from benchmark.config import dump
    from benchmark.config.recording import write_recording
    from datagen.datasets.recorded import write_recipe

    buffer = io.BytesIO()
    with TemporaryDirectory() as scratch, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        dump(config, Path(scratch) / TWIN)
        write_recipe(Path(scratch) / RECIPE, files)
        (Path(scratch) / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")
        if recording is not None:
            write_recording(recording, Path(scratch) / RECORDING)
        for name in [*_MEMBERS, *([] if recording is None else [RECORDING])]:
            # Dated 1980, so that the same twin gives the same archive.
            file.writestr(zipfile.ZipInfo(name), (Path(scratch) / name).read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
