"""The target of `iotwin trace --phases auto`: a Python script to which lines are added that log its phases."""

import fcntl
import os
import signal

import msgspec

from iotwin.common.errors import IotwinError
from iotwin.common.files import write_fully
from iotwin.common.untrusted_files import decode_foreign
from iotwin.tracing_tools.recorder.unprivileged_process import answer_of, leave_root
from iotwin.tracing_tools.targets.command import CommandTarget
from iotwin.tracing_tools.targets.target import TraceTarget
from iotwin.tracing_tools.targets.user import User, invoking_user

_LEAST_DESCRIPTOR = 200  # so high that the job's own descriptors have the same numbers as without labels
_UNLABELLED = "--phases auto labels nothing"


class _Answer(msgspec.Struct):
    """The result of the process that labels the script.

    `words`: the command to run, empty if the script cannot be labelled. `note`: a remark for the user, or the reason.
    """

    words: list[str]
    note: str


class LabelledTarget(CommandTarget):
    """A command that runs a Python script whose loops log phases, if the loops can be identified with certainty.

    Otherwise the script runs unchanged, and a note gives the reason. The changed program is a file in memory, whose descriptor
    the job inherits.
    """

    def __init__(self, command: list[str]) -> None:
        super().__init__(command)
        self._program = -1
        self._labelled = command
        try:
            self._program = _memory()
            answer = _ask(command, self._program, invoking_user())
        except OSError as error:
            answer = _Answer([], f"there is no memory for the program ({error.strerror})")
        if answer.words:
            self._labelled = answer.words
            self.notes.append(answer.note)
        else:
            self.notes.append(f"{_UNLABELLED}: {answer.note}")

    def executed(self) -> list[str]:
        """Return the command that runs the labelled script."""
        return self._labelled

    def close(self) -> None:
        """Close the target and the descriptor of the changed program."""
        super().close()
        if self._program >= 0:
            os.close(self._program)
            self._program = -1


def not_labelled(target: TraceTarget) -> TraceTarget:
    """Add a note to `target` that its loops log no phases, and return it."""
    target.notes.append(f"{_UNLABELLED}: it needs a command that iotwin starts itself, as python train.py")
    return target


def _memory() -> int:
    """Return a descriptor of an empty file in memory, which the job inherits."""
    made = os.memfd_create("iotwin-phases")
    try:
        return fcntl.fcntl(made, fcntl.F_DUPFD, _LEAST_DESCRIPTOR)
    finally:
        os.close(made)


def _ask(command: list[str], program: int, user: User | None) -> _Answer:
    """Fork a process of `user` that reads the script and writes the labelled program to the descriptor `program`.

    The process does not run as root, since anybody may have written the script.
    """
    import iotwin.workloads.detrain.phases.program  # noqa: F401 - imported before the process gives up root

    content = answer_of(lambda answers: msgspec.json.encode(_answer(command, program, answers, user)))
    if not content:
        return _Answer([], "the process that reads the script was ended")
    return decode_foreign(content, _Answer, "the answer of the process that reads the script")


def _answer(command: list[str], program: int, answers: int, user: User | None) -> _Answer:
    """Run in the forked process: write the program to the descriptor `program`, and return the answer.

    `answers`: the descriptor by which the answer is sent.
    """
    from iotwin.workloads.detrain.phases.program import labelled_command

    leave_root(user, {program, answers}, signal.SIG_DFL)
    try:
        made = labelled_command(command, program)
        write_fully(program, made.program)
        return _Answer(made.words, made.note)
    except IotwinError as error:
        return _Answer([], str(error))
    except Exception as error:  # the script is traced even if it cannot be analysed
        return _Answer([], f"its source could not be analysed ({type(error).__name__}: {error})")
