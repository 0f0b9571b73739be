"""Run upstream DLIO's smallest training and print its CPU seconds and memory: run by its interpreter, by perf_emulator.

    python smallest_dlio_run.py DIRECTORY FILES RECORD_BYTES

Reads what is in DIRECTORY/data. TensorFlow and DALI, which dlio_benchmark imports but the PyTorch loader does not need, are
replaced by dummies, in its favour.
"""

import resource
import sys
from unittest.mock import MagicMock

from upstream_generation import _DUMMIES


def main() -> None:
    """Train once and print `CPU seconds: N` and `memory: BYTES`."""
    directory, files, record_bytes = sys.argv[1:]
    sys.modules.update({dummy: MagicMock() for dummy in _DUMMIES})
    from dlio_benchmark import main as upstream

    settings = {
        "framework": "pytorch", "dataset.data_folder": f"{directory}/data", "dataset.format": "npz",
        "dataset.num_files_train": files,
        "dataset.num_files_eval": 0, "dataset.num_samples_per_file": 1, "dataset.record_length": record_bytes,
        "dataset.record_length_stdev": 0, "dataset.num_subfolders_train": 0, "reader.data_loader": "pytorch",
        "reader.batch_size": 1, "reader.read_threads": 0, "train.epochs": 1, "train.computation_time": 0,
        "workflow.generate_data": False, "workflow.train": True, "workflow.evaluation": False,
    }  # fmt: skip
    sys.argv[1:] = ["workload=default", *(f"++workload.{key}={value}" for key, value in settings.items())]
    sys.argv.append(f"hydra.run.dir={directory}/log")
    upstream.main()
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(f"CPU seconds: {sum(part.ru_utime + part.ru_stime for part in usage)}")
    print(f"memory: {usage[0].ru_maxrss * 1024}", flush=True)


if __name__ == "__main__":
    main()
