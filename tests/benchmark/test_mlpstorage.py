"""The real mlpstorage, v2.0 and v3, starts this emulator for DLIO, where checkouts of it are at hand."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.conftest import PATIENCE_S, ROOT

pytestmark = pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun (Open MPI) is not installed")
pytest.importorskip("mpi4py", reason="mpi4py is not installed")


class Version(NamedTuple):
    """A version of mlpstorage, and the order in which its command line takes words."""

    checkout: str  # the variable that names one
    package: str
    accelerator: str
    training: tuple[str, ...]  # before `datagen` and `run`
    checkpointing: tuple[str, ...]
    storage: tuple[str, ...]  # after each of them
    common: tuple[str, ...]


V2 = Version("IOTWIN_MLPSTORAGE_V2", "mlpstorage", "h100", ("training",), ("checkpointing",), (), ())
V3 = Version(
    "IOTWIN_MLPSTORAGE_V3",
    "mlpstorage_py",
    "b200",
    ("open", "training", "unet3d"),
    ("open", "checkpointing"),
    ("file",),
    ("--systemname", "sys"),
)
SMALL_DATA = {"num_files_train": 28, "record_length_bytes": 100_000, "record_length_bytes_stdev": 0}
SMALL_SHAPE = {"vocab_size": 1000, "hidden_size": 64, "ffn_hidden_size": 128, "num_attention_heads": 8, "num_kv_heads": 4}


class Mlpstorage:
    """A copy of a checkout whose workloads are small, and the folder that it works in."""

    def __init__(self, version: Version, folder: Path) -> None:
        checkout = os.environ.get(version.checkout)
        if not checkout:
            pytest.skip(f"set {version.checkout} to a checkout of github.com/mlcommons/storage of that version")
        self.version, self.folder, self._copy = version, folder, folder / "checkout"
        for name in (version.package, "configs"):
            shutil.copytree(Path(checkout) / name, self._copy / name)
        shutil.copy(Path(checkout) / "pyproject.toml", self._copy)
        for name in ("unet3d_datagen", f"unet3d_{version.accelerator}"):
            self._scale(name, dataset=SMALL_DATA)
        self._scale(f"unet3d_{version.accelerator}", train={"epochs": 2, "computation_time": 0.02}, reader={"batch_size": 4})
        self._scale(
            "llama3_8b", model={"num_layers": 1, "transformer": SMALL_SHAPE}, checkpoint={"time_between_checkpoints": 0.01}
        )
        if version is V3:
            self.call("init", "org", str(self.results))

    def _scale(self, name: str, **sections: dict[str, Any]) -> None:
        path = self._copy / "configs" / "dlio" / "workload" / f"{name}.yaml"
        workload = yaml.safe_load(path.read_text())
        for section, values in sections.items():
            workload.setdefault(section, {}).update(values)
        path.write_text(yaml.safe_dump(workload))

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def runs(self, *names: str) -> list[Path]:
        """The folders of runs that are called so, oldest first."""
        found = [path for path in self.results.rglob("dlio_config") if path.parent.parent.parts[-len(names) :] == names]
        return [path.parent for path in sorted(found)]

    def call(self, *words: str, before: tuple[str, ...] = ()) -> None:
        bin_folder = ROOT / "benchmark" / "bin"
        environment = {
            **os.environ,
            "PATH": f"{bin_folder}:{os.environ['PATH']}",  # where v3 looks first
            "PYTHONPATH": f"{self._copy}:{ROOT}",
            "PYTHON": sys.executable,
            "HOME": str(self.folder),
            "OMPI_MCA_mpi_yield_when_idle": "1",
        }
        command = [*before, sys.executable, "-m", f"{self.version.package}.main", *words]
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

    def benchmark(self, words: tuple[str, ...], *options: str, before: tuple[str, ...] = ()) -> None:
        started = ["--dlio-bin-path", str(ROOT / "benchmark" / "bin"), "--oversubscribe", "--allow-run-as-root"]
        self.call(
            *words,
            *self.version.storage,
            *options,
            "--results-dir",
            str(self.results),
            *self.version.common,
            *started,
            before=before,
        )


@pytest.fixture(params=[V2, V3], ids=["v2", "v3"])
def mlpstorage(request: pytest.FixtureRequest, tmp_path: Path) -> Mlpstorage:
    return Mlpstorage(request.param, tmp_path)


def test_data_is_generated_and_read_and_reported(mlpstorage: Mlpstorage) -> None:
    version, data = mlpstorage.version, ["--data-dir", str(mlpstorage.folder / "data")]
    model = [] if version is V3 else ["--model", "unet3d"]
    mlpstorage.benchmark((*version.training, "datagen"), *model, *data, "--num-processes", "2")
    mlpstorage.benchmark(
        (*version.training, "run"),
        *model,
        *data,
        *("--num-accelerators", "2", "--accelerator-type", version.accelerator, "--client-host-memory-in-gb", "1"),
        *("--checkpoint-folder", str(mlpstorage.folder)) if version is V2 else (),
        "--allow-invalid-params",
    )
    (generated,), (run,) = mlpstorage.runs("unet3d", "datagen"), mlpstorage.runs("unet3d", "run")
    assert "with 2 process(es)" in (generated / "dlio.log").read_text()
    assert len(list((mlpstorage.folder / "data" / "unet3d" / "train").iterdir())) == 28
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["num_accelerators"], summary["num_files_train"], summary["epochs"]) == (2, 28, 2)
    reported = mlpstorage.results
    if version is V3:  # its reports expect the runs of one system where its own results have those of all
        reported = mlpstorage.folder / "of_one_system"
        shutil.copytree(run.parents[3], reported)
        shutil.copy(mlpstorage.results / "mlperf-results.yaml", reported)
    mlpstorage.call("reports", "reportgen", "--results-dir", str(reported), *version.common)
    assert any("unet3d" in path.read_text() for path in (*reported.glob("*.json"), *mlpstorage.folder.glob("*.json")))


@pytest.mark.root  # v3 asks for the free space of the whole model, which a sparse file system shows
@pytest.mark.parametrize("processes", [2, 8])
def test_checkpoints_are_written_and_read(mlpstorage: Mlpstorage, processes: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    folder = mlpstorage.folder / "checkpoints"
    folder.mkdir()
    mounted = ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o size=1t tmpfs {folder} && exec "$@"', "sh")
    mlpstorage.benchmark(
        (*mlpstorage.version.checkpointing, "run"),
        *("--model", "llama3-8b", "--num-processes", str(processes), "--client-host-memory-in-gb", "1"),
        *("--checkpoint-folder", str(folder), "--num-checkpoints-write", "2", "--num-checkpoints-read", "2"),
        "--allow-invalid-params",
        before=mounted,
    )
    (run,) = mlpstorage.runs("checkpointing", "llama3-8b")
    summary = json.loads((run / "summary.json").read_text())
    assert summary["num_accelerators"] == processes
    assert len({file["name"] for file in summary["iotwin"]["checkpoint_files"]}) == 2 * 2 * processes
    assert summary["metric"]["load_checkpoint_io_mean_GB_per_second"] > 0
