"""DLIO's entry point and its benchmark object: both run the command dlio_benchmark."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from dlio_benchmark import ConfigArguments

_RANKS = int(os.environ["IOTWIN_DLIO_RANKS"])


def _environment():
    """This one without the stand-ins, which the emulator must not import."""
    kept = [place for place in os.environ["PYTHONPATH"].split(os.pathsep) if not place.endswith("stand_ins")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(kept)}


class DLIOBenchmark:
    """One run of a composed workload."""

    def __init__(self, workload):
        self.output_folder, self.comm_size = workload["output"]["folder"], _RANKS
        self._words = [*workload.overrides, f"++workload.output.folder={self.output_folder}"]
        ksm = workload["checkpoint"].get("ksm")
        names = {"madv_mergeable_id": 12, "high_ram_trigger": 30.0, "low_ram_exit": 15.0, "await_time": 200}
        self.args = ConfigArguments.newest = SimpleNamespace(
            num_subfolders_train=workload["dataset"]["num_subfolders_train"],
            format=workload["dataset"]["format"],
            data_loader=workload["reader"]["data_loader"],
            reconfigure=lambda epoch: None,
            ksm_init=ksm is not None,
            **{f"ksm_{name}": (ksm or {}).get(name, usual) for name, usual in names.items()},
        )
        self.framework = _Framework(self)

    def initialize(self):
        pass

    def run(self, *more):
        command = ["mpirun", "-np", str(_RANKS), "dlio_benchmark", *self._words, *more]
        done = subprocess.run(command, env=_environment(), capture_output=True, text=True, timeout=500)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-2000:]}")

    def finalize(self):
        pass


class _Framework:
    """The loader of a benchmark, after its data was generated."""

    def __init__(self, benchmark):
        self._benchmark = benchmark

    def init_loader(self, format, epoch, data_loader):
        from iotwin.benchmark.emulator.data.dataset import open_dataset
        from iotwin.benchmark.emulator.data.order import training_batches
        from iotwin.benchmark.emulator.loaders.open_loader import open_loader
        from iotwin.workload_yaml import ConfigFolders, compose_job

        self._benchmark.run("++workload.workflow.train=False")
        *words, folder = [word for word in self._benchmark._words if not word.startswith("++workload.output.folder")]
        config = compose_job(words, ConfigFolders(Path(folder.removeprefix("--config-dir=")))).workload.config
        samples = open_dataset(config).train
        self._loader = open_loader(config, samples, 0, 1, False)
        self._batches = training_batches(config, len(samples), epoch)

    def get_loader(self, dataset_type):
        return SimpleNamespace(read=lambda: None, next=self._handed, finalize=lambda: None)

    def _handed(self):
        self._loader._keys.epoch, self._loader._keys.batches = 1, self._batches
        return (tensor for _, _, tensor in self._loader._loader)


def set_dftracer_initialize(value):
    pass


def set_dftracer_finalize(value):
    pass


if __name__ == "__main__":
    os.execvpe("dlio_benchmark", ["dlio_benchmark", *sys.argv[1:]], _environment())
