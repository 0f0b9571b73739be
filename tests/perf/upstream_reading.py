"""Print the CPU seconds of upstream DLIO's training loop without computation: run by its interpreter, by perf_reading.

    python upstream_reading.py DIRECTORY FORMAT FILES RECORD_BYTES EPOCHS

Reads what lies in DIRECTORY/data. Start-up and imports are not counted. DALI, and where it is not needed TensorFlow, are replaced
by dummies. tfrecord is read by tf.data, everything else by PyTorch's DataLoader in the main process.
"""

import sys
import time
from unittest.mock import MagicMock

_DALI = (
    "nvidia", "nvidia.dali", "nvidia.dali.pipeline", "nvidia.dali.fn", "nvidia.dali.types", "nvidia.dali.plugin",
    "nvidia.dali.plugin.pytorch", "nvidia.dali.plugin.base_iterator", "nvidia.dali.tfrecord",
)  # fmt: skip
_TENSORFLOW = ("tensorflow", "tensorflow.python.framework.errors")


def main() -> None:
    """Train once, print `CPU seconds: N`."""
    directory, name, files, record_bytes, epochs = sys.argv[1:]
    framework = "tensorflow" if name == "tfrecord" else "pytorch"
    sys.modules.update({dummy: MagicMock() for dummy in (*_DALI, *(() if framework == "tensorflow" else _TENSORFLOW))})
    from dlio_benchmark import main as upstream

    run = upstream.DLIOBenchmark.run

    def timed(self: object) -> None:
        begin = time.process_time()
        run(self)
        print(f"CPU seconds: {time.process_time() - begin}", flush=True)

    upstream.DLIOBenchmark.run = timed
    values = {
        "framework": framework, "workflow.generate_data": False, "workflow.train": True, "workflow.checkpoint": False,
        "workflow.evaluation": False,
        "dataset.data_folder": f"{directory}/data", "dataset.format": name, "dataset.num_files_train": files,
        "dataset.num_files_eval": 4, "dataset.num_subfolders_train": 0, "dataset.num_subfolders_eval": 0,
        "dataset.num_samples_per_file": 1,
        "dataset.record_length": record_bytes,
        "dataset.record_length_stdev": 0, "dataset.record_length_resize": record_bytes, "reader.data_loader": framework,
        "reader.batch_size": 4, "reader.read_threads": 1 if framework == "tensorflow" else 0, "train.epochs": epochs,
        "train.computation_time": 0, "reader.transfer_size": 262144,
    }  # fmt: skip
    sys.argv[1:] = ["workload=default", *(f"++workload.{key}={value}" for key, value in values.items())]
    sys.argv.append(f"hydra.run.dir={directory}/log")
    upstream.main()


if __name__ == "__main__":
    main()
