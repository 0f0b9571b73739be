"""Adds the compiled eBPF programs to the wheel if clang is installed. All else about the package is in pyproject.toml."""

import runpy
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

_PROBES = Path("iotwin/tracing_tools/probes")


class BuildWithProbes(build_py):
    """Compiles the eBPF programs from the sources that the build has copied."""

    def run(self) -> None:
        """Copy the package, then compile; without clang, the machine that traces must compile them."""
        super().run()
        if self.editable_mode:
            return
        folder = Path(self.build_lib).resolve() / _PROBES
        for outdated in folder.glob("*.bpf.o"):  # left by an earlier build in the same tree
            outdated.unlink()
        if shutil.which("clang") is None:
            self.warn("clang is not installed: the package gets no compiled eBPF programs")
            return
        compilation = runpy.run_path(str(_PROBES / "compilation.py"))
        for program in compilation["PROGRAMS"]:
            output = folder / compilation["object_name"](program, folder)
            subprocess.run(compilation["clang_command"](program, folder, output), check=True)


setup(cmdclass={"build_py": BuildWithProbes})
