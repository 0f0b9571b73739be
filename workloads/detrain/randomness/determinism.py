"""Profiles of determinism for a script: what is set before it starts, and what keeps a rerun from being equal.

* `off`: nothing is changed.
* `seeded`: Python, numpy, torch and TensorFlow are seeded. Seeds that the script sets itself replace these.
* `strict`: as `seeded`. Also, operations use their deterministic implementation if they have one, and the number of threads is
  fixed.

No profile changes what an operation computes, beyond the choice among implementations of the same operation.
"""

import random
import sys
from pathlib import Path
from typing import Any

from iotwin.workloads.detrain.detectors import nondeterministic_ops
from iotwin.workloads.detrain.detectors.after_import import after_import
from iotwin.workloads.detrain.detectors.entropy import EntropySources, unwatched_sources
from iotwin.workloads.detrain.detectors.findings import Findings
from iotwin.workloads.detrain.detectors.script_frames import is_script

OFF, SEEDED, STRICT = "off", "seeded", "strict"
_MOST_SEED_32 = 2**32  # seeds of numpy's global generator and of Python's hashes are below this


def environment(profile: str, seed: int) -> dict[str, str]:
    """Return the environment variables of a process that runs a script under `profile`. They must be set before it starts."""
    if profile == OFF:
        return {}
    variables = {"PYTHONHASHSEED": str(seed % _MOST_SEED_32)}
    if profile == STRICT:
        # cuBLAS is deterministic on several streams only with workspaces of a fixed size.
        variables |= {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TF_DETERMINISTIC_OPS": "1"}
    return variables


class AppliedProfile:
    """A profile that is in force, and the causes of different reruns that it has found so far."""

    def __init__(self) -> None:
        self._ops, self._entropy = Findings(), Findings()

    def start(self, profile: str, seed: int, fix_entropy: bool) -> None:
        """Put the profile in force in this process."""
        if profile != OFF:
            random.seed(seed)
            after_import("numpy", lambda: _seed_numpy(seed))
            after_import("torch", lambda: _seed_torch(seed))
            after_import("tensorflow", lambda: _seed_tensorflow(seed))
        if profile == STRICT:
            nondeterministic_ops.watch(self._ops)
            after_import("torch", _make_torch_strict)
            after_import("tensorflow", _make_tensorflow_strict)
        EntropySources(self._entropy, seed if fix_entropy else None).watch()

    def nondeterministic_ops(self) -> list[dict[str, Any]]:
        """Return the operations of torch without a deterministic implementation: op, file and line. Empty unless `strict`."""
        return [{"op": op, "file": file, "line": line} for op, file, line in self._ops.all()]

    def entropy(self) -> list[dict[str, Any]]:
        """Return what the script has drawn without a seed: source, file and line."""
        found = set(self._entropy.all())
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and is_script(file):
                found |= {(source, file, line) for source, line in unwatched_sources(Path(file))}
        ordered = sorted(found, key=lambda each: (each[1], each[2], each[0]))
        return [{"source": source, "file": file, "line": line} for source, file, line in ordered]


def apply(profile: str, seed: int, fix_entropy: bool = False) -> AppliedProfile:
    """Put a profile in force in this process, before the script starts. Packages that the script imports later then follow it.

    `seed` is from 0 to 2**63 - 1. With `fix_entropy`, generators that the script does not seed, and bytes that it takes from the
    system, are keyed by `seed` and by the order of these draws. Call it once in a process.
    """
    applied = AppliedProfile()
    applied.start(profile, seed, fix_entropy)
    return applied


def _seed_numpy(seed: int) -> None:
    import numpy as np

    np.random.seed(seed % _MOST_SEED_32)


def _seed_torch(seed: int) -> None:
    import torch

    torch.manual_seed(seed)


def _seed_tensorflow(seed: int) -> None:
    import tensorflow as tf

    # Keras draws its seeds from Python's generator, so it needs none. Its set_random_seed would seed the others again.
    tf.random.set_seed(seed)


def _make_torch_strict() -> None:
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.set_num_threads(torch.get_num_threads())  # fixed: MKL and OpenMP no longer choose fewer by load
    if torch.cuda.is_available():
        # As long as torch only warns, the backward passes of these are not deterministic. That of the fallback is.
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)


def _make_tensorflow_strict() -> None:
    import tensorflow as tf

    tf.config.experimental.enable_op_determinism()
