"""Carry this machine's settings of pip into another root: python3 pip_settings.py ROOT; prints the folders that pip reads there.

Writes ROOT/etc/pip.conf from what ``pip config list`` tells, which includes PIP_* of the environment. Files that settings name
(certificates, constraints) are copied below ROOT/etc/pip, where no package replaces them; folders are to be
mounted in place.
"""

import ast
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit


def settings() -> dict[str, str]:
    """Return option to value, the environment's before the files'."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True).stdout
    found: dict[str, str] = {}
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        found[name.rpartition(".")[2]] = ast.literal_eval(value)
    return found


def carried(word: str, root: Path, folders: set[Path]) -> str:
    """Return `word` of a setting as it is to be in `root`, and note the folder that it needs."""
    if word.startswith("file:"):
        folders.add(Path(unquote(urlsplit(word).path)).parent)  # the pages of an index name files beside it
    elif Path(word).is_absolute() and Path(word).is_dir():
        folders.add(Path(word))
    elif Path(word).is_absolute() and Path(word).is_file():
        copy = Path("/etc/pip") / Path(word).name
        (root / "etc/pip").mkdir(exist_ok=True)
        shutil.copy(word, f"{root}{copy}")
        return str(copy)
    return word


def main(root: Path) -> None:
    """Write the settings and print the folders."""
    folders: set[Path] = set()
    lines = ["[global]"]
    for name, value in settings().items():
        lines.append(f"{name} = {' '.join(carried(word, root, folders) for word in value.split())}")
    (root / "etc/pip.conf").write_text("\n".join(lines) + "\n")
    for folder in sorted(folders):
        print(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
