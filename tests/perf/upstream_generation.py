"""Print the CPU seconds and the bytes of records of upstream DLIO's generation: run by its interpreter, by perf_datagen.

    python upstream_generation.py DIRECTORY FORMAT FILES RECORD_BYTES

Start-up and imports are not counted. What dlio_benchmark imports and does not need here is replaced by dummies: DALI, and
TensorFlow unless it is tfrecord's turn. To its favour, tfrecord's index, which DALI's tfrecord2idx makes, is left out, and hdf5
draws as many records as it writes, not a buffer of 2 GiB for every file.
"""

import subprocess
import sys
import time
from unittest.mock import MagicMock

_DUMMIES = (
    "tensorflow", "tensorflow.python.framework.errors", "nvidia", "nvidia.dali", "nvidia.dali.pipeline", "nvidia.dali.fn",
    "nvidia.dali.types", "nvidia.dali.plugin", "nvidia.dali.plugin.pytorch", "nvidia.dali.plugin.base_iterator",
)  # fmt: skip


def main() -> None:
    """Generate once and print `CPU seconds: N`."""
    directory, name, files, record_bytes = sys.argv[1:]
    sys.modules.update({dummy: MagicMock() for dummy in _DUMMIES if name != "tfrecord" or "tensorflow" not in dummy})
    subprocess.call = lambda *_: 0
    from dlio_benchmark import main as upstream

    generate = upstream.DLIOBenchmark.initialize

    def timed(self: object) -> None:
        begin = time.process_time()
        generate(self)
        print(f"CPU seconds: {time.process_time() - begin}", flush=True)

    upstream.DLIOBenchmark.initialize = timed
    dataset = {
        "data_folder": f"{directory}/data",
        "format": name,
        "num_files_train": files,
        "num_files_eval": 0,
        "num_samples_per_file": 1,
        "record_length": record_bytes,
        "record_length_stdev": 0,
        "num_subfolders_train": 0,
        "generation_buffer_size": record_bytes,
    }
    sys.argv[1:] = ["workload=default", "++workload.workflow.generate_data=True", "++workload.workflow.train=False"]
    if name == "tfrecord":
        sys.argv += ["++workload.framework=tensorflow", "++workload.reader.data_loader=tensorflow"]
    sys.argv += [*(f"++workload.dataset.{key}={value}" for key, value in dataset.items()), f"hydra.run.dir={directory}/log"]
    upstream.main()


if __name__ == "__main__":
    main()
