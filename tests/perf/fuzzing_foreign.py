"""What is fuzzed of twins, archives, recipes, data sets and checkpoints: files that one person makes and another reads."""

import contextlib
import io
import json
import random
import tempfile
import zipfile
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from tests.perf.fuzzing import ODD_VALUES, Subject, as_json, damaged, lying

_FILES = 4
_WORDS = (
    b"*a", b"&a [", b"<<: ", b"${train.epochs}", b"${oc.env:HOME}", b"${now:%Y}", b"!!python/object:os.system", b"../victim.txt",
    b"defaults: [../x]\n", b"'", b"- ", b"? ", b"| ", b"\t", b"%YAML 9.9\n", b"---\n", b"...\n", b"{epoch}", b"{step}",
)  # fmt: skip
_VALUES = (
    "os.system", "file:///", "s3://bucket", "/etc/passwd", "${dataset.data_folder}", "{epoch}",
    {"type": "recorded", "file": "/etc/passwd"},
    {"type": "quantiles", "values": [1.0, 0.5]}, 1 << 40, 1 << 53, ["a", "a"], "iotwin-emulated.txt", "manifest.json",
)  # fmt: skip


def subjects() -> list[Subject]:
    """Return the subjects of this half; what they call is imported first, as loading a library is no finding."""
    import iotwin.loops.emulation
    import iotwin.loops.twin_archive  # noqa: F401

    _members(), _data_set()
    return [
        Subject("a twin's YAML", _twin_text, _load_twin),
        Subject("a twin's values", _twin_values, _load_twin, 0.1),
        Subject("a workload that generates", _dlio_text, _plan_config),
        Subject("an archive's bytes", _archive_bytes, _unpack),
        Subject("an archive's members", _archive_members, _unpack, 0.1),
        Subject("a recipe", _recipe, _plan_recipe),
        Subject("a data set's manifest", partial(_listed, "manifest.json"), partial(_replace, "manifest.json")),
        Subject("a data set's journal", _journal, partial(_go_on, ".iotwin-generate.jsonl")),
        Subject("a checkpoint folder's note", _note, _checkpoint),
        Subject("recorded times", _times, _recorded),
    ]


def _twin() -> dict[str, Any]:
    """A workload with every kind of value."""
    return {
        "model": {"name": "net", "type": "transformer", "num_layers": 2, "parallelism": {"tensor": 1, "zero_stage": 1}},
        "workflow": {"train": True, "evaluation": True, "checkpoint": True},
        "storage": {"storage_root": "./", "storage_options": {"region": "x"}},
        "dataset": {
            "data_folder": "data", "format": "npy", "num_files_train": 4, "num_samples_per_file": 1, "record_length_bytes": 1000,
            "record_length_histogram": [[100, 1.0], [200, 2.0]], "record_dims": [10, 10], "record_element_type": "uint8",
            "parquet": {"columns": [{"name": "c", "dtype": "float32", "size": 2}]}, "hdf5": {"chunk_dims": [1, 1]},
        },
        "reader": {"data_loader": "native", "batch_size": 2, "read_threads": 0, "preprocess_time": {"type": "normal", "mean": 0}},
        "train": {"epochs": 1, "computation_time": {"type": "quantiles", "values": [0.0, 0.001]}, "seed": 1},
        "evaluation": {"eval_time": 0.0, "eval_time_stdev": 0.0},
        "checkpoint": {"checkpoint_folder": "ck", "epochs_between_checkpoints": 1},
        "output": {"folder": "out", "log_file": "dlio.log", "metric": {"exclude_start_steps": 1}},
        "twin": {
            "train_files": ["f0.npy", "sub/f1.npy"], "eval_files": ["f2.npy"], "ranks": 1, "assumptions": ["none"],
            "reader": {"read_sizes": [100]}, "checkpoint": {
                "files": [{"name": "m_{epoch}.pt", "write_sizes": [[100, 2]], "epochs": [1]}], "lead_time": 0.0, "keep": 1,
            },
        },
    }  # fmt: skip


@cache
def _text() -> bytes:
    return yaml.safe_dump(_twin()).encode()


def _twin_text(rng: random.Random) -> bytes:
    return damaged(rng, _text(), _WORDS)


def _twin_values(rng: random.Random) -> bytes:
    """A document that lies, as YAML: JSON is YAML, deep nestings and all."""
    return as_json(lying(rng, _twin(), _VALUES))


def _load_twin(content: bytes, directory: Path) -> None:
    """Read it as a workload of the user's own and as one that was sent; look at every value, and at what it would generate."""
    from iotwin.benchmark.emulator.checkpoints.writer import CheckpointWriter
    from iotwin.common.errors import IotwinError
    from iotwin.workload_yaml import dump, load, parse_foreign
    from iotwin.workload_yaml.compose import compose

    try:
        dump(parse_foreign(content, "sent.twin: twin.yaml"), directory / "sent.yaml")
        load(directory / "sent.yaml")
    except IotwinError:
        pass
    (directory / "twin.yaml").write_bytes(content)
    workload = compose(directory / "twin.yaml", ())
    workload.rows()
    config = workload.config
    _plan_generated(config)
    config.checkpoint.checkpoint_folder = str(directory / "ck")
    small = all(size * count < 1 << 20 for file in config.twin.checkpoint.files for size, count in file.write_sizes)
    if config.twin.checkpoint.files and small and config.checkpoint.checkpoint_mechanism_classname is None:
        CheckpointWriter(config)


def _plan_generated(config: Any) -> None:
    from iotwin.datagen.generate import plan
    from iotwin.loops.emulation import generated_layout

    layout, samples = generated_layout(config)
    if samples < 1 << 20:  # more cost memory by right: the plan has every file
        plan(layout, samples=samples)


def _dlio_text(rng: random.Random) -> bytes:
    document = {"dataset": {key: value for key, value in _twin()["dataset"].items() if key != "data_folder"}}
    if rng.random() < 0.5:
        return as_json(lying(rng, document, [*_VALUES, "lognormal", "parquet", "hdf5", "jpeg", "csv", "tfrecord"]))
    return damaged(rng, yaml.safe_dump(document).encode(), _WORDS)


def _plan_config(content: bytes, directory: Path) -> None:
    from iotwin.datagen.generate import plan
    from iotwin.datagen.layout_from_yaml import read_config

    (directory / "dlio.yaml").write_bytes(content)
    layout, samples = read_config(directory / "dlio.yaml")
    if samples < 1 << 20:
        planned = plan(layout, samples=samples)
        planned.pieces(0)


@cache
def _members() -> dict[str, bytes]:
    document = _twin()
    document["workflow"] = {"train": True}
    names = ["f0.npy", "sub/f1.npy", "f2.npy"]
    recipe = "name,size_bytes\n" + "".join(f"{name},{1000 + number}\n" for number, name in enumerate(names))
    return {"twin.yaml": yaml.safe_dump(document).encode(), "dataset.csv": recipe.encode(), "summary.json": b"{}"}


def _packed(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return buffer.getvalue()


def _archive_bytes(rng: random.Random) -> bytes:
    methods = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    return damaged(rng, _packed(_members(), rng.choice(methods)), [b"PK\x01\x02", b"PK\x05\x06", b"../twin.yaml"])


def _archive_members(rng: random.Random) -> bytes:
    members = dict(_members())
    name = rng.choice(list(members))
    kind = rng.randrange(4)
    if kind == 0:
        members["twin.yaml"] = as_json(lying(rng, _twin(), _VALUES))
    elif kind == 1:
        members["dataset.csv"] = _recipe(rng)
    elif kind == 2:
        members[name] = damaged(rng, members[name], _WORDS)
    else:
        members[f"../{name}"] = members.pop(name)
    return _packed(members)


def _unpack(content: bytes, directory: Path) -> None:
    from iotwin.loops import twin_archive
    from iotwin.workload_yaml import load

    twin_archive.generate_data = _generate_small  # in this process
    (directory / "sent.twin").write_bytes(content)
    twin_archive.unpack(directory / "sent.twin", directory / "here")
    load(directory / "here" / "twin.yaml")


def _generate_small(directory: Path) -> None:
    _plan_recipe((directory / "dataset.csv").read_bytes(), directory)


def _recipe(rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return damaged(rng, _members()["dataset.csv"], [b"../victim.txt", b'"', b"\r", b"manifest.json", b"9" * 19])
    buffer = io.StringIO()
    buffer.write("name,size_bytes\n")
    for number in range(rng.randrange(1, _FILES)):
        name: Any = f"f{number}"
        size: Any = rng.randrange(1, 3000)
        if rng.random() < 0.4:
            name = rng.choice([*ODD_VALUES, "f0/x", "./f0", "manifest.json", "a.iotwin-partial", ".iotwin-generate.jsonl"])
        if rng.random() < 0.2:
            size = rng.choice(ODD_VALUES)
        buffer.write(f"{json.dumps(name) if rng.random() < 0.5 else name},{size}\n")
    return buffer.getvalue().encode(errors="surrogatepass")


def _plan_recipe(content: bytes, directory: Path) -> None:
    from iotwin.datagen.datasets.recorded import read_recipe
    from iotwin.datagen.generate import generate, plan

    (directory / "recipe.csv").write_bytes(content)
    layout = read_recipe(directory / "recipe.csv")
    planned = plan(layout, samples=len(layout.files))
    if planned.size_bytes < 1 << 20:
        generate(layout, directory / "ds", samples=len(layout.files), workers=1)


@cache
def _data_set() -> dict[str, bytes]:
    """The files of a small data set."""
    from iotwin.datagen.generate import generate
    from iotwin.datagen.layouts import RecordedLayout

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "ds"
        generate(_layout(RecordedLayout), place, samples=_FILES, workers=1)
        return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def _layout(kind: Any) -> Any:
    return kind(tuple((f"sub/f{number}", 200) for number in range(_FILES)))


def _listed(name: str, rng: random.Random) -> bytes:
    content = _data_set()[name]
    if rng.random() < 0.3:
        return damaged(rng, content, [b"../victim.txt"])
    return as_json(lying(rng, json.loads(content), ["../victim.txt", "sub/../../victim.txt", "out/victim.txt", "sub"]))


def _laid_out(name: str, content: bytes, directory: Path) -> Path:
    """A data set with `content` as its list of that name, with a link that leads out."""
    place = directory / "ds"
    for file, usual in _data_set().items():
        if name == "manifest.json" or file != "manifest.json":
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            (place / file).write_bytes(usual)
    (place / name).write_bytes(content)
    _link_out(place, directory)
    return place


def _link_out(place: Path, directory: Path) -> None:
    """Put the link `out` into `place`, which leads to a file that is not its own."""
    (directory / "outside").mkdir()
    (directory / "outside" / "victim.txt").write_text("somebody's")
    (place / "out").symlink_to(directory / "outside")


def _check_outside(directory: Path) -> None:
    found = {path.name: path.read_text() for path in (directory / "outside").iterdir()}
    if found != {"victim.txt": "somebody's"}:
        raise AssertionError(f"written through a link: {found}")


def _replace(name: str, content: bytes, directory: Path) -> None:
    """Verify the data set, then replace it by another one."""
    from iotwin.common.errors import IotwinError
    from iotwin.datagen.generate import generate
    from iotwin.datagen.layouts import RecordedLayout
    from iotwin.datagen.verify import verify

    place = _laid_out(name, content, directory)
    with contextlib.suppress(IotwinError):
        verify(place, workers=1)
    try:
        generate(RecordedLayout((("other", 10),)), place, samples=1, workers=1, existing="replace")
    finally:
        _check_outside(directory)


def _journal(rng: random.Random) -> bytes:
    manifest = json.loads(_data_set()["manifest.json"])
    lines = [as_json(manifest["request"])]
    for unit, piece in enumerate(manifest["pieces"]):
        entry: Any = {"unit": unit, "pieces": [piece]}
        if rng.random() < 0.5:
            entry = lying(rng, entry, ["../victim.txt", "out/victim.txt", "sub", 99])
        lines.append(as_json(entry))
    if rng.random() < 0.3:
        lines[0] = as_json(lying(rng, manifest["request"]))
    content = b"\n".join(lines) + b"\n"
    return damaged(rng, content) if rng.random() < 0.3 else content


def _go_on(name: str, content: bytes, directory: Path) -> None:
    """Go on from the journal, then replace what came of it."""
    from iotwin.common.errors import IotwinError
    from iotwin.datagen.generate import generate
    from iotwin.datagen.layouts import RecordedLayout

    place = _laid_out(name, content, directory)
    with contextlib.suppress(IotwinError):
        generate(_layout(RecordedLayout), place, samples=_FILES, workers=1)
    try:
        generate(RecordedLayout((("other", 10),)), place, samples=1, workers=1, existing="replace")
    finally:
        _check_outside(directory)


def _note(rng: random.Random) -> bytes:
    from iotwin.benchmark.emulator.checkpoints.own_files import _TEXT

    names = [
        json.dumps(rng.choice(["m_1.pt", "sub/last.pt", "../victim.txt", "out/victim.txt", "sub", *ODD_VALUES])) for _ in range(4)
    ]
    content = _TEXT + "\n".join(names).encode() + b"\n"
    return damaged(rng, content) if rng.random() < 0.7 else content


def _checkpoint(content: bytes, directory: Path) -> None:
    """Write checkpoints into a folder with that note and a link that leads out, and remove old ones."""
    from iotwin import workload_yaml as c
    from iotwin.benchmark.emulator.checkpoints.writer import CheckpointWriter

    ck = directory / "ck"
    ck.mkdir()
    (ck / "iotwin-emulated.txt").write_bytes(content)
    _link_out(ck, directory)
    names = ("m_{epoch}.pt", "sub/last.pt", *(["out/new.txt"] if len(content) % 2 else []))
    files = [c.CheckpointFile(name=name, write_sizes=[(100, 1)], rename=number == 1) for number, name in enumerate(names)]
    config = c.Config(
        dataset=c.Dataset(data_folder="d"),
        checkpoint=c.Checkpoint(checkpoint_folder=str(ck)),
        twin=c.Twin(checkpoint=c.TwinCheckpoint(files=files, keep=1)),
    )
    try:
        writer = CheckpointWriter(config)
        for epoch in (1, 2):
            writer.save(epoch)
        writer.finish()
    finally:
        _check_outside(directory)


def _times(rng: random.Random) -> bytes:
    return damaged(rng, b"0.1\n0.2 # a comment\n\n1e-3\n3\n", [b"nan", b"inf", b"-1", b"1e10", b"#"])


def _recorded(content: bytes, directory: Path) -> None:
    from iotwin.common.numbers.recorded_times import read_recording

    (directory / "times").write_bytes(content)
    read_recording(str(directory / "times"))
