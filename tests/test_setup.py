"""setup.sh asks for what is used, says what it could not get, and has nothing to do the second time; apt and pip are not real."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import PATIENCE_S, ROOT

_TOOLS = ("bash", "cat", "chmod", "dirname", "echo", "env", "grep", "head", "id", "mkdir", "rm", "sha256sum", "tee")
_THERE = ("clang", "strace", "dockerd", "docker", "debootstrap", "busybox", "bpftrace", "bpftool", "chromedriver", "chromium",
          "munged", "srun", "slurmctld", "slurmd", "sshd")  # fmt: skip
_APT = """
[ "$1" = update ] && exit 0
shift; packages=
for word; do case $word in -*) ;; *) packages="$packages $word" ;; esac; done
echo $packages >>"$LOG"
case " $packages " in *" $REFUSED "*) exit 1 ;; esac
for package in $packages; do [ $package = fio ] && { echo '#!/bin/sh' >"$BIN/fio"; chmod +x "$BIN/fio"; }; done
exit 0
"""
_PYTHON = """
[ "$1 $2" = "-m venv" ] || exit 0
mkdir -p $3/bin
printf '#!/bin/sh\\necho "$@" >>"$LOG.pip"\\n' >$3/bin/pip
printf '#!/bin/sh\\n' | tee $3/bin/python >$3/bin/iotwin
chmod +x $3/bin/*
"""


class Checkout:
    """A checkout with stand-ins for apt, Python and all programs but fio and a C compiler that finds its library."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin, self.log = folder / "checkout", folder / "bin", folder / "log"
        (self.folder / "workloads").mkdir(parents=True)
        for name in ("setup.sh", "requirements.lock", "pyproject.toml"):
            shutil.copy(ROOT / name, self.folder)
        shutil.copytree(ROOT / "tracing_tools" / "probes", self.folder / "tracing_tools" / "probes")
        self.bin.mkdir()
        for name in _TOOLS:
            if found := shutil.which(name):
                (self.bin / name).symlink_to(found)
        programs = dict.fromkeys(_THERE, "exit 0") | {"mpirun": "echo 'mpirun (Open MPI) 4.1.4'", "cc": "exit 1"}
        programs |= {"apt-get": _APT, "apt-cache": "[ $2 = docker-cli ] || echo $2", "python3": _PYTHON, "sudo": "exit 1"}
        for name, script in programs.items():
            self.program(name, script)
        (self.folder / "workloads" / "shared_code.sh").write_text("#!/bin/sh\n")
        (self.folder / "workloads" / "shared_code.sh").chmod(0o755)

    def program(self, name: str, script: str) -> None:
        (self.bin / name).unlink(missing_ok=True)
        (self.bin / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.bin / name).chmod(0o755)

    def set_up(self, mode: str, refused: str = "none") -> str:
        """Call setup.sh and return what it says."""
        environment = {"PATH": str(self.bin), "LOG": str(self.log), "BIN": str(self.bin), "REFUSED": refused}
        done = subprocess.run(
            ["bash", self.folder / "setup.sh", mode],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    def asked(self) -> list[list[str]]:
        """The packages of each call of apt-get install since the last question."""
        lines = [line.split() for line in self.log.read_text().splitlines()] if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="apt is called by root, or through sudo")


@needs_root
def test_only_what_is_missing_is_asked_for_at_once(checkout):
    """A compiler without its library is missing, though there is a cc; Python's bcc is, whatever of libbcc is there."""
    checkout.set_up("test")
    (asked,) = checkout.asked()
    has_bcc = subprocess.run(["/usr/bin/python3", "-c", "import bcc"], capture_output=True, check=False).returncode == 0
    assert {"fio", "gcc", "libc6-dev"} <= set(asked)
    assert ("python3-bpfcc" in asked) == (not has_bcc)
    assert not {"clang", "strace", "docker-cli", "docker.io", "openmpi-bin", "chromium"} & set(asked)


@needs_root
def test_what_one_package_refuses_the_others_still_come(checkout):
    said = checkout.set_up("test", refused="gcc")
    together, *alone = checkout.asked()
    assert alone == [[package] for package in together]
    assert "could not get gcc: tests that compile a C program are skipped" in said
    assert "could not get fio" not in said


@needs_root
def test_a_package_that_brings_nothing_is_told(checkout):
    """apt-get succeeds, and still no program compiles."""
    assert "could not get libc6-dev" in checkout.set_up("test")


@needs_root
def test_the_second_time_there_is_nothing_to_do(checkout):
    checkout.program("cc", "exit 0")
    checkout.program("fio", "exit 0")
    if "could not get" in checkout.set_up("run"):
        pytest.skip("libbpf1 is not installed")
    checkout.asked()
    (checkout.folder / ".venv" / "bin" / "pip").write_text("#!/bin/sh\nexit 1\n")
    assert checkout.set_up("run") == ""


@needs_root
def test_what_was_missing_is_tried_again(checkout):
    assert "could not get gcc" in checkout.set_up("test")
    checkout.asked()
    checkout.set_up("test")
    assert "gcc" in checkout.asked()[0]


def test_another_mpi_is_not_taken_for_open_mpi(checkout):
    checkout.program("mpirun", "echo HYDRA build details")
    assert "could not get openmpi-bin" in checkout.set_up("test")


def test_run_installs_what_the_readme_names(checkout):
    checkout.set_up("run")
    installed = Path(f"{checkout.log}.pip").read_text()
    assert "--editable .[hdf5,containers,sql]" in installed and "torch==" in installed and "tensorflow" not in installed
