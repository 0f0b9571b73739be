"""Homes, locales and names of directories that are not ours to choose."""

import os

from tests.conftest import ROOT, run_iotwin
from tests.synthetic import Job, write_job

_TWIN = """
dataset: {{format: npy, num_files_train: 2, num_samples_per_file: 1, record_length: 64, data_folder: {folder}}}
workflow: {{generate_data: true, train: true}}
"""


def test_names_are_the_same_bytes_whatever_the_locale(tmp_path):
    """Python takes names for ASCII where its mending of the C locale is off, as for Latin-1 in a locale of that."""
    folder = tmp_path / "Zuhäuse" / "data"
    folder.parent.mkdir()
    (tmp_path / "twin.yaml").write_text(_TWIN.format(folder=folder))
    plain = {**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run_iotwin("emulate", tmp_path / "twin.yaml", "--quiet", cwd=tmp_path, env=plain)
    assert done.returncode == 0, done.stderr
    assert len(list(folder.rglob("*.npy"))) == 2
    assert {path.name for path in tmp_path.iterdir() if not path.name.isascii()} == {"Zuhäuse"}


def test_a_traced_jobs_environment_is_the_callers_also_then(tmp_path):
    plain = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run_iotwin("trace", "-o", tmp_path / "t", "--backend", "strace", "--quiet", "--", "env", env=plain)
    assert dict(line.split("=", 1) for line in done.stdout.splitlines()) == plain, done.stderr


def test_a_picture_says_nothing_of_a_home_that_cannot_be_written_to(tmp_path):
    trace = write_job(tmp_path / "t", Job(files=2, epochs=1))
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": "/dev/null", "TMPDIR": str(tmp_path)}
    done = run_iotwin("plot", "timeline", trace, "-o", tmp_path / "t.png", "--quiet", env=environment)
    assert done.returncode == 0 and not done.stderr and (tmp_path / "t.png").exists(), done.stderr
