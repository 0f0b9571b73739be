"""Data sets in object stores: through fsspec's memory store, and through S3's own protocol where a local server is installed."""

import os
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from iotwin.common.errors import IotwinError
from iotwin.datagen import object_stores
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import DlrmLayout, FormatLayout, Unet3dLayout

SMALL = Unet3dLayout(scale=0.1)
_numbers = count()


@pytest.fixture
def url(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return f"memory://bucket{next(_numbers)}/data"


def objects(url):
    store = object_stores.open_store(url)
    return {name: store.files.cat_file(store.path(name)) for name in store.sizes()}


def content(directory):
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("layout", [SMALL, DlrmLayout(), FormatLayout(format="tfrecord")], ids=lambda layout: layout.workload)
def test_a_store_gets_the_same_bytes_as_a_directory(layout, url, tmp_path, monkeypatch):
    monkeypatch.setattr(DlrmLayout, "UNIT_SAMPLES", 1000)
    manifest = object_stores.generate(layout, url, samples=5000 if layout.workload == "dlrm" else 4, workers=1)
    generate(layout, tmp_path / "local", samples=manifest.request.samples, workers=1)
    assert objects(url) == content(tmp_path / "local")
    assert (
        object_stores.generate(layout, url, samples=manifest.request.samples) == object_stores.verify(url, workers=1) == manifest
    )
    assert not list(tmp_path.glob("cache/iotwin/*"))


def test_an_interrupted_upload_goes_on(url, tmp_path, monkeypatch):
    real, uploads = object_stores._Uploader.publish, []

    def interrupted(self, partial, name):
        if len(uploads) == 5:
            raise KeyboardInterrupt
        uploads.append(name)
        real(self, partial, name)

    monkeypatch.setattr(object_stores._Uploader, "publish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        object_stores.generate(SMALL, url, samples=6, workers=1)
    assert sorted(objects(url)) == sorted(uploads)
    monkeypatch.setattr(object_stores._Uploader, "publish", lambda *call: (uploads.append(call[2]), real(*call)))
    object_stores.generate(SMALL, url, samples=6, workers=1)
    assert len(uploads) == len(set(uploads)) == 12
    generate(SMALL, tmp_path / "local", samples=6, workers=1)
    assert objects(url) == content(tmp_path / "local")


def test_other_content_is_left_alone(url):
    store = object_stores.open_store(url)
    store.files.pipe_file(store.path("mine"), b"keep")
    with pytest.raises(IotwinError, match="not this data set's"):
        object_stores.generate(SMALL, url, samples=2, workers=1)
    object_stores.generate(SMALL, url, samples=3, workers=1, existing="replace")
    with pytest.raises(IotwinError, match="another data set"):
        object_stores.generate(SMALL, url, samples=2, workers=1)
    object_stores.generate(SMALL, url, samples=2, workers=1, existing="replace")
    assert len(objects(url)) == 6 and objects(url)["mine"] == b"keep"


def test_removing_a_data_set_leaves_other_objects(url):
    object_stores.generate(SMALL, url, samples=2, workers=1)
    store = object_stores.open_store(url)
    store.files.pipe_file(store.path("mine"), b"keep")
    store.files.rm_file(store.path("case_00001_x.npy"))  # an object that is gone already is no error
    object_stores.remove_data_set(url)
    assert objects(url) == {"mine": b"keep"}


def test_damage_and_absence_are_found(url):
    with pytest.raises(IotwinError, match="no manifest"):
        object_stores.verify(url)
    object_stores.generate(SMALL, url, samples=2, workers=1)
    store = object_stores.open_store(url)
    whole = store.files.cat_file(store.path("case_00001_x.npy"))
    store.files.pipe_file(store.path("case_00001_x.npy"), whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(IotwinError, match=r"case_00001_x.npy: its content differs"):
        object_stores.verify(url, workers=1)
    store.files.rm_file(store.path("case_00001_x.npy"))
    with pytest.raises(IotwinError, match=r"case_00001_x.npy: it is missing"):
        object_stores.verify(url, workers=1)
    with pytest.raises(IotwinError, match="Protocol not known: nosuch"):
        object_stores.generate(SMALL, "nosuch://bucket", samples=1)


def _iotwin(environment, *arguments):
    command = [sys.executable, "-m", "iotwin", "generate", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[2])


def test_s3(s3_server, tmp_path):
    import s3fs

    environment = os.environ | {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    request = ["unet3d", "--samples", 4, "--scale", 0.4, "--workers", 2]
    for target in ("s3://data/kits", tmp_path / "local"):
        done = _iotwin(environment, *request, "-o", target)
        assert done.returncode == 0, done.stderr
    store = s3fs.S3FileSystem(key="key", secret="secret", endpoint_url=s3_server)
    store.get("data/kits", str(tmp_path / "fetched"), recursive=True)
    assert content(tmp_path / "fetched") == content(tmp_path / "local")
    assert _iotwin(environment, "-o", "s3://data/kits", "--verify").returncode == 0
    refused = _iotwin(environment, *request, "-o", "s3://nobucket/kits")
    assert refused.returncode == 1 and refused.stderr.strip().count("\n") == 0 and "s3://nobucket/kits" in refused.stderr
