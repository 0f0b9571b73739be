"""The first code of a traced job whose phases are labelled: it restores what Python shows a script of how it was started.

Like light_session.py, it imports only modules that are built into the interpreter.
"""

from __future__ import annotations

import marshal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def start(settings: dict[str, Any]) -> None:
    """Prepare the interpreter as it would be for the script itself, and the session that the script's loops call.

    `session`: code of light_session.py, and `session_settings` the arguments of its `begin`. `argv` is the script's first
    argument, `command` the words of the whole command. `folder` is where Python searches modules first, None if nowhere. `file`:
    path of the script; None if it is a module that runpy will run. `modules`: the code of modules before and after they were
    instrumented, by file name.
    """
    names: dict[str, Any] = {"__name__": "iotwin_phases"}
    exec(marshal.loads(settings["session"]), names)  # noqa: S102, S302 - part of iotwin
    names["begin"](*settings["session_settings"])
    sys.argv[0] = settings["argv"]
    sys.orig_argv[:] = settings["command"]
    if settings["folder"] is not None:
        sys.path[0] = settings["folder"]
    loader: Any = sys.modules["_frozen_importlib_external"].SourceFileLoader
    if settings["file"] is not None:
        main = vars(sys.modules["__main__"])
        main.update(__file__=settings["file"], __loader__=loader("__main__", settings["file"]))
    if settings["modules"]:
        _replace_code(loader, settings["modules"])


def _replace_code(loader: Any, modules: dict[str, list[tuple[bytes, bytes]]]) -> None:
    """Let `loader`, Python's class that loads source files, return instrumented code for the `modules`.

    The loader reads files as ever. A module is recognised by its code, so that it may be imported by any path.
    """
    load = loader.get_code
    internals: Any = sys.modules["_imp"]

    def get_code(self: Any, name: str) -> Any:
        code = load(self, name)
        for before, after in modules.get(self.path.rpartition("/")[2], ()):
            if code == marshal.loads(before):  # noqa: S302 - made by iotwin
                replaced = marshal.loads(after)  # noqa: S302
                internals._fix_co_filename(replaced, self.path)
                return replaced
        return code

    loader.get_code = get_code
