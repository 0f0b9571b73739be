"""What the profiles set, and what is found at the lines of scripts that run under them."""

import importlib.util
import json
import os
import random
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from iotwin.workloads.detrain.detectors.after_import import after_import
from iotwin.workloads.detrain.detectors.findings import Findings
from iotwin.workloads.detrain.detectors.script_frames import is_script, is_standard
from iotwin.workloads.detrain.randomness.determinism import environment
from iotwin.workloads.detrain.randomness.machine_manifest import differences, manifest

pytestmark = pytest.mark.torch
SEED = 7
# Runs a script under a profile. The last line of the output is what was found.
RUN = """
import json, runpy, sys
from iotwin.workloads.detrain.randomness.determinism import apply
script, profile, fix_entropy = sys.argv[1:]
applied = apply(profile, 7, fix_entropy == "True")
assert not {"torch", "tensorflow"} & set(sys.modules), "only the script imports them"
runpy.run_path(script, run_name="__main__")
print(json.dumps([applied.entropy(), applied.nondeterministic_ops()]))
"""


def run(tmp_path, profile, program, fix_entropy=False):
    """Run a program under a profile: return its script, its lines of output, its entropy and its operations."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(program))
    command = [sys.executable, "-c", RUN, str(script), profile, str(fix_entropy)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment(profile, SEED), check=False)
    assert done.returncode == 0, done.stderr
    *lines, found = done.stdout.splitlines()
    return script, lines, *json.loads(found)


def expected_by_comment(script, key):
    """Return what the comments `# NAME` of a script expect at their lines."""
    lines = enumerate(script.read_text().splitlines(), 1)
    marked = ((line.partition("  # ")[2], number) for number, line in lines if "  # " in line)
    return [{key: name, "file": str(script), "line": number} for name, number in marked]


@pytest.mark.parametrize("seed", [0, 5, 2**32 + 5])
def test_the_environment_of_a_profile(seed):
    hashes = {"PYTHONHASHSEED": str(seed % 2**32)}
    assert environment("off", seed) == {}
    assert environment("seeded", seed) == hashes
    strict = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TF_DETERMINISTIC_OPS": "1"}
    assert environment("strict", seed) == hashes | strict


DRAWS = """
    import random
    import numpy as np
    import torch
    print(random.random(), np.random.rand(), torch.rand(()).item(), torch.are_deterministic_algorithms_enabled())
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    print(random.random(), np.random.rand(), torch.rand(()).item(), hash("text"))
"""


def test_seeded_seeds_what_the_script_imports_and_the_scripts_own_seeds_win(tmp_path):
    def drawn(seed):
        return (
            f"{random.Random(seed).random()} {np.random.RandomState(seed).rand()} {torch.rand((), generator=made(seed)).item()}"
        )

    def made(seed):
        return torch.Generator().manual_seed(seed)

    _, lines, entropy, ops = run(tmp_path, "seeded", DRAWS)
    assert lines[0] == f"{drawn(SEED)} False" and lines[1].startswith(f"{drawn(1)} ")
    assert not entropy and not ops
    assert run(tmp_path, "seeded", DRAWS)[1] == lines, "hashes of text are equal too"
    _, off, entropy, ops = run(tmp_path, "off", DRAWS)
    assert off[0].split()[:2] != lines[0].split()[:2] and off[1].split()[:3] == lines[1].split()[:3]
    assert not entropy and not ops


STRICT = """
    import warnings
    import torch
    from torch.nn import functional as F
    cudnn, filling = torch.backends.cudnn, torch.utils.deterministic.fill_uninitialized_memory
    assert torch.is_deterministic_algorithms_warn_only_enabled() and filling and cudnn.deterministic and not cudnn.benchmark
    warnings.simplefilter("ignore")
    content, chosen = torch.zeros(4), torch.tensor([1, 1])
    content.put_(chosen, torch.ones(2))  # put_
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("error")
        for _ in range(3):
            content.put_(chosen, torch.ones(2))  # put_
    with warnings.catch_warnings():
        warnings.resetwarnings()
        pooled, where = F.max_pool1d(torch.rand(1, 1, 4), 2, return_indices=True)
        F.max_unpool1d(pooled, where, 2)  # max_unpooling2d_forward_out
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        content.put_(chosen, torch.ones(2), accumulate=True)
        warnings.warn("the script's own")
    print([str(each.message) for each in seen])

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return torch.zeros(4).put_(torch.tensor([1]), torch.ones(1))  # put_

    list(torch.utils.data.DataLoader(Data(), num_workers=1))
"""


def test_strict_reports_operations_without_a_deterministic_implementation(tmp_path):
    script, lines, _, ops = run(tmp_path, "strict", STRICT)
    assert ops == expected_by_comment(script, "op")
    assert lines == ['["the script\'s own"]']


ENTROPY = """
    import os, random, secrets, tempfile, time, uuid
    from pathlib import Path
    from types import SimpleNamespace
    import numpy as np
    import torch
    from numpy.random import default_rng as make

    def draw(seed, options):
        np.random.default_rng()  # numpy.random.default_rng
        make(seed)  # numpy.random.default_rng
        np.random.RandomState()  # numpy.random.RandomState
        np.random.RandomState(seed)  # numpy.random.RandomState
        np.random.RandomState(options.seed)  # numpy.random.RandomState
        np.random.PCG64(None)  # numpy.random.PCG64
        np.random.SeedSequence(spawn_key=(1,))  # numpy.random.SeedSequence
        np.random.seed()  # numpy.random.seed
        np.random.seed(seed)  # numpy.random.seed
        random.seed()  # random.seed
        random.Random()  # random.Random
        random.SystemRandom().random()  # random.SystemRandom
        os.urandom(3)  # os.urandom
        os.getrandom(3)  # os.getrandom
        uuid.uuid4()  # uuid.uuid4
        uuid.uuid1()  # uuid.uuid1
        secrets.token_hex(3)  # secrets.token_hex
        torch.seed()  # torch.seed
        torch.Generator().seed()  # torch.Generator().seed
        open("/dev/urandom", "rb").read(2)  # /dev/urandom
        Path("/dev/random").open("rb").read(2)  # /dev/random
        random.seed(time.time())  # time
        np.random.seed(int(time.time() * 1000) % 2**32)  # time
        torch.manual_seed(time.time_ns())  # time
        np.random.default_rng(int(time.time() * 1e6))  # time

    draw(None, SimpleNamespace(seed=None))

    def draw_nothing(seed, options):
        random.seed(seed), np.random.seed(seed), torch.manual_seed(seed), torch.Generator().manual_seed(seed)
        make(seed), random.Random(seed), np.random.RandomState(seed), np.random.RandomState(options.seed), np.random.PCG64(seed)
        list(map(np.random.RandomState, [seed])), make(np.random.SeedSequence(seed)), np.random.Philox(key=seed)
        random.seed(1_600_000_000), np.random.rand(), random.random(), torch.rand(3), random.seed("text")
        with tempfile.TemporaryFile():
            pass

    draw_nothing(3, SimpleNamespace(seed=4))

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return np.random.default_rng().random()  # numpy.random.default_rng

    list(torch.utils.data.DataLoader(Data(), num_workers=2))
"""


def test_each_source_of_entropy_is_found_at_its_line(tmp_path):
    script, _, entropy, ops = run(tmp_path, "off", ENTROPY)
    assert entropy == expected_by_comment(script, "source") and not ops


FIXED = """
    import os, random, secrets, tempfile, uuid
    import numpy as np
    import torch

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return np.random.default_rng().random()

    def epoch():
        loader = torch.utils.data.DataLoader(Data(), num_workers=2, batch_size=1)
        return [item.item() for item in loader]

    np.random.seed(), random.seed(), torch.seed()
    print(np.random.rand(), random.random(), torch.rand(()).item(), np.random.default_rng().random(), random.Random().random(),
          np.random.RandomState().rand(), *epoch(), *epoch(), os.urandom(5).hex(), os.getrandom(6, flags=0).hex(), uuid.uuid4(),
          secrets.token_hex(7), random.SystemRandom().random())
    tempfile.TemporaryFile().close()
    print(len(os.urandom(300)))
"""


def test_unseeded_generators_and_bytes_come_from_the_seed_on_request(tmp_path):
    first, second = (run(tmp_path, "seeded", FIXED, fix_entropy=True) for _ in range(2))
    assert first[1] == second[1] and first[2] == second[2] != []
    draws = first[1][0].split()
    assert len(set(draws)) == len(draws) == 19, "each source and each worker draws other numbers, in each epoch"
    assert first[1][1] == "300" and [len(draws[index]) for index in (14, 15, 17)] == [10, 12, 14]
    other = run(tmp_path, "seeded", FIXED)
    assert other[2] == first[2] and not set(other[1][0].split()) & set(draws)


TENSORFLOW = """
    import tensorflow as tf
    draws = tf.random.uniform([3]).numpy().tolist(), tf.keras.layers.Dense(2)(tf.ones([1, 2])).numpy().tolist()
    tf.random.set_seed(7)
    assert draws[0] == tf.random.uniform([3]).numpy().tolist()
    print(draws[1])
    try:
        tf.random.Generator.from_non_deterministic_state()  # tf.random.Generator.from_non_deterministic_state
    except RuntimeError as error:
        print("determinism is enabled" in str(error))
"""


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_tensorflow_is_seeded_and_strict(tmp_path):
    script, lines, entropy, _ = run(tmp_path, "strict", TENSORFLOW)
    assert lines[1] == "True" and entropy == expected_by_comment(script, "source")


def test_actions_run_after_the_import(tmp_path, monkeypatch):
    (tmp_path / "imported_first.py").write_text("order = ['import']\nimport imported_second\n")
    (tmp_path / "imported_second.py").write_text("order = ['import']\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def noting(name, text):
        return lambda: sys.modules[name].order.append(text)

    for name in ("imported_first", "imported_second"):
        after_import(name, noting(name, "one"))
        after_import(name, noting(name, "two"))
    after_import("imported_by_nobody", lambda: pytest.fail("it is not imported"))
    first = importlib.import_module("imported_first")
    assert first.order == first.imported_second.order == ["import", "one", "two"]
    after_import("imported_first", noting("imported_first", "three"))
    assert first.order[3:] == ["three"]
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("imported_by_nobody")


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["f", "g"]), st.integers(1, 3)), max_size=12))
def test_findings_of_forked_processes_count_once(found):
    findings = Findings()
    for finding in found[::2]:
        findings.add(*finding)
    if (child := os.fork()) == 0:
        for finding in found:
            findings.add(*finding)
        os._exit(0)
    os.waitpid(child, 0)
    assert findings.all() == sorted(set(found), key=lambda each: (each[1], each[2], each[0]))


def test_files_of_the_script():
    assert is_script(__file__) and not is_script("<string>")
    assert not any(map(is_script, (torch.__file__, np.__file__, random.__file__, sys.modules[Findings.__module__].__file__)))
    assert is_standard(random.__file__) and not is_standard(torch.__file__) and not is_standard(__file__)


def test_a_manifest_detects_what_changes_results(monkeypatch):
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        before = manifest("strict", 3)
        assert before.keys() >= {"device", "driver", "torch", "numpy", "python", "threads", "interop_threads", "seed", "cpu"}
        assert (before["seed"], before["determinism"], before["threads"]) == (3, "strict", 2)
        assert before["numpy"] == np.__version__ and before["cpu"]
        assert json.loads(json.dumps(before)) == before and not differences(before, manifest("strict", 3))
        torch.set_num_threads(1)
        assert differences(before, manifest("strict", 3)) == ["threads: 2, here 1"]
        monkeypatch.setenv("PYTHONHASHSEED", "5")
        assert differences(before, manifest("off", 4)) == [
            "threads: 2, here 1",
            "seed: 3, here 4",
            "determinism: strict, here off",
            f"hash_seed: {before['hash_seed']}, here 5",
        ]
    finally:
        torch.set_num_threads(threads)


def test_a_manifest_records_the_choice_of_implementations():
    before = manifest("off", 0)
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cuda.enable_flash_sdp(False)
        torch.set_float32_matmul_precision("medium")
        changed = differences(before, manifest("off", 0))
        assert changed[0] == "float32_matmul: highest, here medium" and changed[2] == "deterministic: off, here warn"
        assert "flash" in str(before["attention"]) and "flash" not in str(manifest("off", 0)["attention"])
        torch.use_deterministic_algorithms(True)
        assert manifest("off", 0)["deterministic"] == "error"
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cuda.enable_flash_sdp(True)
        torch.set_float32_matmul_precision("highest")


def test_differences_of_unlike_documents():
    assert differences({"a": 1, "b": 2}, {"b": 2, "c": None, "d": 0}) == ["a: 1, here None", "d: None, here 0"]
