"""Twins that travel: one zip archive of YAML, data-set recipe, summary of the source trace and scores; no data, no names."""

import copy
import io
import json
import zipfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from iotwin.twin import RECIPE, SUMMARY, TWIN, generate_data, place
from tracing_tools.trace.errors import IotwinError, UsageError
from tracing_tools.trace.output import check_output, write_whole

if TYPE_CHECKING:
    from benchmark.config import Config

_MEMBERS = (TWIN, RECIPE, SUMMARY)
_LARGEST_MEMBER_BYTES = 1 << 28
_KEPT = ("overall", "verdict", "noise_floor", "best_round", "source")


def pack(directory: Path, archive: Path, keep_names: bool) -> dict[str, Any]:
    """Write the twin that `make_twin` left in `directory` to `archive` and return what it holds.

    Without `keep_names` no path, host, file or model name of the owner's is in it: files are numbered in the order of
    their names.
    """
    from benchmark.config import load
    from datagen.recorded import read_recipe

    check_output(archive)
    missing = [name for name in _MEMBERS if not (directory / name).is_file()]
    if missing:
        raise UsageError(f"{directory} holds no finished twin ({missing[0]} is missing); make one with: iotwin twin TRACE -o DIR")
    config, files = load(directory / TWIN), list(read_recipe(directory / RECIPE).files)
    summary = json.loads((directory / SUMMARY).read_text())
    kept = {key: summary[key] for key in _KEPT} | {"rounds": summary["rounds"], "assumptions": len(summary["assumptions"])}
    if not keep_names:
        config, files = _without_names(config, files)
    write_whole(archive, _zip(config, files, kept))
    return {"archive": str(archive), "files": len(files), "size_bytes": sum(size for _, size in files), "names_kept": keep_names}


def unpack(archive: Path, directory: Path) -> None:
    """Write the twin of `archive` to `directory`, which must be empty or missing, and generate its data set."""
    from benchmark.config import dump, load

    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} is not an empty directory; choose another")
    contents = _read(archive)
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_whole(directory / name, content)
    config = load(directory / TWIN)
    place(config, directory.absolute())
    dump(config, directory / TWIN)
    generate_data(directory)


def _read(archive: Path) -> dict[str, bytes]:
    """Return the contents of the members we know; nothing else in the archive is looked at, and no name in it is a path to us."""
    try:
        with zipfile.ZipFile(archive) as file:
            for name in _MEMBERS:
                if file.getinfo(name).file_size > _LARGEST_MEMBER_BYTES:
                    raise IotwinError(f"{archive}: {name} in it is too large for a twin; pack it again")
            return {name: file.read(name) for name in _MEMBERS}
    except FileNotFoundError:
        raise UsageError(f"{archive}: no such archive; make one with: iotwin twin pack DIR -o FILE") from None
    except (KeyError, zipfile.BadZipFile, OSError, RuntimeError) as error:
        raise IotwinError(f"{archive}: is not a whole twin archive ({error}); pack it again") from None


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
    config.twin.source = config.twin.host = ""
    # A sentence with a path in it is the owner's; what it says beside the path stands in the documentation of fit.
    config.twin.assumptions = [text for text in config.twin.assumptions if "/" not in text]
    config.dataset.data_folder, config.checkpoint.checkpoint_folder, config.output.folder = "data", "output", "output"
    return config, [(names[name], size) for name, size in files]


def _numbered(names: list[str], pairs: bool) -> dict[str, str]:
    """Return a new name for each file that keeps the order of names, the folders' structure and what follows the last dot."""
    if pairs:
        cases = {case: number for number, case in enumerate(sorted({_case(name) for name in names}))}
        return {name: f"case_{cases[_case(name)]:05d}{name[-6:]}" for name in names}
    folders = {folder: number for number, folder in enumerate(sorted({str(PurePosixPath(name).parent) for name in names}))}
    digits = len(str(len(names)))
    numbered = {}
    for number, name in enumerate(sorted(names)):
        path = PurePosixPath(name)
        below = "" if str(path.parent) == "." else f"folder{folders[str(path.parent)]:05d}/"
        numbered[name] = f"{below}file{number:0{digits}d}{path.suffix}"
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


def _zip(config: "Config", files: list[tuple[str, int]], summary: dict[str, Any]) -> bytes:
    from tempfile import TemporaryDirectory

    from benchmark.config import dump
    from datagen.recorded import write_recipe

    buffer = io.BytesIO()
    with TemporaryDirectory() as scratch, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        dump(config, Path(scratch) / TWIN)
        write_recipe(Path(scratch) / RECIPE, files)
        (Path(scratch) / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")
        for name in _MEMBERS:
            # Dated 1980, so that the same twin gives the same archive.
            file.writestr(zipfile.ZipInfo(name), (Path(scratch) / name).read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
