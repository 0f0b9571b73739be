"""Data sets, journals and recipes that somebody else wrote: no name in them leads out, no number in them fills the disk."""

import json
import os
import stat
from pathlib import Path

import pytest

from iotwin.common.errors import IotwinError, UsageError
from iotwin.datagen.datasets.recorded import read_recipe
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import FormatLayout, RecordedLayout, Unet3dLayout
from tests.processes import call, one_line

SMALL = Unet3dLayout(scale=0.05)
PIECE = {"offset": 0, "size_bytes": 2, "xxh3_128": "00"}


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim.txt"
    path.write_text("precious")
    return path


def with_names(directory: Path, *names: str) -> None:
    """Have the manifest in `directory` list further files."""
    path = directory / "manifest.json"
    document = json.loads(path.read_bytes())
    document["pieces"] += [{"name": name, **PIECE} for name in names]
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("how", ["above", "absolute", "through a link"])
@pytest.mark.parametrize("listed_in", ["manifest", "journal"])
def test_force_removes_nothing_outside(tmp_path: Path, victim: Path, how: str, listed_in: str) -> None:
    data = tmp_path / "ds"
    generate(SMALL, data, samples=1, workers=1)
    (data / "out").symlink_to(tmp_path)
    name = {"above": "../victim.txt", "absolute": str(victim), "through a link": "out/victim.txt"}[how]
    if listed_in == "manifest":
        with_names(data, name)
    else:
        request = json.loads((data / "manifest.json").read_bytes())["request"]
        (data / "manifest.json").unlink()
        entry = {"unit": 0, "pieces": [{"name": name, **PIECE}]}
        (data / ".iotwin-generate.jsonl").write_text(f"{json.dumps(request)}\n{json.dumps(entry)}\n")
    done = call("generate", "unet3d", "-o", data, "--samples", "2", "--scale", "0.05", "--force", "--workers", "1")
    assert victim.read_text() == "precious"
    assert "Traceback" not in done.stderr


def test_verify_reads_nothing_outside(tmp_path: Path, victim: Path) -> None:
    generate(SMALL, tmp_path / "ds", samples=1, workers=1)
    with_names(tmp_path / "ds", "../victim.txt")
    done = call("generate", "-o", tmp_path / "ds", "--verify")
    assert done.returncode == 1 and "in its own directory" in one_line(done)


def test_a_file_is_not_written_through_a_link(tmp_path: Path, victim: Path) -> None:
    data = tmp_path / "ds"
    data.mkdir()
    (data / "case_00000_x.npy.iotwin-partial").symlink_to(victim)
    with pytest.raises(IotwinError, match="is a link or no file"):
        generate(SMALL, data, samples=1, workers=1, existing="replace")
    assert victim.read_text() == "precious"


def test_a_manifest_that_is_a_pipe_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / "ds").mkdir()
    os.mkfifo(tmp_path / "ds" / "manifest.json")
    done = call("generate", "-o", tmp_path / "ds", "--verify")
    assert done.returncode == 1 and "is a link or no file" in one_line(done)


@pytest.mark.parametrize("what", ["link", "open to others", "somebody else's"])
def test_unfinished_uploads_lie_where_nobody_else_can_put_anything(
    tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base = tmp_path / "cache" / "iotwin"
    (tmp_path / "theirs").mkdir(mode=0o777)
    base.parent.mkdir()
    if what == "link":
        base.symlink_to(tmp_path / "theirs")
    else:
        base.mkdir()
        base.chmod(0o777 if what == "open to others" else 0o700)
    if what == "somebody else's":
        if os.geteuid():
            pytest.skip("only root can give a directory away")
        os.chown(base, 65534, 65534)
    done = call("generate", "unet3d", "-o", f"file://{tmp_path}/store", "--samples", "1", "--scale", "0.05")
    assert done.returncode == 1 and "must be a directory of yours that nobody else can write" in one_line(done)


def test_what_others_put_into_the_temporary_directory_is_not_gone_on_from(
    tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old staging directory had a name that anybody could foresee, in a directory where anybody could make it."""
    import hashlib

    url = f"file://{tmp_path}/store"
    generate(SMALL, tmp_path / "like", samples=1, workers=1)
    request = json.loads((tmp_path / "like" / "manifest.json").read_bytes())["request"]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    staging = tmp_path / f"iotwin-{os.getuid()}-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
    staging.mkdir()
    (staging / ".iotwin-generate.jsonl").write_text(json.dumps(request) + "\n")
    (staging / "case_00000_x.npy.iotwin-partial").symlink_to(victim)
    done = call("generate", "unet3d", "-o", url, "--samples", "1", "--scale", "0.05", "--workers", "1", "--quiet")
    assert victim.read_text() == "precious"
    assert done.returncode == 0 and (tmp_path / "store" / "manifest.json").exists()
    assert stat.S_IMODE((tmp_path / "cache" / "iotwin").stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "rows",
    ["a,9223372036854775807\nb,9223372036854775807\nc,100\n", "".join(f"f{n},{1 << 62}\n" for n in range(4)) + "c,100\n"],
    ids=["two of 2^63 - 1", "four of 2^62"],
)
def test_sizes_that_overflow_are_refused_before_anything_is_written(tmp_path: Path, rows: str) -> None:
    (tmp_path / "recipe.csv").write_text("name,size_bytes\n" + rows)
    done = call("generate", "--recipe", tmp_path / "recipe.csv", "-o", tmp_path / "ds", "--dry-run")
    assert done.returncode == 2 and "bytes; give 0 to" in one_line(done)


def test_totals_that_overflow_are_refused(tmp_path: Path) -> None:
    rows = "".join(f"f{number},{1 << 53}\n" for number in range(2000))
    (tmp_path / "recipe.csv").write_text("name,size_bytes\n" + rows)
    done = call("generate", "--recipe", tmp_path / "recipe.csv", "-o", tmp_path / "ds", "--dry-run")
    assert done.returncode == 2 and "no request that a disk could hold" in one_line(done)
    with pytest.raises(UsageError, match="larger than any file system's"):
        FormatLayout(samples_per_file=(1 << 63) - 1)


@pytest.mark.parametrize(
    "name",
    [
        ".iotwin-generate.jsonl",
        "manifest.json.partial",
        "./manifest.json",
        "a.iotwin-partial",
        ".//manifest.json",
        ".iotwin-generate-of-2-0.jsonl",
    ],
)
def test_a_recipe_cannot_name_the_lists_of_the_data_set_itself(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="as a list of the data set's own is"):
        RecordedLayout(((name, 100),))


def test_names_that_no_file_system_takes_are_refused() -> None:
    for name in ("x" * 256, "a/" * 3000 + "b", "\udcff/../x", "\ud800", "", ".", "a\0b"):
        with pytest.raises(UsageError, match="does not stay within"):
            RecordedLayout(((name, 100),))


def test_an_unknown_key_of_several_lines_is_said_in_one(tmp_path: Path) -> None:
    (tmp_path / "dlio.yaml").write_text('dataset: {hdf5: {"a\\nb": 1}}\n')
    done = call("generate", "--config", tmp_path / "dlio.yaml", "-o", tmp_path / "ds", "--samples", "1")
    assert done.returncode == 2 and "dataset" in one_line(done)


def test_a_recipe_names_each_file_once_and_none_that_is_a_folder() -> None:
    with pytest.raises(UsageError, match="stands twice"):
        RecordedLayout((("a/b", 1), ("./a//b", 1)))
    with pytest.raises(UsageError, match="a file and a folder"):
        RecordedLayout((("a", 1), ("a/b", 1)))


def test_a_recipe_of_any_size_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "recipe.csv").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UsageError, match="larger than the 256 MiB"):
        read_recipe(tmp_path / "recipe.csv")


def test_a_prefix_cannot_lead_out(tmp_path: Path) -> None:
    (tmp_path / "dlio.yaml").write_text("dataset: {format: npy, num_files_train: 1, file_prefix: ../../escaped}\n")
    done = call(
        "generate", "--config", tmp_path / "dlio.yaml", "-o", tmp_path / "deep" / "ds", "--samples", "1", "--workers", "1"
    )
    assert done.returncode == 2 and "holds no slash" in one_line(done)
    assert not list(tmp_path.rglob("escaped*"))


def test_a_journal_of_other_files_is_written_again(tmp_path: Path) -> None:
    """Its request is ours, its units are not: they are no reason to take a file for written, nor to fail."""
    generate(SMALL, tmp_path / "like", samples=2, workers=1)
    request = json.loads((tmp_path / "like" / "manifest.json").read_bytes())["request"]
    data = tmp_path / "ds"
    data.mkdir()
    (data / "x").write_bytes(b"12")
    entries = [{"unit": unit, "pieces": [{"name": "x", **PIECE}]} for unit in (0, 1, 7, -1)]
    lines = [json.dumps(line) for line in (request, *entries)]
    (data / ".iotwin-generate.jsonl").write_text("\n".join(lines) + "\n")
    manifest = generate(SMALL, data, samples=2, workers=1)
    assert {piece.name for piece in manifest.pieces} == {f"case_0000{n}_{kind}.npy" for n in (0, 1) for kind in "xy"}
