"""clang's options for the eBPF programs. The build of the wheel runs only this file, so it imports only the standard library."""

import hashlib
from pathlib import Path

PROGRAMS = ("syscalls", "cuda")  # their sources are NAME.bpf.c
_FLAGS = ("-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wno-unused-function", "-Wno-unused-const-variable")


def object_name(program: str, folder: Path) -> str:
    """Return the file name of the compiled `program`, with a checksum of clang's options, the source and all headers in `folder`.

    Modification times cannot replace the checksum, since installed files have the time of their installation.
    """
    digest = hashlib.sha256(" ".join(_FLAGS).encode())
    for source in [folder / f"{program}.bpf.c", *sorted(folder.glob("*.h"))]:
        digest.update(source.read_bytes())
    return f"{program}.{digest.hexdigest()[:16]}.bpf.o"


def clang_command(program: str, folder: Path, output: Path) -> list[str]:
    """Return the command that compiles `program`, whose source is in `folder`, to the file `output`.

    The output does not depend on the path of `folder`, as the debug information does not contain it.
    """
    paths = ["-ffile-compilation-dir=.", f"-ffile-prefix-map={folder}=."]
    return ["clang", *_FLAGS, *paths, "-c", str(folder / f"{program}.bpf.c"), "-o", str(output)]
