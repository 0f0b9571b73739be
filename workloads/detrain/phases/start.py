"""The first code of a traced job whose phases are labelled: it makes the interpreter look as if it had started the script itself.

Like light_session.py, it imports only modules that are built into the interpreter.
"""

from __future__ import annotations

import marshal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def start(settings: dict[str, Any]) -> None:
    """Prepare the interpreter as for the script itself, and make the session that the script's loops call. Keys of `settings`:

    * `session`: code of light_session.py; `session_settings`: arguments of its `begin`
    * `argv`: the script's `sys.argv[0]`; `command`: the words of the whole command
    * `folder`: first folder in which Python searches modules, None if it has none
    * `file`: path of the script, None for a module that runpy will run
    * `modules`: see `_replace_code`
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

    `modules`: by file name, pairs of original and instrumented code. Modules are recognised by their original code, since a
    module may be imported by several paths.
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
