"""The user who called sudo, as whom the traced command runs."""

import ctypes
import os
import pwd
from dataclasses import dataclass

from iotwin.common.errors import UsageError

_SET_NO_NEW_PRIVILEGES = 38  # prctl(2), PR_SET_NO_NEW_PRIVS


@dataclass(frozen=True)
class User:
    """The user who called sudo, and who therefore runs the command, owns the trace and finishes it."""

    user_id: int
    group_id: int
    name: str
    home: str

    def become(self) -> None:
        """Become this user for good: give up groups, all ids and so all capabilities. setuid programs cannot restore them."""
        os.initgroups(self.name, self.group_id)
        os.setresgid(self.group_id, self.group_id, self.group_id)
        os.setresuid(self.user_id, self.user_id, self.user_id)
        ctypes.CDLL(None).prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def invoking_user() -> User | None:
    """Return the user who called sudo. None if nobody did, so that the command runs as the caller."""
    if os.geteuid() != 0 or not os.environ.get("SUDO_UID", "").isdecimal():
        return None
    user_id = int(os.environ["SUDO_UID"])
    try:
        entry = pwd.getpwuid(user_id)
    except KeyError:
        raise UsageError(f"SUDO_UID is {user_id}, which is no user of this machine") from None
    return User(user_id, entry.pw_gid, entry.pw_name, entry.pw_dir)
