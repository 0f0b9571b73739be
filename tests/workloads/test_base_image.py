"""base_image.sh with stand-ins for apt, debootstrap and docker: what pip is asked for."""

import os
import subprocess
import tarfile

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="debootstrap needs root")


def test_packages_come_at_the_versions_that_everything_was_tested_with(tmp_path):
    """So that 'torch>=2.2' is the version of the lock file, which mirrors offer for CPUs, and not the newest with its CUDA."""
    (tmp_path / "bin").mkdir()
    programs = {
        "apt-get": "echo http://mirror.invalid/debian stable",
        "debootstrap": "exit 1",
        "docker": "cat >/dev/null",
        "python": f'case $1 in -c) echo python3.11 ;; *) echo "$@" >{tmp_path}/asked ;; esac',
    }
    for name, script in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "root" / "usr" / "bin").mkdir(parents=True)
    (tmp_path / "root" / "usr" / "bin" / "python3.11").touch()
    with tarfile.open(tmp_path / "debian-stable.tar", "w") as system:
        system.add(tmp_path / "root", arcname=".")
    environment = os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "PYTHON": "python", "BASE_CACHE": str(tmp_path)}
    command = [ROOT / "workloads" / "base_image.sh", "torch-base", "torch>=2.2"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "torch-base\n"), done.stderr
    asked = (tmp_path / "asked").read_text().split()
    assert asked[asked.index("--constraint") + 1] == str(ROOT / "requirements.lock") and "torch>=2.2" in asked


@pytest.mark.parametrize(("job", "base"), [("unet3d", "torch-base"), ("bert", "tensorflow-base")])
def test_the_command_of_the_base_image_has_what_the_job_s_image_would_fetch(job, base):
    """Else the build, without a network, would fetch it all the same."""
    lines = (ROOT / "workloads" / job / "Dockerfile").read_text().splitlines()
    framework = next(line.partition("=")[2] for line in lines if line.startswith(("ARG TORCH", "ARG TENSORFLOW")))
    others = next(line for line in lines if line.startswith("RUN pip")).split('"')[3::2]
    command = " ".join([f"sudo workloads/base_image.sh {base}", *(f"'{name}'" for name in (framework, *others))])
    pages = {"README.md", *(["bert/README.md"] if job == "bert" else [])}
    assert [page for page in pages if command not in (ROOT / "workloads" / page).read_text()] == []
